"""A request in flight: between its first byte and the end of its answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

FLIGHT = "stillwater.flight"  # its key in the WSGI environment


@dataclass(slots=True)
class InFlight:
    """One request of this process. `late`: it came after SIGTERM and is refused."""

    late: bool = False
    since: float = field(default_factory=time.monotonic)
    read_since: float | None = None  # None: the request waits for a thread
    method: str = ""  # empty until its head was read
    path: str = ""  # without the query, which may hold a secret
    request_id: str = ""
    answered: bool = False
    refused: bool = False

    @property
    def in_progress(self) -> bool:
        """Whether a stop waits for it."""
        return not self.late and not self.answered

    def unread_for(self) -> float:
        """Return the seconds that a thread has waited for the rest of its head."""
        return 0.0 if self.method or self.read_since is None else time.monotonic() - self.read_since

    def facts(self) -> dict[str, Any]:
        """Return the fields for its log events."""
        age = round(time.monotonic() - self.since, 1)
        return {"method": self.method, "path": self.path, "request_id": self.request_id, "age": age}
