"""What users say about the grace period of a guest: in requests, at create, and who counts more."""

from __future__ import annotations

from tests.flow import stories


def test_a_stop_waits_without_a_thread_and_ends_with_the_words_of_its_clock(api, admin, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.orders.shutdown(delay=0.3)
    with host.with_keeper():
        stories.act(api, server_id, {"os-stop": None})
        cloud.work()
        assert [step.name for step in host.waiting()] == ["power_off"]
        cloud.work_until(lambda: not host.waiting())
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert stories.last_action(admin, server_id)["events"][0]["details"].startswith("guest shut down in 0.")
    stories.settled(cloud)
