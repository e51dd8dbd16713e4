"""A project's quota under parallel boots: exact, not about."""

from __future__ import annotations

from cells.models import BuildRequest, InstanceMapping, RequestSpec
from compute.placement import quota
from tests.conftest import PROJECT, client
from tests.flow.stories import at_once, message


def test_fifty_parallel_boots_against_a_quota_of_twenty_are_twenty_servers(cloud):
    quota.set_limits(PROJECT, {"instances": 20, "cores": -1, "ram": -1})

    answers = at_once(50, lambda n: client("member").send("post", "/servers", cloud.body(f"s{n}")))

    accepted = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code == 403]
    assert (len(accepted), len(refused)) == (20, 30)
    text = "Quota exceeded for instances: Requested 1, but already used 20 of 20 instances"
    assert {message(answer) for answer in refused} == {text}
    assert BuildRequest.objects.count() == InstanceMapping.objects.count() == RequestSpec.objects.count() == 20
    assert quota.usage(PROJECT) == quota.Usage(20, 20, 20 * 512)


def test_requests_for_several_servers_are_accepted_whole_or_not_at_all(cloud):
    quota.set_limits(PROJECT, {"instances": -1, "cores": 10, "ram": -1})

    answers = at_once(
        8, lambda n: client("member").send("post", "/servers", cloud.body(min_count=3, max_count=3))
    )

    assert sorted(answer.status_code for answer in answers) == [202] * 3 + [403] * 5
    text = "Quota exceeded for cores: Requested 3, but already used 9 of 10 cores"
    assert {message(answer) for answer in answers if answer.status_code == 403} == {text}
    assert quota.usage(PROJECT).cores == 9


def test_a_deleted_server_makes_room_for_exactly_one(cloud):
    quota.set_limits(PROJECT, {"instances": 1})
    api = client("member")
    server_id = cloud.boot(api)
    assert api.send("post", "/servers", cloud.body()).status_code == 403
    api.delete(f"/servers/{server_id}")
    answers = at_once(6, lambda n: client("member").send("post", "/servers", cloud.body()))
    assert sorted(answer.status_code for answer in answers) == [202] + [403] * 5
