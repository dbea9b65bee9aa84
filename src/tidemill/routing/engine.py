"""What is known of a cache that this site runs, as routing and messages use it."""

from __future__ import annotations

from typing import Literal

import msgspec


class PastTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with the time for which it was seen, or an end of xrootd and its next start."""

    state: Literal["warn", "fail"] = "fail"
    check: str
    subject: str = ""  #: the origin, where it is of one
    found: str
    first_us: int
    last_us: int


class CacheHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a cache answers its clients, and what it noted of itself."""

    answers: bool = False
    past: list[PastTrouble] = []  #: the newest last; kept over restarts of what runs the cache
