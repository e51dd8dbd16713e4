"""Settings of the simulation: four databases in memory, and intervals for a run of a few minutes."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_memory = Path("/dev/shm")
_state = tempfile.mkdtemp(prefix="stillwater-simulation-", dir=_memory if _memory.is_dir() else None)
atexit.register(shutil.rmtree, _state, ignore_errors=True)
(Path(_state) / "static").mkdir()
for _name in [name for name in os.environ if name.startswith("STILLWATER_")]:
    del os.environ[_name]
os.environ |= {
    "STILLWATER_STATE": _state,
    "STILLWATER_ROLE": "manage",
    "STILLWATER_SECRET_KEY": "simulation",
    "STILLWATER_TOKEN_KEYS": "ZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmY=",
    "STILLWATER_LOG_LEVEL": "CRITICAL",
    "STILLWATER_SHUTDOWN_TIMEOUT": "20",
    "STILLWATER_SYNC_POWER_STATE_INTERVAL": "60",
    "STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT": "60",
    "STILLWATER_RELAY_INTERVAL": "8",
    "STILLWATER_REPORT_INTERVAL": "20",
    "STILLWATER_PUBLIC_URL": "http://simulation",
}

from cloud.settings import *  # noqa: E402, F403  the environment has to be set first

CELLS = {
    "cell0": "00000000-0000-0000-0000-000000000000",
    "cell1": "11111111-1111-4111-8111-111111111111",
    "cell2": "22222222-2222-4222-8222-222222222222",
}
_IN_MEMORY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "CONN_MAX_AGE": None,
              "OPTIONS": {"transaction_mode": "IMMEDIATE"}}  # fmt: skip
DATABASES = {"default": dict(_IN_MEMORY)} | {f"cell:{uuid}": dict(_IN_MEMORY) for uuid in CELLS.values()}
MIDDLEWARE = ["cloud.middleware.RequestIdMiddleware"]
ALLOWED_HOSTS = ["*"]
KEEP_OUTAGES = False
BROKER_URL = "sim://global"
