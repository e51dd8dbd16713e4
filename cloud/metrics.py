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

logger = log.get(__name__)
disable_created_metrics()  # a second line for each number, which is not needed


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """The declaration of a metric."""

    name: str
    kind: str
    where: str  # shown by: "worker" (its own port) or "API"
    says: str
    labels: tuple[str, ...]

    def family(self) -> GaugeMetricFamily:
        """Return an empty gauge, to be filled during a scrape."""
        return GaugeMetricFamily(self.name, self.says, labels=self.labels)


DECLARED: list[DeclaredMetric] = []


def _declared(name: str, kind: str, where: str, says: str, labels: tuple[str, ...]) -> DeclaredMetric:
    DECLARED.append(DeclaredMetric(f"stillwater_{name}", kind, where, says, labels))
    return DECLARED[-1]


def _counter(name: str, says: str, *labels: str) -> Counter:
    one = _declared(name, "counter", "worker", says, labels)
    return Counter(one.name, says, labels)


def _histogram(name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    one = _declared(name, "histogram", "worker", says, labels)
    return Histogram(one.name, says, labels, buckets=buckets)


def _worker_gauge(name: str, says: str, *labels: str) -> Gauge:
    one = _declared(name, "gauge", "worker", says, labels)
    return Gauge(one.name, says, labels)


def _gauge(name: str, says: str, *labels: str) -> DeclaredMetric:
    return _declared(name, "gauge", "API", says, labels)


STEPS = _counter("steps_total", "Steps that ended: done, failed, cancelled, retried.", "action", "step", "outcome")
STEP_SECONDS = _histogram(
    "step_seconds", "How long steps took that were done.",
    (0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800), "action", "step",
)  # fmt: skip
RESENT = _counter("steps_resent_total", "Messages the relay sent again, because their step stayed queued.")
LATE_EVENTS = _counter(
    "late_events_total", "External events kept while a cell was down, by what became of them: delivered, given up.",
    "name", "outcome",
)  # fmt: skip
STEPS_LOST = _counter(
    "steps_lost_total", "Tries of steps that wrote nothing more, because their claim was over (the worker was paused)."
)
RECOVERY_FAILED = _counter(
    "recovery_failures_total", "Rows that could not be led out and are tried again, by what was done.", "what"
)
RECOVERED = _counter(
    "steps_recovered_total", "Steps a past life left behind, by what became of them: rerun, undo, fail.",
    "action", "step", "rule",
)  # fmt: skip
GUEST_SHUTDOWN_SECONDS = _histogram(
    "guest_shutdown_seconds", "How long guests took that were shut down with grace, by how it ended: guest (by "
    "itself), forced (at its deadline, or somebody could not wait), crashed, gone, left (it was let be).",
    (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800), "how",
)  # fmt: skip
GUESTS_FORCED_OFF = _counter(
    "guests_forced_off_total", "Guests whose plug was pulled, by why: deadline, hurry (somebody could not wait), "
    "paused (or suspended: it could not hear), hard (it was given no time).", "why",
)  # fmt: skip
POWER_SYNCS = _counter("power_syncs_total", "Looks at the power states of all guests: done, failed.", "outcome")
POWER_DIFFERENCES = _counter(
    "power_differences_total", "Servers whose power was not what is on record, by who found it (event, sync) and what "
    "became of it: followed, put back, recorded (the power state alone), warned, left alone (it flaps).",
    "found_by", "became",
)  # fmt: skip
POWER_FLAPS = _counter("power_flaps_total", "Servers that were put back too often, and are left alone for a while.")
GUESTS_MISSING = _worker_gauge("guests_missing", "Idle servers of this host whose guest the hypervisor does not know.")
GUESTS_STRANGE = _worker_gauge("guests_strange", "Guests on this hypervisor that are no server of this cell.")
DRAIN_SECONDS = _histogram(
    "drain_seconds", "How long drains took after which the process stayed. One that ended is not scraped any more.",
    (0.5, 1, 2, 5, 10, 30, 60, 120, 180, 300, 600, 1800), "role",
)  # fmt: skip

_SERVICE = ("cell", "binary", "host")
CELL_UP = _gauge(
    "cell_up", "1: this part of the cell (database, broker) answers. 0: it does not, and has no other line.",
    "cell", "part",
)  # fmt: skip
CELL_ANSWER_SECONDS = _gauge(
    "cell_answer_seconds", "How long this part of the cell took to answer, at this scrape.", "cell", "part"
)
CELL_BREAKERS_OPEN = _gauge(
    "cell_breakers_open", "Processes (of the API, schedulers) that hold the cell to be down now, and do not ask it; 0 "
    "is well.", "cell",
)  # fmt: skip
CELL_DOWN_SECONDS = _gauge("cell_down_seconds", "Since the first of them saw it go down; 0 is well.", "cell")
SERVERS_UNKNOWN = _gauge(
    "servers_unknown", "Servers that are shown as UNKNOWN, as the cell's database does not answer; 0 is well.", "cell"
)
LATE_REQUESTS = _gauge(
    "late_requests", "What was accepted while the cell was down and is not carried out yet: delete, event.",
    "cell", "kind",
)  # fmt: skip
LATE_REQUEST_OLDEST = _gauge("late_request_oldest_seconds", "Age of the oldest of them.", "cell", "kind")
OPERATIONS = _gauge("operations", "Operations in progress, by their open step.", "cell", "action", "queue", "state")
OLDEST = _gauge("operation_oldest_seconds", "Age of the oldest of them.", "cell", "action", "queue", "state")
QUEUE_DEPTH = _gauge("queue_depth", "Messages nobody has taken yet.", "cell", "queue", "host")
HEARTBEAT_AGE = _gauge(
    "heartbeat_age_seconds", "Since a service's last heartbeat; not of one that ended in order.", *_SERVICE
)
SERVICE_STATE = _gauge(
    "service_state", "1 for the state a service is in: up, emptying, draining, drained, ended, down.",
    *_SERVICE, "state",
)  # fmt: skip
SERVICE_OPERATIONS = _gauge(
    "service_operations", "Operations that need this process, as of its last heartbeat.", *_SERVICE
)
SERVICE_DRAIN_SECONDS = _gauge(
    "service_drain_seconds", "How long the drain has lasted, or took if the process stayed.", *_SERVICE
)
GUESTS_SHUTTING_DOWN = _gauge("guests_shutting_down", "Guests whose grace period runs.", "cell", "host")
GUEST_OVERDUE = _gauge(
    "guest_overdue_seconds", "How long the worst of them is past its deadline and not known to be off; 0 is well.",
    "cell", "host",
)  # fmt: skip
DRAIN_MIGRATIONS = _gauge(
    "drain_migrations",
    "Servers that leave a host, or come back: waiting, moving, away, blocked, return_waiting, returning.",
    "cell", "host", "state",
)  # fmt: skip
SERVERS = _gauge("servers", "Servers that are not deleted, by vm_state.", "cell", "vm_state")


def serve(port: int, bind: str) -> bool:
    """Show this worker's metrics on its own port (0: none); return whether it does. A port in use is only a warning."""
    if not port:
        return False
    try:
        start_http_server(port, addr=bind, registry=REGISTRY)
    except OSError as error:
        logger.warning("metrics.not_served", port=port, bind=bind, error=repr(error),
                       advice="Give each process of a machine a STILLWATER_METRICS_PORT of its own.")  # fmt: skip
        return False
    logger.info("metrics.served", port=port, bind=bind)
    return True
