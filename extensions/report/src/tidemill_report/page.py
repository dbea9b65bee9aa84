"""A report as one HTML page that needs nothing else: no network, no script, light and dark, screen, phone and paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tidemill import clock
from tidemill.charts.bars import Bar, bars, shares
from tidemill.charts.page import cards, code, document, figure, section, table
from tidemill.charts.time import area
from tidemill.client.causes import CauseGroup
from tidemill.model.campaign import shown_names
from tidemill.model.failure import POLICY
from tidemill.model.figures.activity import Course
from tidemill.model.quantities import (
    bytes_text,
    count_text,
    duration_text,
    percent_text,
    rate_text,
    ratio,
    share_text,
    short_text,
    times_text,
)
from tidemill.wire.api import AllocationRow, CampaignRow, SiteRow
from tidemill.wire.hospital import WardRow
from tidemill_report.query import ReportData, Timeline

BARS_MAX = 12
GROUPS_MAX = 30
ALLOCATIONS_SHOWN = 50
STATES = {
    "COMPLETED": "good",
    "PARTIAL": "warn",
    "RUNNING": "main",
    "WAITING": "idle",
    "CANCELED": "idle",
    "FAILED": "bad",
}


def page(data: ReportData, *, more: str = "") -> str:
    """The page. `more`: a part of the user's own, as HTML, behind the first figures."""
    parts = [
        _facts(data),
        _progress(data),
        more,
        _campaigns(data.campaigns),
        _efficiency(data.campaigns),
        _failures(data.failures),
        _allocations(data.allocations),
        _sites(data),
        _caches(data.sites),
        _wards(data.wards),
    ]
    return document(data.title, _span(data), "\n".join(parts), made_us=data.made_us)


def _span(data: ReportData) -> str:
    started = [row.first_started_us for row in data.campaigns if row.first_started_us is not None]
    ended = [row.last_ended_us for row in data.campaigns if row.last_ended_us is not None]
    if not started:
        return "nothing has run yet"
    text = f"{clock.utc_text(min(started))} to {clock.utc_text(max(ended)) if ended else 'now'}"
    if data.since_us is not None or data.until_us is not None:
        low = "the start" if data.since_us is None else clock.utc_text(data.since_us)
        high = "now" if data.until_us is None else clock.utc_text(data.until_us)
        text += f"; asked for {low} to {high}"
    return text


def wall_s(rows: Iterable[CampaignRow]) -> float | None:
    """Seconds from the first start to the last end of these campaigns; None if none has ended."""
    pairs = [
        (row.first_started_us, row.last_ended_us)
        for row in rows
        if row.first_started_us is not None and row.last_ended_us is not None
    ]
    if not pairs:
        return None
    return max(0.0, (max(end for _, end in pairs) - min(start for start, _ in pairs)) / 1e6)


def _facts(data: ReportData) -> str:
    rows = data.campaigns
    done, failed = sum(row.events_done for row in rows), sum(row.events_failed for row in rows)
    seconds = wall_s(rows)
    wall = sum(row.usage.wall_us for row in rows) / 1e6
    cpu = sum(row.usage.user_us + row.usage.system_us for row in rows) / 1e6
    facts = [
        ("jobs", count_text(sum(row.jobs for row in rows)), ""),
        ("events done", count_text(done), ""),
        ("events failed", count_text(failed), "bad" if failed else ""),
        ("time", duration_text(seconds), ""),
        ("events/s", rate_text(ratio(done, seconds or 0)), ""),
        ("slot time", duration_text(wall), ""),
        ("CPU/wall", percent_text(ratio(cpu, wall)), ""),
        ("peak memory", bytes_text(max((row.usage.rss_kb for row in rows), default=0) * 1024), ""),
    ]
    return cards(facts)


def _progress(data: ReportData) -> str:
    states: dict[str, int] = {}
    for row in data.campaigns:
        for state, number in row.states.items():
            states[state] = states.get(state, 0) + number
    order = [state for state in STATES if states.get(state)]
    parts = [Bar(state, states[state], count_text(states[state]), STATES[state]) for state in order]
    keys = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{part.kind}" width="10" height="10"/></svg>'
        f"{part.name} {part.text}</li>"
        for part in parts
    )
    drawn = shares(parts, title="jobs by state") + f'<ul class="legend">{keys}</ul>'
    return section("Jobs and events", drawn + (_over_time(data.timeline) if data.timeline else ""))


