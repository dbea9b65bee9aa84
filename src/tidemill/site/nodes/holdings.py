"""Which datasets the caches of this site hold, from the summaries that those keep which run them.

Reads one file for each cache, once a minute at most: never the files of a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tidemill import log
from tidemill.config.caching import SiteCache
from tidemill.errors import TidemillError
from tidemill.routing.engine import engine
from tidemill.site.nodes.background_reading import BackgroundReading
from tidemill.wire.api import HOLDS_MAX
from tidemill.wire.far import HeldData

READ_S = 60.0
HUNG_S = 600.0
"""The contents of a directory are forgotten when a read of it has been under way for this time."""
_log = log.Log("site")


class CacheHoldings:
    """What the running caches hold of which this site has the directory."""

    def __init__(
        self, caches: Sequence[SiteCache], *, read: Callable[[Path], list[tuple[str, float]]] | None = None
    ) -> None:
        """`read`: what the cache in a directory holds."""
        self._readings: list[BackgroundReading[list[tuple[str, float]]]] = [
            BackgroundReading(partial(read or holdings, each.watched), [], every_s=READ_S)
            for each in caches
            if each.watched is not None
        ]

    def now(self) -> list[HeldData]:
        """The largest datasets, with the share of each that is cached."""
        shares: dict[str, float] = {}
        for reading in self._readings:
            held_here = reading.now()
            for dataset, share in held_here if reading.under_way_s < HUNG_S else ():
                shares[dataset] = max(share, shares.get(dataset, 0.0))
        return [HeldData(dataset, share) for dataset, share in shares.items()][:HOLDS_MAX]


def holdings(directory: Path) -> list[tuple[str, float]]:
    """The datasets in a cache, the largest first; none of one that does not run, or whose files cannot be read."""
    try:
        return engine().holdings(directory)
    except (TidemillError, OSError) as error:
        _log.warning("cache.holdings", directory=str(directory), reason=str(error))
        return []
