"""Delays, failures and deaths to order, for the fake driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compute.virt import base
from compute.virt.base import VirtError

# built on others, or at once; "power_off" is an order for `force_off`
NO_VERBS = {"watch", "close", "on_change", "begin_shutdown", "turn", "stop_timer", "force_off"}
VERBS = (frozenset(base.Driver.__abstractmethods__) - NO_VERBS) | {
    "pre_migrate", "cancel_pre_migrate", "check_can_migrate", "migrate_out", "finish_migration", "revert_migration",
    "cleanup_source", "power_update_event",
}  # fmt: skip
OPTIONAL = frozenset({"power_update_event"})  # not supported but by those that are ordered to
ALWAYS = -1
ENDS = frozenset({"crash", "reboot"})
_KINDS: list[type[VirtError]] = [VirtError, *VirtError.__subclasses__()]
KINDS: Mapping[str, type[VirtError]] = {kind.__name__: kind for kind in _KINDS}
TRUE = frozenset({"1", "true", "yes", "on", "always"})
PROPERTY = "fake_"
ALIASES = {"fake_agent": "fake_shutdown_agent"}


@dataclass(slots=True)
class Fault:
    """What one verb shall do; `fail` counts down, ALWAYS never ends.

    `die`: so often, over all its lives, the process is killed in the middle of the verb. `accept`: it is supported,
    which by itself it is not.
    """

    delay: float = 0.0
    fail: int = 0
    die: int = 0
    error: type[VirtError] = VirtError
    accept: bool = False


@dataclass(slots=True)
class ShutdownBehaviour:
    """How a guest takes it that it is to shut down."""

    delay: float = 0.0  # seconds until it is off
    ignore: bool = False
    skip: int = 0  # that many signals are lost first
    deaf: float = 0.0  # signals are lost for so many seconds after its boot
    agent: str = ""  # yes: it has one, which answers when the guest is not deaf any more; hangs: and it never answers
    ends: str = ""  # not off, but with a crash, or with a reboot

    def over(self, weaker: ShutdownBehaviour) -> ShutdownBehaviour:
        """Both wishes in one: of two numbers this one's or the larger, of two words this one's."""
        return ShutdownBehaviour(
            delay=self.delay or weaker.delay,
            ignore=self.ignore or weaker.ignore,
            skip=max(self.skip, weaker.skip),
            deaf=max(self.deaf, weaker.deaf),
            agent=self.agent or weaker.agent,
            ends=self.ends or weaker.ends,
        )


@dataclass(slots=True)
class ParsedFault:
    """Orders as written in a setting or in image properties."""

    verbs: dict[str, Fault] = field(default_factory=dict)
    shutdown: ShutdownBehaviour = field(default_factory=ShutdownBehaviour)


class Faults:
    """Orders of one driver, safe to change while it works. `uuid` "" is every guest."""

    def __init__(self, text: str = "") -> None:
        self._lock = threading.Lock()
        parsed = parse_orders(text)
        self._orders = {(verb, ""): order for verb, order in parsed.verbs.items()}
        self._shutdown = {"": parsed.shutdown}
        self._locked: set[str] = set()

    def delay(self, verb: str, seconds: float, uuid: str = "") -> None:
        """From now on `verb` takes at least so long."""
        with self._lock:
            self._order(verb, uuid).delay = seconds

    def fail(
        self,
        verb: str,
        times: int = 1,
        error: type[VirtError] = VirtError,
        uuid: str = "",
    ) -> None:
        """The next `times` calls of `verb` raise `error`; ALWAYS for all of them."""
        with self._lock:
            order = self._order(verb, uuid)
            order.fail, order.error = times, error

    def die(self, verb: str, times: int = 1, uuid: str = "") -> None:
        """The process is killed in the middle of `verb`, so often over all its lives."""
        with self._lock:
            self._order(verb, uuid).die = times

    def accept(self, verb: str = "power_update_event", uuid: str = "", *, does: bool = True) -> None:
        """From now on guests' machines can do this, or not."""
        with self._lock:
            self._order(verb, uuid).accept = does

    def accepts(self, verb: str, uuid: str) -> bool:
        """Whether this guest's machine can."""
        with self._lock:
            return any(o.accept for key in {uuid, ""} if (o := self._orders.get((verb, key))))

    def lock(self, uuid: str, *, held: bool = True) -> None:
        """From now on another controller holds the lock of this guest's machine, or does no more."""
        with self._lock:
            (self._locked.add if held else self._locked.discard)(uuid)

    def locks(self, uuid: str) -> bool:
        """Whether it does."""
        with self._lock:
            return uuid in self._locked

    def shutdown(self, *, uuid: str = "", **wishes: Any) -> None:
        """How guests take it from now on; the wishes are those of `Shutdown`."""
        with self._lock:
            self._shutdown[uuid] = ShutdownBehaviour(**wishes)

    def clear(self) -> None:
        """No delays, no failures."""
        with self._lock:
            self._orders.clear()
            self._locked.clear()
            self._shutdown = {"": ShutdownBehaviour()}

    def take(self, verb: str, uuid: str) -> Fault:
        """What this call has to do; a failure taken is a failure less."""
        with self._lock:
            chosen = [o for key in {uuid, ""} if (o := self._orders.get((verb, key)))]
            due = Fault(
                delay=max((order.delay for order in chosen), default=0.0),
                die=max((order.die for order in chosen), default=0),
            )
            for order in chosen:
                if order.fail and not due.fail:
                    due.fail, due.error = 1, order.error
                    order.fail -= order.fail > 0
            return due

    def seconds(self, verb: str, uuid: str) -> float:
        """How long this call takes; for a verb that keeps the time itself."""
        with self._lock:
            return max((o.delay for key in {uuid, ""} if (o := self._orders.get((verb, key)))), default=0.0)

    def shutdown_of(self, uuid: str) -> ShutdownBehaviour:
        """How this guest takes it."""
        with self._lock:
            return self._shutdown.get(uuid) or self._shutdown[""]

    def _order(self, verb: str, uuid: str) -> Fault:
        if verb not in VERBS:
            raise ValueError(f"{verb!r} is no verb of a hypervisor: {', '.join(sorted(VERBS))}")
        return self._orders.setdefault((verb, uuid), Fault())


