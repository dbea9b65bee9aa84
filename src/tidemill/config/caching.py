"""`[[caches]]` and `[replicas]` of site.toml: by which way payloads read far files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tidemill.config.keys import Size, doc, name_of

_UPSTREAM = re.compile(r"roots?://[A-Za-z0-9.\[\]:_-]+")
_SCHEME = "roots?|xroots?|https?|davs?"
_ADDRESS = rf"(?P<address>({_SCHEME})://[A-Za-z0-9.\[\]:_-]+)(//?)?((?<=//)(?P<origins>{_SCHEME}):(//)?)?"
_RUCIO = re.compile(r"https?://([A-Za-z0-9._-]{1,100}@)?[^/@?#\s]+(/[^@?#\s]*)?")
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
                f"cache `{self.name}`: `url` is `{_shown(self.url)}`, expected scheme, host and port of the cache, "
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


def _shown(url: str) -> str:
    """A URL for messages, without what stands before an `@` and after a `?`: it may be a password or a token."""
    head, at, rest = url.rpartition("@")
    bare, mark, _ = (f"{head.partition('://')[0]}://...@{rest}" if at else url).partition("?")
    return f"{bare}?..." if mark else bare


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname == "localhost"


class Rucio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Rucio server that lists the replicas of a file. Give a token, a certificate, or a file with a login."""

    url: Annotated[
        str,
        doc(
            "The server, such as `https://rucio.example.org`; a login names its account, as "
            "`https://ACCOUNT@rucio.example.org`; empty = Rucio is not asked"
        ),
    ] = ""
    site: Annotated[
        str, doc("The site's name in Rucio: replicas of stores with that `site` attribute come first")
    ] = ""
    secret_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with the user on its first line and the password on the second; none = no password"
        ),
    ] = None
    certificate: Annotated[
        Path | None, doc("Our certificate or proxy (PEM) for /auth/x509; none = no certificate")
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate (PEM, mode 0600); none = in the same file")] = (
        None
    )
    token_file: Annotated[
        Path | None, doc("File (mode 0600) with a JWT, sent without a login; read for each request")
    ] = None
    ca: Annotated[
        Path | None, doc("Certification authorities: a PEM file or a directory; none = the system's")
    ] = None

    def __post_init__(self) -> None:
        """Refuse what cannot be reached, or cannot log in."""
        if self.url and _RUCIO.fullmatch(self.url) is None:
            raise ValueError(
                f"`replicas.rucio.url` is `{_shown(self.url)}`, expected a server such as `https://rucio.example.org`, "
                "or with the account that logs in `https://ACCOUNT@rucio.example.org`; a password belongs into "
                "`secret_file`"
            )
        _ = urlsplit(self.url).port  # raises ValueError where it is malformed
        ways = [self.token_file, self.certificate, self.secret_file]
        if sum(each is not None for each in ways) > 1:
            raise ValueError("`replicas.rucio`: give one of `token_file`, `certificate` and `secret_file`")
        if self.token_file is None and any(each is not None for each in ways) and not self.account:
            raise ValueError(
                "`replicas.rucio.url` names no account, and a login needs one: write `https://ACCOUNT@HOST`"
            )
        if self.url.startswith("http:") and any(each is not None for each in ways):
            host = self.address.removeprefix("http://").partition("/")[0].rpartition(":")[0]
            if host not in ("127.0.0.1", "localhost", "[::1]"):
                raise ValueError("`replicas.rucio.url` is not encrypted: write `https://`")

    @property
    def account(self) -> str:
        """The account to log in as; empty = the URL names none."""
        return urlsplit(self.url).username or ""

    @property
    def address(self) -> str:
        """The URL without the account."""
        scheme, colon, rest = self.url.partition("://")
        return f"{scheme}{colon}{rest.rpartition('@')[2]}"


class Replicas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where copies of a far file are. Each URL must be permitted by an endpoint, wherever it comes from."""

    files: Annotated[
        Path | None,
        doc(
            "A file with lines `PATTERN URL ...`: `*` is the rest of the input's URL, and of each copy's; or a "
            "directory of such files, one a dataset, read in the order of their names; none = no list"
        ),
    ] = None
    rucio: Annotated[Rucio, doc("The Rucio server that knows `rucio:SCOPE/NAME`")] = Rucio()
