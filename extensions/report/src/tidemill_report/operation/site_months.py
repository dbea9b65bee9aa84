"""What sites reported about themselves, by month: backfill, allocations, caches, grants, nodes in quarantine, stays in
wards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.harvest.account.delays import Harm, harm, read_records
from tidemill.server.archive.operation import month_of
from tidemill_report.operation.source import ReportFiles

HOUR_US = 3_600_000_000
STAYS = ("job", "ward", "cure", "outcome", "site", "admitted_us", "ended_us")


class BackfillMonth(msgspec.Struct, kw_only=True):
    """A site's month, in node-hours. `hours`: those of the month that the site reported on."""

    hours: float = 0.0
    regular: float = 0.0
    ours: float = 0.0
    idle: float = 0.0
    away: float = 0.0

    @property
    def available(self) -> float:
        """What other users' jobs and outages left: idle nodes and those that we had."""
        return self.ours + self.idle


class AllocationMonth(msgspec.Struct, kw_only=True):
    """Allocations of a site that ended in a month. `core_us`: nodes x cores x time; `cores`: of a node, at most."""

    allocations: int = 0
    failed: int = 0
    node_us: int = 0
    core_us: int = 0
    busy_us: int = 0
    slot_us: int = 0
    cores: int = 0

    @property
    def useful(self) -> float | None:
        """The share of slot time in which payloads ran; None where no slots were reported."""
        return self.busy_us / self.slot_us if self.slot_us else None


SiteMonth = tuple[str, str]


def backfill(source: ReportFiles) -> dict[SiteMonth, BackfillMonth]:
    """Node-hours by month and site."""
    found: dict[SiteMonth, BackfillMonth] = defaultdict(BackfillMonth)
    for row in source.rows("hours"):
        at_us, hours = row["hour"] * HOUR_US, row["minutes"] / 60
        if source.window.has(at_us):
            line = found[month_of(at_us), row["site"] or ""]
            line.hours += hours
            for name in ("regular", "ours", "idle", "away"):
                setattr(line, name, getattr(line, name) + row[name] * hours)
    return dict(found)


def allocations(source: ReportFiles) -> dict[SiteMonth, AllocationMonth]:
    """Allocations by the month in which they ended, and site."""
    found: dict[SiteMonth, AllocationMonth] = defaultdict(AllocationMonth)
    for row in source.rows("allocations"):
        at_us = row["ended_us"] or row["at_us"]
        if not source.window.has(at_us):
            continue
        line = found[month_of(at_us), row["site"] or ""]
        ran_us = max(0, row["ended_us"] - row["started_us"]) if row["started_us"] and row["ended_us"] else 0
        line.allocations += 1
        line.failed += row["state"] in ("FAILED", "LOST")
        line.node_us += ran_us * row["nodes"]
        line.core_us += ran_us * row["nodes"] * row["cores"]
        line.busy_us += row["busy_us"]
        line.slot_us += row["slot_us"]
        line.cores = max(line.cores, row["cores"])
    return dict(found)


def cache_months(source: ReportFiles) -> list[dict[str, Any]]:
    """What caches did in each month: differences of their sums, which begin anew where `since_us` is another."""
    before: dict[tuple[str, str], dict[str, Any]] = {}
    result = []
    for row in sorted(source.rows("caches"), key=lambda row: row["at_us"]):
        last = before.get((row["site"], row["name"]))
        before[row["site"], row["name"]] = row
        made = {"month": row["month"], "site": row["site"], "cache": row["name"]}
        for name in ("opens", "served", "known", "fetched", "bypass", "again", "wire_origin"):
            goes_on = last is not None and last["since_us"] == row["since_us"] and last[name] <= row[name]
            made[name] = row[name] - last[name] if goes_on and last is not None else row[name]
        if source.window.has(row["at_us"]):
            result.append(made)
    return result


def staging(source: ReportFiles) -> dict[tuple[str, int, str], list[int]]:
    """Inputs that came to nodes, by site, nodes of the allocation and way: files, bytes, ms, their squares, most ms.

    Agents report sums since they started: sums from before the report's period are subtracted.
    """
    before: dict[tuple[Any, ...], dict[str, Any]] = {}
    found: dict[tuple[str, int, str], list[int]] = {}
    for row in sorted(source.rows("staging"), key=lambda row: row["at_us"]):
        key = (row["site"] or "", row["nodes"], row["way"])
        last = before.get((*key, row["since_us"]))
        before[(*key, row["since_us"])] = row
        if source.window.has(row["at_us"]):
            line = found.setdefault(key, [0] * 5)
            for k, name in enumerate(("files", "bytes", "ms", "square_ms")):
                line[k] += row[name] - (last[name] if last is not None else 0)
            line[4] = max(line[4], row["max_ms"])
    return found


def staging_times(source: ReportFiles) -> dict[tuple[str, int, str], dict[int, int]]:
    """Histograms of the same times: files by the upper edge of their class in ms, which is empty where agents of an
    older version reported none."""
    before: dict[tuple[Any, ...], int] = {}
    found: dict[tuple[str, int, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in sorted(source.rows("staging_times"), key=lambda row: row["at_us"]):
        key = (row["site"] or "", row["nodes"], row["way"])
        since = (*key, row["since_us"], row["edge_ms"])
        if source.window.has(row["at_us"]):
            found[key][row["edge_ms"]] += row["files"] - before.get(since, 0)
        before[since] = row["files"]
    return found


def grants(source: ReportFiles) -> list[dict[str, Any]]:
    """The last word of each month on each grant."""
    return sorted(
        (row for row in source.rows("grants") if source.window.has(row["at_us"])),
        key=lambda row: (row["month"], row["site"], row["account"]),
    )


def quarantine(source: ReportFiles) -> list[tuple[str, str, int, float, str]]:
    """Nodes: site, node, times in quarantine, hours there, the last reason; the worst first."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(lambda: [0, 0.0, ""])
    for row in sorted(source.rows("quarantine"), key=lambda row: row["since_us"]):
        if source.window.has(row["since_us"]):
            line = found[row["site"] or "", row["node"]]
            line[0] += 1
            line[1] += max(0, row["until_us"] - row["since_us"]) / HOUR_US
            line[2] = row["why"]
    hours_of = {place: float(hours) for place, (_, hours, _) in found.items()}
    return [
        (*place, int(times), hours_of[place], str(why))
        for place, (times, _, why) in sorted(found.items(), key=lambda item: (-hours_of[item[0]], item[0]))
    ]


def stays(source: ReportFiles) -> dict[tuple[str, str, str], dict[str, float]]:
    """Stays in wards by the month of admission, ward and cure: number by outcome, and `hours` of those that ended."""
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for _, piece in source.pieces("stays", STAYS):
        for row in piece.to_pylist():
            if source.window.has(row["admitted_us"]):
                line = found[month_of(row["admitted_us"]), row["ward"] or "", row["cure"] or ""]
                line[row["outcome"] or "there"] += 1
                if row["ended_us"] is not None:
                    line["hours"] += (row["ended_us"] - row["admitted_us"]) / HOUR_US
    return {key: dict(line) for key, line in found.items()}


def waits(directories: Sequence[Path], source: ReportFiles) -> list[tuple[Path, Harm]]:
    """What each site's broker wrote of regular jobs (`SITE/harvest`), of those that started in the window."""
    window = source.window
    result = []
    for directory in directories:
        records, unreadable = read_records(
            directory, None if window.since_us is None else window.since_us / 1e6
        )
        inside: Iterable[Any] = (each for each in records if window.has(int(each.at_s * 1e6)))
        result.append((directory, harm(inside, unreadable=unreadable)))
    return result
