"""URLs that payloads open by themselves, and names in a catalogue: what may be written in a job. Pure.

Such a URL becomes part of another one, `root://CACHE//URL`, and an argument of a program. So what two readers could
understand in two ways is refused, before any site compares it with what it permits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.model.job import CATALOGUE

OPENED = ("root", "roots", "xroot", "xroots", "http", "https", "dav", "davs")
"""Schemes that programs open."""

NAME_CHARACTERS_MAX = 500
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_NAME = re.compile(r"[A-Za-z0-9_.+=@%-]+(?:/[A-Za-z0-9_.+=@%-]+)*")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PLAIN = re.compile(r"[!-~]+")


class CatalogueName(NamedTuple):
    """A file or dataset of a catalogue."""

    scope: str
    name: str


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case; empty where it has none."""
    scheme, colon, _ = url.partition("://")
    return scheme.lower() if colon else ""


def is_opened(url: str) -> bool:
    """Whether a text is meant as the URL of a file that a program opens."""
    return scheme_of(url) in OPENED


def catalogue_name(text: str) -> CatalogueName | None:
    """Scope and name of `rucio:SCOPE/NAME`, None for any other text. A leading `/` belongs to the name:
    `rucio:cms//store/x`. Raises ValueError for a malformed one."""
    if not text.startswith(CATALOGUE):
        return None
    scope, slash, name = text[len(CATALOGUE) :].partition("/")
    bare = name.removeprefix("/")
    if (
        not slash
        or not _SCOPE.fullmatch(scope)
        or not _NAME.fullmatch(bare)
        or len(name) > NAME_CHARACTERS_MAX
        or any(part in (".", "..") for part in (scope, *bare.split("/")))
    ):
        raise ValueError(f"`{text[:100]!a}` is not a name such as `rucio:SCOPE/NAME`")
    return CatalogueName(scope, name)


def url_fault(url: str) -> str | None:
    """Why a program is not given this URL; None = nothing is wrong with it.

    Refuses credentials, `..`, blanks, opaque parts (`?` except of HTTP, `#`), encoded slashes, and a URL within the
    URL: a proxy on the way would go where nothing permits.
    """
    scheme = scheme_of(url)
    if scheme not in OPENED:
        return "expected one of " + ", ".join(f"`{each}:`" for each in OPENED)
    if not _PLAIN.fullmatch(url):
        return "it holds blanks, control characters, or characters that must be percent-encoded"
    authority, _, path = url.partition("://")[2].partition("/")
    if "@" in authority:
        return "a URL may not hold a user name, a password or a token"
    if not _AUTHORITY.fullmatch(authority):
        return "its host or port is malformed"
    if "#" in path:
        return "it has a part after `#`, which no server receives"
    path, mark, query = path.partition("?")
    if mark and not scheme.startswith(("http", "dav")):
        return "it has an opaque part after `?`"
    return _path_fault(path) or _query_fault(query)


def _path_fault(path: str) -> str | None:
    if re.search(r"%(2f|2e|5c|00|25)", path.lower()) or "\\" in path:
        return "its path holds an encoded `/`, `.`, `%` or NUL, or a `\\`"
    if any(part in (".", "..") for part in path.split("/")):
        return "`.` and `..` may not be parts of its path"
    if ":/" in path:
        return "its path holds another URL"
    return None if path.strip("/") else "it names no file"


def _query_fault(query: str) -> str | None:
    if re.search(r"(?i)authz|token|signature|x-amz-|password", query):
        return "its query holds a credential, which every user of a node could read"
    if ":/" in query or "%3a" in query.lower():
        return "its query holds another URL"
    return None
