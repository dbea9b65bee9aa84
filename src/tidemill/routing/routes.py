"""The way by which a payload reads a far file: directly, through a cache, or as a copy; and why. Pure.

Each possible way is estimated in seconds for all reads that are expected, from what was measured; where nothing was
measured, from the window of a TCP connection. Three rules stand above the estimates: a near origin is read directly, a
way that cannot work is not chosen, and a way that failed comes last.

The constants are assumptions of the model, near what XRootD 5.5 does; none is fitted to a site. The order of ways is
tested, the seconds are not compared with real reads. What a site measures of a place replaces them, and what payloads
of the application waited by a way replaces the estimate of that way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tidemill.model.far import scheme_of
from tidemill.model.quantities import bytes_text, duration_text
from tidemill.routing.learned import Learned, LearnedReads, way_key

OPEN_TRIPS = 4.0
"""Round trips from the first packet to an open file (XRootD: connection, handshake, login, open)."""

COLD_FACTOR = 1.5
"""A first read through a cache is assumed to take this multiple of a direct read: less with prefetch, more without."""

REQUEST_BYTES = 8 << 20
"""Asked for at a time (default of xrdcp: XRD_CPCHUNKSIZE)."""

WINDOW_BYTES = 4 << 20
BYTES_PER_S_MAX = 100e6
"""Assumed throughput of a link that has not been measured."""

SIZE_BYTES = 1_000_000_000
"""Assumed size of a file whose size is unknown."""

UNKNOWN_RTT_S = 0.05
WHOLE = 0.9
"""A program that reads this part of a file reads it whole."""

SLOWER_MAX = 1.1
"""A way that is expected to be slower than a direct read by more than this factor is not chosen."""


class RouteWay(StrEnum):
    """How a payload reaches an input."""

    DIRECT = "direct"
    CACHE = "cache"
    NODE = "node"
    STAGE = "stage"


class RouteLink(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured towards a place; None = nothing was. `is_down`: it refused the last connection."""

    rtt_s: float | None = None
    bytes_per_s: float | None = None
    is_down: bool = False


class FarCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the file is. `must_log_in`: only clients with a credential of the site's may read it."""

    url: str
    place: str  #: scheme, host and port, for messages
    link: RouteLink = RouteLink()
    must_log_in: bool = False
    rank: int = 0  #: the catalogue's order: lower is better among equally far ones
    is_local: bool = False  #: on the site's own file systems


class NearCache(msgspec.Struct, frozen=True, kw_only=True):
    """A cache that payloads may read through. `held`: part of the file that it holds already, 0 to 1;
    `is_held_known`: the cache's list says so of the file's dataset, it is not a guess."""

    name: str
    url: str
    origins: Sequence[str]
    is_node: bool = False
    link: RouteLink = RouteLink()
    held: float = 0.0
    is_held_known: bool = False
    place: str = ""
    why_down: str = ""  #: of one whose link is down, where more is known than that it did not answer


class FarFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one input. `fraction`: part of such files that the application reads; None = not learned yet.
    `reads`: how often it will be read here, this job's included; `learned`: of the application's earlier payloads."""

    copies: Sequence[FarCopy]
    size_bytes: int | None = None
    fraction: float | None = None
    reads: int = 1
    learned: LearnedReads = LearnedReads()


class FarReader(msgspec.Struct, frozen=True, kw_only=True):
    """What the payload can do. `opens`: schemes; `why_closed`: why it reaches no network, empty = it does; `may_stage`:
    whether a copy is possible; `why_cached`: why a cache is to be used where one can be, empty = no such cause."""

    opens: Sequence[str]
    why_closed: str = ""
    why_copied: str = ""  #: why only a copy will do, empty = no such cause
    may_stage: bool = True
    why_cached: str = ""  #: why a cache that works comes first, whatever the estimates; empty = no such cause


class RouteRules(msgspec.Struct, frozen=True, kw_only=True):
    """The site's."""

    near_s: float = 0.02
    stage_bytes_max: int = 64_000_000


class FarRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen way. `url`: what the payload opens, or where the copy comes from; `via`: the cache's name, empty for
    other ways; `seconds`: the estimate for all reads; `is_down`: something on the way did not answer."""

    way: RouteWay
    url: str
    place: str
    why: str
    via: str = ""
    seconds: float = 0.0
    is_down: bool = False
    is_local: bool = False

    @property
    def text(self) -> str:
        """The way in a few words, for evidence."""
        if self.way is RouteWay.STAGE:
            return f"as a copy from {self.place}"
        if self.way is RouteWay.DIRECT:
            return f"directly from {self.place}"
        return f"through cache `{self.via}` from {self.place}"


class _Option(NamedTuple):
    """A way with what decides its place: `order`, then the estimate, then the catalogue's rank."""

    order: int
    seconds: float
    rank: int
    route: FarRoute


_FIRST, _NEAR, _GOOD, _SLOW, _COPY, _DOWN = range(6)


def routes(
    file: FarFile, reader: FarReader, *, caches: Sequence[NearCache], rules: RouteRules
) -> list[FarRoute]:
    """All ways that are possible, the best first; empty = there is none. A retry takes the next one.

    `file.copies` must not be empty, and must be permitted by the site.
    """
    stages = [_stage(file, each) for each in file.copies] if reader.may_stage else []
    why = reader.why_copied or reader.why_closed or _cannot_open(file, reader, caches)
    if why:
        stages.sort(key=lambda each: (each.is_down, each.seconds))
        return [_because(each, why) for each in stages]
    uncached = _uncached(file, caches)
    options = [
        _rated_direct(_direct(file, each), each, rules, uncached=uncached)
        for each in file.copies
        if _is_direct(each, reader)
    ]
    direct_s = min((each.seconds for each in options if each.order != _DOWN), default=None)
    options += [
        _asked(_rated_cached(_through(file, copy, cache), (copy, cache), direct_s), reader.why_cached)
        for copy, cache in _pairs(file, reader, caches)
    ]
    best = min(options, default=None, key=lambda one: one[:3])
    options += [_rated_copy(file, each, best, rules) for each in stages]
    options.sort(key=lambda one: one[:3])
    return [each.route for each in options]


def _rated_direct(route: FarRoute, copy: FarCopy, rules: RouteRules, *, uncached: str) -> _Option:
    rtt_s = copy.link.rtt_s
    if copy.link.is_down:
        return _Option(_DOWN, route.seconds, copy.rank, route)
    if rtt_s is not None and rtt_s <= rules.near_s:
        near = _because(route, f"it is near: {_ms(rtt_s)} away")
        return _Option(_NEAR, route.seconds, copy.rank, near)
    noted = _because(route, f"{route.why}, {uncached}") if uncached else route
    return _Option(_GOOD, route.seconds, copy.rank, noted)


def _rated_cached(route: FarRoute, of: tuple[FarCopy, NearCache], direct_s: float | None) -> _Option:
    """A cache that holds the whole file serves it without the origin."""
    copy, cache = of
    if cache.link.is_down or (copy.link.is_down and cache.held < 1.0):
        return _Option(_DOWN, route.seconds, copy.rank, route)
    if direct_s is None:
        return _Option(_GOOD, route.seconds, copy.rank, route)
    order = _SLOW if route.seconds > SLOWER_MAX * direct_s else _GOOD
    return _Option(
        order, route.seconds, copy.rank, _because(route, f"{route.why}, directly {duration_text(direct_s)}")
    )


def _asked(option: _Option, why: str) -> _Option:
    """A cache that works is first where a cause asks for it."""
    if not why or option.order == _DOWN:
        return option
    return option._replace(order=_FIRST, route=_because(option.route, f"{why}; {option.route.why}"))


