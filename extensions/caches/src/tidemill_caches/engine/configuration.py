"""The text of `xrootd.cfg` and its companions from `cache.toml`, and what is wrong with the record by itself.

Pure. Directives are those of XRootD 5.5 (its manuals xrd_config, ofs_config, sec_config, pss_config; XrdPfc/README).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import ConfigError
from tidemill.model.quantities import bytes_text
from tidemill_caches import constants
from tidemill_caches.contents.cinfo import SUFFIX
from tidemill_caches.engine.origins import OriginPath, overlaps, parse_origin
from tidemill_caches.settings import CacheConfig, CacheSpace

ORIGINS_MAX = 200
CLIENTS_MAX = 1000
DEPTH_MAX = 64
"""Directories within each other in which an origin's files that are named like records are not cached: XCache would
write such a file over the record of another one, and serve blocks that it does not have as zeros (seen with 5.5.3)."""
ADMIN_CHARS_MAX = 70
"""Of the directory of XRootD's admin sockets: it appends up to 30 characters, and a socket's path has at most 107."""
LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_CLIENT = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9.*-]*[A-Za-z0-9*])?|\[[0-9A-Fa-f:]+\]")
_ADDRESS = re.compile(r"[0-9.]+|\[[0-9A-Fa-f:]+\]")
_ISSUER = re.compile(r"https://[^\s\[\]#;=\\\"]+")
_UNQUOTED = re.compile(r"[^\s#$\\\"']+")  # a word of XRootD's configuration: no blanks, no variables
MONITOR = "xrootd.mongstream pfc use flush 5s maxlen 1472 send json insthdr 127.0.0.1:{port}"
"""A record of each file that is closed, by UDP. `nohdr` made 5.5.3 send nothing; longer packets are cut by loopback's
default on some systems."""


class Texts(NamedTuple):
    """The generated files of a cache: `xrootd.cfg`, `authdb`, and `scitokens.cfg` (empty = without)."""

    xrootd: str
    authdb: str
    scitokens: str


class CachePlaces(NamedTuple):
    """Where the generated configuration points to."""

    data: Path
    run: Path
    figures_port: int | None = None  #: on loopback, if a collector reads records of closed files


def origins_of(config: CacheConfig) -> list[OriginPath]:
    """The parsed list of origins. Raises ConfigError."""
    if not config.origins:
        raise ConfigError(
            "`origins` is empty: the cache could read nothing", hint='origins = ["root://HOST:1094//DIR/"]'
        )
    if len(config.origins) > ORIGINS_MAX:
        raise ConfigError(f"`origins` has {len(config.origins)} entries, at most {ORIGINS_MAX} are possible")
    return [parse_origin(each) for each in config.origins]


def space_of(space: CacheSpace) -> tuple[int, int, int]:
    """Base, nominal and maximum in bytes. Raises ConfigError for a cache of a few bytes."""
    nominal = space.max * constants.NOMINAL_PARTS // 10
    base = min(space.max * constants.BASE_PARTS // 10, nominal - 1)
    if not 0 < base < nominal < space.max:
        raise ConfigError(f"`[space]`: `max` ({space.max}) is too small to hold anything")
    return base, nominal, space.max


def check(config: CacheConfig) -> None:
    """Raise ConfigError for what is wrong with the record, whatever machine it is for."""
    origins = origins_of(config)
    space_of(config.space)
    if config.space.max < 10 * config.block_bytes:
        raise ConfigError(
            f"`space.max` ({bytes_text(config.space.max)}) holds less than ten blocks of `block_bytes`",
            hint=f"{bytes_text(10 * config.block_bytes)} at least",
        )
    if not config.federation:
        for one, other in overlaps(origins):
            raise ConfigError(
                f"`{one.url}` and `{other.url}` have paths in common, and the cache knows a file by its path "
                "alone: it would give the file of one for that of the other",
                hint="`federation = true` if both serve the same files, and you trust them to redirect the cache; "
                "otherwise name directories that differ, or run a cache for each",
            )
    _check_clients(config.clients)
    _check_security(config, origins)


def _check_clients(clients: list[str]) -> None:
    if len(clients) > CLIENTS_MAX:
        raise ConfigError(f"`clients` has {len(clients)} entries, at most {CLIENTS_MAX} are possible")
    for each in clients:
        if not _CLIENT.fullmatch(each) or each.count("*") > 1:
            raise ConfigError(
                f"`clients`: `{each[:100]}` is not a host",
                hint="a name, an address, or either with one `*`: `*.site.example`, `10.1.*`",
            )
        if each.strip("*.") == "":
            raise ConfigError(
                f"`clients`: `{each}` is every host of the world", hint="name those of the site"
            )


def _check_security(config: CacheConfig, origins: list[OriginPath]) -> None:
    tls = config.tls
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigError("`[tls]` needs both `certificate` and `key`")
    if tls.ca is not None and tls.certificate is None:
        raise ConfigError("`tls.ca` needs `tls.certificate`")
    if config.tokens.issuers and tls.certificate is None:
        raise ConfigError("`[tokens]` needs `[tls]`: a token that travels in the clear can be read by others")
    for issuer in config.tokens.issuers:
        if not _ISSUER.fullmatch(issuer):
            raise ConfigError(f"`tokens.issuers`: `{issuer[:200]}` is not an `https://` address")
    if config.credential.token_file is not None and any(each.scheme == "root" for each in origins):
        plain = next(each.url for each in origins if each.scheme == "root")
        raise ConfigError(
            f"`credential.token_file` goes to origins by TLS only, and `{plain}` has none",
            hint="write it as `roots://`, or use a certificate",
        )
    if config.credential.token_file is not None and config.credential.certificate is not None:
        raise ConfigError("`[credential]` has both `certificate` and `token_file`", hint="name one of them")


def texts(config: CacheConfig, places: CachePlaces) -> Texts:
    """The generated files. `check` has accepted the record. Raises ConfigError for a path that XRootD cannot read."""
    for path in (places.data, places.run):
        _word(path)
    if len(str(places.run)) > ADMIN_CHARS_MAX:
        raise ConfigError(
            f"`{places.run}`: the path has more than {ADMIN_CHARS_MAX} characters, too many for XRootD's sockets in it",
            hint="make the cache in a directory with a shorter path; `data` may be anywhere",
        )
    lines = [
        "# Written by `tidemill cache` at each start from cache.toml: edit that.",
        *_server_lines(config, places),
        *_access_lines(config, places),
        *_storage_lines(config, places),
    ]
    paths = dict.fromkeys(path for origin in origins_of(config) for path in origin.exported)
    # one rule for all: XrdAcc refuses a second one for `*`
    rule = " \\\n".join(["u *", *(f"{path} rl" for path in paths)])
    return Texts("\n".join(lines) + "\n", f"{rule}\n", _scitokens(config))


def _word(path: Path) -> str:
    if not _UNQUOTED.fullmatch(str(path)):
        raise ConfigError(
            f"`{path}`: XRootD's configuration cannot hold a path with blanks, quotes, `$`, `#` or `\\`",
            hint="use another directory",
        )
    return str(path)


def _server_lines(config: CacheConfig, places: CachePlaces) -> list[str]:
    by_name = not all(_ADDRESS.fullmatch(each.replace("*", "")) for each in config.clients)
    monitor = [] if places.figures_port is None else [MONITOR.format(port=places.figures_port)]
    return [
        f"all.adminpath {places.run / 'admin'}",
        f"all.pidpath {places.run / 'admin'}",
        f"xrd.network {'dnr' if by_name else 'nodnr'}",
        *(f"xrd.allow host {each}" for each in dict.fromkeys([*LOOPBACK, *config.clients])),
        "xrd.timeout idle 1h",
        *monitor,
    ]


def _access_lines(config: CacheConfig, places: CachePlaces) -> list[str]:
    """Two walls: what is not exported cannot be named, and the authorization file gives `read` and `list` alone.

    Not `pss.permit`: for a host that it refuses, 5.5.3 goes on with an address that it has not set (XrdPss.cc, P2OUT).
    """
    lines = [
        *(f"all.export {path} r/o" for origin in origins_of(config) for path in origin.exported),
        "ofs.authorize",
        f"acc.authdb {places.run / 'authdb'}",
    ]
    tls = config.tls
    if tls.certificate is not None and tls.key is not None:
        lines += [f"xrd.tls {_word(tls.certificate)} {_word(tls.key)}", "xrootd.tls all"]
        if tls.ca is not None:
            lines.append(f"xrd.tlsca certdir {_word(tls.ca)}")
    if tls.ca is not None and not config.tokens.issuers:
        lines += [
            "xrootd.seclib libXrdSec.so",
            f"sec.protocol gsi -certdir:{tls.ca} -crldir:{tls.ca} -crl:try -cert:{tls.certificate} -key:{tls.key} "
            "-gmapopt:nomap",
        ]
    if config.tokens.issuers:
        lines += [
            "xrootd.seclib libXrdSec.so",
            "sec.protocol ztn",
            f"ofs.authlib ++ libXrdAccSciTokens.so config={places.run / 'scitokens.cfg'}",
        ]
    return lines


def _storage_lines(config: CacheConfig, places: CachePlaces) -> list[str]:
    base, nominal, most = space_of(config.space)
    schemes = sorted({each.scheme for each in origins_of(config)})
    return [
        "ofs.osslib libXrdPss.so",
        "pss.cachelib libXrdPfc.so",
        f"pss.origin ={','.join(schemes)}",
        f"oss.localroot {places.data}",
        f"pfc.blocksize {config.block_bytes}",
        f"pfc.ram {constants.RAM_BYTES}",
        f"pfc.prefetch {config.prefetch_blocks}",
        f"pfc.flush {constants.FLUSH_BLOCKS}",
        f"pfc.diskusage {constants.DISK_LOW} {constants.DISK_HIGH} "
        f"files {_kib(base)} {_kib(nominal)} {_kib(most)} purgeinterval {int(constants.PURGE_INTERVAL_S)}",
        "pfc.trace warning",
        # The library takes each line of a file as a pattern; this file has them, and XRootD passes over such lines.
        f"pfc.decisionlib libXrdBlacklistDecision.so {places.run.parent / 'xrootd.cfg'}",
        *(f"/{'*/' * depth}*{SUFFIX}" for depth in range(DEPTH_MAX)),
    ]


def _kib(size: int) -> str:
    """A size as XrdPfc reads it: a number without a unit would be a share of the disk."""
    return f"{size >> 10}k"


def _scitokens(config: CacheConfig) -> str:
    if not config.tokens.issuers:
        return ""
    # The cache's own address, so that no token that was made for another service opens this one
    lines = ["[Global]", f"audience = roots://{{host}}:{config.port}", ""]
    for index, issuer in enumerate(config.tokens.issuers):
        lines += [f"[Issuer {index}]", f"issuer = {issuer}", "base_path = /", ""]
    return "\n".join(lines)
