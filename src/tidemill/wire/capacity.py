"""What a site could take now, and what its work waits for: a part of each sync (`wire/api`)."""

from __future__ import annotations

import msgspec

from tidemill.model.intervals import IntervalSet
from tidemill.model.trouble import Trouble
from tidemill.wire.far import HeldData, NearData
from tidemill.wire.monitoring import AwaitedNodes

NEAR_MAX = 100  #: of what a site says that it is near to
HOLDS_MAX = 1_000  #: datasets that a site says its caches hold
UNSTARTED_CHARACTERS_MAX = 20_000
"""Of `Capacity.unstarted`: some thousand jobs with gaps between them."""


class Capacity(msgspec.Struct, kw_only=True):
    """What the site could take now. `want_core_s`: more leased work, in core-seconds; 0 = none. `event_s`: measured
    seconds per event by application. `wide_core_s`: the same for payloads that span nodes, at most `wide_nodes_max` of
    them; `launcher`: what starts those, empty = the site runs none."""

    want_core_s: float
    want_ranges_max: int
    slot_cores_max: int
    slot_memory_mb_max: int
    devices: dict[str, int]
    event_s: dict[str, float]
    nodes: int
    busy_cores: int
    adhoc: bool
    wide_core_s: float = 0.0
    wide_nodes_max: int = 0
    launcher: str = ""
    troubles: list[Trouble] = []  #: for which work waits there; what the server is to send no more of
    near: list[NearData] = []  #: what data the site is near to, NEAR_MAX at most
    holds: list[HeldData] = []  #: what its caches hold, HOLDS_MAX at most: the largest
    awaits: AwaitedNodes | None = None  #: None = a pilot is at work, or no work waits there
    more: AwaitedNodes | None = None  #: the same for more nodes, while a pilot is at work; None = none is
    #: jobs with work that is leased to the site and that no pilot runs, as interval text, where `awaits` does not say
    #: so of all; UNSTARTED_CHARACTERS_MAX at most
    unstarted: str = ""


def unstarted_text(jobs: IntervalSet) -> str:
    """`Capacity.unstarted` of these jobs: as many of the lowest numbers as it holds."""
    text = str(jobs)
    if len(text) <= UNSTARTED_CHARACTERS_MAX:
        return text
    return text[:UNSTARTED_CHARACTERS_MAX].rpartition(",")[0]
