"""Settings of the test run: a global database and three cells, on SQLite or PostgreSQL.

`STILLWATER_TEST_DATABASE_URL` (a PostgreSQL server URL) moves all four databases there.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_state = tempfile.mkdtemp(prefix="stillwater-test-")
atexit.register(shutil.rmtree, _state, ignore_errors=True)
(Path(_state) / "static").mkdir()
os.environ["STILLWATER_STATE"] = _state
os.environ.setdefault("STILLWATER_ROLE", "manage")
os.environ.setdefault("STILLWATER_SECRET_KEY", "test-secret")
os.environ.setdefault("STILLWATER_TOKEN_KEYS", "ZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmY=")
os.environ.setdefault("STILLWATER_LOG_LEVEL", "WARNING")
for _name in ("STILLWATER_ENV_FILE", "STILLWATER_DATABASE_URL"):
    os.environ.pop(_name, None)

from cells.database_urls import cell_config, config  # noqa: E402  the environment has to be set first
from cloud.settings import *  # noqa: E402, F403

CELLS = {
    "cell0": "00000000-0000-0000-0000-000000000000",
    "cell1": "11111111-1111-4111-8111-111111111111",
    "cell2": "22222222-2222-4222-8222-222222222222",
}
_server = os.environ.get("STILLWATER_TEST_DATABASE_URL", "")


def _database(name: str, settings_of: Callable[[str], dict] = cell_config) -> dict:
    if _server:
        return settings_of(f"{_server.rstrip('/')}/{name}")
    path = Path(_state) / f"{name}.sqlite3"
    return settings_of(f"sqlite:///{path}") | {"TEST": {"NAME": str(path)}}


DATABASES = {"default": _database("stillwater", config)} | {
    f"cell:{uuid}": _database(f"stillwater_{name}") for name, uuid in CELLS.items()
}
INSTALLED_APPS = [*INSTALLED_APPS, "tests"]  # noqa: F405  for its own `flush`
CELL_TIMEOUT = 30.0  # a busy machine may starve a test for longer than users would wait; tests of silence say less
WHITENOISE_AUTOREFRESH = True  # looks for a file when it is asked for, and not for all of them in every client
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ALLOWED_HOSTS = ["*"]
