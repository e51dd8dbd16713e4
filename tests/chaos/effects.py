"""What each action makes a hypervisor do, and how a guest is in each state."""

from __future__ import annotations

from compute.virt.base import PowerState

OFF = {"powered off by guest", "powered off by force"}
BUILT = "built, off"  # what nobody has turned on yet may be built again
# what a driver does for an action, exactly once; and what it may do besides
DOES = {
    "create": {"spawned"}, "delete": {"destroyed"}, "start": {"powered on"}, "stop": OFF,
    "reboot": {"rebooted"}, "pause": {"paused"}, "unpause": {"unpaused"}, "suspend": {"suspended"},
    "resume": {"resumed"}, "createImage": set(), "live-migration": {"migrated in"},
    "migrate": {"migrated in"}, "resize": {"migrated in"}, "confirmResize": set(), "revertResize": {"taken back"},
    "createBackup": set(), "rebuild": {"spawned", BUILT}, "rescue": {"rescued"}, "unrescue": {"unrescued"},
    "shelve": {"destroyed"}, "unshelve": {"spawned", "powered on"}, "delete_shelved_image": set(),
}  # fmt: skip
MOVES = OFF | {"powered on", "migrated out", "taken back", "destroyed"}
MAY = {
    "create": {"destroyed"}, "delete": OFF, "reboot": OFF, "createImage": {"snapshot taken"},
    "live-migration": {"migrated out", "taken back"}, "migrate": MOVES, "resize": MOVES,
    "revertResize": MOVES - {"migrated out", "taken back"}, "createBackup": {"snapshot taken"},
    "rebuild": OFF | {"destroyed"}, "rescue": OFF | {"powered on", "unrescued"}, "unrescue": OFF | {"powered on"},
    "shelve": OFF | {"powered on", "snapshot taken"}, "unshelve": {"destroyed"},
}  # fmt: skip
NOTHING_TO_DO = "was off already"
# an image; what is kept of a server, see `ledger.leaks`
EFFECT_ELSEWHERE = {"createImage", "createBackup", "confirmResize", "delete_shelved_image"}
POWER = {"active": PowerState.RUNNING, "paused": PowerState.PAUSED, "suspended": PowerState.SUSPENDED,
         "stopped": PowerState.SHUTDOWN, "rescued": PowerState.RUNNING, "shelved": PowerState.SHUTDOWN,
         "shelved_offloaded": None}  # fmt: skip