def _rated_copy(file: FarFile, route: FarRoute, best: _Option | None, rules: RouteRules) -> _Option:
    """Copies come after what works, unless a small file is read whole from afar and a copy is the quickest."""
    if route.is_local:
        return _Option(_FIRST, 0.0, 0, route)
    size = file.size_bytes
    is_small = size is not None and size <= rules.stage_bytes_max
    fraction = _fraction(file)
    reads_whole = fraction is not None and fraction >= WHOLE
    is_quicker = best is not None and best.order not in (_FIRST, _NEAR) and route.seconds < best.seconds
    if is_small and reads_whole and is_quicker and not route.is_down:
        why = f"it is small ({bytes_text(size or 0)}) and read whole: one copy serves {_reads(file)}"
        return _Option(_GOOD, route.seconds, 0, _because(route, why))
    return _Option(_DOWN if route.is_down else _COPY, route.seconds, 0, route)


def _cannot_open(file: FarFile, reader: FarReader, caches: Sequence[NearCache]) -> str:
    """Why no URL can be given to the program, empty = one can."""
    if not reader.opens:
        return "the application does not say which URLs its program opens (`opens`)"
    schemes = {scheme_of(each.url) for each in file.copies}
    if schemes & set(reader.opens):
        if any(_is_direct(each, reader) for each in file.copies) or _pairs(file, reader, caches):
            return ""
        why = "the origin wants a credential of the site's, which payloads do not have"
        uncached = _uncached(file, caches)
        return f"{why}, and {uncached}" if uncached else why
    if _pairs(file, reader, caches):
        return ""
    named = ", ".join(sorted(f"`{each or 'file'}:`" for each in schemes))
    return f"the program opens {', '.join(f'`{each}:`' for each in reader.opens)}, and the file is at {named}"


def _pairs(file: FarFile, reader: FarReader, caches: Sequence[NearCache]) -> list[tuple[FarCopy, NearCache]]:
    """Copies that a cache can fetch, for a program that can open the cache's URL. A query may be a signature of one
    client's: it is not for a cache."""
    return [
        (copy, cache)
        for cache in caches
        for copy in file.copies
        if scheme_of(cache.url) in reader.opens
        and scheme_of(copy.url) in cache.origins
        and "?" not in copy.url
    ]


def _uncached(file: FarFile, caches: Sequence[NearCache]) -> str:
    """That no cache fetches such URLs, in words; empty where one does, or the site has none."""
    schemes = {scheme_of(each.url) for each in file.copies if not each.is_local}
    if not caches or not schemes or any(schemes & set(each.origins) for each in caches):
        return ""
    return f"no cache of this site fetches {', '.join(f'`{each}:`' for each in sorted(schemes))}"


def _is_direct(copy: FarCopy, reader: FarReader) -> bool:
    return scheme_of(copy.url) in reader.opens and not copy.must_log_in


# ---- estimates -------------------------------------------------------------------------------------------------


def _size(file: FarFile) -> int:
    return SIZE_BYTES if file.size_bytes is None else file.size_bytes


def _fraction(file: FarFile) -> float | None:
    if file.fraction is None and file.learned.fraction is not None:
        return file.learned.fraction.value
    return file.fraction


def _part_bytes(file: FarFile) -> float:
    """What one read takes of the file."""
    fraction = _fraction(file)
    if fraction is None and file.learned.part_bytes is not None:
        return min(file.learned.part_bytes.value, math.inf if file.size_bytes is None else file.size_bytes)
    return (1.0 if fraction is None else fraction) * _size(file)


def _waited(file: FarFile, via: str, place: str) -> Learned | None:
    return file.learned.waits.get(way_key(via, place))


def read_s(link: RouteLink, size_bytes: float) -> float:
    """Seconds to open a file and read `size_bytes` of it."""
    rtt_s = UNKNOWN_RTT_S if link.rtt_s is None else link.rtt_s
    requests = max(1.0, size_bytes / REQUEST_BYTES)
    rate = link.bytes_per_s
    if rate is None:
        rate = min(BYTES_PER_S_MAX, WINDOW_BYTES / max(rtt_s, 1e-4))
    return (OPEN_TRIPS + requests) * rtt_s + size_bytes / rate


