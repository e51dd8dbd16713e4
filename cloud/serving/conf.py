"""Gunicorn's configuration: `gunicorn -c cloud/serving/conf.py cloud.wsgi --bind=…`, in the clone."""

from cloud.serving import master

worker_class = "cloud.serving.worker.Worker"
# A silent cell holds every thread that asks it for CELL_TIMEOUT, once; the others need some then, too.
workers, threads = 2, 16
# Clients poll every 2 s on one connection. Gunicorn's default closes it after just 2 s of silence, so now and
# then a request met the closing door: "Connection reset by peer".
keepalive = 75
# Workers keep the time themselves (STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT); gunicorn's 0 means "at once".
graceful_timeout = 10 * 365 * 86400
control_socket_disable = True
when_ready, on_exit = master.when_ready, master.on_exit
