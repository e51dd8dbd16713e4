"""Time limits for libvirt calls, which have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from compute.virt.base import OperationTimedOut
from compute.virt.libvirt.errors import translated

Result = TypeVar("Result")


def bounded(seconds: float, what: str, call: Callable[[], Result]) -> Result:
    """Return the call's result or raise its error; raise OperationTimedOut after `seconds`.

    A call that timed out goes on in its daemon thread, because libvirt cannot cancel it. `what` names the call in
    errors.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            with translated():
                results.append(call())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name=f"libvirt-{what}", daemon=True).start()
    if not done.wait(seconds):
        raise OperationTimedOut(f"{what} did not end within {seconds:g} s")
    if errors:
        raise errors[0]
    return results[0]
