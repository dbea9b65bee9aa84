"""When the agent glances at the machine between two polls, and what a glance leads to. Acts on nothing.

The pace is `harvest.plan.pace`, which `tidemill simulate` runs, too. Where a glance fails or shows nothing the machine
is polled at the configured interval, and the site's metrics and status say so.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import TidemillError, is_transient
from tidemill.harvest.plan.pace import QUIET_POLLS, CountsChange, GlancePace, OwnJobs, change_between
from tidemill.log import Log
from tidemill.model.machine import JobCounts
from tidemill.site.nodes.batch_calls import Glanced

AGAIN_S, AWAY_S = 600.0, 60.0
"""A glance that has failed is tried again after this time: one that was refused or is not offered, and one during which
the batch system was unreachable, as it may be for a minute."""

NOT_OFFERED = "the batch system has no command that shows counts of jobs"
_log = Log("harvest")


class Glances:
    """The glances of one agent. Times are of the monotonic clock."""

    def __init__(self, pace: GlancePace) -> None:
        self.pace = pace
        self.why_not = ""  #: why there are no glances; empty = there are
        self._counts: JobCounts | None = None  #: as last seen
        self._own = OwnJobs()  #: since then
        self.is_queue_empty = False  #: no regular job waited at the last poll
        self._off_until_s = 0.0
        self._at_s: float | None = None
        self._next_s: float | None = None  #: time of the next glance
        self._change = CountsChange.NEWS  #: since the last poll

    def pause_s(self, now_s: float, *, holds: bool) -> float | None:
        """From the last poll or glance to the next glance; None = a poll comes next."""
        if now_s < self._off_until_s:
            return None
        return self.pace.glance_s(now_s, holds=holds)

    def schedule(self, now_s: float, *, holds: bool, until: Callable[[float], float]) -> None:
        """Set the time of the next glance, unless it is set; every tick calls this. `until` turns the usual pause into
        the seconds from the last poll or glance to the next glance."""
        pause_s = self.pause_s(now_s, holds=holds)
        if pause_s is None:
            self._next_s = None
        elif self._next_s is None:
            self._next_s = now_s + until(pause_s)

    def is_due(self, now_s: float) -> bool:
        """Whether the time of the next glance has come."""
        return self._next_s is not None and now_s >= self._next_s

    def poll_factor(self, now_s: float, *, holds: bool) -> float:
        """Factor by which polls are rarer: since the last poll, glances have shown no change."""
        has_glanced = self._counts is not None and self._at_s is not None
        is_watched = has_glanced and self.pause_s(now_s, holds=holds) is not None
        return QUIET_POLLS if is_watched and self._change is CountsChange.NONE else 1.0

    def glancing(self, now_s: float) -> None:
        """A glance begins."""
        self._at_s = now_s
        self._next_s = None

    def polling(self, now_s: float, *, at_once: bool) -> None:
        """A poll begins; `at_once`: a glance has caused it, and has paid for it."""
        if not at_once:
            self.pace.polled(now_s)
        self._change = CountsChange.NONE
        self._next_s = None

    def missed(self) -> None:
        """The poll has failed: the changes that glances showed before it still call for a poll."""
        self._change = CountsChange.NEWS

    def polled(self, counts: JobCounts | None) -> None:
        """Take the counts that came with a poll, where the batch system shows them."""
        if counts is not None:
            self._counts, self._own = counts, OwnJobs()

    def acted(self, own: OwnJobs) -> None:
        """Note what Tidemill has done to the counts since the last glance: it is not news."""
        self._own = OwnJobs(*(sum(both) for both in zip(self._own, own, strict=True)))

    def apply(self, glanced: Glanced, now_s: float) -> bool:
        """Take what a glance showed; whether to poll at once."""
        counts = glanced.counts
        if counts is None:
            self._fail(glanced.error, now_s)
            return False
        self.why_not = ""
        before, self._counts = self._counts, counts
        own, self._own = self._own, OwnJobs()
        if before is None:
            self._change = CountsChange.NEWS  # what has come since the last poll is not known
            return False
        change = change_between(before, counts, own=own, is_queue_empty=self.is_queue_empty)
        if change is CountsChange.NEWS:
            self.pace.changed(now_s)
        self._change = max(self._change, change)
        return self._change is CountsChange.NEWS and self.pace.react(now_s)

    def _fail(self, error: TidemillError | None, now_s: float) -> None:
        why = NOT_OFFERED if error is None else error.message
        pause_s = AWAY_S if error is not None and is_transient(error) else AGAIN_S
        self._off_until_s = now_s + pause_s
        self._counts = None
        if why != self.why_not:
            self.why_not = why
            _log.warning("glance.off", reason=why, retry_s=pause_s)
