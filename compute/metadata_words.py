"""The metadata of a server: some of its keys mean something, and then their values are checked."""

from __future__ import annotations

from compute.contract import validation
from compute.power import sync_policy
from compute.shutdown import options

METADATA = {**validation.METADATA, "properties": {**options.OWN, **sync_policy.METADATA}}
