"""Time limits for libvirt calls, which have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from compute.virt.base import OperationTimedOut
from compute.virt.libvirt.errors import translated

Result = TypeVar("Result")


def bounded(seconds: float, what: str, call: Callable[[], Result]) -> Result:
    """Return the call's result or raise its error; raise OperationTimedOut after `seconds`.

    A call that timed out goes on in its daemon thread, because libvirt cannot cancel it. `what` names the call in
    errors.
    """
    began = begin(what, call)
    if not has_ended(began, seconds):
        raise OperationTimedOut(f"{what} did not end within {seconds:g} s")
    return began.result()


def begin(what: str, call: Callable[[], Result]) -> Future[Result]:
    """Begin a call in a daemon thread, for which the end of the process does not wait."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            with translated():
                result = call()
        except BaseException as error:  # raised again in the caller's thread
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name=f"libvirt-{what}", daemon=True).start()
    return future


def has_ended(call: Future[Result], seconds: float) -> bool:
    """Wait up to `seconds` for the end of a call, and return whether it has ended."""
    return bool(wait([call], seconds).done)
