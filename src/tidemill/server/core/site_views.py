"""What sites show to people only: stored in bounds, read by pages. No decision uses it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container
from typing import Any

import msgspec

from tidemill.model.figures.awaited import (
    HINDRANCES_MAX,
    REASON_CHARACTERS_MAX,
    REASONS_MAX,
    Hindrance,
    NodeCounts,
    QueuedReason,
)
from tidemill.model.figures.job_classes import LENGTHS, SIZES
from tidemill.model.intervals import IntervalSet
from tidemill.model.trouble import RefusedApplication
from tidemill.server.core.breakers import TIME_US_MAX
from tidemill.server.database.rows import Site, clean
from tidemill.server.database.store import Session
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.api import (
    TIDE_POINTS_MAX,
    UNSTARTED_CHARACTERS_MAX,
    VIEW_ROWS_MAX,
    SiteView,
)
from tidemill.wire.capacity import unstarted_text
from tidemill.wire.far import CacheFigures, CacheView, RouteView
from tidemill.wire.monitoring import AwaitedNodes, BadNode, SiteSums, TidePoint, TransferView

MINUTES_KEPT = 31 * 1_440
AHEAD_MAX = 10  #: minutes that a site's clock may be ahead of the server's
TEXT_MAX = 500
TEXTS_MAX = 5
DATASETS_MAX = 20
BINS_MAX = 64
NUMBER_MAX = 2**62
NODES_MAX = 1e9
BINS = 240  #: steps that a drawing of the tide has
_ENCODER = msgspec.json.Encoder()
_VIEW = msgspec.json.Decoder(SiteView)


def keep(work: UnitOfWork, site: Site, view: SiteView) -> None:
    """Store what a site shows. What is too much, too long or from another time is left out: it is for people only."""
    now = work.now_us // 60_000_000
    points = {
        each.minute: (site.id, each.minute, each.regular, each.ours, each.idle, each.away)
        for each in view.tide[-TIDE_POINTS_MAX:]
        if now - MINUTES_KEPT < each.minute <= now + AHEAD_MAX and _legal(each)
    }
    work.session.many("upsert_tide", list(points.values()))
    work.session.run("prune_tide", site=site.id, before=now - MINUTES_KEPT)
    body = _ENCODER.encode(within_range(_bounded(view)))
    work.session.run("upsert_view", site=site.id, at_us=work.now_us, body=body)


def awaited(nodes: AwaitedNodes | None) -> AwaitedNodes | None:
    """What is kept of a site's word on what its work waits for."""
    if nodes is None:
        return None
    times = (nodes.asked_us, nodes.next_us, nodes.polled_us)
    asked_us, next_us, polled_us = (max(0, min(each, TIME_US_MAX)) for each in times)
    return AwaitedNodes(
        asked_us=asked_us,
        next_us=next_us,
        polled_us=polled_us,
        why=_short(nodes.why),
        is_stopped=nodes.is_stopped,
        starting=_number(nodes.starting),
        asked=_number(nodes.asked),
        hindrances=[
            Hindrance(cause=_short(each.cause), nodes=_counts(each.nodes))
            for each in nodes.hindrances[:HINDRANCES_MAX]
        ],
        queued=[
            QueuedReason(
                reason=clean(each.reason, REASON_CHARACTERS_MAX),
                meaning=_short(each.meaning),
                allocations=_number(each.allocations),
            )
            for each in nodes.queued[:REASONS_MAX]
        ],
    )


def _number(value: int) -> int:
    return max(0, min(value, NUMBER_MAX))


def _counts(nodes: NodeCounts | None) -> NodeCounts | None:
    if nodes is None:
        return None
    return NodeCounts(**{name: _number(getattr(nodes, name)) for name in NodeCounts.__struct_fields__})


def unstarted(jobs: str) -> str:
    """What is kept of a site's word on the jobs that no pilot runs: nothing where it is not a list of numbers."""
    if len(jobs) > UNSTARTED_CHARACTERS_MAX:
        return ""
    try:
        IntervalSet.parse(jobs)
    except ValueError:
        return ""
    return jobs


def add_unstarted(site: Site, jobs: Collection[int]) -> None:
    """Nothing runs of jobs that the site had nothing of until this sync: what it said in it could not say so."""
    capacity = site.capacity
    if capacity is None or capacity.awaits is not None or not jobs:
        return
    known = IntervalSet.parse(capacity.unstarted)  # checked when it came
    for job in jobs:
        known.add(job, job + 1)
    capacity.unstarted = unstarted_text(known)


