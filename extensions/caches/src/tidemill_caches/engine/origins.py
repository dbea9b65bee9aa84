"""URLs of origins and of files behind them: parsed strictly, compared with the list of what a cache may read.

Pure. XCache 5.5.3 knows a cached file by the path of its URL alone, without scheme, host and port (measured: two
origins with the same path share one file in the cache), hence `overlaps`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import ConfigError

PORT = 1094  #: of root and roots (IANA)
URL_CHARS_MAX = 4000
_URL = re.compile(r"(?P<scheme>[a-z]+)://(?P<authority>[^/]*)(?P<path>/.*)?", re.DOTALL)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_PATH = re.compile(r"[A-Za-z0-9/._~+,:@%^-]*")  # what stands in a line of authdb without quotes


class OriginPath(NamedTuple):
    """Files of a server: `path` begins and ends with a slash."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """As URLs of its files begin."""
        return f"{self.scheme}://{self.host}:{self.port}/{self.path}"

    @property
    def exported(self) -> list[str]:
        """As XRootD's server sees such URLs when they are the path of a request: double slashes folded."""
        with_port = f"/{self.scheme}:/{self.host}:{self.port}{self.path}"
        return [with_port, f"/{self.scheme}:/{self.host}{self.path}"] if self.port == PORT else [with_port]


def parse_origin(text: str) -> OriginPath:
    """The origin of a line of `origins`. Raises ConfigError."""
    scheme, host, port, path = _parts(text)
    if not _PATH.fullmatch(path):
        raise ConfigError(
            f"origin `{text}`: its directory has a character that XRootD's authorization file cannot hold",
            hint="letters, digits and /._~+,:@%^- are possible; name a directory further up",
        )
    return OriginPath(scheme, host, port, path if path.endswith("/") else f"{path}/")


def parse_file(text: str) -> OriginPath:
    """As `parse_origin`, of the URL of a file: `path` is the file's. Raises ConfigError."""
    scheme, host, port, path = _parts(text)
    if path.endswith("/"):
        raise ConfigError(f"`{text}` names no file: it ends with a slash")
    return OriginPath(scheme, host, port, path)


def _parts(text: str) -> tuple[str, str, int, str]:
    shown = text.partition("?")[0][:200]
    match = _URL.fullmatch(text)
    if len(text) > URL_CHARS_MAX or match is None or not text.isprintable():
        raise ConfigError(f"`{shown}` is not a URL such as `root://host.example:1094//store/`")
    if match["scheme"] not in ("root", "roots"):
        raise ConfigError(
            f"`{shown}`: the cache reads from `root://` and `roots://`, not from `{match['scheme']}://`",
            hint="name the server's XRootD address, such as `root://host.example:1094//store/`",
        )
    if "@" in match["authority"]:
        raise ConfigError(
            f"`{match['scheme']}://...@{match['authority'].rpartition('@')[2]}`: a user in a URL is refused",
            hint="the cache has a credential of its own: `[credential]` in cache.toml",
        )
    if "?" in text or "#" in text:
        raise ConfigError(
            f"`{shown}`: a URL for the cache has no opaque part (`?...`)",
            hint="it would reach the origin, but the reply is cached for all clients",
        )
    host, port = _host_port(match["authority"], shown)
    path = re.sub("/+", "/", match["path"] or "/")
    if any(part in ("..", ".") for part in path.split("/")):
        raise ConfigError(
            f"`{shown}`: `.` and `..` are refused in a path", hint="write the path without them"
        )
    return match["scheme"], host, port, path


def _host_port(authority: str, shown: str) -> tuple[str, int]:
    bracket = authority.rfind("]")
    host, colon, port = authority.rpartition(":") if authority.rfind(":") > bracket else (authority, "", "")
    if not _HOST.fullmatch(host) or (colon and not port.isascii()):
        raise ConfigError(f"`{shown}` names no host, or one with characters that are not possible")
    if not colon:
        return host, PORT
    if not port.isdecimal() or not 1 <= int(port[:6]) <= 65535:
        raise ConfigError(f"`{shown}`: `{port[:20]}` is not a port")
    return host, int(port)


def allowing(origins: Sequence[OriginPath], file: OriginPath) -> OriginPath | None:
    """The origin of the list to which a file belongs, None where the cache would refuse it."""
    for each in origins:
        if (each.scheme, each.host, each.port) == (
            file.scheme,
            file.host,
            file.port,
        ) and file.path.startswith(each.path):
            return each
    return None


def overlaps(origins: Sequence[OriginPath]) -> list[tuple[OriginPath, OriginPath]]:
    """Pairs on different servers of which one path lies within the other."""
    return [
        (one, other)
        for index, one in enumerate(origins)
        for other in origins[index + 1 :]
        if (one.host, one.port) != (other.host, other.port)
        if one.path.startswith(other.path) or other.path.startswith(one.path)
    ]


def through(cache: str, file: OriginPath) -> str:
    """The URL of a file through the cache at `root://HOST:PORT`."""
    return f"{cache.rstrip('/')}//{file.url}"
