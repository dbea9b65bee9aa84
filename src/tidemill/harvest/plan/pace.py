"""How often to inspect the machine between two polls, and when a change is worth a poll at once. Pure.

A *glance* is one command whose reply does not grow with the queue: it shows that jobs have come or ended, not which. A
poll costs several commands. While Tidemill holds nodes, an arrival that finds no idle node waits for the next poll or
glance and for the death of an allocation. With polls every 30 s alone that is 18 s on average, for each job that would
have started at once (theta-2022 with bursts of small jobs added, 45 days, 1,658 jobs of up to 64 nodes); with a glance
every 10 s it is 9 s.
"""

from __future__ import annotations

import math
from collections import deque
from enum import IntEnum
from typing import NamedTuple

from tidemill.model.machine import JobCounts

GLANCES_PER_POLL_MAX = 6
"""Glances are never closer than this share of the poll interval: 5 s where polls come every 30 s."""

POLL_CALLS = 4
"""Commands of a poll until polls have shown how many they are: 4 on Slurm. On PBS 5 while Tidemill has jobs (OpenPBS
23.06), and now and then some more: server and scheduler, history, a submission whose reply was lost."""

COST_SHARE = 0.2
"""Weight of the last poll in the mean number of commands of a poll."""

QUIET_POLLS = 2.0
"""Factor by which polls are rarer while glances show no change of any kind."""

CALLS_PER_POLL = 6.0
"""Queries in a poll interval, usually: 12 a minute with polls every 30 s."""

KEPT_FOR_ACTIONS = 0.25
"""Share of the commands a minute that no query uses; `batch.polite` keeps the same share."""

NEEDED_PER_HOUR = 12.0
"""Regular jobs an hour that come and need nodes that Tidemill holds: from this rate on, glances and polls may
use all queries that the site allows."""

FADE_S = 1800.0
"""Time for which changes and arrivals count."""

FIRST_WORK_S = 2.0
"""Work that waits where no pilot is at work causes a poll at most this long after the last one, not at the next regular
one: the user who submitted it watches, and what it waits for may have ended long ago."""

LEFT_S = 5.0
"""Pause between such polls while an allocation that was canceled, or whose pilots have signed off, has not ended: the
usual time from its end to idle nodes (`DEATH_S` in `site/constants`)."""

BURST_POLLS = 4.0
"""Polls beyond the sustained rate that a burst of changes may cause."""


class OwnJobs(NamedTuple):
    """What Tidemill itself has done to the counts between two glances. `started`: single jobs that pilots report to
    have started; `withdrawn`: those that were canceled while they waited."""

    submitted: int = 0
    canceled: int = 0
    started: int = 0
    withdrawn: int = 0


class CountsChange(IntEnum):
    """What two glances show, the more urgent the larger."""

    NONE = 0
    FREED = 1  #: jobs have ended and none waits: nodes to be filled at the next regular poll, which is not put off
    NEWS = 2  #: jobs have come, or have ended while others wait: worth a poll at once


def change_between(
    before: JobCounts, after: JobCounts, *, own: OwnJobs, is_queue_empty: bool
) -> CountsChange:
    """What has happened between two glances. What Tidemill itself did does not count.

    An unclear change counts as news: it costs one poll, and only as often as `GlancePace.react` allows.
    """
    if before.submitted is not None and after.submitted is not None:
        ended = (after.ended or 0) - (before.ended or 0)
        if after.submitted - before.submitted != own.submitted or ended < 0:
            return CountsChange.NEWS
        has_freed = ended > own.canceled
        return (
            CountsChange.NONE
            if not has_freed
            else CountsChange.FREED
            if is_queue_empty
            else CountsChange.NEWS
        )
    # jobs of Tidemill that left the queue may hide as many that came
    least = min(0, own.submitted - own.started - own.withdrawn)
    more = (after.running or 0) - (before.running or 0)
    if (after.waiting or 0) - (before.waiting or 0) > least or (before.waiting and more > own.started):
        return (
            CountsChange.NEWS
        )  # in the second case one of Tidemill's may have started whose pilot has not reported yet
    if not is_queue_empty and (before.waiting, before.running) != (after.waiting, after.running):
        return CountsChange.NEWS
    return (
        CountsChange.FREED if more < own.started - max(0, own.canceled - own.withdrawn) else CountsChange.NONE
    )


def awaited_s(*, has_new_work: bool, has_grown: bool, living: int, left: int) -> float | None:
    """Seconds from the last poll to the one that waiting work calls for; None = it waits for the regular one. `living`:
    allocations that have not ended, as far as the last poll showed; `left`: those of them that are about to end, since
    they were canceled or their pilots have all signed off. `has_grown`: `planning.has_grown`, since the last poll.

    An allocation with a pilot, or one that is to start one, takes the work, unless it is for more nodes by now than
    were asked for, as when the first events have shown how long they take. Without such an allocation the poll after
    new work finds idle nodes, and those after it follow only until what was left has ended, and its nodes are free.
    """
    if living > left:
        return FIRST_WORK_S if has_grown else None
    if has_new_work:
        return FIRST_WORK_S
    return LEFT_S if left else None


