"""A worker's own port, and an API whose global database is away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cloud import metrics
from deploy.local.ports import any_free
from tests.servers.certificates import Certificates

ROOT = Path(__file__).resolve().parent.parent.parent
SCRAPE = """
import django; django.setup()
from django.test import Client
answer = Client(SERVER_NAME="localhost").get("/metrics")
print(answer.status_code); print(answer.content.decode())
"""


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        " ".join([one.name, *(f"{name}={value}" for name, value in sorted(one.labels.items()))]): one.value
        for family in families for one in family.samples
    }  # fmt: skip


def test_a_worker_shows_what_it_counted(caplog):
    port = any_free()
    assert metrics.serve(port, "127.0.0.1")
    before = scraped(port)
    metrics.STEPS.labels(action="reboot", step="reboot", outcome="done").inc()
    metrics.STEP_SECONDS.labels(action="reboot", step="reboot").observe(3)
    metrics.RESENT.inc(4)
    metrics.RECOVERED.labels(action="stop", step="stop", rule="rerun").inc()
    metrics.DRAIN_SECONDS.labels(role="host").observe(7)
    after = scraped(port)
    grown = {name for name, value in after.items() if name.startswith("stillwater") and value != before.get(name, 0)}
    assert "stillwater_steps_total action=reboot outcome=done step=reboot" in grown
    assert "stillwater_steps_recovered_total action=stop rule=rerun step=stop" in grown
    assert "stillwater_drain_seconds_bucket le=10.0 role=host" in grown
    assert "stillwater_drain_seconds_bucket le=5.0 role=host" not in grown
    assert after["stillwater_steps_resent_total"] - before["stillwater_steps_resent_total"] == 4
    assert any(name.startswith("process_") for name in after)
    assert "metrics.serve_failed" not in caplog.text


def test_a_worker_shows_until_when_its_certificate_is_valid(tmp_path, monkeypatch):
    port, certificates = any_free(), Certificates(tmp_path / "tls")
    assert metrics.serve(port, "127.0.0.1")
    name = "stillwater_tls_certificate_ends_seconds"
    assert scraped(port)[name] == 0
    for variable, path in certificates.settings().items():
        monkeypatch.setenv(variable, path)
    certificates.renew("client", days=3)
    assert 2.9 * 86400 < scraped(port)[name] - time.time() < 3 * 86400
    certificates.renew("client", days=300)  # without a restart
    assert scraped(port)[name] - time.time() > 299 * 86400


def test_a_port_that_is_taken_is_a_warning_and_no_failure(caplog):
    port = any_free()
    assert metrics.serve(port, "127.0.0.1")
    assert not metrics.serve(port, "127.0.0.1")
    assert "metrics.serve_failed" in caplog.text
    assert not metrics.serve(any_free(), "not an address"), "nor is a wrong address"
    assert not metrics.serve(0, "127.0.0.1"), "0 is none"


def test_names_are_declared_once_and_as_prometheus_wants_them():
    names = [one.name for one in metrics.DECLARED]
    assert len(set(names)) == len(names)
    assert all(one.description.endswith(".") for one in metrics.DECLARED)
    assert all(one.name.endswith("_total") == (one.kind == "counter") for one in metrics.DECLARED)


def test_an_api_without_its_global_database_says_so_and_is_no_500(tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STILLWATER_")}
    said = subprocess.run(
        [sys.executable, "-c", SCRAPE], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=clean | {
            "DJANGO_SETTINGS_MODULE": "cloud.settings", "STILLWATER_STATE": str(tmp_path), "STILLWATER_ROLE": "api",
            "STILLWATER_DATABASE_URL": f"postgresql://nobody:hunter2@127.0.0.1:{any_free()}/nothing",
        },
    )  # fmt: skip
    status, *lines = said.stdout.splitlines()
    assert status == "200", said.stdout + said.stderr
    assert [line for line in lines if line and not line.startswith("#")] == [
        'stillwater_cell_up{cell="global",part="database"} 0.0'
    ]
    assert "hunter2" not in said.stdout + said.stderr
