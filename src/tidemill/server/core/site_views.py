"""What sites show to people only: stored in bounds, read by pages. No decision uses it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any

import msgspec

from tidemill import log
from tidemill.model.figures.awaited import (
    HINDRANCES_MAX,
    REASON_CHARACTERS_MAX,
    REASONS_MAX,
    Hindrance,
    NodeCounts,
    QueuedReason,
)
from tidemill.model.intervals import IntervalSet
from tidemill.server.core.breakers import TIME_US_MAX
from tidemill.server.database.rows import Site, clean
from tidemill.server.database.store import Session
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.api import UNSTARTED_CHARACTERS_MAX
from tidemill.wire.capacity import unstarted_text
from tidemill.wire.far import RouteView
from tidemill.wire.monitoring import AwaitedNodes, TidePoint, TransferView
from tidemill.wire.views import ROUTES, TIDE, TRANSFERS, SiteViews, ViewType, types

MINUTES_KEPT = 31 * 1_440
AHEAD_MAX = 10  #: minutes that a site's clock may be ahead of the server's
TEXT_MAX = 500
TEXTS_MAX = 5
NUMBER_MAX = 2**62
NODES_MAX = 1e9
BINS = 240  #: steps that a drawing of the tide has
_ENCODER = msgspec.json.Encoder()
_UNFIT = object()
_LOG = log.Log("server")


def store(work: UnitOfWork, site: Site, views: Mapping[str, msgspec.Raw]) -> None:
    """Store what a site shows. What is too much, too long or from another time is left out: it is for people only."""
    now = work.now_us // 60_000_000
    points = {
        each.minute: (site.id, each.minute, each.regular, each.ours, each.idle, each.away)
        for each in TIDE.decode(views)[-TIDE.rows_max :]
        if now - MINUTES_KEPT < each.minute <= now + AHEAD_MAX and _legal(each)
    }
    work.session.many("upsert_tide", list(points.values()))
    work.session.run("prune_tide", site=site.id, before=now - MINUTES_KEPT)
    kept = {}
    for name, kind in types().items():
        if kind.is_kept and name in views:
            try:
                kept[name] = bounded(kind, kind.decode(views))
            except Exception as error:
                if kind.made is None:
                    raise
                # an extension's code may raise anything: a picture must not hold up a site's results
                _LOG.warning("view.failed", site=site.name, view=name, error=repr(error))
    work.session.run("upsert_view", site=site.id, at_us=work.now_us, body=_ENCODER.encode(kept))


def bounded(kind: ViewType[Any], value: Any) -> Any:
    """A view within its bounds: rows that cannot be shown are left out, texts and lists are cut."""
    if not isinstance(value, list):
        return kind.empty if (found := _bounded(value, kind.inner_max)) is _UNFIT else found
    rows = (_bounded(each, kind.inner_max) for each in value[: kind.rows_max])
    return [each for each in rows if each is not _UNFIT and (kind.legal is None or kind.legal(each))]


def _bounded(value: Any, length: int) -> Any:
    """The value with texts and lists cut, and every whole number between -NUMBER_MAX and NUMBER_MAX: pages divide them
    and show them as dates. _UNFIT where a number is not finite, which would break the JSON of every reader."""
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, -NUMBER_MAX), NUMBER_MAX)
    if isinstance(value, float) and not math.isfinite(value):
        return _UNFIT
    if isinstance(value, list | tuple):
        cut = value[: TEXTS_MAX if value and isinstance(value[0], str) else length]
        items = [_bounded(each, length) for each in cut]
        if any(each is _UNFIT for each in items):
            return _UNFIT
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        first = {_bounded(key, length): _bounded(value[key], length) for key in islice(value, length)}
        return _UNFIT if any(_UNFIT in pair for pair in first.items()) else first
    if isinstance(value, msgspec.Struct):
        changed = {name: _bounded(getattr(value, name), length) for name in value.__struct_fields__}
        is_unfit = any(each is _UNFIT for each in changed.values())
        return _UNFIT if is_unfit else msgspec.structs.replace(value, **changed)
    return value if value is None or isinstance(value, bool | float | Enum) else _UNFIT


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


def _legal(point: TidePoint) -> bool:
    return all(
        math.isfinite(each) and 0 <= each <= NODES_MAX
        for each in (point.regular, point.ours, point.idle, point.away)
    )


def _short(text: str) -> str:
    return clean(text, TEXT_MAX)


def last_views(session: Session) -> dict[int, tuple[int, SiteViews]]:
    """What each site showed last and when, by the site's number."""
    return {site: (at_us, SiteViews.stored(bytes(body))) for site, at_us, body in session.rows("views")}


def awaited_inputs(session: Session, job: int, having: Container[int]) -> tuple[int, str] | None:
    """The site, of those that have the job, at which its inputs wait for room, and for how much; None where none has
    said so."""
    for site, each in _transfers(session, job, having):
        if each.waits_for:
            return site, each.waits_for
    return None


def fetched_inputs(session: Session, job: int, having: Container[int]) -> tuple[int, TransferView] | None:
    """The site, of those that have the job, that fetches its inputs, and which; None where none has said so."""
    for site, each in _transfers(session, job, having):
        if each.way == "in" and each.under_way:
            return site, each
    return None


def _transfers(session: Session, job: int, having: Container[int]) -> Iterator[tuple[int, TransferView]]:
    for site, (_, views) in last_views(session).items():
        if site in having:
            yield from ((site, each) for each in TRANSFERS.decode(views.raw) if each.job == job)


def routes_of(session: Session, job: int, having: Container[int]) -> list[RouteView]:
    """By which ways payloads of a job read what they open, as the sites that had it said last."""
    views = (views for site, (_, views) in last_views(session).items() if site in having)
    return [each for shown in views for each in ROUTES.decode(shown.raw) if each.job == job]


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