def within_range(value: Any) -> Any:
    """The same with every whole number between -NUMBER_MAX and NUMBER_MAX: pages divide them and show them as dates."""
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, -NUMBER_MAX), NUMBER_MAX)
    if isinstance(value, list):
        return [within_range(each) for each in value]
    if isinstance(value, msgspec.Struct):
        changed = {name: within_range(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changed)
    return value


def _is_amount(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds <= NUMBER_MAX


def _legal(point: TidePoint) -> bool:
    return all(
        math.isfinite(each) and 0 <= each <= NODES_MAX
        for each in (point.regular, point.ours, point.idle, point.away)
    )


def _bounded(view: SiteView) -> SiteView:
    return SiteView(
        bad_nodes=[
            BadNode(
                node=_short(each.node), since_us=each.since_us, until_us=each.until_us, why=_short(each.why),
                evidence=_shorts(each.evidence),
            )
            for each in view.bad_nodes[:VIEW_ROWS_MAX]
        ],
        bad_nodes_total=view.bad_nodes_total,
        transfers=[
            TransferView(
                job=each.job, way=_short(each.way), names=_shorts(each.names), places=_shorts(each.places),
                tries=each.tries, under_way=each.under_way, waits_for=_short(each.waits_for),
            )
            for each in view.transfers[:VIEW_ROWS_MAX]
        ],
        transfers_total=view.transfers_total,
        grants=[
            msgspec.structs.replace(each, account=_short(each.account))
            for each in view.grants[:VIEW_ROWS_MAX]
            if all(map(math.isfinite, (each.granted, each.used, each.open, each.left)))
        ],
        mode=_short(view.mode), waits_for=_short(view.waits_for), stopped=_short(view.stopped),
        denied=[_short(each) for each in view.denied[:VIEW_ROWS_MAX]],
        routes=[
            msgspec.structs.replace(
                each, name=_short(each.name), way=_short(each.way), url=_short(each.url), why=_short(each.why)
            )
            for each in view.routes[:VIEW_ROWS_MAX]
        ],
        caches=[_cache(each) for each in view.caches[:VIEW_ROWS_MAX]],
        reads=[
            msgspec.structs.replace(
                each, app=_short(each.app), way=_short(each.way), place=_short(each.place),
                wait_log2_us=each.wait_log2_us[:BINS_MAX],
            )
            for each in view.reads[:VIEW_ROWS_MAX]
        ],
        staging=[msgspec.structs.replace(each, way=_short(each.way)) for each in view.staging[:VIEW_ROWS_MAX]],
        sums=None if view.sums is None else _sums(view.sums),
        waits=[
            each
            for each in view.waits[:VIEW_ROWS_MAX]
            if each.size in SIZES and each.length in LENGTHS and each.jobs > 0 and _is_amount(each.wait_s)
            and _is_amount(each.share_s)
        ],
        refused=[
            RefusedApplication(name=_short(each.name), file=_short(each.file), why=_short(each.why))
            for each in view.refused[:VIEW_ROWS_MAX]
        ],
    )  # fmt: skip


def _sums(sums: SiteSums) -> SiteSums:
    """Numbers that are not finite would break the JSON of every reader."""
    areas = [
        msgspec.structs.replace(each, area=_short(each.area))
        for each in sums.areas[:VIEW_ROWS_MAX]
        if all(
            math.isfinite(value or 0.0) for value in (each.ops, each.bytes, each.ops_per_s, each.bytes_per_s)
        )
    ]
    harm_s = sums.harm_s if sums.harm_s is not None and math.isfinite(sums.harm_s) else None
    moves = [msgspec.structs.replace(each, way=_short(each.way)) for each in sums.moves[:VIEW_ROWS_MAX]]
    return SiteSums(since_us=sums.since_us, at_us=sums.at_us, moves=moves, areas=areas, harm_s=harm_s)


def _cache(each: CacheView) -> CacheView:
    return msgspec.structs.replace(
        each, name=_short(each.name), url=_short(each.url), form=_short(each.form), state=_short(each.state),
        findings=_shorts(each.findings), believe=_short(each.believe), total=_figures(each.total),
        datasets=[_figures(row) for row in each.datasets[:DATASETS_MAX]],
    )  # fmt: skip


def _figures(each: CacheFigures) -> CacheFigures:
    return msgspec.structs.replace(each, name=_short(each.name))


def _short(text: str) -> str:
    return clean(text, TEXT_MAX)


def _shorts(texts: list[str]) -> list[str]:
    return [_short(each) for each in texts[:TEXTS_MAX]]


def told(session: Session) -> dict[int, tuple[int, SiteView]]:
    """What each site showed last and when, by the site's number."""
    return {site: (at_us, _VIEW.decode(bytes(body))) for site, at_us, body in session.rows("views")}


def awaited_inputs(session: Session, job: int, having: Container[int]) -> tuple[int, str] | None:
    """The site, of those that have the job, at which its inputs wait for room, and for how much; None where none has
    said so."""
    for site, (_, view) in told(session).items():
        for each in view.transfers if site in having else ():
            if each.job == job and each.waits_for:
                return site, each.waits_for
    return None


def fetched_inputs(session: Session, job: int, having: Container[int]) -> tuple[int, TransferView] | None:
    """The site, of those that have the job, that fetches its inputs, and which; None where none has said so."""
    for site, (_, view) in told(session).items():
        for each in view.transfers if site in having else ():
            if each.job == job and each.way == "in" and each.under_way:
                return site, each
    return None


def routes_of(session: Session, job: int, having: Container[int]) -> list[RouteView]:
    """By which ways payloads of a job read what they open, as the sites that had it said last."""
    views = ((site, view) for site, (_, view) in told(session).items() if site in having)
    return [each for _, view in views for each in view.routes if each.job == job]


class TideSeries(msgspec.Struct, frozen=True):
    """A machine over time: equal steps of `step` minutes from minute `start` on; None = nothing was heard then."""

    start: int
    step: int
    points: list[tuple[float, float, float, float] | None]  #: regular, Tidemill's, idle, out of service


def tides(
    session: Session, sites: list[int], *, now_us: int, minutes: int, steps: int = BINS
) -> dict[int, TideSeries]:
    """The last minutes of each site's machine, in at most `steps` steps."""
    step = max(1, minutes // steps)
    bins = min(steps, max(1, minutes // step))
    start = (now_us // 60_000_000 // step + 1) * step - bins * step
    found: dict[int, dict[int, tuple[float, float, float, float]]] = defaultdict(dict)
    if sites:
        until = start + bins * step
        for site, at, *means in session.rows("tides", sites=sites, start=start, step=step, until=until):
            regular, ours, idle, away = (float(each) for each in means)
            found[site][int(at)] = (regular, ours, idle, away)
    return {
        site: TideSeries(start, step, [found[site].get(k) for k in range(bins)])
        for site in sites
        if found[site]
    }
