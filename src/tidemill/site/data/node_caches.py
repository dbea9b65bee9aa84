"""Caches that pilots run on their nodes, as routing knows them: what they may read, and whether nodes can run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tidemill import clock
from tidemill.config.caching import SiteCache
from tidemill.model.far import scheme_of
from tidemill.routing.engine import engine
from tidemill.routing.routes import FarCopy, NearCache, RouteLink, RouteWay
from tidemill.wire.node import Noted

if TYPE_CHECKING:
    from tidemill.site.data.routing import JobRoute

ADDRESS = "{node_cache}"
"""The host in a URL: slots put the address of their node's cache there (crates/slot, `init/inputs`)."""
DOWN_S = 600.0
"""After a node failed to run the cache, no node is asked to run it for this time."""


class NodeCaches:
    """What pilots have said of their nodes' caches. Thread-safe: what is replaced is replaced at once."""

    def __init__(self, caches: Sequence[SiteCache]) -> None:
        self._readable = {each.name: engine().readable(each) for each in caches if each.settings is not None}
        self._down: tuple[float, str] | None = None  #: until when, and why

    def on_note(self, record: Noted) -> None:
        """A pilot's note of topic `cache`."""
        if record.mode == "failed":
            node = record.p.partition(".i")[0]
            self._down = (clock.monotonic_s() + DOWN_S, f"{record.message} ({node})")
        elif record.mode == "runs":
            self._down = None

    def why_down(self) -> str:
        """Why nodes are not asked to run it at present, empty = they are."""
        down = self._down
        return down[1] if down is not None and clock.monotonic_s() < down[0] else ""

    def near(self, cache: SiteCache, copies: Sequence[FarCopy]) -> list[NearCache]:
        """The cache for a file with these copies; empty = it may not read them."""
        readable = self._readable[cache.name]
        if not all(readable(each.url) for each in copies if scheme_of(each.url) in cache.origins):
            return []
        why = self.why_down()
        upstream = "" if cache.upstream is None else f"//{cache.upstream}"
        return [
            NearCache(
                name=cache.name, url=f"root://{ADDRESS}{upstream}", origins=cache.origins, is_node=True,
                link=RouteLink(is_down=bool(why)), why_down=why,
            )
        ]  # fmt: skip

    def with_node_faults(self, row: JobRoute) -> JobRoute:
        """A way as it is shown: with what came between."""
        why = self.why_down()
        if row.way != RouteWay.NODE or not why:
            return row
        return msgspec.structs.replace(
            row, why=f"{row.why}; nodes without the cache read it the next way: {why}"
        )
