"""The figures of a report on an operation, from its sheets. Pure; each is one drawing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidemill.charts.axes import Axis, ceiling, scale_of
from tidemill.charts.histogram import NARROW, WIDTH, Panel, Points, Steps, histogram
from tidemill.harvest.account.delays import Harm
from tidemill_report.operation.moments import BINS_PER_DECADE, Spread
from tidemill_report.operation.performance import WIDE
from tidemill_report.operation.sheet import Sheet

SITES_MAX = 7  #: drawn one by one; the others together
MARKS_MAX = 13
DAYS_MAX = 400  #: drawn one by one
EVERY = (1, 2, 3, 6, 12, 24, 60, 120)  #: months from mark to mark
UNITS = {"core_hours": "core-hours", "jobs": "jobs", "events_done": "events"}


def months_axis(months: Sequence[str], marks_max: int = MARKS_MAX) -> Axis:
    """The months of a report, one bin each. Names stand at each first, second, third, sixth month or at years."""
    every = next((k for k in EVERY if len(months) <= k * marks_max), EVERY[-1])
    marks, is_dated = [], False
    for k, month in enumerate(months):
        at = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
        name = ""
        if len(months) == 1:
            name = at.strftime("%B %Y")
        elif (at.year * 12 + at.month - 1) % every == 0:
            form = "%Y" if every >= 12 else "%b" if is_dated and at.month > 1 else "%b\n%Y"
            name, is_dated = at.strftime(form), True
        marks.append((k + 0.5, name))
    return Axis(0, max(1, len(months)), marks=marks)


def month_range(first: str, last: str) -> list[str]:
    """All months from the first to the last."""
    start, end = (int(each[:4]) * 12 + int(each[5:]) - 1 for each in (first, last))
    return [f"{k // 12:04d}-{k % 12 + 1:02d}" for k in range(start, min(end, start + 1_200) + 1)]


def per_month(sheet: Sheet, column: str, months: Sequence[str], *, is_narrow: bool = False) -> str:
    """A column of the months, sites upon each other."""
    values: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for month, site, value in zip(
        sheet.column("month"), sheet.column("site"), sheet.column(column), strict=True
    ):
        values[site][month] += value or 0
    sites = site_order(sheet)
    if len(sites) > SITES_MAX:
        rest = values["other sites"]
        for site in sites[SITES_MAX - 1 :]:
            for month, value in values[site].items():
                rest[month] += value
        sites = [*sites[: SITES_MAX - 1], "other sites"]
    total = sum(sum(values[site].values()) for site in sites)
    tops = [sum(values[site].get(month, 0.0) for site in sites) for month in months]
    scale, power = scale_of(max(tops, default=0))
    series = [
        Steps(
            site, k, range(len(months) + 1), [values[site].get(m, 0.0) / scale for m in months], kind="stack"
        )
        for k, site in enumerate(sites)
    ]
    name = UNITS[column]
    axis = Axis(
        0,
        ceiling(max(tops, default=0) / scale),
        f"{name.capitalize()} per month" + (f" / {power}" if power else ""),
    )
    total_text = f"{total / 1e6:,.2f} million {name}" if total >= 1e6 else f"{total:,.0f} {name}"
    panel = Panel(months_axis(months, 7 if is_narrow else MARKS_MAX), axis, series, 250 if is_narrow else 260)
    return histogram(
        [panel],
        head="Tidemill",
        title=f"{name} per month and site",
        note=total_text,
        width=NARROW if is_narrow else WIDTH,
    )


def site_order(sheet: Sheet) -> list[str]:
    """The sites of the months, most core-hours first: the order in which figures give them colours."""
    sums: dict[str, float] = defaultdict(float)
    for site, value in zip(sheet.column("site"), sheet.column("core_hours"), strict=True):
        sums[site] += value or 0
    return sorted(sums, key=lambda site: (-sums[site], site))


def backfill(sheet: Sheet, months: Sequence[str], order: Sequence[str]) -> str:
    """Available and used backfill of all sites, and below it the efficiency of each."""
    sums: dict[str, dict[str, float]] = {name: defaultdict(float) for name in ("available", "used", "useful")}
    efficiency: dict[str, dict[str, float | None]] = defaultdict(dict)
    for k, month in enumerate(sheet.column("month")):
        for name, line in sums.items():
            line[month] += sheet.column(name)[k] or 0
        efficiency[sheet.column("site")[k]][month] = sheet.column("efficiency")[k]
    edges = range(len(months) + 1)
    scale, power = scale_of(max(sums["available"].values(), default=0))
    series = [
        Steps(name, colour, edges, [sums[name].get(m, 0.0) / scale for m in months], kind=kind)
        for name, colour, kind in (("available", 4, "line"), ("used", 5, "fill"), ("useful", 6, "line"))
        if any(sums[name].values())
    ]
    top = Axis(
        0,
        ceiling(max(sums["available"].values(), default=0) / scale),
        f"Node-hours / {power}" if power else "Node-hours",
    )
    found = _ordered(efficiency, order)
    points: list[Steps | Points] = [
        Points(f"efficiency, {site}", k, _beside(k, len(found), len(months)), [line.get(m) for m in months])
        for k, (site, line) in enumerate(found)
    ]
    best = max((value or 0 for line in efficiency.values() for value in line.values()), default=0)
    low = Axis(0, min(1.0, ceiling(best)), "Efficiency", is_share=True)
    x = months_axis(months)
    whole = sum(sums["used"].values()) / (sum(sums["available"].values()) or 1)
    return histogram(
        [Panel(x, top, series, 230), Panel(x, low, points, 130)], head="Tidemill",
        title="backfill available, used and useful per month, and efficiency",
        note=f"{whole * 100:.1f} % of what was available",
    )  # fmt: skip


def failures(sheet: Sheet, rate: Sheet | None, months: Sequence[str]) -> str:
    """Failures by class upon each other, and below them the share of jobs that failed."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for month, name, number in zip(
        sheet.column("month"), sheet.column("class"), sheet.column("failures"), strict=True
    ):
        counts[name][month] += number
    names = sorted(counts, key=lambda name: -sum(counts[name].values()))
    if len(names) > SITES_MAX + 1:
        for name in names[SITES_MAX:]:
            for month, number in counts[name].items():
                counts["others"][month] += number
        names = [*names[:SITES_MAX], "others"]
    tops = [sum(counts[name].get(month, 0) for name in names) for month in months]
    scale, power = scale_of(max(tops, default=0))
    series = [
        Steps(name, k, range(len(months) + 1), [counts[name].get(m, 0) / scale for m in months], kind="stack")
        for k, name in enumerate(names)
    ]
    x = months_axis(months)
    axis = Axis(0, ceiling(max(tops, default=0) / scale), "Failures" + (f" / {power}" if power else ""))
    panels = [Panel(x, axis, series, 250)]
    note = f"{sum(tops):,} failures"
    if rate is not None:
        rate_of = dict(zip(rate.column("month"), rate.column("rate"), strict=True))
        error_of = dict(zip(rate.column("month"), rate.column("error"), strict=True))
        rates = [rate_of.get(m) for m in months]
        errors = [float(error_of.get(m, 0.0)) for m in months]
        best = max((float(each or 0) + error for each, error in zip(rates, errors, strict=True)), default=0.0)
        points = Points("jobs that failed", 2, [k + 0.5 for k in range(len(months))], rates, errors)
        panels.append(Panel(x, Axis(0, min(1.0, ceiling(best)), "Failed jobs", is_share=True), [points], 110))
        failed, ended = sum(rate.column("failed")), sum(rate.column("ended"))
        note += f", {failed / ended * 100:.1f} % of jobs" if ended else ""
    return histogram(
        panels,
        head="Tidemill",
        title="failures by class per month, and the share of jobs that failed",
        note=note,
    )


