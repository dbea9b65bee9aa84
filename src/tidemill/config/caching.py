"""`[[caches]]` of site.toml: caches by which payloads read far files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tidemill.config.keys import Size, doc, name_of, shown_url

_UPSTREAM = re.compile(r"roots?://[A-Za-z0-9.\[\]:_-]+")
_SCHEME = "roots?|xroots?|https?|davs?"
_ADDRESS = rf"(?P<address>({_SCHEME})://[A-Za-z0-9.\[\]:_-]+)(//?)?((?<=//)(?P<origins>{_SCHEME}):(//)?)?"
CACHE_TOML = "cache.toml"
"""In the directory of a cache that this site runs: what it may read, and how large it gets."""
ON_NODE = "root://localhost"
"""Where payloads reach a cache that pilots run: the port is chosen on the node."""


class SiteCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cache that payloads of this site may read through: a forwarding proxy, such as `tidemill cache run` starts."""

    name: Annotated[
        str,
        name_of(61, "._-"),
        doc("Name of the cache in reports, metrics and messages"),
    ]
    url: Annotated[
        str,
        doc(
            "Its address, such as `root://dtn01:21094`; a file is read as `root://dtn01:21094//root://ORIGIN//PATH`. "
            "`localhost` = each node runs one. With `memory`: the cache that those of nodes read through in turn; "
            "empty = they read from origins"
        ),
    ] = ""
    directory: Annotated[
        Path | None,
        doc(
            "Directory of the cache (`tidemill cache init`) where this site runs it, by the extension `caches`; none = "
            "others run it. Required with `memory`: its `cache.toml` says what nodes' caches may read, with which "
            "credential, blocks and prefetch"
        ),
    ] = None
    memory: Annotated[
        Size | None,
        doc(
            "Pilots run a cache on each node, in this part of its memory, which slots do not get; 1 GiB of it is for "
            "blocks under way, the rest holds files. none = it runs at `url`"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run, or reached."""
        if self.url and re.fullmatch(_ADDRESS, self.url) is None:
            raise ValueError(
                f"cache `{self.name}`: `url` is `{shown_url(self.url)}`, expected scheme, host and port of the cache, "
                "such as `root://dtn01:21094`, or `root://dtn01:21094//https:` for one that fetches `https`"
            )
        _ = urlsplit(self.url).port  # raises ValueError, as for `root://[::1` and `root://dtn01:port`
        if self.memory is None:
            if not self.url:
                raise ValueError(f"cache `{self.name}`: `url` is missing: payloads would not find it")
            return
        if self.directory is None:
            raise ValueError(
                f"cache `{self.name}`: `memory` needs `directory`: that of a cache.toml with what the cache may read"
            )
        if self.url and (not _UPSTREAM.fullmatch(self.url) or _is_local(self.url)):
            raise ValueError(
                f"cache `{self.name}`: with `memory`, `url` is `root://HOST:PORT` of a cache to read through, or empty"
            )

    @property
    def is_node(self) -> bool:
        """Whether each node has one of its own."""
        return self.memory is not None or _is_local(self.url)

    @property
    def form(self) -> str:
        """How the cache is run: `node` = each node has one of its own."""
        return "node" if self.is_node else "shared"

    @property
    def address(self) -> str:
        """Where payloads reach it."""
        return ON_NODE if self.memory is not None else self._parts()["address"]

    @property
    def origins(self) -> list[str]:
        """Schemes of the URLs that it fetches: XRootD's, as `tidemill cache` does, or the one that ends its `url`."""
        named = None if self.memory is not None else self._parts()["origins"]
        return ["root", "roots", "xroot", "xroots"] if named is None else [named]

    @property
    def upstream(self) -> str | None:
        """The cache that one in memory reads through; None = it reads from origins."""
        return self.url or None if self.memory is not None else None

    @property
    def settings(self) -> Path | None:
        """The `cache.toml` of one in memory."""
        return self.directory / CACHE_TOML if self.directory is not None and self.memory is not None else None

    @property
    def watched(self) -> Path | None:
        """The directory of a cache that this site runs; None = others run it, or pilots do."""
        return self.directory if self.memory is None else None

    def _parts(self) -> re.Match[str]:
        match = re.fullmatch(_ADDRESS, self.url)
        assert match is not None  # `__post_init__` has checked it
        return match


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname == "localhost"
