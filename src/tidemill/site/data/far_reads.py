"""What this site knows of caches and origins when a payload that read from them has failed, or a job is explained.

Also what caches hold of a dataset, for the choice of a way. Both are known where this site runs the cache
(`directory` of `[[caches]]`). It reads a few files of a bounded size, and connects to nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tidemill import clock
from tidemill.config.caching import SiteCache
from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.model.failure import POLICY, FailureClass, FaultKind
from tidemill.routing.attribution import FarTrouble, attribute, sentence, troubles, ways_of
from tidemill.routing.engine import CacheContents, CacheHealth, engine
from tidemill.routing.links import RouteLinks
from tidemill.wire.node import Failed, Record

KEPT_S = 2.0
"""The state of a cache is read this often at most: hundreds of payloads fail at once when it ends."""

CONTENTS_KEPT_S = 60.0
"""The summary of what a cache holds is read this often at most; its supervisor writes it every five minutes."""

SHARE_MAX = 0.99
"""A share is that of a dataset: no file is taken as whole, so that none is read through a cache without its origin."""

SENTENCES_MAX = 3
_log = Log("routing")


def _may_be_of_reads(failure: str) -> bool:
    """Whether a failure would count against its event, and a read that failed may be its cause."""
    known = next((each for each in FailureClass if each == failure), None)
    if known is None or known is FailureClass.MEMORY or known is FailureClass.DISK:
        return False
    return POLICY[known].counts and POLICY[known].fault is FaultKind.APPLICATION


class HeldShare(NamedTuple):
    """How much of a file's dataset a cache holds, and how many seconds ago that was listed."""

    share: float
    age_s: float


class CacheShares:
    """What the caches of one site hold, as it was listed last. Thread-safe."""

    def __init__(self, caches: Sequence[SiteCache]) -> None:
        self._directories = {each.name: each.watched for each in caches if each.watched is not None}
        self._lock = threading.Lock()
        self._contents: dict[str, CacheContents | None] = {}
        self._next_s: dict[str, float] = {}

    def share(self, cache: str, url: str) -> HeldShare | None:
        """How much the cache holds of the dataset of the file at an origin's URL; None = not known."""
        directory = self._directories.get(cache)
        if directory is None:
            return None
        now_s = clock.monotonic_s()
        with self._lock:
            is_due = now_s >= self._next_s.get(cache, 0.0)
            if is_due:
                self._next_s[cache] = now_s + CONTENTS_KEPT_S
        if is_due:
            self._contents[cache] = _contents(cache, directory)
        contents = self._contents.get(cache)
        if contents is None:
            return None
        share = contents.share("/" + urlsplit(url).path.lstrip("/"))
        age_s = max(0.0, (clock.now_us() - contents.at_us) / 1e6)
        return None if share is None else HeldShare(min(SHARE_MAX, share), age_s)


def _contents(cache: str, directory: Path) -> CacheContents | None:
    """The summary of a cache that runs."""
    try:
        return engine().contents(directory)
    except (TidemillError, OSError) as error:
        _log.warning("cache.contents", cache=cache, reason=str(error))
        return None


class FarReads:
    """The caches and links of one site. Called by the agent's own thread."""

    def __init__(self, caches: Sequence[SiteCache], links: RouteLinks) -> None:
        self._directories = {each.name: each.watched for each in caches if each.watched is not None}
        self._links = links
        self._states: dict[str, CacheHealth] = {}
        self._read_s = 0.0

    def attributed(self, records: Sequence[Record]) -> dict[int, FarTrouble]:
        """What is known of the ways by which the failed ones of these records read, by their place in the list."""
        result = {}
        for at, record in enumerate(records):
            if type(record) is Failed and _may_be_of_reads(record.failure):
                trouble = self._of(record)
                if trouble is not None:
                    result[at] = trouble
        return result

    def noted(self, cache: str, since_us: int, until_us: int | None) -> str:
        """What a cache noted of itself in that time (None = until now), in sentences; empty = nothing, or the site
        cannot read it."""
        if cache not in self._directories:
            return ""
        life_us = (since_us, clock.now_us() if until_us is None else until_us)
        found = troubles(self._known().get(cache), life_us)
        more = f"; and {len(found) - SENTENCES_MAX} more" if len(found) > SENTENCES_MAX else ""
        return "; ".join(sentence(each) for each in found[:SENTENCES_MAX]) + more

    def _of(self, record: Failed) -> FarTrouble | None:
        ways = ways_of(record.message)
        if not ways:
            return None
        return attribute(
            ways,
            f"{record.stderr_tail}\n{record.message}",
            life_us=(record.at_us - record.wall_us, record.at_us),
            caches=self._known(),
            down={each.place for each in ways if self._links.is_down(each.place)},
        )

    def _known(self) -> dict[str, CacheHealth]:
        now_s = clock.monotonic_s()
        if now_s - self._read_s >= KEPT_S or not self._states:
            self._read_s, self._states = now_s, {}
            for name, directory in self._directories.items():
                try:
                    health = engine().health(directory)
                    if health is not None:
                        self._states[name] = health
                except (TidemillError, OSError) as error:
                    _log.warning("cache.unknown", cache=name, reason=str(error))
        return self._states
