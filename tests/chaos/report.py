"""What a run prints: a line per seed or point, and everything known about each culprit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.chaos.ledger import KINDS, Finding
from tests.chaos.records import Records
from tests.chaos.story import Asked


@dataclass
class Verdict:
    """How one seed or point ended."""

    title: str
    asked: list[Asked]
    findings: list[Finding]
    seconds: float = 0.0
    deaths: int = 0
    harm: list[str] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)  # of harm
    culprits: str = ""

    @property
    def good(self) -> bool:
        """Nothing lost, double, stuck or leaked."""
        return not self.findings


def table(verdicts: list[Verdict]) -> str:
    """One line each."""
    lines = [f"{'':<44} {'accepted':>8} {'refused':>8} {'unanswered':>10} {'deaths':>7} "
             + " ".join(f"{kind:>7}" for kind in KINDS) + f" {'seconds':>8}"]  # fmt: skip
    for one in verdicts:
        said = Counter(asked.accepted for asked in one.asked)
        kinds = Counter(finding.kind for finding in one.findings)
        lines.append(
            f"{one.title:<44} {said[True]:>8} {said[False]:>8} {said[None]:>10} {one.deaths:>7} "
            + " ".join(f"{kinds[kind]:>7}" for kind in KINDS) + f" {one.seconds:>8.0f}"
        )  # fmt: skip
    return "\n".join(lines)


def total(verdicts: list[Verdict]) -> str:
    """The last line: what was asked, what was done to it, what was spilled."""
    kinds = Counter(finding.kind for verdict in verdicts for finding in verdict.findings)
    asked = sum(one.accepted is True for verdict in verdicts for one in verdict.asked)
    ways = Counter(word for verdict in verdicts for word in verdict.ways)
    harm = f" ({', '.join(f'{count} {way}' for way, count in ways.most_common())})" if ways else ""
    return f"{asked} operations{harm}: " + ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)


def mix(asked: list[Asked]) -> str:
    """What was accepted, by kind."""
    kinds = Counter(one.verb for one in asked if one.accepted)
    return ", ".join(f"{count} {verb}" for verb, count in kinds.most_common())


def culprits(findings: list[Finding], records: Records, asked: list[Asked]) -> str:
    """Server by server: what is wrong, and its whole history."""
    lines = []
    for server in dict.fromkeys(finding.server for finding in findings):
        lines.append(f"\n== {server or 'the cloud'}")
        lines += [f"   {one.kind.upper()}: {one.words}" for one in findings if one.server == server]
        for row in records.servers.get(server, []):
            lines.append(f"   {row.name} in {row.cell} on {row.host or 'no host'}: {row.vm_state}/{row.task_state}"
                         f"{', deleted' if row.deleted else ''}{', fault' if row.has_fault else ''}")  # fmt: skip
        lines += [line for _, line in sorted(_history(server, records, asked))] if server else []
    return "\n".join(lines)


def _history(server: str, records: Records, asked: list[Asked]) -> list[tuple[float, str]]:
    found = [
        (one.at, f"   {_clock(one.at)} asked    {one.verb} {one.request_id} -> {one.status or 'no answer'}")
        for one in asked
        if one.server_id == server
    ]
    for action in records.actions.get(server, []):
        end = f"{_clock(action.finished)} {action.message or ''} {action.outcome}" if action.finished else "open"
        found.append(
            (action.started, f"   {_clock(action.started)} action   {action.name} {action.request_id} .. {end}")
        )
        for step in action.steps:
            times = f"started {_clock(step.started)}, ended {_clock(step.finished)}, {step.attempts} tries"
            text = f"step {step.id} {step.name} on {step.host or action.cell}: {step.state}, {times}; {step.details}"
            found.append((step.queued or 0.0, f"   {_clock(step.queued)}   {text}"))
    for effect in records.effects.get(server, []):
        found.append((effect.at, f"   {_clock(effect.at)} EFFECT   {effect.verb} on {effect.host} {effect.mark}"))
    return found


def _clock(at: float | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}"[:-3]
