"""How fast the site eats its leased work, in estimated core-seconds per second. Knows no clock: times are arguments."""

from __future__ import annotations

WINDOW_S = 2.0
KEEP = 0.5


class Throughput:
    """A fading average over windows of a few seconds of how the open work shrinks, deliveries of new work apart."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._eaten = 0.0
        self._last: float | None = None
        self.rate = 0.0

    def update(self, open_core_s: float, now_s: float) -> float:
        """Take the present amount of open work; the rate in core-seconds per second."""
        if self._last is not None and open_core_s < self._last:
            self._eaten += self._last - open_core_s
        self._last = open_core_s
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s >= WINDOW_S:
            self.rate = KEEP * self.rate + (1 - KEEP) * self._eaten / elapsed_s
            self._since_s, self._eaten = now_s, 0.0
        return self.rate