def parse_orders(text: str) -> ParsedFault:
    """Read "spawn.delay=0.5,spawn.fail=2,spawn.error=InsufficientResources,shutdown.ignore=1"."""
    parsed = ParsedFault()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        verb, dot, what = name.strip().rpartition(".")
        if not (equals and dot):
            raise ValueError(f"order {item!r} is not of the form verb.what=value")
        _set(parsed, verb, what, value.strip())
    return parsed


def from_properties(properties: Mapping[str, str]) -> ParsedFault:
    """Read an image's `fake_<verb>_<what>` properties, and `fake_agent`; nonsense in them is ignored, not raised."""
    parsed = ParsedFault()
    for name, value in properties.items():
        verb, underscore, what = ALIASES.get(name, name).removeprefix(PROPERTY).rpartition("_")
        if name.startswith(PROPERTY) and underscore:
            try:
                _set(parsed, verb, what, str(value))
            except ValueError:  # an image may come from anywhere; only settings are checked
                continue
    return parsed


def _set(parsed: ParsedFault, verb: str, what: str, value: str) -> None:
    shutdown: Mapping[str, Callable[[str], object]] = {
        "delay": float,
        "ignore": lambda text: text.lower() in TRUE,
        "skip": int,
        "deaf": float,
        "agent": lambda text: "hangs" if text.lower() == "hangs" else "yes" if text.lower() in TRUE else "",
        "ends": _end,
    }
    plain: Mapping[str, Callable[[str], object]] = {
        "delay": float,
        "fail": _times,
        "error": _kind,
        "die": int,
        **({"accept": lambda text: text.lower() in TRUE} if verb in OPTIONAL else {}),
    }
    readers = shutdown if verb == "shutdown" else plain
    if what not in readers or (verb != "shutdown" and verb not in VERBS):
        raise ValueError(f"there is no order {verb}.{what}")
    read = readers[what](value)
    shut = verb == "shutdown"
    setattr(parsed.shutdown if shut else parsed.verbs.setdefault(verb, Fault()), what, read)


def _times(text: str) -> int:
    return ALWAYS if text.lower() == "always" else int(text)


def _end(text: str) -> str:
    if text not in ENDS:
        raise ValueError(f"a shutdown ends in no {text!r}: {', '.join(sorted(ENDS))}")
    return text


def _kind(text: str) -> type[VirtError]:
    if text not in KINDS:
        raise ValueError(f"{text!r} is no error kind: {', '.join(sorted(KINDS))}")
    return KINDS[text]
