"""The caches that a site runs: an extension runs them, by an entry point of `tidemill.caches` (docs/extensions.md).

A cache of others is an address, and needs no extension. Of its own the core asks what follows, and nothing else: it
reads none of their files, but for the names of their credentials, which payloads must not see (site/data/masks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from tidemill import extensions
from tidemill.config.caching import SiteCache
from tidemill.errors import ConfigError
from tidemill.wire.far import CacheView
from tidemill.wire.staged import NodeCacheDef

NAME = "xcache"
"""Of the entry point."""


class PastTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with the time for which it was seen, or an end of xrootd and its next start."""

    state: Literal["warn", "fail"] = "fail"
    check: str
    subject: str = ""  #: the origin, where it is of one
    found: str
    first_us: int
    last_us: int


class CacheHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a cache answers its clients, and what it noted of itself."""

    answers: bool = False
    past: list[PastTrouble] = []  #: the newest last; kept over restarts of what runs the cache


class CacheContents(NamedTuple):
    """What a cache holds. `share`: of the dataset of a file, given by the path of its URL, the share that is cached;
    None = not known."""

    at_us: int  #: when it was listed
    share: Callable[[str], float | None]


class CacheEngine(NamedTuple):
    """What the core asks of caches that a site runs. Threads of the agent call it; it reads a few files of a bounded
    size, connects to nothing, and raises TidemillError or OSError where it cannot read them."""

    #: of the cache in a directory; None = nothing ever ran it. One that does not run does not answer.
    health: Callable[[Path], CacheHealth | None]
    #: None = it does not run, or nothing was listed yet
    contents: Callable[[Path], CacheContents | None]
    #: URLs of datasets with the share that is cached, the largest first; none of one that does not run
    holdings: Callable[[Path], list[tuple[str, float]]]
    #: what the server shows of it, whatever its files hold
    view: Callable[[SiteCache], CacheView]
    #: whether one in node memory may read a URL
    readable: Callable[[SiteCache], Callable[[str], bool]]
    #: what pilots run of one in node memory
    on_nodes: Callable[[SiteCache], NodeCacheDef]
    #: what `site check` says of its directory, behind a semicolon; ConfigError says what is wrong with it
    about: Callable[[SiteCache], str]


def engine() -> CacheEngine:
    """What runs the site's caches. Raises ConfigError: the extension is missing, or at fault."""
    result = extensions.find(extensions.CACHES, NAME)
    if not isinstance(result, CacheEngine):
        raise ConfigError(
            f"`{NAME}` of `{extensions.CACHES}` is not a `CacheEngine`: this site cannot run a cache"
        )
    return result


def check_engine(caches: Iterable[SiteCache]) -> None:
    """Raise ConfigError where a site is to run caches, and what runs them is missing."""
    if any(each.directory is not None for each in caches):
        engine()
