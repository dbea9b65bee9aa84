"""The cause of a failed read of a far file, from what XRootD's client printed, in a sentence. Pure.

XRootD hands an error of the origin on as a number and a text of errno(3): `too many levels of symbolic links` is what
5.5.3 makes of a redirect that it does not follow. Codes are those of the protocol's specification, version 5. What a
server answered is an error of the origin; what a client prints as fatal is its own connection, to the cache.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CHARS_MAX = 20_000
_SILENT = (
    r"connection refused|no route to host|operation expired|timed out|non-socket|network is unreachable|"
    r"connection reset|broken pipe|host is down|connection error|socket error|stream (?:timeout|disconnect)"
)


class ReadRefusal(NamedTuple):
    """Why a read failed. `is_sites`: it says nothing about the job: the read works elsewhere, or later."""

    cause: str
    is_sites: bool = False


class _Cause(NamedTuple):
    """`direct`: the sentence where no cache was on the way; empty = the same. `of_caches`: with a cache only."""

    pattern: re.Pattern[str]
    cause: str
    direct: str = ""
    is_sites: bool = False
    of_caches: bool = False


def _of(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_CAUSES: list[_Cause] = [
    _Cause(
        _of(r"too many levels of symbolic links"),
        "the origin sent the cache on to another server, and the cache does not follow: name that server in `origins`, "
        "or set `federation = true` in cache.toml; where that is set, the redirects form a circle",
        "the origin redirects in a circle",
        is_sites=True,
    ),
    _Cause(
        _of(r"is disallowed|\[3010\]"),
        "the cache may not read this: the URL is not on the list `origins` in cache.toml",
        "the origin does not permit this read",
    ),
    _Cause(  # seen with 5.5.3 when the origin ends a connection during its handshake
        _of(r"\[3013\][^\n]{0,500}operation not supported"),
        "the origin ended the cache's connection before a file could be opened; if this repeats, the "
        "URL is neither `root://` nor `roots://`, and the cache cannot read it",
        is_sites=True,
        of_caches=True,
    ),
    _Cause(
        _of(r"\[3013\]|unsupported|not supported"),
        "the cache reads from `root://` and `roots://` only",
        "the origin does not support what the program asked for",
    ),
    _Cause(
        _of(r"corrupted data|checksum error|checksum mismatch"),
        "what came did not have the checksum that was sent with it",
        is_sites=True,
    ),
    _Cause(
        _of(r"too many open files"),
        "the cache is out of descriptors: `tidemill cache status` shows how many it may have",
        "the origin is out of descriptors",
        is_sites=True,
    ),
    _Cause(
        _of(rf"\[fatal\][^\n]{{0,200}}(?:{_SILENT})"),
        "the cache does not answer",
        "the origin does not answer",
        is_sites=True,
    ),
    _Cause(
        _of(_SILENT),
        "the origin does not answer the cache: what is not cached cannot be read now",
        "the origin does not answer",
        is_sites=True,
    ),
    _Cause(_of(r"\[3011\]|no such file"), "the origin has no such file"),
    _Cause(_of(r"no space left"), "the disk of the cache is full", "a disk is full"),
    _Cause(
        _of(r"auth failed|no protocols left|authentication"),
        "the origin or the cache refused a credential",
        "the origin refused a credential",
    ),
    _Cause(  # if an origin is lost during an exchange, the cache passes on the last error number of its own client
        _of(r"responded with an error: \[30\d\d\]"),
        "the cache could not read this from the origin",
        is_sites=True,
        of_caches=True,
    ),
]


def refusal(errors: str, *, through_cache: bool = True) -> ReadRefusal | None:
    """Why a read failed, from what XRootD's client printed; None where that is not known."""
    text = errors[-CHARS_MAX:]
    for each in _CAUSES:
        if (through_cache or not each.of_caches) and each.pattern.search(text):
            cause = each.cause if through_cache else each.direct or each.cause
            return ReadRefusal(cause, each.is_sites)
    return None


def explained(errors: str) -> str | None:
    """The cause of a failed read through a cache, from what XRootD's client printed; None where that is not known."""
    found = refusal(errors)
    return None if found is None else found.cause
