"""What a site's configuration permits: which remote URLs may be read and written. Pure.

The list of endpoints is an allow-list of prefixes. URLs come from submitters by way of a server that is not trusted, so
everything that could be understood in two ways is refused: user names, `..`, encoded slashes, control characters,
parts after `#`, and queries except of HTTP.

Doubled slashes are permitted, because names in catalogues begin with a slash. In paths of a file system (root, GridFTP)
they are one slash. HTTP servers may distinguish them, so an HTTP path is sent and compared as written; only at its
beginning they are one slash, unless the URL has a query, which may hold a signature of the path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote_to_bytes, urlsplit

import msgspec

from tidemill.confidential import cut
from tidemill.config.transfer import Endpoint
from tidemill.errors import ConfigError
from tidemill.transfer.contract import Direction, NotPermittedError, RemoteFile, TransferError
from tidemill.transfer.schemes import added, scheme_of

PORTS = {
    "http": 80, "https": 443, "dav": 80, "davs": 443, "root": 1094, "roots": 1094, "xroot": 1094, "xroots": 1094,
    "s3": 0,
}  # fmt: skip
"""The core's schemes and their ports: RFC 9110, XRootD's (IANA 1094)."""

LITERAL = ("root", "roots", "xroot", "xroots")
"""Names are taken as they stand, as xrdcp does; elsewhere they are percent-encoded."""

WEB = ("http", "https", "dav", "davs")

PATH_SAFE = "/!$&'()*+,;=:@~"
"""Characters that need no encoding in the path of a URL, beside letters, digits and `-._` (RFC 3986, 3.3)."""

URL_BYTES_MAX = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"(?!-)[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}", re.IGNORECASE)


class _Refuse(Protocol):
    def __call__(self, why: str, hint: str | None = None) -> TransferError: ...


class _Parts(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str
    query: str
    written: str  #: the path with its percent signs


def is_remote(url: str) -> bool:
    """Whether a URL names a file outside the site, whatever the site permits."""
    scheme = url.partition(":")[0].lower()
    return "://" in url and (scheme in PORTS or scheme in added())


def permit(url: str, endpoints: Sequence[Endpoint], direction: Direction) -> RemoteFile:
    """The place that a URL names. Raises a permanent TransferError if it is malformed or no endpoint permits it."""
    parts = _read(url, direction)
    for endpoint in endpoints:
        if _covers(endpoint.url, parts):
            allowed = endpoint.is_read if direction is Direction.IN else endpoint.is_written
            if not allowed:
                continue
            return _place(url, parts, endpoint)
    verb = "read from" if direction is Direction.IN else "write to"
    shown = url.partition("?")[0][:300]
    raise NotPermittedError(
        f"`{shown}`: this site does not {verb} there",
        hint="its operator may add an `[[endpoints]]` entry"
        + (' with `access = "both"` or `"write"`' if direction is Direction.OUT else "")
        + " to site.toml; so far: "
        + (", ".join(f"`{each.url}`" for each in endpoints) or "none"),
        transient=False,
        failure=direction.failure,
    )


def redirected(
    url: str, came_from: RemoteFile, endpoints: Sequence[Endpoint], direction: Direction
) -> RemoteFile:
    """The place that a server sends us on to. Raises TransferError if that is not permitted.

    At a place of another endpoint that one's credentials count; at one that only `redirects` names we show none.
    """
    try:
        place = permit(url, endpoints, direction)
    except TransferError:
        parts = _read(url, direction)
        if not any(_covers(each, parts) for each in came_from.endpoint.redirects):
            raise TransferError(
                f"`{came_from.shown}` sends us on to `{parts.scheme}://{parts.host}:{parts.port}`, which this site "
                "does not permit",
                hint=f"if that is meant, name it in `redirects` of the endpoint `{came_from.endpoint.url}`",
                transient=False,
                failure=direction.failure,
            ) from None
        bare = Endpoint(  # hints name its URL
            url=url.partition("?")[0],
            ca=came_from.endpoint.ca,
            access="both" if direction is Direction.OUT else "read",
        )
        place = _place(url, parts, bare)
    place = msgspec.structs.replace(place, sent_by=came_from.sent_by or came_from)
    if came_from.scheme in ("https", "davs") and place.scheme in ("http", "dav"):
        raise TransferError(
            f"`{came_from.shown}` sends us on to a place without encryption: `{place.shown}`",
            transient=False,
            failure=direction.failure,
        )
    return place


def check_endpoint(endpoint: Endpoint) -> None:
    """Refuse an endpoint that cannot be what is meant. Raises ConfigError."""
    for url in (endpoint.url, *endpoint.redirects):
        try:
            _read(_without_star(url), Direction.IN)
        except TransferError as error:
            raise ConfigError(f"endpoint `{url}`: {error.message}", hint=error.hint) from error
    if (
        endpoint.url.startswith("s3:")
        and endpoint.service
        and not endpoint.service.startswith(("https://", "http://"))
    ):
        raise ConfigError(
            f"endpoint `{endpoint.url}`: `service` is `{endpoint.service}`", hint="write `https://host`"
        )
    if endpoint.key is not None and endpoint.certificate is None:
        raise ConfigError(f"endpoint `{endpoint.url}` has a `key` and no `certificate`")


def _place(url: str, parts: _Parts, endpoint: Endpoint) -> RemoteFile:
    return RemoteFile(
        url=url,
        scheme=parts.scheme,
        host=parts.host,
        port=parts.port,
        path=parts.path,
        query=parts.query,
        endpoint=endpoint,
        written=parts.written,
    )


def _without_star(url: str) -> str:
    return url.replace("://*.", "://any.", 1)


@functools.lru_cache(maxsize=1000)  # every decision asks for those of all endpoints
def _prefix(prefix: str) -> _Parts:
    return _read(_without_star(prefix), Direction.IN)


def _covers(prefix: str, parts: _Parts) -> bool:
    wanted = _prefix(prefix)
    if (wanted.scheme, wanted.port) != (parts.scheme, parts.port):
        return False
    if "://*." in prefix:
        if not parts.host.endswith(wanted.host.removeprefix("any")):
            return False
    elif wanted.host != parts.host:
        return False
    folder = wanted.path if wanted.path.endswith("/") else wanted.path + "/"
    return parts.path == wanted.path or parts.path.startswith(folder)


def _read(url: str, direction: Direction) -> _Parts:
    def refuse(why: str, hint: str | None = None) -> TransferError:
        # who submitted it reads this, and so do all who see the job
        shown = cut(url.partition("?")[0][:URL_BYTES_MAX])[:200].encode("unicode_escape").decode()
        return TransferError(f"`{shown}`: {why}", hint=hint, transient=False, failure=direction.failure)

    if len(url.encode(errors="replace")) > URL_BYTES_MAX:
        raise refuse(f"the URL has more than {URL_BYTES_MAX} bytes")
    if _CONTROL.search(url) or url != url.strip():
        raise refuse("the URL holds control characters or blanks at its ends")
    scheme, colon, rest = url.partition("://")
    scheme = scheme.lower()
    if not colon or scheme not in (*PORTS, *added()):
        raise refuse(
            "this site has no transfer for it",
            "supported: `file:`, " + ", ".join(f"`{each}:`" for each in (*PORTS, *sorted(added()))),
        )
    host, port = _host(scheme, rest.partition("/")[0], refuse)
    if scheme in LITERAL:
        path = written = "/" + rest.partition("/")[2]
        query = ""
        if "?" in path or "#" in path:
            raise refuse("`?` and `#` are not part of a name here")
    else:
        path, written, query = _decoded(scheme, rest, refuse)
    segments = path.split("/")
    if "." in segments or ".." in segments:
        raise refuse("`.` and `..` have no place in a URL")
    if scheme in WEB and not query:
        path, written = "/" + path.lstrip("/"), "/" + written.lstrip("/")
    elif scheme not in WEB and scheme != "s3":
        path, written = re.sub("//+", "/", path), re.sub("//+", "/", written)
    return _Parts(scheme, host, port, path, query, written)


def _usual_port(scheme: str, refuse: _Refuse) -> int:
    """The port of a scheme. Raises a permanent TransferError where its extension is missing."""
    try:
        return PORTS[scheme] if scheme in PORTS else scheme_of(scheme).port
    except ConfigError as error:
        raise refuse(error.message, error.hint) from error


def _decoded(scheme: str, rest: str, refuse: _Refuse) -> tuple[str, str, str]:
    """Path, path as written, and query."""
    try:
        split = urlsplit("x://" + rest)
        raw = unquote_to_bytes(split.path)
    except ValueError as error:  # brackets without an address; characters that no encoding has
        raise refuse(f"that is not a URL: {error}") from error
    if split.fragment or "#" in rest:
        raise refuse("a part after `#` is for browsers")
    if split.query and scheme not in WEB:
        raise refuse("a query (`?`) is for HTTP only; write %3F for the character")
    if any(ord(c) < 32 or ord(c) > 126 or c in '"<>\\' for c in split.query):
        raise refuse("its query holds characters that must be percent-encoded")
    if re.search(r"%(2[fF]|00|5[cC])", split.path) or re.search(r"%(?![0-9a-fA-F]{2})", split.path):
        raise refuse("an encoded `/`, `\\` or NUL, or a lone `%`")
    try:
        path = raw.decode()
    except UnicodeDecodeError as error:
        raise refuse("its path is not UTF-8") from error
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        raise refuse("the URL holds control characters")
    return path or "/", quote(split.path or "/", safe=f"%{PATH_SAFE}"), split.query


def _host(scheme: str, text: str, refuse: _Refuse) -> tuple[str, int]:
    text = re.split(r"[?#]", text, maxsplit=1)[0]
    if "@" in text:
        raise refuse(
            "no user name or password may stand in a URL",
            "credentials belong in the site's `[[endpoints]]`",
        )
    if scheme == "s3":
        if not _BUCKET.fullmatch(text):
            raise refuse("that is not a valid name of a bucket")
        return text, 0
    match = re.fullmatch(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]{1,5}))?", text.lower())
    if match is None or not _HOST.fullmatch(match["host"]):
        raise refuse("that is not a host")
    port = int(match["port"] or _usual_port(scheme, refuse))
    if not 0 < port < 65536:
        raise refuse("that is not a port")
    return match["host"].rstrip("."), port
