"""The settings of a cache, `CACHE/cache.toml`: XRootD's XCache runs it, as Tidemill configures it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.config.keys import Size, doc

RAM_BYTES_MIN = 1 << 30
"""XrdPfc 5.5.3 refuses less (`pfc.ram`)."""
FILES_OPEN_MIN = 10
"""Open files without which a cache is not started."""
FLUSH_BLOCKS_MIN = 100
"""XrdPfc 5.5.3 refuses less (`pfc.flush`)."""
REDIRECTS_MAX = 16
"""Redirections of one read in a federation: as many as XRootD's client follows by default, so that the cache reads what
its clients could read directly. Redirectors of continents, countries and sites take four. A circle ends here."""


class CacheSpace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[space]`: bytes of files in the cache."""

    max: Annotated[Size, doc("Bytes of cached files above which the least recently used are removed")]


class CacheCredential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[credential]`: what the cache shows to origins. Clients of the cache never see it."""

    certificate: Annotated[
        Path | None, doc("A proxy certificate with its key (PEM, mode 0600); none = the cache shows none")
    ] = None
    token_file: Annotated[
        Path | None, doc("File (mode 0600) with a bearer token; origins must be `roots://`: tokens need TLS")
    ] = None
    ca: Annotated[
        Path | None, doc("Directory of certification authorities, as X509_CERT_DIR; none = the system's")
    ] = None


class CacheTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tls]`: clients connect by TLS (`roots://`), and plain connections are refused."""

    certificate: Annotated[Path | None, doc("The cache's certificate (PEM); none = no TLS")] = None
    key: Annotated[Path | None, doc("Its key (PEM, mode 0600)")] = None
    ca: Annotated[
        Path | None,
        doc(
            "Directory of certification authorities of clients, as X509_CERT_DIR: clients need a proxy certificate of "
            "one of them; none = they need none"
        ),
    ] = None


class CacheTokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tokens]`: clients show a bearer token besides being on the list of hosts. Needs `[tls]`."""

    issuers: Annotated[
        list[str], doc("Issuers of tokens that may read (`https://...`); empty = no token is asked for")
    ] = []


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cache: `CACHE/cache.toml`. `tidemill cache init` writes one."""

    origins: Annotated[
        list[str],
        doc(
            "What the cache may read: `root://HOST:PORT//DIRECTORY/`, with `roots` for TLS. Everything else is "
            "refused, also another port of the same host. A host is written exactly as in the URLs of inputs"
        ),
    ]
    space: Annotated[CacheSpace, doc("How large the cache may get")]
    port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), doc("Port for clients, on all addresses of the host")
    ] = 1094
    clients: Annotated[
        list[str],
        doc(
            "Hosts that may read, besides this one: names, addresses, `*.site.example`, `10.1.*`; a `*` in a name "
            "needs a DNS that knows the hosts' addresses"
        ),
    ] = []
    data: Annotated[
        Path | None, doc("Directory of the cached files, on a local disk; none = `data` beside this file")
    ] = None
    federation: Annotated[
        bool,
        doc(
            "The origins are one federation: all serve the same file under the same path, so that it is cached once, "
            "and a redirector among them may send the cache on. The cache then reads from servers that `origins` need "
            "not name, and shows them its credential: set it only for origins that you trust to choose them. `false`: "
            "paths of two origins must not overlap, and the cache follows no redirect"
        ),
    ] = False
    block_bytes: Annotated[
        Size,
        msgspec.Meta(ge=4096, le=512 << 20, multiple_of=4096),
        doc(
            "What is fetched at a time. Smaller blocks waste less on sparse reads, larger ones need fewer round trips"
        ),
    ] = 1 << 20
    prefetch_blocks: Annotated[
        int,
        msgspec.Meta(ge=0, le=128),
        doc("Blocks that are read ahead of an open file; 0 = none, for sparse reads of large files"),
    ] = 10
    credential: Annotated[CacheCredential, doc("What the cache shows to origins")] = CacheCredential()
    tls: Annotated[CacheTls, doc("TLS for clients")] = CacheTls()
    tokens: Annotated[CacheTokens, doc("Tokens of clients")] = CacheTokens()

    @property
    def redirects_max(self) -> int:
        """How often an origin may send the cache on to another server for one read."""
        return REDIRECTS_MAX if self.federation else 0
