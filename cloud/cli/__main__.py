"""`python -m cloud.cli`: the code of the installed `stillwater`."""

from __future__ import annotations

import sys

from cloud.cli.main import main

sys.exit(main())
