"""The times that the server stamps and measures with: a wall clock that never goes back, and durations."""

from __future__ import annotations

from collections.abc import Callable

from tidemill import clock

STEP_US = 10_000_000  #: by which the wall clock is followed at most when it jumps ahead


class ServerClock:
    """The wall clock, smoothed. The clocks are arguments for tests that let time jump; used by the writer alone."""

    def __init__(
        self,
        *,
        monotonic_s: Callable[[], float] = clock.monotonic_s,
        wall_us: Callable[[], int] = clock.now_us,
    ) -> None:
        self.monotonic_s, self._wall_us = monotonic_s, wall_us
        self._last_us, self._last_s = 0, 0.0

    def now_us(self) -> int:
        """The time, which never goes back and follows a jump in steps of at most STEP_US.

        So one wrong reading decays no account and stamps nothing far in the future.
        """
        at_s, wall_us = self.monotonic_s(), self._wall_us()
        if not self._last_us:
            self._last_us, self._last_s = wall_us, at_s
        passed_us = max(0, int((at_s - self._last_s) * 1e6))
        gap_us = wall_us - (self._last_us + passed_us)
        # ahead of the wall: half speed until that has caught up
        self._last_us += passed_us + (min(gap_us, STEP_US) if gap_us > 0 else max(gap_us, -(passed_us // 2)))
        self._last_s = at_s
        return self._last_us
