"""python -m deploy.systemd [--env-file FILE] [--output /etc/systemd/system]: write the units with stop timeouts."""

import sys

from tasks import stop_timeouts, systemd_units

sys.exit(stop_timeouts.main(systemd_units.FOLDER, systemd_units.PATTERN, systemd_units.fill, sys.argv[1:]))
