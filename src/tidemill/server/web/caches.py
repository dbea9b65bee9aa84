"""The page of caches: what they were asked for and what they fetched, and what traced payloads read by which way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.model.identity import Act
from tidemill.model.quantities import duration_text
from tidemill.server.read import web_pages
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.far import CacheFigures, CacheView, ReadView
from tidemill.wire.views import CACHES, READS

READS_SHOWN = 100


class CacheCard(NamedTuple):
    """A cache of a site."""

    site: str
    view: CacheView


class ReadRow(NamedTuple):
    """What a job read from one place."""

    site: str
    view: ReadView
    half: str  #: half of the waits are shorter
    most: str  #: 99 % are


def listing(ask: PageRequest, made: Pages) -> str:
    """`/caches`: those of all sites, and the jobs that were traced last."""
    own, owner = ask.own(Act.SITES), ask.own(Act.READ)
    caches: list[CacheCard] = []
    reads: list[tuple[str, ReadView]] = []
    for name, shown in sorted(web_pages.running(ask.session).items()):
        if own in (None, name):
            caches += [CacheCard(name, each) for each in CACHES.decode(shown.view.raw)]
            reads += [(name, each) for each in READS.decode(shown.view.raw)]
    owners = web_pages.owners(ask.session, sorted({each.job for _, each in reads if 0 < each.job < 2**62}))
    mine = [(name, each) for name, each in reads if owner in (None, owners.get(each.job))]
    return made.show(
        ask, "caches.html", caches=caches, sees=owner is None,
        reads=[_row(name, each) for name, each in mine[:READS_SHOWN]], ways=_ways([each for _, each in mine]),
        after=web_pages.reached(ask.session), amplified=amplified,
    )  # fmt: skip


def amplified(figures: CacheFigures) -> float | None:
    """Bytes from origins for each byte to clients; None before anything was served."""
    return (figures.fetched + figures.bypass) / figures.served if figures.served else None


def _row(site: str, view: ReadView) -> ReadRow:
    return ReadRow(site, view, *(_below(view.wait_log2_us, share) for share in (0.5, 0.99)))


def _below(bins: Sequence[int], share: float) -> str:
    time_us = quantile_us(bins, share)
    return "-" if time_us is None else f"< {duration_text(time_us / 1e6)}"


def _ways(reads: Sequence[ReadView]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in reads:
        sums[each.way] = sums.get(each.way, 0) + each.bytes
    return dict(sorted(sums.items()))


def quantile_us(bins: Sequence[int], share: float) -> int | None:
    """A time below which this share of the waits lie: the upper bound of a bin. None without waits."""
    left = share * sum(bins)
    if left <= 0:
        return None
    bins_below = 0
    for count in bins:
        left -= count
        bins_below += 1
        if left <= 0:
            break
    return int(2**bins_below)
