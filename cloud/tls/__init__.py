"""TLS between machines: certificates, and what a process presents and verifies (docs/tls.md)."""