def least_pause_s(poll_s: float) -> float:
    """The least pause before a glance, where polls come every `poll_s`."""
    return poll_s / GLANCES_PER_POLL_MAX


class FadingRate:
    """Events a second, the recent ones counting most."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_s = 0.0

    def add(self, now_s: float, events: int) -> None:
        """Count events that happened now."""
        self._sum = self._faded(now_s) + events
        self._at_s = now_s

    def per_s(self, now_s: float) -> float:
        """The rate now."""
        return self._faded(now_s) / FADE_S

    def _faded(self, now_s: float) -> float:
        return self._sum * math.exp(-max(0.0, now_s - self._at_s) / FADE_S)


class LastMinute:
    """How many commands the batch system got in the last minute, by a count of them that only grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(0.0, 0)])

    def note(self, now_s: float, total: int) -> None:
        """Note that there were `total` until now: whenever there may be more."""
        if total != self._seen[-1][1]:
            self._seen.append((now_s, total))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - 60:
            self._seen.popleft()

    def commands(self, now_s: float, total: int) -> int:
        """Those of the last minute, where there were `total` until now."""
        return total - next((count for at_s, count in reversed(self._seen) if at_s <= now_s - 60), 0)


class GlancePace:
    """Decides when to look. The state is lost with the agent, and learned again within an hour."""

    def __init__(self, *, poll_s: float, calls_per_min_max: float, glance_s: float | None = None) -> None:
        """`glance_s`: the least pause before a glance; None = as `poll_s` says, 0 = no glances."""
        self._least_s = least_pause_s(poll_s) if glance_s is None else glance_s
        self._poll_s = poll_s
        self._most = calls_per_min_max * (1 - KEPT_FOR_ACTIONS)
        self._changes, self._needed = FadingRate(), FadingRate()
        self._pause_s: float | None = None  #: between glances, as last decided
        self._poll_calls = float(POLL_CALLS)  #: commands of a poll, as seen
        self._left = BURST_POLLS * POLL_CALLS  #: commands that polls after changes may use now
        self._left_at_s: float | None = None

    def changed(self, now_s: float) -> None:
        """Count a glance that showed a change."""
        self._changes.add(now_s, 1)

    def needed(self, now_s: float, arrivals: int) -> None:
        """Count regular jobs that have come and need nodes that Tidemill holds."""
        self._needed.add(now_s, arrivals)

    def glance_s(self, now_s: float, *, holds: bool) -> float | None:
        """Seconds from a poll or glance to the next glance; None = there is none before the next poll.

        If Tidemill holds no nodes, it has none to release and needs no glance. Each change costs a poll, too: the more
        changes, the rarer the glances, so that both together stay within their quota of queries.
        """
        self._pause_s = self._pause_now_s(now_s) if holds else None
        return self._pause_s

    def _pause_now_s(self, now_s: float) -> float | None:
        per_s, rate = self._per_s(now_s), self._changes.per_s(now_s)
        if self._least_s <= 0 or per_s <= 0:
            return None
        pause_s = self._least_s
        for _ in range(4):  # more polls, longer pauses, more changes in a pause: it settles
            calls = 1 + self._poll_calls * (1 - math.exp(-rate * pause_s))
            pause_s = max(self._least_s, calls / per_s)
        return pause_s if pause_s < self._poll_s else None

    def react(self, now_s: float) -> bool:
        """Whether a change may cause a poll now. True uses up the commands of one poll of those that the bound
        allows."""
        self._refill(now_s)
        if self._left < self._poll_calls:
            return False
        self._left -= self._poll_calls
        return True

    def hurry(self, now_s: float, *, last_minute: int) -> bool:
        """Whether to poll at once for work that waits while no pilot is at work, which may call for polls in
        a row. `last_minute`: commands of the last minute: with the poll they stay below the bound, however
        many of them were allowed."""
        return last_minute + self._poll_calls <= self._most and self.react(now_s)

    def polled(self, now_s: float) -> None:
        """Count a poll that came at its own time: it is paid from the same bound."""
        self._refill(now_s)
        self._left = max(0.0, self._left - self._poll_calls)

    def cost(self, calls: int) -> None:
        """Learn how many commands the last poll took, and charge those above the estimate."""
        self._left -= max(0.0, calls - self._poll_calls)
        self._poll_calls += COST_SHARE * (calls - self._poll_calls)

    def _per_s(self, now_s: float) -> float:
        """Queries a second for glances and what they cause: what is allowed, without the quiet polls."""
        usual = min(self._most, CALLS_PER_POLL * 60 / self._poll_s)
        per_min = self._most if self._needed.per_s(now_s) * 3600 >= NEEDED_PER_HOUR else usual
        return (per_min - self._poll_calls * 60 / (self._poll_s * QUIET_POLLS)) / 60

    def _refill(self, now_s: float) -> None:
        if self._left_at_s is not None:
            glances = 1 / self._pause_s if self._pause_s is not None else 0.0
            per_s = max(0.0, self._most / 60 - glances)
            gained = max(0.0, now_s - self._left_at_s) * per_s
            self._left = min(BURST_POLLS * self._poll_calls, self._left + gained)
        self._left_at_s = now_s
