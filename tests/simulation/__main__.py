"""python -m tests.simulation --seeds 1-10000 [--jobs 2] [--replay SEED] [--shrink SEED]: see docs/simulation.md."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # a replay needs the same order of sets
    os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
              os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip

from tests.simulation import command

sys.exit(command.main(sys.argv[1:]))
