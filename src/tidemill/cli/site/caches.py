"""Findings of `site check` on caches: their files, credentials and answers.

ASKED_MAX caches are asked at a time, which takes three times PROBE_TIMEOUT_S at most: 9 s for up to 16 caches, 18 s for
up to 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidemill.errors import TidemillError
from tidemill.net.names import addresses_within
from tidemill.routing.contact import greet
from tidemill.routing.engine import engine
from tidemill.routing.links import PORTS, PROBE_TIMEOUT_S, place_of_url, round_trip_s
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.caching import SiteCache
    from tidemill.config.site import SiteConfig

ASKED_MAX = 16
"""Caches that are asked at the same time: each answers within three times PROBE_TIMEOUT_S, or counts as silent."""


def examine_caches(read: SiteConfig, *, offline: bool) -> Iterator[Finding]:
    """One finding for each cache, or one for each thing that is wrong with it; none where there are none."""
    if not read.caches:
        return
    with ThreadPoolExecutor(ASKED_MAX) as threads:
        silences = list(threads.map(_why_silent, ("" if offline else _asked(each) for each in read.caches)))
    for cache, why in zip(read.caches, silences, strict=True):
        yield from _examine(cache, why, offline=offline)


def _asked(cache: SiteCache) -> str:
    """The address that can be asked from here; empty = none: nodes run the cache, each for itself."""
    if cache.upstream is not None:
        return cache.upstream
    return "" if cache.is_node else cache.address


def _why_silent(address: str) -> str:
    """Why a cache does not answer at an address; empty = it does, or has no address. Takes three times
    PROBE_TIMEOUT_S at most."""
    if not address:
        return ""
    parts = urlsplit(address)
    try:
        if parts.scheme not in ("root", "roots", "xroot", "xroots"):
            round_trip_s(place_of_url(address))
            return ""
        found = addresses_within(parts.hostname or "", PROBE_TIMEOUT_S)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    if not found:
        return f"`{parts.hostname}` has no address"
    return greet(found[0], parts.port or PORTS[parts.scheme], PROBE_TIMEOUT_S).why


def _examine(cache: SiteCache, why_silent: str, *, offline: bool) -> Iterator[Finding]:
    try:
        about = "" if cache.directory is None else engine().about(cache)
    except TidemillError as error:
        yield Finding("cache", "fail", f"`{cache.name}`: {error.message}", error.hint or "")
        return
    asked = _asked(cache)
    if why_silent:
        which = "the cache that it reads through" if cache.upstream is not None else "it"
        yield Finding(
            "cache", "warn", f"`{cache.name}`: {which} does not answer from this host at {asked}: {why_silent}",
            "start it, or correct `url`; while it does not answer, payloads read by another way",
        )  # fmt: skip
        return
    if cache.memory is not None:
        where = f"each node runs it, in {cache.memory >> 20} MB of memory"
        where += "" if cache.upstream is None else f", and reads through {asked}"
    elif cache.is_node:
        where = f"payloads reach it at {cache.url} on their node; it is not asked from here"
    else:
        where = f"at {asked}"
    answers = ", which answers" if asked and not offline else ""
    yield Finding("cache", "ok", f"`{cache.name}`: {where}{answers}{about}")
