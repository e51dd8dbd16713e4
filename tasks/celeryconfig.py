"""Celery's settings. Delivery guarantees come from the journal, not from here (docs/adr/0001-messages-are-ids.md)."""

import sys

from django.conf import settings

from cells import broker_tls
from cells.brokers import options, queue
from compute.operations import dispatch
from tasks import queues

_QUEUES = {
    "scheduler": [dispatch.SCHEDULER_QUEUE],
    "conductor": [dispatch.CONDUCTOR_QUEUE],
    "host": [dispatch.host_queue(settings.HOST)],  # its ops queue has its own consumer: tasks.queues
}
broker_url = settings.CELL_BROKER_URL if settings.ROLE in ("host", "conductor") else settings.BROKER_URL
broker_use_ssl = broker_tls.options(broker_url or "")
broker_transport_options = options(broker_url or "")
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
# Without this a channel that RabbitMQ closes ends the worker; with it the worker reconnects.
broker_channel_error_retry = True
broker_heartbeat = 20  # seconds; RabbitMQ notices a vanished peer after two of them
broker_connection_timeout = 2.0
task_queues = [queue(name) for name in _QUEUES.get(settings.ROLE, [])]
task_default_queue = task_queues[0].name if task_queues else "stillwater.unused"
task_create_missing_queues = False
imports = {
    "scheduler": ["tasks.scheduler"],
    "conductor": ["tasks.conductor"],
    "host": ["tasks.host"],
}.get(settings.ROLE, [])
task_serializer = "json"
accept_content = ["json"]
task_ignore_result = True
result_backend = None
worker_prefetch_multiplier = 1
worker_concurrency = {"host": queues.threads(), "conductor": settings.CONDUCTOR_SLOTS}.get(settings.ROLE, 4)
worker_enable_prefetch_count_reduction = False
# A message only wakes the worker, so it is acknowledged before its task begins. A message that is held while a step
# runs is redelivered by RabbitMQ after 30 minutes, and a Redis that dies meanwhile ends the worker (kombu 5.7).
task_acks_late = False
worker_hijack_root_logger = False
worker_redirect_stdouts = False
worker_send_task_events = False
worker_enable_remote_control = True
worker_cancel_long_running_tasks_on_connection_loss = False
worker_proc_alive_timeout = 30
timezone = "UTC"
# Hosts close their connections to the database after each task: they are many, and mostly idle. Others keep them for a
# second (tasks/connections.py).
CELERY_DB_REUSE_MAX = 0 if settings.ROLE == "host" else sys.maxsize
