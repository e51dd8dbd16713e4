"""Take a shelved server from its host: what is left of it is its image."""

from __future__ import annotations

from compute import shelving
from compute.lifecycle import StepSpec
from compute.state import Move, TaskState, VmState


class ShelveOffload(shelving.Offloads):
    """Shelved -> shelved and offloaded. Also in the conductor's own time, and then with nobody's name."""

    key = name = "shelveOffload"
    policy = "os_compute_api:os-shelve:shelve_offload"
    move = Move(frozenset({VmState.SHELVED}), TaskState.SHELVING_OFFLOADING, VmState.SHELVED_OFFLOADED)
    steps = (StepSpec("offload", "compute_shelve_offload_instance", no_return=True),)