def _over_time(line: Timeline) -> str:
    told = [_KNOWN]
    if line.known < line.events:
        told.append(
            f"Times are known of {count_text(line.known)} of {count_text(line.events)} events: others were done "
            "before this version, or in a retry that started again."
        )
    if line.partial:
        told.append("Only the newest campaigns are drawn.")
    notes = f'<p class="soft">{escape(" ".join(told))}</p>'
    return (over_time(line.course) if line.course is not None and line.known else "") + notes


_KNOWN = (
    "From the times at which payloads started and ended on their nodes. An event counts when its payload, or its part "
    "of one, has ended."
)


def over_time(course: Course) -> str:
    """Figures of events and payloads over time."""
    total, sums = 0, []
    for value in course.done:
        total += value
        sums.append(total)
    rates = [value / course.bin_s for value in course.done]
    every = f"{course.bin_s} s" if course.bin_s < 60 else duration_text(course.bin_s)
    drawn: list[tuple[str, str, Sequence[float]]] = [
        ("Events done, sum", "events done over time", sums),
        (f"Events per second, by {every}", "events per second over time", rates),
        ("Payloads running, on average", "payloads running over time", course.busy[: course.busy_until]),
        ("CPUs kept busy, on average", "CPUs kept busy over time", course.cpu[: course.busy_until]),
    ]
    if any(course.failed):
        drawn.insert(2, (f"Failures, by {every}", "failures over time", course.failed))
    start_us = course.start_s * 1_000_000
    return "".join(
        figure(
            caption,
            area(values, start_us=start_us, bin_s=course.bin_s, title=title, text=short_text),
        )
        for caption, title, values in drawn
        if values
    )


def _with_names(rows: Sequence[CampaignRow]) -> Iterable[tuple[str, CampaignRow]]:
    return zip(shown_names([(row.owner, row.name) for row in rows]), rows, strict=True)


def _campaigns(rows: Sequence[CampaignRow]) -> str:
    heads = ["campaign", "jobs", "events", "done", "failed", "canceled", "time", "events/s", "CPU/wall"]
    cells = [
        [
            name,
            count_text(row.jobs),
            count_text(row.events),
            count_text(row.events_done),
            count_text(row.events_failed),
            count_text(row.events_canceled),
            duration_text(wall_s([row])),
            rate_text(ratio(row.events_done, wall_s([row]) or 0)),
            percent_text(_cpu_share(row)),
        ]
        for name, row in _with_names(rows)
    ]
    return section("Campaigns", table(heads, cells, right=range(1, 9)))


def _efficiency(rows: Sequence[CampaignRow]) -> str:
    used = [row for row in rows if row.usage.wall_us > 0][:BARS_MAX]
    if not used:
        return ""
    cpu = [
        Bar(name, _cpu_share(row) or 0.0, percent_text(_cpu_share(row)), _grade(_cpu_share(row) or 0.0))
        for name, row in _with_names(used)
    ]
    setup = [
        Bar(
            name,
            row.usage.setup_us / row.usage.wall_us,
            percent_text(row.usage.setup_us / row.usage.wall_us),
            "warn",
        )
        for name, row in _with_names(used)
    ]
    body = figure("CPU time / wall time on slots", bars(cpu, title="CPU per wall time by campaign", top=1.0))
    if any(row.usage.setup_us for row in used):
        body += figure(
            "Share of slot time spent in set-up", bars(setup, title="set-up share by campaign", top=1.0)
        )
    return section("Efficiency", body)


def _failures(groups: Sequence[CauseGroup]) -> str:
    if not groups:
        return section("Failures", "<p>None.</p>")
    by_class: dict[str, tuple[int, int]] = {}
    for group in groups:
        count, final = by_class.get(group.failure, (0, 0))
        by_class[group.failure] = (count + group.count, final + group.final)
    drawn = bars(
        [
            Bar(name, count, f"{count_text(count)}, {count_text(final)} final", "bad" if final else "warn")
            for name, (count, final) in sorted(by_class.items(), key=lambda item: -item[1][0])
        ],
        title="failures by class",
    )
    body = figure("Failures by class; final = the event used up its retries", drawn)
    body += "".join(_group(group) for group in groups[:GROUPS_MAX])
    if len(groups) > GROUPS_MAX:
        body += (
            f'<p class="soft">and {len(groups) - GROUPS_MAX} causes more: <code>tidemill errors</code></p>'
        )
    return section("Failures", body)


