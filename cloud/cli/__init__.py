"""The `stillwater` command: servers from a shell, over the Compute API. Knows nothing of the rest of the project."""

VERSION = "0.1"
