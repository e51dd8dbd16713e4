"""python -m deploy.local.command_server: runs manage.py commands one after the other, until there is no more to ask.

A line of JSON in is one command: its words, what to add to the environment. A line out: exit code, what it printed.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from contextlib import redirect_stdout

from django.core.management import execute_from_command_line


def main() -> None:
    """Secrets come this way too: a command line is everybody's to read."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cloud.settings")
    for line in sys.stdin:
        words, extra = json.loads(line)
        os.environ.update(extra)
        said = io.StringIO()
        with redirect_stdout(said):
            code = run(words)
        for name in extra:
            del os.environ[name]
        print(json.dumps([code, said.getvalue()]), flush=True)


def run(words: list[str]) -> int:
    """As `manage.py` would: its exit code."""
    try:
        execute_from_command_line(["manage.py", *words])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
