"""What the caches of a site did during a level: rates, from sums that the server shows while the level runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill import clock
from tidemill.stress.run import Series
from tidemill.wire.api import SiteRow
from tidemill.wire.far import CacheView

EVERY_S = 10.0
"""How often sites read their caches (`VIEW_S` of the agent); a sync carries the sums to the server."""
LOOKS_MAX = 10_000
"""More than a day. Then the oldest go."""


class Look(NamedTuple):
    """Sums of a cache at a time."""

    at_s: float
    view: CacheView


class CacheFigure(NamedTuple):
    """A series of a cache: what `of` says of the sums, per second."""

    title: str
    unit: str
    of: Callable[[CacheView], int]


FIGURES = (
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
        self._looks: dict[tuple[str, str], list[Look]] = defaultdict(list)

    def look(self, rows: Sequence[SiteRow]) -> None:
        """Note the sums of the sites' caches; at most every EVERY_S."""
        if clock.monotonic_s() - self._looked_s < EVERY_S:
            return
        self._looked_s = clock.monotonic_s()
        for row in rows:
            for view in row.caches:
                looks = self._looks[row.name, view.name]
                looks.append(Look(clock.now_us() / 1e6, view))
                del looks[:-LOOKS_MAX]

    def series(self, site: str, start_s: float, end_s: float) -> list[Series]:
        """Rates of each cache in an interval; none of a cache that served nobody."""
        return [
            each
            for (owner, cache), looks in sorted(self._looks.items())
            if not site or owner == site
            for each in series_of(f"cache {cache} of {owner}", looks, start_s, end_s)
        ]


def series_of(source: str, looks: Sequence[Look], start_s: float, end_s: float) -> list[Series]:
    """Rates between two looks, at the middle of their interval. Pure. A pair of looks between which the sums began anew
    (the cache's supervisor lost its state) has none; quantities that stay zero are left out."""
    pairs = [(old, new) for old, new in _changes(looks) if start_s <= (old.at_s + new.at_s) / 2 <= end_s]
    found = []
    for figure in FIGURES:
        points = [
            ((old.at_s + new.at_s) / 2, max(0, figure.of(new.view) - figure.of(old.view)) / (new.at_s - old.at_s))
            for old, new in pairs
        ]  # fmt: skip
        if any(value for _, value in points):
            found.append(Series(title=figure.title, unit=figure.unit, source=source, points=points))
    return found


def _changes(looks: Sequence[Look]) -> Iterable[tuple[Look, Look]]:
    """Looks with those before them, both of sums that began at the same time and were told anew."""
    for old, new in pairwise(looks):
        if old.view.since_us == new.view.since_us and new.at_s > old.at_s:
            yield old, new
