"""What is wrong with the TLS of this process: its files, and URLs that send passwords in plain text."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from django.conf import settings

from cells import broker_tls, database_urls
from cloud import env, log
from cloud.tls import files
from cloud.tls.files import Fault

logger = log.get(__name__)
DATABASES = ("STILLWATER_DATABASE_URL", "STILLWATER_CELL_DATABASE_URL")
PUBLIC = "STILLWATER_PUBLIC_URL"
MIGRATION = "STILLWATER_LIBVIRT_MIGRATION_URI"
BROKERS = ("STILLWATER_BROKER_URL", "STILLWATER_CELL_BROKER_URL")


def found() -> list[Fault]:
    """Return the faults of this process; none where no TLS files are set."""
    configured = files.configured()
    if configured is None:
        return []
    from cloud.tls import faults  # noqa: PLC0415  loads X.509, which only processes with TLS need

    return [*faults.of(configured), *_plain_urls()]


def database_warning(url: str) -> str:
    """Return why the URL of a database is not safe where TLS files are set; "" for one that is."""
    if files.configured() is None or not database_urls.may_be_plain(url):
        return ""
    return "it may send its password in plain text to another machine: remove sslmode from it"


def broker_warning(url: str) -> str:
    """Return why the URL of a broker is not safe where TLS files are set; "" for one that is."""
    if files.configured() is None or not broker_tls.may_be_plain(url):
        return ""
    return "it sends its password in plain text to another machine: use amqps:// or rediss://"


def log_found() -> None:
    """Log the faults of a process that stays."""
    for fault in found() if settings.ROLE != "manage" else ():
        logger.warning("tls.fault", fault=fault.text, fails_now=fault.is_fatal)


def _plain_urls() -> Iterator[Fault]:
    for names, warning in ((DATABASES, database_warning), (BROKERS, broker_warning)):
        for name in names:
            if (url := env.get(name)) and (text := warning(url)):
                yield Fault(f"{name}: {text}", is_fatal=False)
    public = urlsplit(env.get(PUBLIC))
    if public.scheme == "http" and not database_urls.is_local(public.hostname):
        yield Fault(f"{PUBLIC}: images and tokens travel in plain text: use https://", is_fatal=False)
    if env.get(MIGRATION).startswith("qemu+tcp:"):
        yield Fault(f"{MIGRATION}: it needs no password and is not encrypted: use qemu+tls://", is_fatal=False)
