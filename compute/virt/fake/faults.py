"""Fault injection for the fake driver: delays, failures and kills per verb, and how guests take a shutdown.

Faults come from STILLWATER_FAKE_FAULTS, from image properties, or from a test that calls `Faults`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compute.virt import base
from compute.virt.base import VirtError

# built on other verbs, or immediate; "power_off" stands for `force_off`
NO_VERBS = {"watch", "close", "on_change", "begin_shutdown", "turn", "stop_timer", "force_off"}
VERBS = (frozenset(base.Driver.__abstractmethods__) - NO_VERBS) | {
    "pre_migrate", "cancel_pre_migrate", "check_can_migrate", "migrate_out", "finish_migration", "revert_migration",
    "cleanup_source", "power_update_event",
}  # fmt: skip
OPTIONAL = frozenset({"power_update_event"})  # supported only where `accept` is set
ALWAYS = -1
ENDS = frozenset({"crash", "reboot"})
_KINDS: list[type[VirtError]] = [VirtError, *VirtError.__subclasses__()]
KINDS: Mapping[str, type[VirtError]] = {kind.__name__: kind for kind in _KINDS}
TRUE = frozenset({"1", "true", "yes", "on", "always"})
PROPERTY = "fake_"
ALIASES = {"fake_agent": "fake_shutdown_agent"}


@dataclass(slots=True)
class Fault:
    """The faults of one verb. `delay` in seconds; `fail` counts down, ALWAYS never ends.

    `die`: how often the process is killed in the middle of the verb, counted over all its lives. `accept`: the driver
    supports this verb of OPTIONAL, which it does not by default.
    """

    delay: float = 0.0
    fail: int = 0
    die: int = 0
    error: type[VirtError] = VirtError
    accept: bool = False


@dataclass(slots=True)
class ShutdownBehaviour:
    """How a guest reacts to a shutdown signal. Times in seconds."""

    delay: float = 0.0  # from the signal until the guest is off
    ignore: bool = False
    skip: int = 0  # number of first signals that are lost
    deaf: float = 0.0  # after its boot, while signals are lost
    agent: str = ""  # yes: it has a guest agent, which answers once the guest is not deaf; hangs: it never answers
    ends: str = ""  # crash or reboot, instead of a power-off

    def over(self, weaker: ShutdownBehaviour) -> ShutdownBehaviour:
        """Combine both: this one's value or, if it is unset, the weaker one's; the larger of `skip` and of `deaf`."""
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
    """The faults of a setting or of image properties."""

    verbs: dict[str, Fault] = field(default_factory=dict)
    shutdown: ShutdownBehaviour = field(default_factory=ShutdownBehaviour)


class Faults:
    """The faults of one driver; tests may change them while it works. `uuid` "" means every guest."""

    def __init__(self, text: str = "") -> None:
        self._lock = threading.Lock()
        parsed = parse_faults(text)
        self._faults = {(verb, ""): order for verb, order in parsed.verbs.items()}
        self._shutdown = {"": parsed.shutdown}
        self._locked: set[str] = set()

    def delay(self, verb: str, seconds: float, uuid: str = "") -> None:
        """Make `verb` take at least `seconds` from now on."""
        with self._lock:
            self._order(verb, uuid).delay = seconds

    def fail(
        self,
        verb: str,
        times: int = 1,
        error: type[VirtError] = VirtError,
        uuid: str = "",
    ) -> None:
        """Make the next `times` calls of `verb` raise `error`; ALWAYS: all of them."""
        with self._lock:
            order = self._order(verb, uuid)
            order.fail, order.error = times, error

    def die(self, verb: str, times: int = 1, uuid: str = "") -> None:
        """Kill the process in the middle of `verb`, `times` times over all its lives."""
        with self._lock:
            self._order(verb, uuid).die = times

    def accept(self, verb: str = "power_update_event", uuid: str = "", *, does: bool = True) -> None:
        """Make the guests' machines support `verb` from now on, or not."""
        with self._lock:
            self._order(verb, uuid).accept = does

    def accepts(self, verb: str, uuid: str) -> bool:
        """Return whether this guest's machine supports `verb`."""
        with self._lock:
            return any(o.accept for key in {uuid, ""} if (o := self._faults.get((verb, key))))

    def lock(self, uuid: str, *, held: bool = True) -> None:
        """Let another controller hold the lock of this guest's machine from now on, or release it."""
        with self._lock:
            (self._locked.add if held else self._locked.discard)(uuid)

    def locks(self, uuid: str) -> bool:
        """Return whether another controller holds the lock of this guest's machine."""
        with self._lock:
            return uuid in self._locked

    def shutdown(self, *, uuid: str = "", **fields: Any) -> None:
        """Set how guests react to a shutdown from now on; `fields` are the fields of ShutdownBehaviour."""
        with self._lock:
            self._shutdown[uuid] = ShutdownBehaviour(**fields)

    def clear(self) -> None:
        """Remove all faults, locks and shutdown behaviours."""
        with self._lock:
            self._faults.clear()
            self._locked.clear()
            self._shutdown = {"": ShutdownBehaviour()}

    def take(self, verb: str, uuid: str) -> Fault:
        """Return what this call has to do, and count a failure as used."""
        with self._lock:
            chosen = [o for key in {uuid, ""} if (o := self._faults.get((verb, key)))]
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
        """Return the delay of this call in seconds, for a verb that spends it itself."""
        with self._lock:
            return max((o.delay for key in {uuid, ""} if (o := self._faults.get((verb, key)))), default=0.0)

    def shutdown_of(self, uuid: str) -> ShutdownBehaviour:
        """Return how this guest reacts to a shutdown."""
        with self._lock:
            return self._shutdown.get(uuid) or self._shutdown[""]

    def _order(self, verb: str, uuid: str) -> Fault:
        if verb not in VERBS:
            raise ValueError(f"{verb!r} is no verb of a hypervisor: {', '.join(sorted(VERBS))}")
        return self._faults.setdefault((verb, uuid), Fault())


def parse_faults(text: str) -> ParsedFault:
    """Parse "spawn.delay=0.5,spawn.fail=2,spawn.error=InsufficientResources,shutdown.ignore=1". Raises ValueError."""
    parsed = ParsedFault()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        verb, dot, what = name.strip().rpartition(".")
        if not (equals and dot):
            raise ValueError(f"fault {item!r} is not of the form verb.what=value")
        _set(parsed, verb, what, value.strip())
    return parsed


def from_properties(properties: Mapping[str, str]) -> ParsedFault:
    """Parse an image's `fake_<verb>_<what>` properties, and `fake_agent`; invalid ones are ignored."""
    parsed = ParsedFault()
    for name, value in properties.items():
        verb, underscore, what = ALIASES.get(name, name).removeprefix(PROPERTY).rpartition("_")
        if name.startswith(PROPERTY) and underscore:
            try:
                _set(parsed, verb, what, str(value))
            except ValueError:  # anyone may upload an image; only settings are checked
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
        raise ValueError(f"there is no fault {verb}.{what}")
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
