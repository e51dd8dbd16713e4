"""Which broker belongs to which cell, and the few things that differ between kinds of brokers.

The only module that knows Redis from RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, LimitExceeded
from kombu.pools import producers, set_limit
from kombu.transport import redis

from cells import broker_circuit_breaker
from cells.models import Cell

_urls: dict[str, str] = {}
set_limit(16)  # connections per broker URL in this process
REDIS_OPTIONS = {"socket_connect_timeout": 1.0, "socket_timeout": 5.0, "socket_keepalive": True}
REDIS_PATIENCE = 0.25  # seconds a consumer asks at a time; one that ends waits for the answer (kombu: a second)
# A publisher waits for "I have it", but no longer than a user would: a RabbitMQ that is short of memory or disk reads
# nothing and says nothing, and so does a Redis whose process is stopped or whose machine hangs. Without the answer a
# message to a broker that just died would count as sent.
PATIENCE = 1.5  # seconds
RABBITMQ_OPTIONS = {"confirm_publish": True, "read_timeout": PATIENCE, "write_timeout": PATIENCE}
PROBE = "stillwater.probe"  # what a look at a broker that was down writes, where no worker reads


class Acknowledgements(redis.QoS):
    """kombu's, without two ends of a worker whose Redis died while it held messages (kombu 5.7).

    They are not put back as the connection closes, on that very connection: their rows are sent again. And what
    is acknowledged after the connection is gone needs no acknowledgement.
    """

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        """On a connection that is gone: nothing."""
        if self.channel.connection is not None:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # kombu's signature
        """On a connection that is gone: nothing."""
        if self.channel.connection is not None:
            super().reject(delivery_tag, requeue)


redis.Channel.QoS = Acknowledgements


class BrokerUnavailable(ConnectionError):
    """The broker takes no messages: it refused the connection, went, or was silent, now or a moment ago."""


class Refused(RuntimeError):
    """The broker is well, and does not take this message (RabbitMQ: its queue is declared in another way)."""


def register(cell: Cell) -> None:
    """Remember (or follow a change of) the cell's broker."""
    _urls[cell.alias] = cell.broker_url


def register_url(alias: str, url: str) -> None:
    """As `register`, for a process that knows its cell by its environment alone."""
    _urls[alias] = url


def url(alias: str) -> str:
    """The broker of the cell behind a database alias; "" when it has none (cell0)."""
    return _urls.get(alias, "")


def options(broker_url: str) -> dict[str, Any]:
    """Transport options of a worker's connections, which consume. RabbitMQ: Celery's heartbeats find a dead one."""
    return REDIS_OPTIONS | {"polling_interval": REDIS_PATIENCE} if _is_redis(broker_url) else {}


def queue(name: str) -> Queue:
    """A queue on the default exchange, which needs no binding: a wiped broker loses nothing but messages.

    On RabbitMQ a classic one. Replicas would keep what the relay sends again anyway, at the price of a write on most
    nodes for each message, and a quorum queue refuses the prefetch of a whole channel, which Celery bounds a lane by.
    """
    classic = {"x-queue-type": "classic"}  # said, because a virtual host may have another default
    return Queue(name, exchange=Exchange(""), routing_key=name, durable=True, queue_arguments=classic)


def connection(broker_url: str) -> Connection:
    """A lazy connection for publishing that gives up connecting after a second, and does not try again.

    kombu would wait two seconds and try once more, while a user waits for the answer to a request.
    """
    once: dict[str, Any] = dict(RABBITMQ_OPTIONS)
    if _is_redis(broker_url):
        once = REDIS_OPTIONS | {"socket_timeout": PATIENCE}
    return Connection(broker_url, connect_timeout=1.0, transport_options=once | {"max_retries": 0})


@contextmanager
def producer(broker_url: str) -> Iterator[Any]:
    """A pooled producer, on a connection that is alive. Raises Away, at once while the breaker is open, and Refused."""
    if reason := broker_circuit_breaker.known_down(broker_url):
        raise BrokerUnavailable(reason)
    try:
        with _pooled(broker_url) as found:
            if reason := broker_circuit_breaker.known_down(broker_url):  # while this one waited for a connection
                raise BrokerUnavailable(reason)
            yield found
    except BrokerUnavailable:
        raise
    except LimitExceeded as error:  # other threads have all connections, and open the breaker if need be
        raise BrokerUnavailable("all connections are in use") from error
    except Exception as error:  # every transport raises its own kinds
        if isinstance(error, ChannelError) or isinstance(error.__cause__, ChannelError):
            raise Refused(str(error)) from error
        reason = type(error).__name__
        broker_circuit_breaker.seen_down(broker_url, reason, lambda: _probe(broker_url))
        raise BrokerUnavailable(reason) from error


@contextmanager
def _pooled(broker_url: str) -> Iterator[Any]:
    with producers[connection(broker_url)].acquire(block=True, timeout=PATIENCE) as found:
        if _is_redis(broker_url):  # its client connects again by itself
            yield found
            return
        _forget_if_dead(found.connection)
        try:
            yield found
        except BaseException:
            found.connection.collect()  # a late answer would be taken for that to the next message
            raise


def _probe(broker_url: str) -> None:
    """Do what a send does: write. A RabbitMQ short of memory takes connections, a Redis may be read-only or full."""
    with connection(broker_url) as conn:
        conn.ensure_connection(max_retries=0)
        channel: Any = conn.default_channel
        if _is_redis(broker_url):
            channel.client.set(PROBE, "1", ex=60)
        else:
            Producer(channel).publish("", exchange="", routing_key=PROBE)  # to no queue


def depths(broker_url: str, queues: list[str]) -> dict[str, int]:
    """How many messages wait in each queue; one nobody has made yet has none. Raises when the broker is away."""
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
    """A RabbitMQ that was restarted closed every pooled connection: each would cost one message."""
    if not conn.connected:
        return
    try:
        conn.drain_events(timeout=0)
    except TimeoutError:
        pass  # it has nothing to say, so it is alive
    except (OSError, *conn.connection_errors):
        conn.collect()
