"""Certificates of tests: a folder of manage.py tls_certificates, and what goes wrong with it."""

from __future__ import annotations

from pathlib import Path

from cloud.tls import issue, store

VALIDITY = store.Validity(machine_days=365, authority_days=3650, renew_days=60)
EXPIRED = -0.02  # days: half an hour ago
LOOPBACK = ("127.0.0.1", "localhost")


class Certificates:
    """One authority. `server` is valid for this machine's loopback addresses, `client` for none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store.update(folder, {"server": LOOPBACK, "client": ()}, VALIDITY)
        folder.chmod(0o755)  # servers run as other users

    def settings(self, name: str = "client") -> dict[str, str]:
        """The settings of a process on a machine."""
        home = self.folder / name
        named = {"CA": home / "ca.crt", "CERT": home / f"{name}.crt", "KEY": home / f"{name}.key"}
        return {f"STILLWATER_TLS_{part}": str(path) for part, path in named.items()}

    def expire(self, name: str, addresses: tuple[str, ...] = ()) -> None:
        """Replace a machine's certificate by one that has expired."""
        self._replace(name, addresses, EXPIRED)

    def renew(self, name: str, addresses: tuple[str, ...] = (), days: float = 365) -> None:
        """Replace it by one that is valid, for other addresses perhaps."""
        self._replace(name, addresses, days)

    def _replace(self, name: str, addresses: tuple[str, ...], days: float) -> None:
        authority = issue.read_pair((self.folder / "ca.crt").read_bytes(), (self.folder / "ca.key").read_bytes())
        pair = issue.machine(authority, name, addresses, days)
        home = self.folder / name
        (home / f"{name}.crt").write_bytes(pair.pem)
        (home / f"{name}.key").write_bytes(pair.key_pem)
