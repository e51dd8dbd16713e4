"""The results as a file per day, and the newest of them as the page docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from typing import Any

from bench import bounds
from bench.place import ROOT

RESULTS, PAGE = ROOT / "bench" / "results", ROOT / "docs" / "benchmarks.md"


def latest() -> dict[str, Any]:
    """Return the newest results; a partial run keeps the others from them."""
    files = sorted(RESULTS.glob("*.json"))
    return json.loads(files[-1].read_text()) if files else {}


def stamp(found: dict[str, Any]) -> dict[str, Any]:
    """Return the results with the day, the machine and its load average."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    load = f"load average of the last 5 minutes: {os.getloadavg()[1]:.1f}"
    return found | {"machine": f"{machine}; {load}", "day": datetime.now(UTC).strftime("%Y-%m-%d")}


def write(found: dict[str, Any]) -> None:
    """Write both files from stamped results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{found['day']}.json").write_text(json.dumps(found, indent=2) + "\n")
    PAGE.write_text(page(found))


def page(found: dict[str, Any]) -> str:
    """Return the text of docs/benchmarks.md."""
    parts = [
        f"# Benchmarks\n\nWritten by `make bench` on {found['day']} ({found['machine']}).\n"
        "Every measurement is beside its floor, which the same run measured.\n"
    ]
    if "down" in found:
        parts.append(bounds.page(found["down"]))
    if "events" in found:
        parts.append(events(found["events"]))
    if "limit" in found.get("lists", [{}])[0]:  # results before 2026-11-23 have no page of 50
        parts.append(_lists(found["lists"]))
    if "requests" in found:
        parts.append(_requests({row["request"]: row for row in found["requests"]}))
    if "boots" in found:
        parts.append(_boots(found["boots"]))
    if "drain" in found:
        parts.append(_drain(found["drain"]))
    if "emptying" in found:
        parts.append(_emptying(found["emptying"]))
    if "grace" in found:
        parts.append(_grace(found["grace"]))
    return "\n".join(parts)


def _lists(rows: list[dict[str, Any]]) -> str:
    text = (
        "## `GET /servers/detail?limit=1000` and `?limit=50`\n\n"
        "The floor is the same rows by one SQL query from one SQLite file and one `orjson.dumps` of as much\n"
        "JSON: no HTTP, no token, no cells, no Django. HTTP is gunicorn over loopback with a real token. Medians.\n"
        "CPU is that of all threads of a request in one process. Newer servers are spread evenly over the cells.\n\n"
        "| limit | servers | cells | queries to cells | answer | floor | HTTP | ratio | in process | ratio | CPU |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    for row in rows:
        text += (
            f"| {row['limit']:,} | {row['servers']:,} | {row['cells']} | {row['queries']} "
            f"| {row['bytes'] / 1e6:.2f} MB "
            f"| {row['floor_ms']:.1f} ms | {row['http_ms']:.1f} ms | **{row['ratio']:.1f}** "
            f"| {row['in_process_ms']:.1f} ms | {row['ratio_in_process']:.1f} | {row['cpu_ms']:.1f} ms |\n"
        )
    return text


def _requests(rows: dict[str, dict[str, Any]]) -> str:
    """What each layer of a request takes: its own time, without the layers before it."""
    health, catalog = rows["health"], rows["catalog"]
    text = (
        "## The processor time of one request, by layer\n\n"
        "Four cells in SQLite files, 4,000 servers, an administrator, one process of gunicorn, one open connection.\n"
        "`/healthz` takes what gunicorn (its HTTP) and Django (its handler and our middleware) take of every request.\n"
        "The catalog takes, beyond that, Django REST framework, the token with its one query, and JSON.\n\n"
        "| request | gunicorn | Django | DRF and token | our code and the queries | in all |\n"
        "|---|---:|---:|---:|---:|---:|\n"
    )
    for name, row in rows.items():
        django = health["in_process_ms"]
        token = 0.0 if row is health else catalog["in_process_ms"] - django
        rest = max(0.0, row["in_process_ms"] - django - token)
        parts = (max(0.0, row["http_ms"] - row["in_process_ms"]), django, token, rest)
        shown = " | ".join(f"{part:.2f} ms" for part in parts)
        text += f"| {name} | {shown} | **{row['http_ms']:.2f} ms** |\n"
    return text


def events(found: dict[str, Any]) -> str:
    """Return the section on external events."""
    codes = ", ".join(f"{count} x {code}" for code, count in sorted(found["codes"].items()))
    text = (
        "## 1,000 external events in one request\n\n"
        f"`power-update` for servers of {found['cells']} cells ({found['servers']:,} servers, PostgreSQL), through\n"
        f"one gunicorn process, with ten unknown servers and ten bad tags: {codes}, in every case. One cell refuses\n"
        "connections, or accepts them and never answers; \"first\" is the first request after that; the\n"
        f"events of that cell are stored. The floor is the rows of one batch written by plain SQL, a transaction for\n"
        f"each cell: {found['floor_ms']:.0f} ms.\n\n"
        "| one cell | first | p50 | slowest | ratio to the floor |\n|---|---:|---:|---:|---:|\n"
    )
    for name, row in found["measured"].items():
        first = f"{row['first_ms']:.0f} ms" if "first_ms" in row else "-"
        ratio = row["p50_ms"] / found["floor_ms"]
        text += f"| {name} | {first} | {row['p50_ms']:.0f} ms | {row['max_ms']:.0f} ms | **{ratio:.1f}** |\n"
    return text


def _boots(row: dict[str, Any]) -> str:
    return (
        "## Boots on fake hosts\n\n"
        f"{row['servers']} servers, one POST each from {row['clients']} clients, through gunicorn, Redis, scheduler,\n"
        "conductors and two hosts that run the fake driver; from the first POST until all are ACTIVE. The floor is\n"
        "one INSERT and one UPDATE for each of them, each in its own transaction, directly in one SQLite file.\n\n"
        "| servers | accepted | ACTIVE | boots per second | floor | ratio |\n|---:|---:|---:|---:|---:|---:|\n"
        f"| {row['servers']} | {row['accepted_s']:.2f} s | {row['active_s']:.2f} s | **{row['per_second']:.1f}** "
        f"| {row['floor_s'] * 1000:.1f} ms | {row['ratio']:.0f} |\n"
    )


def _drain(row: dict[str, Any]) -> str:
    idle = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in row["idle_s"].items())
    return (
        "## Draining a host\n\n"
        f"SIGTERM while one operation of {row['operation_s']} s is in progress; {row['waiting']} requests for other\n"
        "servers of the host arrive while it drains. The floor is the operation itself. The requests are counted\n"
        "after the next start, in the fake hypervisor's own record.\n\n"
        "| SIGTERM to exit | exit after the operation's end | accepted | done once | done twice | lost |\n"
        "|---:|---:|---:|---:|---:|---:|\n"
        f"| {row['in_all_s']:.1f} s | **{row['stayed_s']:.2f} s** | {row['accepted']} | {row['done_once']} "
        f"| {row['done_twice']} | {row['lost']} |\n\n"
        f"SIGTERM to exit of processes with nothing to do (medians): {idle}.\n"
    )


def _emptying(row: dict[str, Any]) -> str:
    return (
        "## A drain that moves the servers away\n\n"
        f"{row['servers']} servers leave one fake host for three others, live, {row['parallel']} at a time, and then\n"
        f"it drains; the fake driver makes every guest travel for {row['travel_s']:g} s. Measured from the request\n"
        "until the last one has left, all records included. The first floor is the travel alone, divided by the\n"
        "number of parallel moves. The second is the duration of the moves, steps and messages included, divided by\n"
        "the same: above it is only the time in which a move could have begun and had not. Afterwards each server is\n"
        "in one place, and the allocations of each host are the sum of what its servers have.\n\n"
        "| servers | left | floor: travel | ratio | mean move | ratio to the moves | most at once | lost | where |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        f"| {row['servers']} | {row['left_s']:.1f} s | {row['floor_s']:.1f} s | **{row['ratio']:.2f}** "
        f"| {row['mean_move_s']:.2f} s | {row['ratio_to_moves']:.2f} | {row['most_at_once']} | {row['lost']} "
        f"| {' + '.join(str(n) for n in row['at_others'])} |\n"
    )


def _grace(row: dict[str, Any]) -> str:
    answered = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in row["answered_s"].items())
    return (
        "## Grace periods of many guests\n\n"
        f"{row['guests']} guests of one fake host with {row['slots']} slots are stopped at once by 8 clients: some go\n"
        "off at once, some after 3, 6 or 9 s, some react only to the second signal; those that never react are\n"
        "stopped last. The floor is the slowest guest; above it are all requests and all records. Late is the time\n"
        "between the end of a guest and the recorded end of its stop. A running step has a slot, a waiting step has\n"
        "none; typical is the median of the slots in use while steps waited for guests.\n\n"
        "| guests | slowest | total | ratio | asked all | late, median | late, most | waiting, most "
        "| slots in use, most | typical |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        f"| {row['guests']} | {row['slowest_s']:.1f} s | {row['total_s']:.1f} s | **{row['ratio']:.2f}** "
        f"| {row['asked_s']:.1f} s | {row['late_median_s'] * 1000:.0f} ms | {row['late_most_s']:.2f} s "
        f"| {row['waiting_most']} | {row['busy_most']} | {row['busy_typical']:.0f} |\n\n"
        f"Other requests of the host meanwhile, from request to end: {answered}.\n"
    )
