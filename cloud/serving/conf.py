"""Gunicorn's configuration: `gunicorn -c python:cloud.serving.conf cloud.wsgi --bind=…`."""

import gc
import os
from typing import Any

from django.urls import get_resolver

from cloud import env
from cloud.serving import master, tls
from cloud.tls import files

worker_class = "cloud.serving.worker.Worker"
# Two processes per core: while one waits for its databases, another computes. At most four by default: each thread
# keeps connections to the databases open.
workers = env.peek("STILLWATER_API_PROCESSES") or min(4, 2 * len(os.sched_getaffinity(0)))
# A silent cell holds every thread that asks it for CELL_TIMEOUT, once; other requests need threads meanwhile.
threads = max(8, 32 // workers)
# Clients poll every 2 s on one connection. Gunicorn's default closes it after just 2 s of silence, so now and
# then a request met a closing connection: "Connection reset by peer".
keepalive = 75
# Workers enforce STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT themselves; gunicorn's 0 means "at once".
graceful_timeout = 10 * 365 * 86400
control_socket_disable = True
when_ready, on_exit = master.when_ready, master.on_exit
if _files := files.of_api(env.peek):
    certfile, keyfile = str(_files.certificate), str(_files.key)
    ca_certs = str(_files.authority)  # clients show no certificate; without it the machine's own list would be read
    ssl_context = tls.context


def post_worker_init(worker: Any) -> None:
    """Begin the heartbeat; keep Python's garbage collector out of most requests, and our objects out of its searches.

    A list of 1,000 servers creates many objects that reference counting frees; with the default thresholds the
    collector would search them again and again for cycles (docs/adr/0018-less-machinery.md has the figures).
    """
    get_resolver().url_patterns  # noqa: B018  load the views now, not with the first request
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    from compute.hosts import api_heartbeat  # noqa: PLC0415  its models are loaded with the application

    api_heartbeat.begin(worker.leaving)
