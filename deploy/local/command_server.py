"""python -m deploy.local.command_server: run manage.py commands one after the other, until stdin is closed.

Each line on stdin is a command in JSON: its words, and the variables to add to the environment. Each line on stdout is
its result: exit code, and what it printed.
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
    """Answer the commands on stdin. Secrets come this way, too: other users can read a command line."""
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
    """Run one command as `manage.py` does, and return its exit code."""
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
