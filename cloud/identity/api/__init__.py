"""The Keystone v3 API: one file per resource."""
