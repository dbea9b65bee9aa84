"""Troubles of a site: which of its work meets one, and the names by which site and server agree on that. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from tidemill import clock

TROUBLES_MAX = 32  #: of a site
EXAMPLES_MAX = 100  #: jobs that wait for one, by number
TEXT_MAX = 500
PREFIX_MAX = 200  #: characters of a path that counts by itself


class Scope(StrEnum):
    """Which work meets a trouble."""

    APP = "app"  #: of one application
    INPUT = "input"  #: with an input from one place, see `place_of`
    INPUTS = "inputs"  #: with any input
    ALL = "all"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of a site's own for which work waits there, and its breaker: `is_open` = the server sends no more of that
    work, but for `room` ranges with which the site tries again. `passed_over`: owners whose work is not wanted for
    that, because they failed last and have some there; empty = that of all is."""

    failure: str  #: a FailureClass
    scope: str  #: a Scope
    name: str = ""  #: of the application, or the place of the inputs or a path there, see `prefix_of`
    owner: str = ""  #: whose work meets it; empty = that of all
    message: str = ""
    hint: str = ""  #: what would end it
    since_us: int = 0
    next_us: int = 0  #: when it is tried again
    jobs: int = 0  #: that wait for it at the site
    examples: list[int] = []  #: the first of them
    is_open: bool = False
    room: int = 0
    passed_over: list[str] = []


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


def prefix_of(url: str) -> str:
    """The directory in which a file lies, with a `/` at its end, which places of `place_of` lack. Of a long one
    its beginning. Empty where nothing can be said."""
    place = place_of(url)
    if not place:
        return ""
    path = urlsplit(url).path
    start = "file://" if place.startswith("file:") else place
    prefix = f"{start}{path[: path.rfind('/') + 1] or '/'}"
    return (
        prefix
        if len(prefix) <= PREFIX_MAX
        else prefix[: prefix.rfind("/", len(start), PREFIX_MAX) + 1] or place
    )


def concerns(owner: str, whose: str | None) -> bool:
    """Whether a trouble of this owner's work (empty = that of all) concerns the work of `whose`; None = only what
    concerns all is asked for."""
    return not owner or owner == whose


def meets(scope: str, name: str, *, app: str | None, urls: Iterable[str]) -> bool:
    """Whether a job of this application with these inputs meets a trouble that concerns its owner. A scope that is not
    known meets none."""
    if scope == Scope.APP:
        return name == (app or "")
    if scope == Scope.INPUT:
        if name.endswith("/"):
            return any(prefix_of(url).startswith(name) for url in urls)
        return any(place_of(url) == name for url in urls)
    if scope == Scope.INPUTS:
        return any(True for _ in urls)
    return scope == Scope.ALL


def whose_text(owner: str, scope: str, name: str) -> str:
    """For whom an open breaker blocks the way, for people."""
    if not owner:
        return "for all owners"
    below = f" below `{name}`" if scope == Scope.INPUT and name.endswith("/") else ""
    return f"for jobs of {owner}{below} only"


def next_try_text(next_us: int, now_us: int) -> str:
    """When what failed is tried again: `tried again at 2026-11-29T16:20:00Z`, or that it is due."""
    return f"tried again at {clock.utc_text(next_us)}" if next_us > now_us else "the next try is due now"