def _direct(file: FarFile, copy: FarCopy) -> FarRoute:
    waited = _waited(file, "", copy.place)
    seconds = file.reads * (read_s(copy.link, _part_bytes(file)) if waited is None else waited.value)
    if copy.link.is_down:
        why = "it did not answer"
    elif copy.link.rtt_s is None:
        why = "its distance was not measured yet"
    else:
        why = f"it is {_ms(copy.link.rtt_s)} away, {_about(seconds, file)}{_basis(file, waited)}"
    return FarRoute(
        way=RouteWay.DIRECT,
        url=copy.url,
        place=copy.place,
        why=why,
        seconds=seconds,
        is_down=copy.link.is_down,
    )


def _through(file: FarFile, copy: FarCopy, cache: NearCache) -> FarRoute:
    part_bytes = _part_bytes(file)
    missing = 1.0 - min(1.0, max(0.0, cache.held))
    waited = _waited(file, cache.name, copy.place)
    if waited is None:
        first_s = COLD_FACTOR * missing * read_s(copy.link, part_bytes)
        seconds = first_s + file.reads * read_s(_near_link(cache), part_bytes)
    else:  # first reads were among those
        seconds = file.reads * waited.value
    far = "" if copy.link.rtt_s is None else f"the origin is {_ms(copy.link.rtt_s)} away, "
    text = (
        f"holds {cache.held:.0%} of its dataset"
        if cache.is_held_known
        else f"probably holds {cache.held:.0%} of it"
    )
    held = f"the cache {text}, " if cache.held > 0 else ""
    about = f"{_about(seconds, file)}{_basis(file, waited)}"
    return FarRoute(
        way=RouteWay.NODE if cache.is_node else RouteWay.CACHE,
        url=through_cache(cache.url, copy.url),
        place=copy.place,
        why=(cache.why_down or "the cache did not answer") if cache.link.is_down else f"{far}{held}{about}",
        via=cache.name,
        seconds=seconds,
        is_down=cache.link.is_down or (copy.link.is_down and missing > 0),
    )


def _near_link(cache: NearCache) -> RouteLink:
    """The link to a cache; one that has not been measured is assumed to be in the same building."""
    link = cache.link
    return msgspec.structs.replace(link, rtt_s=0.001) if link.rtt_s is None else link


def _stage(file: FarFile, copy: FarCopy) -> FarRoute:
    seconds = read_s(copy.link, _size(file))
    why = "a copy is on the site's own file systems" if copy.is_local else "no other way is left"
    return FarRoute(
        way=RouteWay.STAGE,
        url=copy.url,
        place=copy.place,
        why=why,
        seconds=0.0 if copy.is_local else seconds,
        is_down=copy.link.is_down,
        is_local=copy.is_local,
    )


def through_cache(cache: str, origin: str) -> str:
    """The URL of a file of an origin at a forwarding proxy."""
    return f"{cache.rstrip('/')}//{origin}"


# ---- words -----------------------------------------------------------------------------------------------------


def _because(route: FarRoute, why: str) -> FarRoute:
    return route if route.why == why else msgspec.structs.replace(route, why=why)


def _ms(rtt_s: float) -> str:
    return f"{1000 * rtt_s:.3g} ms"


def _reads(file: FarFile) -> str:
    return "one read" if file.reads == 1 else f"{file.reads} reads"


def _about(seconds: float, file: FarFile) -> str:
    return f"about {duration_text(seconds)} for {_reads(file)}"


def _basis(file: FarFile, waited: Learned | None) -> str:
    """What an estimate comes from, where payloads showed it."""
    if waited is not None:
        return f" (the median of {waited.payloads} payloads, {duration_text(waited.value)} each)"
    fraction, part_bytes = file.learned.fraction, file.learned.part_bytes
    if file.fraction is None and fraction is not None:
        return f" ({fraction.payloads} payloads read {fraction.value:.2g} of a file)"
    if file.fraction is None and part_bytes is not None:
        return f" ({part_bytes.payloads} payloads read {bytes_text(round(part_bytes.value))} of a file)"
    return ""
