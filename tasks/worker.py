"""The identity of this process: its role, its name, its cell, its incarnation, its driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from cells import brokers, databases
from cells.database_urls import BadDatabaseUrl
from cells.models import CELL0, Cell
from compute import virt
from compute.models.host import COMPUTE, CONDUCTOR, SCHEDULER
from compute.operations import dispatch
from compute.virt.base import Driver

BINARIES = {"host": COMPUTE, "conductor": CONDUCTOR, "scheduler": SCHEDULER}


@dataclass(slots=True)
class Worker:
    """One worker process. `incarnation` is new at every start, so that steps of an earlier one are recognised."""

    role: str
    host: str
    cell_id: str
    driver: Driver | None = None
    incarnation: str = field(default_factory=lambda: str(uuid4()))
    is_registered: bool = False  # its incarnation is in its service record
    has_beaten: bool = False

    @property
    def binary(self) -> str:
        """The binary in os-services."""
        return BINARIES[self.role]

    @property
    def name(self) -> str:
        """The worker's name in the journal."""
        return f"{self.binary}@{self.host}"

    @property
    def queue(self) -> str:
        """The queue of its requests."""
        shared = {"scheduler": dispatch.SCHEDULER_QUEUE, "conductor": dispatch.CONDUCTOR_QUEUE}
        return shared.get(self.role) or dispatch.host_queue(self.host)

    @property
    def broker_url(self) -> str:
        """The URL of the broker with its queue."""
        return str(settings.BROKER_URL if self.role == "scheduler" else settings.CELL_BROKER_URL)

    @property
    def alias(self) -> str:
        """The database with its service record: its cell's; a scheduler's record is in cell0.

        Raises DatabaseError; a cell0 that is not registered, or has a wrong URL, is as one that is down.
        """
        if self.role != "scheduler":
            return f"cell:{self.cell_id}"
        try:
            return databases.register(Cell.objects.get(pk=CELL0))
        except (Cell.DoesNotExist, BadDatabaseUrl, ImproperlyConfigured) as exc:
            raise OperationalError(f"cell0 cannot be asked: {exc}") from exc


_current: Worker | None = None


def register() -> Worker:
    """Read the identity of this process from the settings. Raises ImproperlyConfigured with what to set."""
    global _current  # a process is one worker, for its whole life
    role = settings.ROLE
    if role not in BINARIES:
        raise ImproperlyConfigured(f"STILLWATER_ROLE is {role!r}; a worker is scheduler, conductor or host.")
    if role != "scheduler":
        _open_cell()
    driver = open_driver() if role == "host" else None
    _current = Worker(role, settings.HOST, settings.CELL_UUID, driver)
    return _current


def current() -> Worker:
    """Return this process's worker. Raises RuntimeError outside a worker process."""
    if _current is None:
        raise RuntimeError("this process is not a worker")
    return _current


def open_driver() -> Driver:
    """Return the virt driver that the settings name."""
    if settings.DRIVER == "fake":
        return virt.load("fake", **settings.FAKE_OPTIONS)
    if settings.DRIVER == "ironic":
        return virt.load("ironic", **settings.IRONIC_OPTIONS)
    return virt.load("libvirt", **settings.LIBVIRT_OPTIONS)


def _open_cell() -> None:
    missing = [
        name for name in ("CELL_UUID", "CELL_DATABASE_URL", "CELL_BROKER_URL") if not getattr(settings, name)
    ]  # fmt: skip
    if missing:
        names = ", ".join(f"STILLWATER_{name}" for name in missing)
        raise ImproperlyConfigured(f"A {settings.ROLE} needs {names}.")
    alias = f"cell:{settings.CELL_UUID}"
    try:
        databases.register_url(alias, settings.CELL_DATABASE_URL)
    except BadDatabaseUrl as exc:
        raise ImproperlyConfigured(f"STILLWATER_CELL_DATABASE_URL: {exc}.") from exc
    brokers.register_url(alias, settings.CELL_BROKER_URL)
