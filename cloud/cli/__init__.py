"""The `stillwater` command: servers from a shell, over the Compute API. Imports nothing of the rest of the project."""

from cloud import __version__ as VERSION

__all__ = ["VERSION"]
