"""Troubles of a site: which of its work meets one, and the names by which site and server agree on that. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

TROUBLES_MAX = 32  #: of a site
EXAMPLES_MAX = 100  #: jobs that wait for one, by number
TEXT_MAX = 500


class Scope(StrEnum):
    """Which work meets a trouble."""

    APP = "app"  #: of one application
    INPUT = "input"  #: with an input from one place, see `place_of`
    INPUTS = "inputs"  #: with any input
    ALL = "all"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of a site's own for which work waits there, and its breaker: `is_open` = the server sends no more of that
    work, but for `room` ranges with which the site tries again."""

    failure: str  #: a FailureClass
    scope: str  #: a Scope
    name: str = ""  #: of the application, or the place of the inputs
    message: str = ""
    hint: str = ""  #: what would end it
    since_us: int = 0
    next_us: int = 0  #: when it is tried again
    jobs: int = 0  #: that wait for it at the site
    examples: list[int] = []  #: the first of them
    is_open: bool = False
    room: int = 0


class RefusedApplication(msgspec.Struct, frozen=True, kw_only=True):
    """An application whose jobs a site does not run now, and why: with what its staff can do."""

    name: str  #: empty = its file does not say
    file: str  #: in the site's `apps`
    why: str


def place_of(url: str) -> str:
    """Where a file comes from: scheme and host of a remote one, the first directory of one of the site's file systems.
    Empty where nothing can be said before the job is there."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if parts.scheme in ("", "file"):
        first = parts.path.split("/")[1:2] if parts.path.startswith("/") else []
        return f"file:///{first[0]}" if first else ""
    if not host:
        return ""
    return f"{parts.scheme.lower()}://{host}" + ("" if port is None else f":{port}")


def meets(scope: str, name: str, *, app: str | None, urls: Iterable[str]) -> bool:
    """Whether a job of this application with these inputs meets a trouble. A scope that is not known meets none."""
    if scope == Scope.APP:
        return name == (app or "")
    if scope == Scope.INPUT:
        return any(place_of(url) == name for url in urls)
    if scope == Scope.INPUTS:
        return any(True for _ in urls)
    return scope == Scope.ALL
