"""Unshelve: the zone and the host that may be named, and what is said of those that may not."""

from __future__ import annotations

import pytest

from cells.models import RequestSpec
from tests.flow import stories
from tests.flow.one_host import done
from tests.flow.stories import act, message
from tests.flow.test_shelve import SHELVE, is_kept, is_offloaded
from tests.flow.test_unshelve import UNSHELVE, kept, offloaded, only, runs  # noqa: F401  kept, offloaded are fixtures


@pytest.fixture
def zones(cloud, offloaded) -> str:  # noqa: F811
    """host3 is in a zone of its own."""
    cloud.hosts["host3"].report("west")
    return offloaded


def pins(api, cloud, server_id: str) -> set[str]:
    """Where it is pinned, in every record that says so."""
    shown = api.get(f"/servers/{server_id}").json()["server"]["pinned_availability_zone"]
    spec = RequestSpec.objects.get(pk=server_id).availability_zone
    return {shown or "", spec, cloud.row(server_id).pinned_availability_zone}


def test_a_zone_pins_it_there_and_none_takes_that_back(api, cloud, zones):
    done(api, cloud, zones, {"unshelve": {"availability_zone": "west"}})
    runs(cloud, zones)
    row = cloud.row(zones)
    assert (row.host, row.availability_zone) == ("host3", "west")
    assert pins(api, cloud, zones) == {"west"}

    done(api, cloud, zones, SHELVE)
    done(api, cloud, zones, UNSHELVE)
    assert cloud.row(zones).host == "host3"

    done(api, cloud, zones, SHELVE)
    only(cloud, "host1")
    done(api, cloud, zones, {"unshelve": {"availability_zone": None}})
    runs(cloud, zones)
    assert cloud.row(zones).host == "host1"
    assert pins(api, cloud, zones) == {""}


def test_a_zone_that_has_no_room_leaves_it_pinned_as_it_was(api, cloud, zones):
    act(api, zones, {"unshelve": {"availability_zone": "west"}})
    only(cloud, "host1")
    cloud.work()
    is_offloaded(cloud, zones)
    assert pins(api, cloud, zones) == {""}


def test_an_admin_names_a_host(api, admin, cloud, zones):
    assert act(api, zones, {"unshelve": {"host": "host3"}}).status_code == 403
    done(admin, cloud, zones, {"unshelve": {"host": "host3"}})
    runs(cloud, zones)
    assert cloud.row(zones).host == "host3"
    assert pins(admin, cloud, zones) == {""}


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        ({"availability_zone": "nowhere"}, 400, "The requested availability zone is not available"),
        ({"host": "nobody"}, 400, "Compute host nobody could not be found."),
        ({"host": "host1", "availability_zone": "west"}, 409,
         'Host "host1" is not in the availability zone "west".'),
        ({"availability_zone": 3}, 400, "Invalid input for field/attribute availability_zone"),
        ({"room": "x"}, 400, "Additional properties are not allowed"),
    ],
)  # fmt: skip
def test_a_place_named_wrongly_is_refused(value, status, text, admin, cloud, zones):
    answer = act(admin, zones, {"unshelve": value})
    assert (answer.status_code, text in message(answer)) == (status, True), message(answer)
    assert stories.states(cloud, zones) == ("shelved_offloaded", None)


@pytest.mark.parametrize("value", [{"availability_zone": "nova"}, {"host": "host1"}])
def test_one_that_has_its_host_can_be_sent_nowhere(value, admin, cloud, kept):  # noqa: F811
    answer = act(admin, kept, {"unshelve": value})
    text = (
        f'Specifying an availability zone or a host when unshelving server "{kept}" with status "shelved" is not '
        "supported. The server status must be SHELVED_OFFLOADED."
    )
    assert (answer.status_code, message(answer)) == (409, text)
    is_kept(cloud, kept)


def test_before_2_77_the_value_is_not_looked_at_and_before_2_91_a_host_is_unknown(api, cloud, zones):
    assert act(api, zones, {"unshelve": {"host": "host1"}}, version="2.90").status_code == 400
    assert act(api, zones, {"unshelve": {}}, version="2.77").status_code == 400
    assert act(api, zones, {"unshelve": {"availability_zone": "nowhere"}}, version="2.76").status_code == 202
    cloud.work()
    runs(cloud, zones)
