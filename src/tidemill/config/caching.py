"""`[[caches]]`, `[replicas]` and `[routing]` of site.toml: by which way payloads read far files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Duration, Size, constant, doc

_UPSTREAM = re.compile(r"roots?://[A-Za-z0-9.\[\]:_-]+")
_Scheme = Literal["root", "roots", "xroot", "xroots", "http", "https", "dav", "davs"]


class SiteCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cache that payloads of this site may read through: a forwarding proxy, such as `tidemill cache run` starts."""

    name: Annotated[
        str,
        msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$"),
        doc("Name of the cache in reports, metrics and messages"),
    ]
    url: Annotated[
        str,
        msgspec.Meta(pattern=r"^(root|roots|xroot|xroots|http|https|dav|davs)://[A-Za-z0-9.\[\]:_-]+/{0,2}$"),
        doc(
            "Where payloads reach it, such as `root://dtn01:21094`; a file is "
            "`root://dtn01:21094//root://ORIGIN//PATH`. With `memory` the port is chosen on the node"
        ),
    ] = "root://localhost"
    form: Annotated[
        Literal["shared", "node"],
        doc("`shared`: one server for all nodes; `node`: one on each node, which `url` names as `localhost`"),
    ] = "shared"
    directory: Annotated[
        Path | None,
        doc("Directory of the cache (`tidemill cache init`) where this site runs it; none = others run it"),
    ] = None
    memory: Annotated[
        Size | None,
        doc(
            "Of a `node` cache: the memory of each node that pilots give to it, and slots do not get; 1 GiB of "
            "it is for blocks under way, the rest holds files. none = others run it at `url`"
        ),
    ] = None
    settings: Annotated[
        Path | None,
        doc(
            "With `memory`: a `cache.toml` (as `tidemill cache init` writes it) with what the cache may read, its "
            "credential, blocks and prefetch; its space, port and clients count for nothing here"
        ),
    ] = None
    program: Annotated[
        str,
        msgspec.Meta(pattern=r"^[^\s/\0]+$|^/[^\0]+$"),
        doc(
            "With `memory`: XRootD's server on nodes, by name on their PATH or by path; a script may load a module"
        ),
    ] = "xrootd"
    upstream: Annotated[
        str | None,
        doc(
            "With `memory`: the site's cache to read through, such as `root://dtn01:21094`; none = from origins"
        ),
    ] = None
    origins: Annotated[
        list[_Scheme], msgspec.Meta(min_length=1), doc("Schemes of the URLs that it fetches")
    ] = msgspec.field(default_factory=lambda: ["root", "roots", "xroot", "xroots"])

    def __post_init__(self) -> None:
        """Refuse what cannot be run, or reached."""
        if self.form == "shared" and self.url == "root://localhost":
            raise ValueError(f"cache `{self.name}`: `url` is missing: nodes would look for it on themselves")
        if self.memory is None and (self.settings is not None or self.upstream is not None):
            raise ValueError(f"cache `{self.name}`: `settings` and `upstream` need `memory`")
        if self.upstream is not None and not _UPSTREAM.fullmatch(self.upstream):
            raise ValueError(f"cache `{self.name}`: `upstream` is not `root://HOST:PORT`")
        if self.memory is not None and self.form != "node":
            raise ValueError(f'cache `{self.name}`: `memory` needs `form = "node"`')
        if self.memory is not None and self.settings is None:
            raise ValueError(
                f"cache `{self.name}`: `memory` needs `settings`: a cache.toml with what the cache may read"
            )


class Rucio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Rucio server that lists the replicas of a file. Give a token, a certificate, or a user with a password."""

    url: Annotated[
        str,
        msgspec.Meta(pattern=r"^(https?://[^/@?#\s]+(/[^@?#\s]*)?)?$"),
        doc("The server, such as `https://rucio.example.org`; empty = Rucio is not asked"),
    ] = ""
    site: Annotated[
        str, doc("The site's name in Rucio: replicas of stores with that `site` attribute come first")
    ] = ""
    account: Annotated[str, doc("Account to log in as (`password_file`, `certificate`)")] = ""
    username: Annotated[str, doc("User name of `password_file`; empty = as `account`")] = ""
    password_file: Annotated[Path | None, doc("File (mode 0600) with the password; none = no password")] = (
        None
    )
    certificate: Annotated[
        Path | None, doc("Our certificate or proxy (PEM) for /auth/x509; none = no certificate")
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate; none = it is in the same file")] = None
    token_file: Annotated[
        Path | None, doc("File (mode 0600) with a JWT, sent without a login; read for each request")
    ] = None
    ca: Annotated[
        Path | None, doc("Certification authorities: a PEM file or a directory; none = the system's")
    ] = None
    silence_s: Annotated[
        Duration,
        msgspec.Meta(ge=0.1),
        constant(
            "Give up a reply when the server sends nothing for this time: it answers in a second or two"
        ),
    ] = 20.0

    def __post_init__(self) -> None:
        """Refuse what cannot log in."""
        ways = [self.token_file, self.certificate, self.password_file]
        if sum(each is not None for each in ways) > 1:
            raise ValueError("`replicas.rucio`: give one of `token_file`, `certificate` and `password_file`")
        if self.token_file is None and any(each is not None for each in ways) and not self.account:
            raise ValueError("`replicas.rucio`: `account` is missing: a login names one")
        if self.url.startswith("http:") and any(each is not None for each in ways):
            host = self.url.removeprefix("http://").partition("/")[0].rpartition(":")[0]
            if host not in ("127.0.0.1", "localhost", "[::1]"):
                raise ValueError("`replicas.rucio.url` is not encrypted: write `https://`")


class Replicas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where copies of a far file are. Each URL must be permitted by an endpoint, wherever it comes from."""

    file: Annotated[
        Path | None,
        doc(
            "A file with lines `PATTERN URL ...`: `*` is the rest of the input's URL, and of each copy's; "
            "none = no list"
        ),
    ] = None
    directory: Annotated[
        Path | None,
        doc(
            "A directory of such files, one a dataset; all are read, in the order of their names; none = no directory"
        ),
    ] = None
    rucio: Annotated[Rucio, doc("The Rucio server that knows `rucio:SCOPE/NAME`")] = Rucio()


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the site chooses between reading directly, reading through a cache, and a copy."""

    near_s: Annotated[
        Duration,
        msgspec.Meta(ge=0),
        constant("Origins with a shorter round trip are read directly: a cache helps nothing there"),
    ] = 0.02
    probe_s: Annotated[
        Duration,
        msgspec.Meta(ge=1),
        constant("Measure the round trip to an origin or cache at most once in this time, by one connection"),
    ] = 300.0
    stage_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=0),
        constant(
            "Files of at most this size that programs read whole may be copied: larger ones would fill the memory of "
            "nodes"
        ),
    ] = 64_000_000
