"""Regular jobs that do not start although enough nodes are idle: they wait for something that is not visible. Pure.

This may be a licence, a topology, or a limit that the batch system does not show; nodes would be kept idle for such a
job for ever. A job for which enough nodes were idle for longer than the scheduler needs is left out of the queue for a
time; then it counts again.
"""

from __future__ import annotations

from collections.abc import Iterable

PATIENCE_S_MIN = 10.0
CYCLES = 4.0
"""The patience with a job, in scheduler cycles: by then the scheduler has considered it this number of times."""

AGAIN_CYCLES = 10.0
"""Cycles after which a job that was left out counts again; until then Tidemill does not yield to it."""


class Patience:
    """Since when each job could have started on idle nodes, and which are left out until when."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._until_s: dict[str, float] = {}

    def on_poll(
        self, now_s: float, ready: Iterable[str], *, cycle_s: float, iteration_s: float = 0.0
    ) -> list[str]:
        """Note the jobs for which enough nodes are idle now; those that are left out from now on. `iteration_s`: where
        no event starts a cycle, one begins after this time; 0 = it is one of the others."""
        cycle_s += iteration_s / CYCLES
        patience_s = max(PATIENCE_S_MIN, CYCLES * cycle_s)
        self._since_s = {job: self._since_s.get(job, now_s) for job in ready}
        late = [job for job, since_s in self._since_s.items() if now_s - since_s >= patience_s]
        for job in late:
            del self._since_s[job]
            self._until_s[job] = now_s + AGAIN_CYCLES * cycle_s
        return late

    def left_out(self, now_s: float) -> frozenset[str]:
        """The jobs that do not count at this time."""
        self._until_s = {job: until_s for job, until_s in self._until_s.items() if until_s > now_s}
        return frozenset(self._until_s)
