"""The limits for requests while a cell is down, and the section of docs/benchmarks.md with limits and measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

P50_RATIO, FIRST_MS, P95_RATIO = 1.2, 300.0, 1.5


@dataclass(frozen=True, slots=True)
class Bound:
    """One measured figure and its limit, in milliseconds or as a ratio to all cells up."""

    row: str
    what: str
    found: float
    most: float

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limit."""
        return self.found <= self.most

    def __str__(self) -> str:
        verdict = "PASS" if self.holds else "FAIL"
        return f"{verdict}  {self.row:<10} {self.what:<34} {self.found:9.2f}  (at most {self.most:g})"


def of(found: dict[str, Any]) -> list[Bound]:
    """Return every bound of every measurement with a cell down."""
    bounds = []
    for row, figures in found["measured"].items():
        up = figures["up"]
        bounds += [
            Bound(row, "first request, ms", figures["first_ms"], found["timeout_s"] * 1000 + FIRST_MS),
            Bound(row, "p50, ratio to all up", figures["p50_ms"] / up["p50_ms"], P50_RATIO),
            Bound(row, "p95, ratio to all up", figures["p95_ms"] / up["p95_ms"], P95_RATIO),
        ]
    return bounds


def page(found: dict[str, Any]) -> str:
    """Return the section of docs/benchmarks.md."""
    text = (
        "## While a cell is down\n\n"
        f"{found['cells']} cells with {found['servers']:,} servers on PostgreSQL without autovacuum;\n"
        f"{found['requests']} requests per row: list and detail (1,000 servers), show, services, boot and show of a\n"
        "server in the cell itself, in turn, through gunicorn. One cell after the other refuses connections, accepts\n"
        "them and never answers (open ones too), or answers after 5 s; each twice, with all cells up before, between\n"
        f"and after, because the machine's own speed changes. A cell has {found['timeout_s']:g} s to answer.\n"
        "\"First\" is the slowest of the first requests after the failure, one of each client;\n"
        "\"back\" is the time from the end of the failure until no answer of any process has UNKNOWN servers, the\n"
        "longer of two. Ratios are to the figures of all cells up, beside them. Limits: first "
        f"{found['timeout_s'] + FIRST_MS / 1000:g} s, p50 {P50_RATIO:g},\n"
        f"p95 {P95_RATIO:g} times that of all up.\n\n"
        "| cell | clients | first | p50 | all up | ratio | p95 | all up | ratio | slowest | all up | back | holds |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n"
    )
    broken = {bound.row for bound in of(found) if not bound.holds}
    for row, figures in found["measured"].items():
        harm, clients = row.split()
        up = figures["up"]
        text += (
            f"| {harm} | {clients} | {figures['first_ms'] / 1000:.2f} s | {figures['p50_ms']:.1f} ms "
            f"| {up['p50_ms']:.1f} ms | **{figures['p50_ms'] / up['p50_ms']:.2f}** | {figures['p95_ms']:.1f} ms "
            f"| {up['p95_ms']:.1f} ms | **{figures['p95_ms'] / up['p95_ms']:.2f}** "
            f"| {figures['max_ms']:.0f} ms | {up['max_ms']:.0f} ms "
            f"| {figures['back_s']:.1f} s | {'**no**' if row in broken else 'yes'} |\n"
        )
    return text + "\n" + _kinds(found)


def _kinds(found: dict[str, Any]) -> str:
    """Return the table with the median of each kind of request."""
    kinds = list(found["measured"]["refuse 1"]["kinds_ms"])
    text = "Medians in ms, and those of all up:\n\n"
    text += f"| cell | clients | {' | '.join(kinds)} |\n|---|---:|{'---:|' * len(kinds)}\n"
    for row, figures in found["measured"].items():
        harm, clients = row.split()
        pairs = [(figures["kinds_ms"].get(kind, 0), figures["up"]["kinds_ms"].get(kind, 0)) for kind in kinds]
        text += f"| {harm} | {clients} | {' | '.join(f'{down:.1f} / {up:.1f}' for down, up in pairs)} |\n"
    return text
