"""The metadata of a server: some of its keys mean something, and then their values are checked."""

from __future__ import annotations

from compute import schema, shutdown_words
from compute.power import truths

METADATA = {**schema.METADATA, "properties": {**shutdown_words.OWN, **truths.METADATA}}
