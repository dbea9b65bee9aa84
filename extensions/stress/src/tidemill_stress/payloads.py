"""One payload of a stress test, as windows and statistics see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.wire.api import PayloadTime


class Payload(NamedTuple):
    """A payload that ended. Times in seconds, `start_s` and `end_s` since 1970. `events`: those that it did, 0 if it
    failed. `failure` is empty, or a failure class."""

    node: str
    start_s: float
    end_s: float
    cpu_s: float
    setup_s: float
    events: int
    failure: str = ""

    @property
    def wall_s(self) -> float:
        """How long it ran."""
        return self.end_s - self.start_s


def taken(times: Iterable[PayloadTime]) -> list[Payload]:
    """Payloads of what sites reported. Records that end before they start come of stepped clocks and are left out."""
    found = [
        Payload(
            f"{each.site}/{each.node}" if each.site else each.node, each.started_us / 1e6, each.ended_us / 1e6,
            (each.user_us + each.system_us) / 1e6, each.setup_us / 1e6, 0 if each.failure else each.count,
            each.failure,
        )
        for each in times
        if 0 < each.started_us < each.ended_us
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each.start_s, each.end_s, each.node))