def per_day(sheet: Sheet) -> str:
    """Jobs that completed and jobs that failed on each of the newest DAYS_MAX days, of all sites."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for day, completed, failed in zip(
        sheet.column("day"), sheet.column("completed"), sheet.column("failed"), strict=True
    ):
        counts[day][0] += completed
        counts[day][1] += failed
    last = date.fromisoformat(max(counts))
    number = min(DAYS_MAX, (last - date.fromisoformat(min(counts))).days + 1)
    days = [last - timedelta(days=k) for k in reversed(range(number))]
    rows = [counts.get(day.isoformat(), [0, 0]) for day in days]
    scale, power = scale_of(max((sum(row) for row in rows), default=0))
    series = [
        Steps(name, colour, range(number + 1), [row[k] / scale for row in rows], kind="stack")
        for k, (name, colour) in enumerate((("completed", 0), ("failed", 2)))
    ]
    top = ceiling(max((sum(row) for row in rows), default=0) / scale)
    y = Axis(0, top, "Jobs per day" + (f" / {power}" if power else ""))
    note = f"{days[0]} to {days[-1]}"
    return histogram(
        [Panel(days_axis(days), y, series, 200)], head="Tidemill", title="jobs by day and outcome", note=note
    )


def days_axis(days: Sequence[date]) -> Axis:
    """Days, one bin each. Names stand at days, at Mondays or at the first days of months, so that they are few."""
    if len(days) <= MARKS_MAX:
        marks = [(k + 0.5, f"{day:%d %b}") for k, day in enumerate(days)]
    elif len(days) <= 7 * MARKS_MAX:
        every = 7 * -(-len(days) // (7 * MARKS_MAX // 2))
        marks = [
            (k + 0.5, f"{day:%d %b}") for k, day in enumerate(days) if (day.toordinal() - 1) % every == 0
        ]
    else:
        firsts = [(k, day) for k, day in enumerate(days) if day.day == 1]
        marks = [(float(k), f"{day:%b}\n{day:%Y}" if k == firsts[0][0] or day.month == 1 else f"{day:%b}")
                 for k, day in firsts]  # fmt: skip
    return Axis(0, len(days), marks=marks)


def of_jobs(spread: Spread, *, label: str, head: str, is_estimate: bool, colour: int) -> str:
    """A quantity of jobs as a histogram with errors: the square root of each bin."""
    bins = spread.merged(WIDE)
    edges = [bins[0].low, *(each.high for each in bins)]
    values = [float(each.number) for each in bins]
    errors = [math.sqrt(each) for each in values]
    scale, power = scale_of(max(values))
    values, errors = [each / scale for each in values], [each / scale for each in errors]
    x = _log_axis(edges, label)
    top = max(a + b for a, b in zip(values, errors, strict=True))
    y = Axis(0, ceiling(top), f"Jobs / {power}" if power else "Jobs")
    step = Steps("", colour, edges, values, errors, kind="fill")
    mean, sd = spread.mean or 0.0, spread.deviation or 0.0
    about = f"mean {_short(mean)}, s.d. {_short(sd)}" + (", estimated from traces" if is_estimate else "")
    step = step._replace(name=about)
    return histogram(
        [Panel(x, y, [step], 250)],
        head=head,
        title=f"jobs by {label}",
        note=f"{spread.count:,} jobs",
        width=NARROW,
    )


def times(found: Mapping[str, Spread], *, head: str, label: str, order: Sequence[str]) -> str:
    """A time of jobs, one line for each site; each has the area 1, so that sites compare."""
    wide = _width_of(found)
    series, low, high, top = [], math.inf, 0.0, 0.0
    for k, (site, spread) in enumerate(_ordered(found, order)):
        bins = spread.merged(wide)
        if not bins:
            continue
        edges = [bins[0].low, *(each.high for each in bins)]
        values = [each.number / spread.count for each in bins]
        errors = [math.sqrt(each.number) / spread.count for each in bins]
        series.append(Steps(f"{site or '-'}, mean {_short(spread.mean or 0)} s", k, edges, values, errors))
        shares = [edge for edge, value in zip(edges, values, strict=False) if value > 2e-5]
        low, high = (
            min([low, *shares]),
            max([high, *(edge * 10 ** (wide / BINS_PER_DECADE) for edge in shares)]),
        )
        top = max(top, *(a + b for a, b in zip(values, errors, strict=True)))
    axis = _log_axis([low, high], label)
    series = [_cut(each, axis) for each in series]
    panel = Panel(axis, Axis(0, ceiling(top), "Share of jobs", is_share=True), series, 250)
    return histogram([panel], head=head, title=f"{label} by site", width=NARROW)


def staging(sheet: Sheet) -> str:
    """Mean staging time against nodes, with the error of the mean; one kind of points for each site and way."""
    lines: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    names = ("site", "way", "nodes", "mean", "deviation", "files")
    for site, way, nodes, mean, deviation, files in zip(*(sheet.column(name) for name in names), strict=True):
        lines[f"{site}, {way}"].append((nodes, mean, (deviation or 0.0) / math.sqrt(files)))
    order = sorted(lines, key=lambda name: -len(lines[name]))[:SITES_MAX]
    series = [
        Points(
            name,
            k,
            [x * 1.08 ** (k - (len(order) - 1) / 2) for x, _, _ in lines[name]],
            [y for _, y, _ in lines[name]],
            [e for *_, e in lines[name]],
        )
        for k, name in enumerate(sorted(order))
    ]
    every = [point for name in order for point in lines[name]]
    top = max(mean + error for _, mean, error in every)
    x = _log_axis([min(nodes for nodes, *_ in every) / 1.2, max(nodes for nodes, *_ in every) * 1.2], "Nodes")
    y = Axis(0, ceiling(top), "Staging time / s")
    return histogram([Panel(x, y, series, 250)], head="Tidemill", title="staging time against nodes")


def grants(sheet: Sheet, months: Sequence[str]) -> str:
    """What was used of each grant, in percent of what was granted."""
    series: list[Steps | Points] = []
    lines: dict[str, dict[str, float]] = defaultdict(dict)
    for month, site, account, value in zip(
        *(sheet.column(name) for name in ("month", "site", "account", "used_share")), strict=True
    ):
        lines[f"{account} at {site}"][month] = value or 0.0
    found = sorted(lines.items())[:SITES_MAX]
    for k, (name, line) in enumerate(found):
        series.append(Points(name, k, _beside(k, len(found), len(months)), [line.get(m) for m in months]))
    best = max((value for line in lines.values() for value in line.values()), default=0.0)
    y = Axis(0, ceiling(best), "Used of the grant", is_share=True)
    return histogram(
        [Panel(months_axis(months), y, series, 220)], head="Tidemill", title="used of each grant, by month"
    )


def waits(harm: Harm) -> str | None:
    """Delays of other users' jobs; None where no job was delayed."""
    shares = [job.share_s for job in harm.jobs if job.state != "waiting" and job.share_s > 0]
    if not shares:
        return None
    low, high = math.floor(math.log10(min(shares)) * 5), math.floor(math.log10(max(shares)) * 5) + 1
    edges = [10.0 ** (k / 5) for k in range(low, high + 1)]
    values = [0.0] * (len(edges) - 1)
    for each in shares:
        values[min(len(values) - 1, max(0, math.floor(math.log10(each) * 5) - low))] += 1
    errors = [math.sqrt(each) for each in values]
    y = Axis(0, ceiling(max(a + b for a, b in zip(values, errors, strict=True))), "Delayed jobs")
    step = Steps("", 2, edges, values, errors, kind="fill")
    note = f"{len(shares):,} of {harm.totals.jobs:,} jobs"
    panel = Panel(_log_axis(edges, "Delay of a regular job because of Tidemill / s"), y, [step], 230)
    return histogram([panel], head="Tidemill", title="delays of other users' jobs", note=note)


