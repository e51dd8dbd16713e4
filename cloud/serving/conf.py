"""Gunicorn's configuration: `gunicorn -c cloud/serving/conf.py cloud.wsgi --bind=…`, in the clone."""

import os
from typing import Any

from cloud import env
from cloud.serving import accept_balancing, cpu_slots, master
from cloud.serving.cpu_slots import Places

worker_class = "cloud.serving.worker.Worker"
# Two processes per core: requests of a process take turns, and while one waits for its databases another computes.
# At most four by default: each thread keeps connections to the databases open.
cores = len(os.sched_getaffinity(0))
workers = env.peek("STILLWATER_API_PROCESSES") or min(4, 2 * cores)
cpu_slots.of_machine = Places(cores, 4 * workers) if workers > cores else None
# A silent cell holds every thread that asks it for CELL_TIMEOUT, once; other requests need threads meanwhile.
threads = max(8, 32 // workers)
# Clients poll every 2 s on one connection. Gunicorn's default closes it after just 2 s of silence, so now and
# then a request met a closing connection: "Connection reset by peer".
keepalive = 75
# Workers enforce STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT themselves; gunicorn's 0 means "at once".
graceful_timeout = 10 * 365 * 86400
control_socket_disable = True
when_ready, on_exit = master.when_ready, master.on_exit


def child_exit(arbiter: Any, worker: Any) -> None:
    """Gunicorn's hook: clear what a worker shared with the others; it may have been killed."""
    accept_balancing.gone(arbiter, worker)
    if cpu_slots.of_machine is not None:
        cpu_slots.of_machine.gone(worker)
