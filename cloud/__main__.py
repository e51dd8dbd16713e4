"""python -m cloud: Django's command line, as `manage.py` in a clone and `stillwater-manage` installed from a wheel."""

import os
import sys

from django.core.management import execute_from_command_line

from cloud.startup import PROGRAMS, quiet_on_a_closed_pipe


def main() -> None:
    """Run the command of sys.argv."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cloud.settings")
    with quiet_on_a_closed_pipe():
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    sys.argv[0] = PROGRAMS[-1]
    main()
