"""What the method of a step gets: server, action and params, and the hypervisor behind the fence of the claim."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic

from django.conf import settings
from django.db import Error, close_old_connections
from typing_extensions import TypeVar

from cells.context import current_alias
from cells.query_deadline import cut_after
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal
from compute.operations.params import ActionParams
from compute.virt.base import Driver

ASK_SECONDS = 5.0  # seconds that the database has to confirm a claim
P_co = TypeVar("P_co", bound=ActionParams, default=ActionParams, covariant=True)


@dataclass(slots=True)
class StepContext(Generic[P_co]):
    """One try of one step: the argument of the step's method, made by `ServerAction.context()`.

    The method writes to the cell's database and to the global database only inside `fenced()`.
    """

    instance: Instance
    action: InstanceAction
    step: Step
    driver: Driver | None
    params_type: type[P_co]
    confirmed_at: float = field(default_factory=time.monotonic)  # when the claim was last confirmed

    @property
    def params(self) -> P_co:
        """What the API side and earlier steps recorded, as last read. Raises msgspec.ValidationError."""
        return self.params_type.load(self.action.params)

    @property
    def hypervisor(self) -> Driver:
        """The virt driver, for the next effect on the hypervisor. Only steps on a host have one.

        Each access first checks the claim's token in the database: read the property again after anything slow. Raises
        StepLost when the claim is over. Raises the database's error when the database does not answer and the last
        confirmation is older than the lease (SERVICE_DOWN_TIME): another process may have recovered the step since.
        """
        if self.driver is None:
            raise RuntimeError(f"step {self.step.name} runs where there is no hypervisor")
        self._must_be_ours()
        return self.driver

    def fenced(self) -> AbstractContextManager[None]:
        """Return a transaction of the cell in which this try holds its claim. Raises StepLost."""
        return journal.fenced(self.step)

    def change_params(self, change: Callable[[P_co], ActionParams]) -> None:
        """Change params of the action while the claim holds, as `journal.change_params()`. Raises StepLost."""
        with self.fenced():
            journal.change_params(self.action, self.params_type, change)

    def runs(self, method: Callable[..., None]) -> bool:
        """Return whether this is a try of the step that a method of the action carries out."""
        return self.step.name == method.__name__

    def reload(self) -> None:
        """Read server and action again from their rows: a rolled-back transaction left wrong values in memory."""
        self.instance = Instance.objects.get(uuid=self.step.server_id)
        self.action.refresh_from_db()

    def _must_be_ours(self) -> None:
        asked_at = time.monotonic()
        try:
            with cut_after(current_alias(), ASK_SECONDS):
                ours = journal.is_ours(self.step)
        except Error:
            close_old_connections()
            if time.monotonic() - self.confirmed_at > settings.SERVICE_DOWN_TIME:
                raise
            return
        if not ours:
            raise journal.StepLost(f"step {self.step.pk} ({self.step.name}) is not ours any more")
        self.confirmed_at = asked_at

    def note(self, text: str) -> None:
        """Set the step's details: one line for the operator, at most 2000 characters, saved when the step is closed."""
        self.step.details = text[:2000]

    def deadline(self, seconds: float) -> datetime:
        """Return the deadline of this step: the first try sets it, a restart does not move it. Raises StepLost."""
        return journal.fix_deadline(self.step, seconds)