def _group(group: CauseGroup) -> str:
    rows = [
        [
            str(each.job),
            "-" if each.event is None else str(each.event),
            "-" if each.seed is None else str(each.seed),
            each.site,
            each.evidence.node or "-",
            each.evidence.message,
        ]
        for each in group.examples
    ]
    tail = next(
        (each.evidence.stderr_tail.strip() for each in group.examples if each.evidence.stderr_tail.strip()),
        "",
    )
    shown = "\n".join(tail.splitlines()[-12:])
    policy = POLICY[group.failure]
    return (
        f"<h3>{escape(group.failure)}: {escape(group.cause)}</h3>"
        f"<p>{times_text(group.count)}, {count_text(group.final)} final: {escape(policy.meaning)}. "
        f'<span class="soft">Next: {code(group.next_step)}.</span></p>'
        + (f"<pre>{escape(shown)}</pre>" if shown else "")
        + "<details><summary>examples</summary>"
        + table(["job", "event", "seed", "site", "node", "message"], rows, right=range(3))
        + "</details>"
    )


def _allocations(rows: Sequence[AllocationRow]) -> str:
    if not rows:
        return ""
    known = [row for row in rows if row.slot_us > 0][:BARS_MAX]
    occupancy = [
        Bar(
            row.name,
            row.busy_us / row.slot_us,
            percent_text(row.busy_us / row.slot_us),
            _grade(row.busy_us / row.slot_us),
        )
        for row in known
    ]
    body = (
        figure(
            "Payload time / slot time of allocations",
            bars(occupancy, title="occupancy by allocation", top=1.0),
        )
        if occupancy
        else ""
    )
    cells = [
        [
            row.name,
            row.site,
            row.state,
            str(row.nodes),
            str(row.cores),
            clock.utc_text(row.at_us),
            percent_text(ratio(row.busy_us, row.slot_us)),
            row.reason or "-",
        ]
        for row in rows[:ALLOCATIONS_SHOWN]
    ]
    heads = ["allocation", "site", "state", "nodes", "cores", "last change", "occupied", "reason"]
    more = (
        f'<p class="soft">the newest {ALLOCATIONS_SHOWN} of {len(rows)}</p>'
        if len(rows) > ALLOCATIONS_SHOWN
        else ""
    )
    return section("Allocations", body + table(heads, cells, right=(3, 4, 6)) + more)


def _sites(data: ReportData) -> str:
    if not data.sites:
        return ""
    cells = [
        [site.name, site.state, site.host, site.version, ", ".join(site.applications) or "-"]
        for site in data.sites
    ]
    return section("Sites", table(["site", "state", "host", "version", "applications"], cells))


def _caches(sites: Sequence[SiteRow]) -> str:
    shown = [(site.name, each) for site in sites for each in site.caches if each.state != "other"]
    if not shown:
        return ""
    cells = []
    for site, view in shown:
        total = view.total
        origin, served = total.fetched + total.bypass, total.served
        cells.append([
            view.name, site, view.state, count_text(total.opens), bytes_text(served), bytes_text(origin),
            bytes_text(view.wire_origin), share_text(total.known, served) if served else "-",
            f"{origin / served:.2f}" if served else "-", bytes_text(total.again),
        ])  # fmt: skip
    heads = [
        "cache", "site", "state", "opens", "to clients", "from origins", "on the wire", "hits",
        "origin bytes per client byte", "fetched again",
    ]  # fmt: skip
    remarks = [
        f"<p>{escape(view.name)} at {escape(site)}: {escape(view.believe)}</p>"
        for site, view in shown
        if view.believe
    ]
    about = (
        "<p>A hit is a byte that was there before it was asked for; bytes that were prefetched for the same reader are "
        "not. The kernel counts the bytes on the wire.</p>"
    )
    return section("Caches", about + table(heads, cells, right=range(3, 10)) + "".join(remarks))


def _wards(rows: Sequence[WardRow]) -> str:
    """Wards of the hospital: of all campaigns, also in a report on one."""
    if not rows:
        return ""
    heads = [
        "ward",
        "admits",
        "with",
        "cured",
        "not cured",
        "canceled",
        "went home",
        "there now",
        "share cured",
    ]
    cells = [
        [row.ward, row.admits or "-", row.cure or "-",
         *map(count_text, (row.cured, row.failed, row.canceled, row.home, row.there)), percent_text(row.share)]
        for row in rows
    ]  # fmt: skip
    return section("Hospital, all campaigns", table(heads, cells, right=range(3, 9)))


def _cpu_share(row: CampaignRow) -> float | None:
    return ratio(row.usage.user_us + row.usage.system_us, row.usage.wall_us)


def _grade(share: float) -> str:
    return "good" if share >= 0.8 else "warn" if share >= 0.4 else "bad"
