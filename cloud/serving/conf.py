"""Gunicorn's configuration: `gunicorn -c cloud/serving/conf.py cloud.wsgi --bind=…`, in the clone."""

import os

from cloud import env
from cloud.serving import master, share

worker_class = "cloud.serving.worker.Worker"
# Two processes a core: requests of a process take turns, and while one waits for its databases another computes.
# Not more than four unless told: each thread keeps connections to the databases open.
workers = env.peek("STILLWATER_API_PROCESSES") or min(4, 2 * len(os.sched_getaffinity(0)))
# A silent cell holds every thread that asks it for CELL_TIMEOUT, once; the others need some then, too.
threads = max(8, 32 // workers)
# Clients poll every 2 s on one connection. Gunicorn's default closes it after just 2 s of silence, so now and
# then a request met the closing door: "Connection reset by peer".
keepalive = 75
# Workers keep the time themselves (STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT); gunicorn's 0 means "at once".
graceful_timeout = 10 * 365 * 86400
control_socket_disable = True
when_ready, on_exit, child_exit = master.when_ready, master.on_exit, share.gone
