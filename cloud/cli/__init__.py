"""The `stillwater` command: servers from a shell, over the Compute API. Imports nothing of the rest of the project."""

VERSION = "0.1"
