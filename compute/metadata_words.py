"""The metadata of a server: some of its keys mean something, and then their values are checked."""

from __future__ import annotations

from compute import power_truth, schema, shutdown_words

METADATA = {**schema.METADATA, "properties": {**shutdown_words.OWN, **power_truth.METADATA}}
