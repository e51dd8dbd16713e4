"""python -m tests.simulation --seeds 1-10000 [--jobs 2] [--replay SEED] [--shrink SEED]: see docs/simulation.md."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a story
    os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
              os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip

from tests.simulation import command

sys.exit(command.main(sys.argv[1:]))
