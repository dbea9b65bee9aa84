"""What sites report of themselves during a level: files that agents move, caches, I/O budgets, waits of regular jobs.

Sites send sums since their agent started. Differences of them become time series of the result, and stop a run that is
too much for the site.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill import clock
from tidemill.wire.api import SiteRow
from tidemill.wire.far import CacheView
from tidemill.wire.monitoring import SiteSums
from tidemill_stress.plan import StopPlan
from tidemill_stress.run import Series

LOOKS_MAX = 10_000
"""Of a site: more than a day, for sites send their sums every 15 s at most. Then the oldest go."""

Values = dict[tuple[str, str, str], float]  #: sums by title, unit and source
Limits = dict[tuple[str, str, str], float]


class SumsSource:
    """Rates of the sums of each site."""

    def __init__(self) -> None:
        self._looks: dict[str, list[SiteSums]] = defaultdict(list)

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Note what is new."""
        for row in rows:
            looks = self._looks[row.name]
            if row.sums is not None and (not looks or row.sums.at_us > looks[-1].at_us):
                looks.append(row.sums)
                del looks[:-LOOKS_MAX]

    def series(self, site: str, start_s: float, end_s: float) -> list[Series]:
        """Rates in an interval; none of what did not change."""
        return [
            each
            for name, looks in sorted(self._looks.items())
            if site in ("", name)
            for each in series_of(name, looks, start_s, end_s)
        ]


def series_of(site: str, looks: Sequence[SiteSums], start_s: float, end_s: float) -> list[Series]:
    """Rates between two reports of sums, at the middle of their interval. Pure. There is none between two agents, one
    started after the other; quantities that stay zero are left out."""
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    limits: Limits = {}
    for old, new in pairwise(looks):
        middle_s, length_s = (old.at_us + new.at_us) / 2e6, (new.at_us - old.at_us) / 1e6
        if old.since_us != new.since_us or length_s <= 0 or not start_s <= middle_s <= end_s:
            continue
        before, after = _values(site, old), _values(site, new)
        for key, value in after.items():
            points[key].append((middle_s, max(0.0, value - before.get(key, value)) / length_s))
        limits |= _limits(site, new)
    return [
        Series(title=key[0], unit=key[1], source=key[2], points=rows, limit=limits.get(key))
        for key, rows in points.items()
        if any(value for _, value in rows)
    ]


def _values(site: str, sums: SiteSums) -> Values:
    found: Values = {}
    transfers, budget = f"transfers of {site}", f"I/O budget of {site}"
    for move in sums.moves:
        way = {"in": "to the site", "out": "from the site"}.get(move.way, move.way)
        found[f"bytes moved {way}", "bytes/s", transfers] = move.bytes
        found[f"files moved {way}", "1/s", transfers] = move.done
        found[f"failed moves {way}", "1/s", transfers] = move.failed
    for area in sums.areas:
        found[f"operations on {area.area}", "1/s", budget] = area.ops
        found[f"bytes of {area.area}", "bytes/s", budget] = area.bytes
    return found


def _limits(site: str, sums: SiteSums) -> Limits:
    budget = f"I/O budget of {site}"
    found: Limits = {}
    for area in sums.areas:
        if area.ops_per_s is not None:
            found[f"operations on {area.area}", "1/s", budget] = area.ops_per_s
        if area.bytes_per_s is not None:
            found[f"bytes of {area.area}", "bytes/s", budget] = area.bytes_per_s
    return found


