"""Which guests are started again: those that went down with their host."""

from __future__ import annotations

from tasks import boot_marker


def test_a_worker_that_was_only_away_starts_no_guest(tmp_path):
    assert not boot_marker.host_booted(tmp_path / "new")
    boot_marker.record_boot(tmp_path)
    assert not boot_marker.host_booted(tmp_path)


def test_guests_stopped_with_their_host_are_started_once(tmp_path):
    boot_marker.record_boot(tmp_path)
    boot_marker.expect_boot(tmp_path)
    assert boot_marker.host_booted(tmp_path)
    boot_marker.record_boot(tmp_path)
    assert not boot_marker.host_booted(tmp_path)


def test_a_machine_that_booted_is_noticed(tmp_path):
    boot_marker.record_boot(tmp_path)
    (tmp_path / "boot-id").write_text("the boot before this one\n")
    assert boot_marker.host_booted(tmp_path)
