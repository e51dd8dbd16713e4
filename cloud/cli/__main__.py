"""`python -m cloud.cli`, which is what the installed `stillwater` runs."""

from __future__ import annotations

import sys

from cloud.cli.main import main

sys.exit(main())
