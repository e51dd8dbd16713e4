"""Steps off the main road, their process killed before, inside and after: every one leads out.

The main road of every action is in test_killed.py. A step that is in neither is a failed test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cells.context import target_cell
from cells.models import InstanceMapping
from compute.models import Service, Step
from compute.operations import journal, recovery, registry, runner
from compute.virt.base import VirtError
from tests.byhand import Cloud
from tests.flow import stories
from tests.flow.stories import EVERY, begin, settled, states

MOMENTS = ("before the claim", "after the claim", "inside, before the record", "after the record")
CONDUCTOR = "nova-conductor@dead"
ACTION_OF = {"delete": "Delete", "create": "Create", "create image": "CreateImage"}


def reschedule(api: Any, cloud: Cloud) -> str:
    """The first host of two fails."""
    cloud.add_host("host1b", "cell1", memory_mb=200_000)
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    cloud.hosts["host1"].driver.faults.fail("spawn")
    server_id = begin("create", api, cloud)
    cloud.hosts["host1"].run(step(cloud).pk)
    return server_id


def discard_image(api: Any, cloud: Cloud) -> str:
    """A snapshot that fails."""
    server_id = begin("create image", api, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("snapshot", error=VirtError)
    host.run(step(cloud).pk)
    return server_id


def count_again(api: Any, cloud: Cloud) -> str:
    """A delete that fails."""
    server_id = begin("delete", api, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("destroy", error=VirtError)
    host.run(step(cloud).pk)
    return server_id


def rescheduled(cloud: Cloud, server_id: str) -> None:
    """It runs on the other host."""
    assert states(cloud, server_id) == ("active", None)
    assert cloud.row(server_id).host == "host1b"
    settled(cloud)


def discarded(cloud: Cloud, server_id: str) -> None:
    """The server is free, the action failed."""
    assert states(cloud, server_id) == ("active", None)
    assert cloud.history(server_id)[-1].message == "Error"
    settled(cloud)


def counted(cloud: Cloud, server_id: str) -> None:
    """The server lives, in ERROR, and counts."""
    assert states(cloud, server_id) == ("error", None)
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete is False
    settled(cloud)


OFF_ROAD: dict[tuple[str, str], tuple[Callable[[Any, Cloud], str], Callable[[Cloud, str], None]]] = {
    ("Create", "reschedule"): (reschedule, rescheduled),
    ("CreateImage", "discard_image"): (discard_image, discarded),
    ("Delete", "restore_quota"): (count_again, counted),
}
# have matrices of their own: test_migrate_live.py, test_resize.py and their neighbours
ELSEWHERE = {"MigrateLive", "Resize", "Migrate", "ConfirmResize", "RevertResize", "Rebuild", "Evacuate"}
ELSEWHERE |= {"RemoveStaleGuest"}
OF_RESIZED = {("Delete", "cleanup_source")}  # test_resize.py, too


ELSEWHERE |= {"CreateBackup", "SoftDelete", "Restore"}  # test_create_backup.py, test_soft_delete.py, test_restore.py
ELSEWHERE |= {"ShutdownWithHost", "StartWithHost"}  # test_host_shutdown_killed.py, test_start_with_host.py
ELSEWHERE |= {"RestorePowerState"}  # test_restore_power_state.py
ELSEWHERE |= {"ExternalEvent", "ExtendVolume", "PowerUpdate"}  # test_external_event.py, test_power_update_killed.py
# test_rescue.py and its neighbours
ELSEWHERE |= {"Rescue", "Unrescue", "Shelve", "ShelveOffload", "Unshelve", "DeleteShelvedImage"}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("key", OFF_ROAD, ids=[".".join(key) for key in OFF_ROAD])
def test_a_conductor_killed(key, moment, api, cloud):
    lead_there, ends_well = OFF_ROAD[key]
    server_id = lead_there(api, cloud)
    waiting = step(cloud)
    assert (waiting.action.key, waiting.name) == key

    die(cloud, server_id, waiting, moment)

    with target_cell(cloud.cell_of(server_id)):
        left = recovery.recover(CONDUCTOR, "a new life", list)
    assert left == (1 if moment in MOMENTS[1:3] else 0)
    cloud.work()
    ends_well(cloud, server_id)


def test_every_step_of_every_action_is_killed_somewhere():
    main_road = {ACTION_OF.get(name, stories.STORIES[name].name.title() if name in stories.STORIES else "")
                 for name in EVERY}  # fmt: skip
    for key, action in registry.every().items():
        if key in ELSEWHERE:
            continue
        for number, spec in enumerate(action.all_steps()):
            assert (number == 0 and key in main_road) or (key, spec.name) in {*OFF_ROAD, *OF_RESIZED}, (
                f"{key}.{spec.name}"
            )


def die(cloud: Cloud, server_id: str, waiting: Step, moment: str) -> None:
    """A conductor comes as far as `moment`, and no further."""
    if moment == MOMENTS[0]:
        return
    with target_cell(cloud.cell_of(server_id)):
        claimed = journal.claim(waiting.pk, CONDUCTOR, "gone")
        assert claimed is not None
        action = registry.named(claimed.action.key)
        if moment == MOMENTS[2]:
            run = registry.named(claimed.action.key).context(claimed)
            getattr(action, claimed.name)(run)
        elif moment == MOMENTS[3]:
            runner.run_step(action, claimed, None)


def step(cloud: Cloud) -> Step:
    """The one that waits."""
    (found,) = [step for _, step in cloud.queued()]
    return found