class SumsGuard:
    """What the sums of a site have against going on with a level."""

    def __init__(self, stop: StopPlan, site: str) -> None:
        self._stop, self._site = stop, site
        self._last: dict[str, SiteSums] = {}
        self._over: Counter[tuple[str, str]] = Counter()  #: reports by site and area
        self._harm_s: dict[str, float] = defaultdict(float)

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Add what has changed since the last reading. New sums, of a restarted agent, count from their beginning."""
        for row in rows:
            if row.sums is None or self._site not in ("", row.name):
                continue
            before, now = self._last.get(row.name), row.sums
            self._last[row.name] = now
            if before is None or before.since_us != now.since_us:
                continue
            reports = {each.area: each.over for each in before.areas}
            for area in now.areas:
                self._over[row.name, area.area] += area.over - reports.get(area.area, 0)
            if now.harm_s is not None and before.harm_s is not None:
                self._harm_s[row.name] += now.harm_s - before.harm_s

    def over(self) -> list[str]:
        """The reasons to stop; none = go on."""
        return list(self._reasons())

    def _reasons(self) -> Iterator[str]:
        for (site, area), reports in self._over.items():
            if reports > 0 and self._stop.io_budget:
                times = "one report" if reports == 1 else f"{reports} reports"
                yield f"site {site} exceeded its I/O budget of area `{area}`: {times} of its nodes (`stop.io_budget`)"
        for site, harm_s in self._harm_s.items():
            if harm_s > self._stop.harm_s:
                yield (
                    f"regular jobs of site {site} have waited {harm_s:.0f} s because of Tidemill during this level, "
                    f"more than {self._stop.harm_s:g} s (`stop.harm_s`)"
                )


CACHES_EVERY_S = 10.0
"""How often sites read their caches (`VIEW_S` of the agent); a sync carries the sums to the server."""


class CacheLook(NamedTuple):
    """Sums of a cache at a time."""

    at_s: float
    view: CacheView


class CacheFigure(NamedTuple):
    """A series of a cache: what `of` says of the sums, per second."""

    title: str
    unit: str
    of: Callable[[CacheView], int]


CACHE_FIGURES = (
    CacheFigure("bytes to clients", "bytes/s", lambda view: view.total.served),
    CacheFigure("bytes of them that were there", "bytes/s", lambda view: view.total.known),
    CacheFigure("bytes fetched from origins", "bytes/s", lambda view: view.total.fetched),
    CacheFigure("bytes past the cache", "bytes/s", lambda view: view.total.bypass),
    CacheFigure("files opened", "1/s", lambda view: view.total.opens),
)


class CacheSource:
    """The caches of sites (`[[caches]]`), as the server shows them."""

    def __init__(self) -> None:
        self._looked_s = float("-inf")
        self._looks: dict[tuple[str, str], list[CacheLook]] = defaultdict(list)

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Note the sums of the sites' caches; at most every CACHES_EVERY_S."""
        if clock.monotonic_s() - self._looked_s < CACHES_EVERY_S:
            return
        self._looked_s = clock.monotonic_s()
        for row in rows:
            for view in row.caches:
                looks = self._looks[row.name, view.name]
                looks.append(CacheLook(clock.now_us() / 1e6, view))
                del looks[:-LOOKS_MAX]

    def series(self, site: str, start_s: float, end_s: float) -> list[Series]:
        """Rates of each cache in an interval; none of a cache that served nothing."""
        return [
            each
            for (owner, cache), looks in sorted(self._looks.items())
            if not site or owner == site
            for each in cache_series_of(f"cache {cache} of {owner}", looks, start_s, end_s)
        ]


def cache_series_of(source: str, looks: Sequence[CacheLook], start_s: float, end_s: float) -> list[Series]:
    """Rates between two readings, at the middle of their interval. Pure. A pair between which the sums began again
    (the cache's supervisor lost its state) has none; quantities that stay zero are left out."""
    pairs = [
        (old, new) for old, new in _cache_changes(looks) if start_s <= (old.at_s + new.at_s) / 2 <= end_s
    ]
    result = []
    for figure in CACHE_FIGURES:
        points = [
            ((old.at_s + new.at_s) / 2, max(0, figure.of(new.view) - figure.of(old.view)) / (new.at_s - old.at_s))
            for old, new in pairs
        ]  # fmt: skip
        if any(value for _, value in points):
            result.append(Series(title=figure.title, unit=figure.unit, source=source, points=points))
    return result


def _cache_changes(looks: Sequence[CacheLook]) -> Iterable[tuple[CacheLook, CacheLook]]:
    """Each reading with the one before it, where both belong to sums that began at the same time."""
    for old, new in pairwise(looks):
        if old.view.since_us == new.view.since_us and new.at_s > old.at_s:
            yield old, new