def _ordered(found: Mapping[str, Any], order: Sequence[str]) -> list[tuple[str, Any]]:
    """Sites in the order of the figures before, at most SITES_MAX; others behind."""
    names = [site for site in order if site in found] + sorted(site for site in found if site not in order)
    return [(name, found[name]) for name in names[:SITES_MAX]]


def _beside(k: int, number: int, months: int) -> list[float]:
    """Where the k-th of several series has its points, so that none covers another."""
    return [month + 0.5 + (k - (number - 1) / 2) * min(0.16, 0.8 / number) for month in range(months)]


def _width_of(found: Mapping[str, Spread]) -> int:
    """How many fine bins make one, so that the middle 90 % of each site fill some 12 bins or more."""
    spans = [
        math.log10((each.quantile(0.95) or 1.0) / (each.quantile(0.05) or 1.0)) * BINS_PER_DECADE
        for each in found.values()
        if (each.quantile(0.05) or 0) > 0
    ]
    return max(1, round(min(spans, default=12.0) / 12))


def _cut(step: Steps, axis: Axis) -> Steps:
    """Only the bins that the axis shows."""
    inside = [
        k for k in range(len(step.values))
        if step.edges[k] >= axis.low * 0.999 and step.edges[k + 1] <= axis.high * 1.001
    ]  # fmt: skip
    if not inside:
        return step
    first, last = inside[0], inside[-1] + 1
    return step._replace(
        edges=list(step.edges[first : last + 1]),
        values=list(step.values[first:last]),
        errors=list(step.errors[first:last]),
    )


def _log_axis(edges: Sequence[float], label: str) -> Axis:
    """From the first edge to the last, a little more."""
    low, high = edges[0], edges[-1]
    pad = (high / low) ** 0.04
    return Axis(low / pad, high * pad, label, is_log=True)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
