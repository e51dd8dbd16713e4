"""The TLS context of the API: a renewed certificate serves the next connection, without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud import log

logger = log.get(__name__)
Stamp = tuple[tuple[int, int], ...]  # inode and time of change of each file
_made: tuple[Stamp, ssl.SSLContext] | None = None


def context(config: Any, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Gunicorn's hook, called for each connection: return the context of the files as they are now.

    Files that do not work, or not together, are not used while there are earlier ones: a renewal replaces two files,
    one after the other. Raises OSError when there are none.
    """
    global _made  # one certificate per process; threads that make it twice do no harm
    before = _made
    try:
        stamp = _stamp(config)
        if before is None or before[0] != stamp:
            _made = stamp, make()
    except OSError as error:  # SSLError is one
        if before is None:
            raise
        logger.warning("tls.renewal_failed", certificate=config.certfile, error=str(error))
        return before[1]
    return _made[1] if _made else make()


def _stamp(config: Any) -> Stamp:
    found = [Path(file).stat() for file in (config.certfile, config.keyfile)]
    return tuple((one.st_ino, one.st_mtime_ns) for one in found)
