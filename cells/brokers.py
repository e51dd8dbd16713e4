"""The broker of each cell, and the differences between kinds of brokers.

No other module tells Redis from RabbitMQ, except by the scheme of a URL (`broker_tls`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, LimitExceeded
from kombu.pools import producers, set_limit
from kombu.transport import redis

from cells import broker_circuit_breaker, broker_tls
from cells.models import Cell
from cloud.tls import failures

_urls: dict[str, str] = {}
set_limit(16)  # connections per broker URL in this process
REDIS_OPTIONS = {"socket_connect_timeout": 1.0, "socket_timeout": 5.0, "socket_keepalive": True}
REDIS_PATIENCE = 0.25  # seconds of one poll of a consumer, which a stopping worker waits for (kombu: 1 s)
# A publisher waits for the broker's confirmation, but no longer than a user would: a RabbitMQ that is short of memory
# or disk stops reading without an error, and so does a Redis whose process is stopped or whose machine hangs. Without
# the confirmation a message to a broker that just died would count as sent.
PATIENCE = 1.5  # seconds
RABBITMQ_OPTIONS = {"confirm_publish": True, "read_timeout": PATIENCE, "write_timeout": PATIENCE}
PROBE = "stillwater.probe"  # the key or queue to which a probe writes; no worker reads it


class Acknowledgements(redis.QoS):
    """kombu's QoS without two errors that end a worker whose Redis died while it held messages (kombu 5.7).

    A closing connection does not restore unacknowledged messages over itself: the relay sends their steps again. A
    message whose connection is gone needs no acknowledgement.
    """

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; a no-op when the connection is gone."""
        if self.channel.connection is not None:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # kombu's signature
        """Reject; a no-op when the connection is gone."""
        if self.channel.connection is not None:
            super().reject(delivery_tag, requeue)


redis.Channel.QoS = Acknowledgements


class BrokerUnavailable(ConnectionError):
    """The broker takes no messages: it failed or was silent, now or lately, or all connections are in use."""


class Refused(RuntimeError):
    """The broker is up and refuses this message (RabbitMQ: the queue is declared with other arguments)."""


def register(cell: Cell) -> None:
    """Record the broker of the cell, or its changed URL."""
    _urls[cell.alias] = cell.broker_url


def register_url(alias: str, url: str) -> None:
    """As `register`, for a process that knows its cell only from its environment."""
    _urls[alias] = url


def url(alias: str) -> str:
    """Return the broker URL of the cell with this database alias; "" when it has none (cell0)."""
    return _urls.get(alias, "")


def options(broker_url: str) -> dict[str, Any]:
    """Return the transport options of a consuming worker. None for RabbitMQ: Celery's heartbeats detect a dead one."""
    return REDIS_OPTIONS | {"polling_interval": REDIS_PATIENCE} if _is_redis(broker_url) else {}


def describe(error: BaseException) -> str:
    """Return why a broker takes no messages, in few words."""
    return failures.describe(error) or type(error).__name__


def queue(name: str) -> Queue:
    """Return a queue on the default exchange. It needs no binding: a wiped broker loses only messages.

    On RabbitMQ it is a classic queue. Replicas would protect what the relay sends again anyway, at the price of a write
    on most nodes per message. A quorum queue refuses the prefetch of a whole channel, by which Celery bounds a lane.
    """
    classic = {"x-queue-type": "classic"}  # explicit, because a virtual host may have another default
    return Queue(name, exchange=Exchange(""), routing_key=name, durable=True, queue_arguments=classic)


def connection(broker_url: str) -> Connection:
    """Return a lazy connection for publishing: one second to connect, no retry.

    kombu would wait two seconds and try once more, while a user waits for the answer to a request.
    """
    once: dict[str, Any] = dict(RABBITMQ_OPTIONS)
    if _is_redis(broker_url):
        once = REDIS_OPTIONS | {"socket_timeout": PATIENCE}
    return Connection(
        broker_url, ssl=broker_tls.options(broker_url), connect_timeout=1.0, transport_options=once | {"max_retries": 0}
    )


@contextmanager
def producer(broker_url: str) -> Iterator[Any]:
    """Yield a pooled producer on a live connection.

    Raises BrokerUnavailable, at once while the breaker is open, and Refused. A failure other than Refused opens the
    breaker.
    """
    if reason := broker_circuit_breaker.known_down(broker_url):
        raise BrokerUnavailable(reason)
    try:
        with _pooled(broker_url) as found:
            if reason := broker_circuit_breaker.known_down(broker_url):  # opened while this thread waited
                raise BrokerUnavailable(reason)
            yield found
    except BrokerUnavailable:
        raise
    except LimitExceeded as error:  # other threads hold all, and open the breaker if it is down
        raise BrokerUnavailable("all connections are in use") from error
    except Exception as error:  # each transport raises its own types
        if isinstance(error, ChannelError) or isinstance(error.__cause__, ChannelError):
            raise Refused(str(error)) from error
        reason = describe(error)
        broker_circuit_breaker.record_failure(broker_url, reason, lambda: _probe(broker_url))
        raise BrokerUnavailable(reason) from error


@contextmanager
def _pooled(broker_url: str) -> Iterator[Any]:
    with producers[connection(broker_url)].acquire(block=True, timeout=PATIENCE) as found:
        if _is_redis(broker_url):  # its client reconnects by itself
            yield found
            return
        _forget_if_dead(found.connection)
        try:
            yield found
        except BaseException:
            found.connection.collect()  # a late confirmation would count for the next message
            raise


def _probe(broker_url: str) -> None:
    """Write, as a send does: a RabbitMQ short of memory takes connections, and a Redis may be read-only or full."""
    with connection(broker_url) as conn:
        conn.ensure_connection(max_retries=0)
        channel: Any = conn.default_channel
        if _is_redis(broker_url):
            channel.client.set(PROBE, "1", ex=60)
        else:
            Producer(channel).publish("", exchange="", routing_key=PROBE)  # routed to no queue


def depths(broker_url: str, queues: list[str]) -> dict[str, int]:
    """Return the number of waiting messages by queue; 0 for one that does not exist. Raises when the broker is down."""
    found = {}
    with connection(broker_url) as conn:
        conn.ensure_connection(max_retries=0)
        for name in queues:
            channel: Any = conn.channel()
            try:
                found[name] = channel.queue_declare(name, passive=True).message_count
            except conn.channel_errors:
                found[name] = 0
            finally:
                channel.close()
    return found


def _is_redis(broker_url: str) -> bool:
    return broker_url.startswith(("redis", "rediss", "unix", "sentinel"))


def _forget_if_dead(conn: Any) -> None:
    """Drop a dead connection: a restarted RabbitMQ closed every pooled one, and each would cost one message."""
    if not conn.connected:
        return
    try:
        conn.drain_events(timeout=0)
    except TimeoutError:
        pass  # silent and open: alive
    except (OSError, *conn.connection_errors):
        conn.collect()
