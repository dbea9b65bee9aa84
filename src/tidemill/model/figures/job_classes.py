"""Classes of regular jobs by size and by length: the same names in simulations, metrics, pages and reports. Pure.

Size is the job's share of the machine, because a machine's own queues and a guest's harm follow shares: 64 nodes are
small on one machine and half of another. It is a share of nodes, or of cores for jobs that share nodes. Length is in
absolute time, because the person who waits has a clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

SIZE_SHARES = (1 / 64, 1 / 16, 1 / 4, 1.0)
"""Classes of size end at these shares of the machine."""
SIZES = ("1/64", "1/16", "1/4", "1")
LENGTHS_S = (300.0, 3600.0, 21_600.0, math.inf)
"""Classes of length end here: 5 min, 1 h, 6 h. In three logs (Theta 2022 and 2023/24, Mira 2018) they hold 12 to 24 %,
33 to 37 %, 33 to 43 % and 6 to 12 % of the jobs; 1 h is the bound of most debug queues, 6 h of many default queues."""
LENGTHS = ("5min", "1h", "6h", "longer")
UNKNOWN = "unknown"  #: of a record that does not say how large or long a job is
LENGTH_TEXTS = ("5 min", "1 h", "6 h")


class SizeAndLength(NamedTuple):
    """A class of size and one of length; UNKNOWN where a record does not say."""

    size: str
    length: str


class ClassTotals(NamedTuple):
    """Sums over the regular jobs of a class that started (or left): their waits, and the part that Tidemill caused."""

    jobs: int = 0
    delayed: int = 0
    wait_s: float = 0.0
    share_s: float = 0.0


def size_edges(nodes: int) -> list[int]:
    """The most nodes of a job of each class, on a machine of `nodes`; 0 = a single node is more than that share."""
    return [int(nodes * share) for share in SIZE_SHARES]


def size_class(width: int, nodes: int) -> str:
    """The class of a job of `width` nodes on a machine of `nodes`, or of `width` cores among `nodes` cores; UNKNOWN
    where one of them is not known."""
    if width < 1 or nodes < 1:
        return UNKNOWN
    return SIZES[min(bisect_left(size_edges(nodes), width), len(SIZES) - 1)]


def length_class(seconds: float | None) -> str:
    """The class of a job of that length; UNKNOWN where it is not known."""
    return UNKNOWN if seconds is None or seconds < 0 else LENGTHS[bisect_left(LENGTHS_S, seconds)]


def size_text(size: str) -> str:
    """A class of size for people: `1/64 to 1/16 of the machine`."""
    if size not in SIZES:
        return "size unknown"
    k = SIZES.index(size)
    upper = "all of the machine" if size == SIZES[-1] else f"{size} of the machine"
    return f"up to {upper}" if k == 0 else f"over {SIZES[k - 1]}, up to {upper}"


def length_text(over_s: float, up_to_s: float | None) -> str:
    """A class of length, or several that were joined, for people: `5 min to 1 h`. None: no bound."""
    over = "" if over_s <= 0 else LENGTH_TEXTS[LENGTHS_S.index(over_s)]
    if up_to_s is None:
        return f"over {over}" if over else "any length"
    up_to = LENGTH_TEXTS[LENGTHS_S.index(up_to_s)]
    return f"{over} to {up_to}" if over else f"up to {up_to}"


def length_bounds(length: str) -> tuple[float, float | None]:
    """The bounds of a class of length: longer than, and up to (None = no bound)."""
    k = LENGTHS.index(length)
    return (LENGTHS_S[k - 1] if k else 0.0), (None if k == len(LENGTHS) - 1 else LENGTHS_S[k])
