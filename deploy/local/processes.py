"""The same names as `cloud.processes`, for the rest of this folder."""

from cloud.processes import alive, gone, read_pid, with_command

__all__ = ["alive", "gone", "read_pid", "with_command"]
