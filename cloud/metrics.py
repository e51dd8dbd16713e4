"""Every metric, declared once: name, meaning, labels.

There are two kinds. A worker counts its own metrics (`STEPS` …) and shows them on its port, STILLWATER_METRICS_PORT.
The API reads metrics about the cells (`OPERATIONS` …) at each `GET /metrics`, by `compute.metrics`. The API counts
nothing itself: it is several processes, and each scrape would meet another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, start_http_server
from prometheus_client.core import GaugeMetricFamily

from cloud import log
from cloud.tls import files

logger = log.get(__name__)
disable_created_metrics()  # the extra _created series are not needed


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """The declaration of a metric."""

    name: str
    kind: str
    where: str  # shown by: "worker" (its own port) or "API"
    description: str
    labels: tuple[str, ...]

    def family(self) -> GaugeMetricFamily:
        """Return an empty gauge, to be filled during a scrape."""
        return GaugeMetricFamily(self.name, self.description, labels=self.labels)


DECLARED: list[DeclaredMetric] = []


def _declared(name: str, kind: str, where: str, description: str, labels: tuple[str, ...]) -> DeclaredMetric:
    DECLARED.append(DeclaredMetric(f"stillwater_{name}", kind, where, description, labels))
    return DECLARED[-1]


def _counter(name: str, description: str, *labels: str) -> Counter:
    one = _declared(name, "counter", "worker", description, labels)
    return Counter(one.name, description, labels)


def _histogram(name: str, description: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    one = _declared(name, "histogram", "worker", description, labels)
    return Histogram(one.name, description, labels, buckets=buckets)


def _worker_gauge(name: str, description: str, *labels: str) -> Gauge:
    one = _declared(name, "gauge", "worker", description, labels)
    return Gauge(one.name, description, labels)


def _gauge(name: str, description: str, *labels: str) -> DeclaredMetric:
    return _declared(name, "gauge", "API", description, labels)


STEPS = _counter("steps_total", "Steps that ended: done, failed, cancelled, retried.", "action", "step", "outcome")
STEP_SECONDS = _histogram(
    "step_seconds", "Duration of steps that succeeded.",
    (0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800), "action", "step",
)  # fmt: skip
RESENT = _counter("steps_resent_total", "Messages that the relay sent again because their step stayed queued.")
DEFERRED_EVENTS = _counter(
    "deferred_events_total", "External events deferred while a cell was down, by outcome: delivered, dropped.",
    "name", "outcome",
)  # fmt: skip
STEPS_LOST = _counter(
    "steps_lost_total", "Step attempts whose result was discarded because their claim had expired (worker paused)."
)
RECOVERY_FAILED = _counter(
    "recovery_failures_total", "Rows whose recovery failed and is retried, by kind of recovery.", "what"
)
RECOVERED = _counter(
    "steps_recovered_total", "Steps left by an earlier incarnation, by recovery rule: rerun, undo, fail.",
    "action", "step", "rule",
)  # fmt: skip
GUEST_SHUTDOWN_SECONDS = _histogram(
    "guest_shutdown_seconds", "Duration of guest shutdowns with a grace period, by end: guest (shut down by itself), "
    "forced (at the deadline, or cut short by a request), crashed, gone, left (the shutdown was cancelled).",
    (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800), "how",
)  # fmt: skip
GUESTS_FORCED_OFF = _counter(
    "guests_forced_off_total", "Guests whose power was cut, by cause: deadline, cut_short (by a request), paused (or "
    "suspended: it cannot react), hard (no grace period).", "cause",
)  # fmt: skip
POWER_SYNCS = _counter("power_syncs_total", "Power syncs of all guests: done, failed.", "outcome")
POWER_MISMATCHES = _counter(
    "power_mismatches_total", "Servers whose power state differed from the record, by source (event, sync) and "
    "outcome: followed, restored, recorded (only the power state), warned, suspended (it flaps).",
    "found_by", "outcome",
)  # fmt: skip
POWER_FLAPS = _counter("power_flaps_total", "Servers that flapped: restoring their power state was suspended.")
GUESTS_MISSING = _worker_gauge("guests_missing", "Idle servers of this host that have no guest on the hypervisor.")
GUESTS_ORPHANED = _worker_gauge("guests_orphaned", "Guests on this hypervisor that belong to no server of this cell.")
TLS_CERTIFICATE_ENDS = _worker_gauge(
    "tls_certificate_ends_seconds", "Unix time at which this machine's certificate (STILLWATER_TLS_CERT) ends; 0: it "
    "has none, or one that cannot be read.",
)  # fmt: skip
DRAIN_SECONDS = _histogram(
    "drain_seconds", "Duration of drains after which the process stayed; a process that exits is no longer scraped.",
    (0.5, 1, 2, 5, 10, 30, 60, 120, 180, 300, 600, 1800), "role",
)  # fmt: skip

_SERVICE = ("cell", "binary", "host")
CELL_UP = _gauge(
    "cell_up", "1: this part of the cell (database, broker) answers. 0: it does not, and has no other series.",
    "cell", "part",
)  # fmt: skip
CELL_ANSWER_SECONDS = _gauge(
    "cell_answer_seconds", "Response time of this part of the cell at this scrape.", "cell", "part"
)
CELL_BREAKERS_OPEN = _gauge(
    "cell_breakers_open", "Processes (API, scheduler) whose circuit breaker for the cell is open; 0: none.", "cell",
)  # fmt: skip
CELL_DOWN_SECONDS = _gauge("cell_down_seconds", "Seconds since the first breaker opened; 0: none is open.", "cell")
SERVERS_UNKNOWN = _gauge(
    "servers_unknown", "Servers shown as UNKNOWN because the cell's database does not answer.", "cell"
)
DEFERRED_REQUESTS = _gauge(
    "deferred_requests", "Requests accepted while the cell was down and not carried out yet: delete, event.",
    "cell", "kind",
)  # fmt: skip
DEFERRED_REQUEST_OLDEST = _gauge("deferred_request_oldest_seconds", "Age of the oldest of them.", "cell", "kind")
OPERATIONS = _gauge("operations", "Operations in progress, by open step.", "cell", "action", "queue", "state")
OLDEST = _gauge("operation_oldest_seconds", "Age of the oldest of them.", "cell", "action", "queue", "state")
QUEUE_DEPTH = _gauge("queue_depth", "Messages not yet consumed.", "cell", "queue", "host")
HEARTBEAT_AGE = _gauge(
    "heartbeat_age_seconds", "Age of a service's last heartbeat; absent after a normal stop.", *_SERVICE
)
SERVICE_STATE = _gauge(
    "service_state", "1 for the present state of a service: up, emptying, draining, drained, ended, down.",
    *_SERVICE, "state",
)  # fmt: skip
SERVICE_OPERATIONS = _gauge(
    "service_operations", "Operations that need this process, at its last heartbeat.", *_SERVICE
)
SERVICE_DRAIN_SECONDS = _gauge(
    "service_drain_seconds", "Duration of the drain, running or finished.", *_SERVICE
)
GUESTS_SHUTTING_DOWN = _gauge("guests_shutting_down", "Guests in their grace period.", "cell", "host")
GUEST_OVERDUE = _gauge(
    "guest_overdue_seconds", "How long the most overdue guest is past its deadline and not known to be off; 0: none.",
    "cell", "host",
)  # fmt: skip
DRAIN_MIGRATIONS = _gauge(
    "drain_migrations",
    "Servers that a drain moves away or returns: waiting, moving, away, blocked, return_waiting, returning.",
    "cell", "host", "state",
)  # fmt: skip
SERVERS = _gauge("servers", "Servers that are not deleted, by vm_state.", "cell", "vm_state")


def serve(port: int, bind: str) -> bool:
    """Serve this worker's metrics on its port (0: none); return whether it does. A port in use is only a warning."""
    if not port:
        return False
    TLS_CERTIFICATE_ENDS.set_function(_certificate_ends)
    try:
        start_http_server(port, addr=bind, registry=REGISTRY)
    except OSError as error:
        logger.warning("metrics.serve_failed", port=port, bind=bind, error=repr(error),
                       advice="Give each process of a machine a STILLWATER_METRICS_PORT of its own.")  # fmt: skip
        return False
    logger.info("metrics.listening", port=port, bind=bind)
    return True


def _certificate_ends() -> float:
    configured = files.configured()
    if configured is None or configured.certificate is None:
        return 0.0
    from cloud.tls import faults  # noqa: PLC0415  loads X.509, which only processes with TLS need

    return faults.ends(configured.certificate)
