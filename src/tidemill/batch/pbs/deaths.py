"""How long PBS keeps our nodes after we cancel: from our order to the obit in PBS's history. Pure, knows no clock.

The MoM looks for ended processes every 10 s, so nodes are free long after the processes are gone; sites set other
intervals, and epilogs. The history (`job_history_enable`) has the server's time of the obit, to the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

RIPE_S = 60.0
"""An allocation is in the history this long after its cancel."""

ASKED_MAX = 20
KEPT_MAX = 1_000
SEEN_MAX = 50
ENOUGH = 5
EVERY_S = 600.0
"""Where ENOUGH were seen, the history is queried only this often."""

SHARE = 0.8
"""The death time that we plan with: this share of those measured were shorter."""

DEATH_S_MIN, DEATH_S_MAX = 1.0, 120.0
"""Times beyond these come from clocks that differ, or from a server that was unreachable."""


class Deaths:
    """Allocations that were canceled, until their ends are known, and how long the last ones took."""

    def __init__(self, *, ripe_s: float = RIPE_S) -> None:
        self._ripe_s = ripe_s
        self._canceled: dict[str, float] = {}
        self._seen: deque[float] = deque(maxlen=SEEN_MAX)
        self._asked_s = float("-inf")

    def canceled(self, names: Iterable[str], at_s: float) -> None:
        """We have ordered the end of these, which ran."""
        for name in names:
            self._canceled.setdefault(name, at_s)
        while len(self._canceled) > KEPT_MAX:
            del self._canceled[next(iter(self._canceled))]

    def ripe(self, now_s: float) -> list[str]:
        """Those of which the history is to be asked now; then `ended` forgets each."""
        if now_s - self._asked_s < (EVERY_S if len(self._seen) >= ENOUGH else self._ripe_s):
            return []  # one that never comes into the history is not asked for at every poll
        names = [name for name, at_s in self._canceled.items() if now_s - at_s >= self._ripe_s][-ASKED_MAX:]
        if names:
            self._asked_s = now_s
        return names

    def ended(self, name: str, at_s: float | None) -> None:
        """Note when its obit came; None = the history does not show it."""
        canceled_s = self._canceled.pop(name, None)
        if canceled_s is not None and at_s is not None and 0 <= at_s - canceled_s <= DEATH_S_MAX:
            self._seen.append(at_s - canceled_s)

    @property
    def death_s(self) -> float:
        """What to plan with; 0 = not known yet."""
        if len(self._seen) < ENOUGH:
            return 0.0
        return max(DEATH_S_MIN, sorted(self._seen)[int(SHARE * (len(self._seen) - 1))])
