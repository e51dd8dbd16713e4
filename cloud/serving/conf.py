"""Gunicorn's configuration: `gunicorn -c cloud/serving/conf.py cloud.wsgi --bind=…`, in the clone."""

import os
from typing import Any

from cloud import env
from cloud.serving import accept_balancing, cpu_slots, master
from cloud.serving.cpu_slots import Places

worker_class = "cloud.serving.worker.Worker"
# Two processes a core: requests of a process take turns, and while one waits for its databases another computes.
# Not more than four unless told: each thread keeps connections to the databases open.
cores = len(os.sched_getaffinity(0))
workers = env.peek("STILLWATER_API_PROCESSES") or min(4, 2 * cores)
cpu_slots.of_machine = Places(cores, 4 * workers) if workers > cores else None
# A silent cell holds every thread that asks it for CELL_TIMEOUT, once; the others need some then, too.
threads = max(8, 32 // workers)
# Clients poll every 2 s on one connection. Gunicorn's default closes it after just 2 s of silence, so now and
# then a request met the closing door: "Connection reset by peer".
keepalive = 75
# Workers keep the time themselves (STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT); gunicorn's 0 means "at once".
graceful_timeout = 10 * 365 * 86400
control_socket_disable = True
when_ready, on_exit = master.when_ready, master.on_exit


def child_exit(arbiter: Any, worker: Any) -> None:
    """Gunicorn's hook: what a worker that was killed, perhaps, shared with the others."""
    accept_balancing.gone(arbiter, worker)
    if cpu_slots.of_machine is not None:
        cpu_slots.of_machine.gone(worker)
