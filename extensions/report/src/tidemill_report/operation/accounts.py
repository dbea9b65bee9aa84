"""Sheets of accounts: months, backfill, allocations, failures, caches, hospital, grants, nodes, waits. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.harvest.account.delays import Harm
from tidemill.model.quantities import ratio
from tidemill_report.operation.failures import FailureKey
from tidemill_report.operation.jobs import OF_DAY, SUMS, JobSums
from tidemill_report.operation.sheet import Column, Sheet, Value, count, share, text
from tidemill_report.operation.site_months import HOUR_US, AllocationMonth, BackfillMonth, SiteMonth

STATES = ("COMPLETED", "PARTIAL", "FAILED", "CANCELED")
ENDED = frozenset(STATES)
_AT = {name: k for k, name in enumerate(SUMS)}


def months(jobs: JobSums) -> Sheet:
    """Jobs, events and core-hours per month and site."""
    lines: dict[SiteMonth, Counter[str]] = defaultdict(Counter)
    for key, values in jobs.sums.items():
        line = lines[key.month, key.site]
        line[key.state] += values[0]
        for name, at in _AT.items():
            line[name] += values[at]
    rows = [
        (
            month, site or "-", line["jobs"], *(line[state] for state in STATES), line["events"], line["events_done"],
            line["events_failed"], line["events_canceled"], line["core_us"] / HOUR_US,
            ratio(line["cpu_us"], line["wall_us"]),
            line["read_bytes"] / 1e12, line["write_bytes"] / 1e12,
        )
        for (month, site), line in sorted(lines.items())
    ]  # fmt: skip
    about = (
        "A job counts in the month in which it ended; one that still runs, in which it started. Core-hours are the "
        "time of "
        "its payloads on slots x cores of a slot (x ranks of a payload that spans nodes): what work used, without idle "
        "slots. CPU/wall is CPU time of payloads / their time on slots, per slot, not per core. A site `-`: jobs that "
        "no site ever had."
    )
    columns = (
        text("month"), text("site"), count("jobs"), *(count(state.lower()) for state in STATES), count("events"),
        count("events_done"), count("events_failed"), count("events_canceled"), Column("core_hours", "h"),
        Column("cpu_per_wall"), Column("read", "TB"), Column("written", "TB"),
    )  # fmt: skip
    return Sheet("months", "Core-hours, jobs and events per month and site", about, columns, rows)


def days(jobs: JobSums) -> Sheet:
    """Jobs and events per day and site."""
    rows: list[tuple[Value, ...]] = [
        (day, site or "-", *values) for (day, site), values in sorted(jobs.days.items())
    ]
    columns = (text("day"), text("site"), *(count(name) for name in OF_DAY))
    about = "By the day, in UTC, on which a job ended; one that still runs, on which it started."
    return Sheet("days", "Jobs and events per day and site", about, columns, rows)


def sites(jobs: JobSums, held: Mapping[SiteMonth, AllocationMonth]) -> Sheet:
    """Jobs, events and hours per site, and in all."""
    lines: dict[str, Counter[str]] = defaultdict(Counter)
    for key, values in jobs.sums.items():
        for site in (key.site, "all"):
            lines[site][key.state] += values[0]
            for name, at in _AT.items():
                lines[site][name] += values[at]
    for (_, site), each in held.items():
        for name in (site, "all"):
            lines[name]["allocated_us"] += each.core_us
    rows = [
        (
            site or "-", line["jobs"], line["events_done"], line["core_us"] / HOUR_US,
            line["allocated_us"] / HOUR_US or None,
            ratio(line["core_us"], line["allocated_us"]), ratio(line["FAILED"], sum(line[state] for state in STATES)),
        )
        for site, line in sorted(lines.items(), key=lambda item: (item[0] == "all", item[0]))
    ]  # fmt: skip
    about = (
        "Core-hours of payloads next to those of allocations (nodes x cores x time, whatever ran there). `failed` "
        "is the "
        "share of ended jobs that failed."
    )
    columns = (
        text("site"), count("jobs"), count("events_done"), Column("core_hours", "h"), Column("allocated", "core-h"),
        share("payloads_of_allocated"), share("failed"),
    )  # fmt: skip
    return Sheet("sites", "Sites", about, columns, rows)


def calendar_years(jobs: JobSums, held: Mapping[SiteMonth, AllocationMonth]) -> Sheet:
    """Jobs, events and core-hours per calendar year and site; empty where all of it is of one year."""
    lines: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, values in jobs.sums.items():
        for site in (key.site or "-", "all"):
            line = lines[key.month[:4], site]
            line[key.state] += values[0]
            for name, at in _AT.items():
                line[name] += values[at]
    for (month, site), each in held.items():
        for name in (site, "all"):
            lines[month[:4], name]["allocated_us"] += each.core_us
    rows = [
        (
            year, site, line["jobs"], *(line[state] for state in STATES), line["events"], line["events_done"],
            line["core_us"] / HOUR_US, line["allocated_us"] / HOUR_US or None, ratio(line["cpu_us"], line["wall_us"]),
        )
        for (year, site), line in sorted(lines.items(), key=lambda item: (item[0][0], item[0][1] == "all", item[0][1]))
    ]  # fmt: skip
    if len({year for year, _ in lines}) < 2:
        rows = []
    about = "The months added up by calendar year, in UTC; definitions as there."
    columns = (
        text("year"), text("site"), count("jobs"), *(count(state.lower()) for state in STATES), count("events"),
        count("events_done"), Column("core_hours", "h"), Column("allocated", "core-h"), Column("cpu_per_wall"),
    )  # fmt: skip
    return Sheet("years", "Core-hours, jobs and events per year and site", about, columns, rows)


def backfill_sheet(
    machine: Mapping[SiteMonth, BackfillMonth], held: Mapping[SiteMonth, AllocationMonth]
) -> Sheet:
    """Backfill that was available, used and useful."""
    rows = []
    for key, line in sorted(machine.items()):
        mine = held.get(key, AllocationMonth())
        useful = None if mine.useful is None else mine.useful * line.ours
        cores = mine.cores or None
        rows.append((
            *key, line.hours, line.available, line.ours, useful, line.regular, line.away, cores,
            None if cores is None else line.available * cores, ratio(line.ours, line.available),
            None if useful is None else ratio(useful, line.available),
        ))  # fmt: skip
    about = (
        "In node-hours, from the minute-by-minute view of each site's broker. Available is what jobs of other users "
        "and "
        "outages left: nodes that were idle and nodes that we had. Used is what we had. Efficiency is used / "
        "available: "
        "the fraction of cores available via backfill that was utilized. Useful is used x the share of slot time in "
        "which "
        "payloads ran (of allocations that ended in the month). Cores of a node are those of our allocations. "
        "`hours`: how "
        "much of the month the site reported."
    )
    columns = (
        text("month"), text("site"), Column("hours", "h"), Column("available", "node-h"), Column("used", "node-h"),
        Column("useful", "node-h"), Column("other_jobs", "node-h"), Column("out_of_service", "node-h"),
        count("cores_per_node"), Column("available_cores", "core-h"), share("efficiency"), share("useful_share"),
    )  # fmt: skip
    return Sheet("backfill", "Backfill: available, used, useful", about, columns, rows)


def allocations_sheet(held: Mapping[SiteMonth, AllocationMonth]) -> Sheet:
    """Allocations per month and site."""
    rows = [
        (*key, each.allocations, each.failed, each.node_us / HOUR_US, each.core_us / HOUR_US, each.useful)
        for key, each in sorted(held.items())
    ]
    about = (
        "Allocations that ended in the month. Core-hours are nodes x cores of a node x time from start to end. "
        "`occupied`: "
        "the share of slot time in which payloads ran."
    )
    columns = (
        text("month"), text("site"), count("allocations"), count("failed"), Column("node_hours", "h"),
        Column("core_hours", "h"), share("occupied"),
    )  # fmt: skip
    return Sheet("allocations", "Allocations per month and site", about, columns, rows)


def failures_sheet(found: Counter[FailureKey]) -> Sheet:
    """Failures by month, class and component."""
    lines: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for key, number in found.items():
        line = lines[key.month, key.site or "-", key.failure, key.component]
        line[0] += number
        line[1] += number if key.is_final else 0
    about = (
        "Each failed try counts in the month in which it failed. The class is one of a closed list "
        "(docs/failures.md), the "
        "component is whose fault it was. Final: the event had used up its retries."
    )
    columns = (
        text("month"),
        text("site"),
        text("class"),
        text("component"),
        count("failures"),
        count("final"),
    )
    rows: list[tuple[Value, ...]] = [(*key, *line) for key, line in sorted(lines.items())]
    return Sheet("failures", "Failures by class and component", about, columns, rows)


def failure_rate(jobs: JobSums) -> Sheet:
    """The share of jobs that failed, per month."""
    ended, failed = Counter[str](), Counter[str]()
    for key, values in jobs.sums.items():
        if key.state in ENDED:
            ended[key.month] += values[0]
            failed[key.month] += values[0] if key.state == "FAILED" else 0
    rows = []
    for month, total in sorted(ended.items()):
        rate = failed[month] / total
        rows.append((month, total, failed[month], rate, math.sqrt(rate * (1 - rate) / total)))
    about = "Jobs that ended as FAILED / jobs that ended; the error is binomial."
    columns = (text("month"), count("ended"), count("failed"), share("rate"), share("error"))
    return Sheet("failure_rate", "Failure rate of jobs", about, columns, rows)


def caches_sheet(rows: Sequence[Mapping[str, Any]]) -> Sheet:
    """Caches per month."""
    made = [
        (
            row["month"], row["site"], row["cache"], row["opens"], row["served"] / 1e12,
            (row["fetched"] + row["bypass"]) / 1e12, row["wire_origin"] / 1e12, ratio(row["known"], row["served"]),
            ratio(row["fetched"] + row["bypass"], row["served"]), row["again"] / 1e12,
        )
        for row in rows
    ]  # fmt: skip
    about = (
        "Differences of what each cache said last in each month. A hit is a byte that was there before it was asked "
        "for. "
        "`on_wire`: bytes on connections to origins, by the kernel."
    )
    columns = (
        text("month"), text("site"), text("cache"), count("opens"), Column("served", "TB"), Column("from_origins",
        "TB"),
        Column("on_wire", "TB"), share("hits"), Column("origin_per_served"), Column("fetched_again", "TB"),
    )  # fmt: skip
    return Sheet("caches", "Caches", about, columns, made)


def hospital_sheet(found: Mapping[tuple[str, str, str], Mapping[str, float]]) -> Sheet:
    """Stays in wards."""
    outcomes = ("cured", "failed", "canceled", "home", "there")
    rows = []
    for key, line in sorted(found.items()):
        numbers = [int(line.get(each, 0)) for each in outcomes]
        treated = numbers[0] + numbers[1]
        rows.append((*key[:2], key[2] or "-", *numbers, ratio(numbers[0], treated),
                     ratio(line.get("hours", 0.0), sum(numbers[:4]))))  # fmt: skip
    about = (
        "Stays of jobs in wards by the month of admission. `cured`: ended well there; `share_cured`: of those that "
        "were "
        "cured or failed; `mean_stay`: of stays that are over."
    )
    columns = (
        text("month"), text("ward"), text("cure"), *(count(each) for each in outcomes), share("share_cured"),
        Column("mean_stay", "h"),
    )  # fmt: skip
    return Sheet("hospital", "Hospital", about, columns, rows)


def grants_sheet(rows: Iterable[Mapping[str, Any]]) -> Sheet:
    """The grant ledger."""
    made = [
        (row["month"], row["site"], row["account"], row["granted"], row["used"], row["open"], row["left"],
         ratio(row["used"], row["granted"]))
        for row in rows
    ]  # fmt: skip
    about = (
        "As each site's ledger stood at its last word of the month, in node-hours. Used is since the grant began, by "
        "whomever; open is what running and waiting allocations may still use."
    )
    columns = (
        text("month"), text("site"), text("account"), Column("granted", "node-h"), Column("used", "node-h"),
        Column("open", "node-h"), Column("left", "node-h"), share("used_share"),
    )  # fmt: skip
    return Sheet("grants", "Grant ledger", about, columns, made)


def nodes_sheet(rows: Sequence[tuple[str, str, int, float, str]]) -> Sheet:
    """Nodes that were in quarantine."""
    about = (
        "Nodes on which starts failed fast, and that the site's broker kept out of its plans: how often and how "
        "long in all, "
        "the longest first. Nodes that never were in quarantine do not stand here."
    )
    columns = (text("site"), text("node"), count("times"), Column("hours", "h"), text("last_reason"))
    return Sheet("nodes", "Node quality", about, columns, rows)


def waits_sheet(found: Sequence[tuple[Path, Harm]]) -> Sheet:
    """What regular jobs waited because of Tidemill."""
    rows = []
    for directory, each in found:
        shares = sorted(job.share_s for job in each.jobs if job.state != "waiting" and job.share_s > 0)
        totals = each.totals
        median = shares[len(shares) // 2] if shares else None
        rows.append((
            directory.parent.name, totals.jobs, totals.delayed, ratio(totals.delayed, totals.jobs),
            totals.share_s / 3600, totals.share_low_s / 3600, totals.share_high_s / 3600, totals.wait_s / 3600,
            median, totals.worst_s, totals.worst_id or "-",
        ))  # fmt: skip
    about = (
        "Jobs of other users that started in this time; how many waited for nodes that Tidemill held, "
        "and for how long: the broker's estimate, each with its evidence (`tidemill site harm`). "
        "The bounds are what polls saw, and what they cannot exclude; `wait` is all that these jobs waited."
    )
    columns = (
        text("site"), count("jobs"), count("delayed"), share("share_delayed"), Column("delay", "h"),
        Column("delay_low", "h"), Column("delay_high", "h"), Column("wait", "h"), Column("median_delay", "s"),
        Column("worst_delay", "s"), text("worst_job"),
    )  # fmt: skip
    return Sheet("waits", "Waits of others", about, columns, rows)


def wait_classes_sheet(found: Sequence[tuple[Path, Harm]]) -> Sheet:
    """Waits of other users' jobs by size and by length."""
    rows = [
        (
            directory.parent.name, each.size or "all", each.length or "all", each.jobs, each.delayed,
            each.wait_s, each.share_s, each.share_low_s, each.share_high_s, each.share_of_wait,
        )
        for directory, harm in found
        for each in (*harm.by_size, *harm.by_length, *harm.by_size_and_length)
    ]  # fmt: skip
    about = (
        "Jobs of other users by their share of the machine (at most) and the walltime that they asked for (at most): "
        "what they waited, and which part of it was Tidemill's, as means with 95 % bounds. An estimate: there is no "
        "run without Tidemill to compare with."
    )
    columns = (
        text("site"), text("size"), text("length"), count("jobs"), count("delayed"), Column("wait", "s"),
        Column("delay", "s"), Column("delay_low", "s"), Column("delay_high", "s"), share("share_of_wait"),
    )  # fmt: skip
    return Sheet("wait_classes", "Waits of others by class", about, columns, rows)
