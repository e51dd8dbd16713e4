#!/usr/bin/env python
"""Django's command line for Stillwater."""

import os
import sys

from django.core.management import execute_from_command_line

from cloud.startup import quiet_on_a_closed_pipe

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cloud.settings")
    with quiet_on_a_closed_pipe():
        execute_from_command_line(sys.argv)
