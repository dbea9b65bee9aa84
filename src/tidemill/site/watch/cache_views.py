"""The caches of a site as the server shows them: what their directories say, and where payloads reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

import msgspec

from tidemill.config.caching import SiteCache
from tidemill.model.metrics import CACHE_KINDS, Sample
from tidemill.model.quantities import span_text
from tidemill.net.names import HostNames
from tidemill.routing.engine import engine
from tidemill.site.applications.job_reads import JobReads
from tidemill.site.nodes.background_reading import BackgroundReading
from tidemill.wire.far import CacheView, ReadView

VIEW_S = 10.0
HUNG_S = 30.0
PORT = 1094


class SiteCaches:
    """Views of the caches that a site names, and of what its traced payloads read."""

    def __init__(
        self,
        caches: Sequence[SiteCache],
        reads: JobReads,
        *,
        names: HostNames | None = None,
        view: Callable[[SiteCache], CacheView] | None = None,
    ) -> None:
        """`names`: where addresses of caches are looked up; `view`: what the files of a cache say.

        An agent's tick waits neither for a name server nor for a file system.
        """
        self._caches, self._reads = list(caches), reads
        self._names = names or HostNames()
        self._readings = [
            BackgroundReading(partial(view or view_of, each), _unread(each), every_s=VIEW_S)
            for each in caches
        ]

    def views(self) -> list[CacheView]:
        """Views of the site's caches, as their directories said a few seconds ago; one whose file system
        hangs is unknown."""
        result = []
        for reading in self._readings:
            view = reading.now()
            hung_s = reading.under_way_s
            if hung_s > HUNG_S:
                text = f"its directory has not answered for {span_text(hung_s)}: the file system may hang"
                view = msgspec.structs.replace(view, state="unknown", findings=[text])
            result.append(view)
        return result

    def reads(self) -> Iterator[ReadView]:
        """What jobs read from caches and from elsewhere, those first that were traced last."""
        return self._reads.rows(self._addresses())

    def _addresses(self) -> dict[tuple[str, int], tuple[str, str]]:
        """By which address and port payloads reach which cache: the way's name and the cache's. Reads of a cache whose
        address is not known yet are shown by their address."""
        result = {}
        for each in self._caches:
            parts = urlsplit(each.address)
            for address in self._names.addresses(parts.hostname or ""):
                result[address, parts.port or PORT] = (_way(each), each.name)
        return result


def cache_samples(views: Iterable[CacheView]) -> Iterator[Sample]:
    """Metrics of the caches that this site runs."""
    for each in views:
        if each.state != "other":
            yield from _samples(each)


def _samples(view: CacheView) -> Iterator[Sample]:
    label = ("cache", view.name)
    yield Sample("tidemill_cache_up", float(view.state == "running"), (label,))
    yield Sample("tidemill_cache_restarts", view.restarts, (label,))
    yield Sample("tidemill_cache_thrashing", float(view.thrashing), (label,))
    yield Sample("tidemill_cache_disagrees", float(bool(view.believe)), (label,))
    yield Sample("tidemill_cache_opens_total", view.total.opens, (label,))
    yield Sample("tidemill_cache_lost_records_total", view.lost + view.unread, (label,))
    yield Sample("tidemill_cache_wire_bytes_total", view.wire_origin, (label,))
    for kind in CACHE_KINDS:
        yield Sample("tidemill_cache_bytes_total", getattr(view.total, kind), (label, ("kind", kind)))


def _unread(cache: SiteCache) -> CacheView:
    state = "other" if cache.watched is None else "unknown"
    return CacheView(name=cache.name, url=cache.address, form=cache.form, state=state)


def _way(cache: SiteCache) -> str:
    return "node" if cache.is_node else "cache"


def view_of(cache: SiteCache) -> CacheView:
    """A cache as its files say; one without a directory is run by others."""
    return _unread(cache) if cache.watched is None else engine().view(cache)
