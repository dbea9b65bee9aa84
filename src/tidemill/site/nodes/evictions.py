"""Which of our allocations have to go whatever the plan says. Pure: state, settings and now in.

Five kinds: those that run and of which no pilot was ever heard (a launcher hangs, or a node's file system), those that
the scheduler has suspended, those that wait and can never start, those that wait although their pilots would be too
late and leave at once, and those that wait and were asked for before a node was put into quarantine, so that they may
still be given that node.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from tidemill.config.site import Harvest
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site import constants
from tidemill.site.state.site_state import Allocation

AGAIN_S = 60.0
"""What waits or is suspended and was canceled is canceled again after this time."""

LATE_SLACK_S = 60.0
"""A job that has not started at its deadline is ended by Slurm's next check: by default at most a minute later. Other
batch systems have no such deadline (qsub(1B) of PBS; qsub(1) of Grid Engine: `-dl` is when a job should start)."""

FUTILE_CANCELS = 2
"""Cancels are futile if a pilot still works, or the job still waits, after the batch system has confirmed this many of
them. The second is sent once the usual time to end has passed."""

WAITING = frozenset({AllocationState.INTENDED, AllocationState.QUEUED})


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations to end, and why, in words. `is_failure`: counts against their nodes, or against starting at all."""

    names: list[str]
    why: str
    is_failure: bool = False
    limit: str = ""  #: the batch system's word for the limit that they met, and that others will keep


class Silence:
    """Since when this agent knows that an allocation runs without a word of a pilot.

    Its own clock counts, not the batch system's: hosts disagree about the time, and an agent that begins has not read
    yet what pilots recorded before.
    """

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._since_s: dict[str, float] = {}

    def find_silent(self, living: Iterable[Allocation], now_s: float) -> list[Eviction]:
        """Those that have been silent for too long by `now_s` (of any clock that does not jump)."""
        silent = [a for a in living if a.state is AllocationState.ACTIVE and not (a.pilots or a.canceled_us)]
        self._since_s = {a.name: self._since_s.get(a.name, now_s) for a in silent}
        result = []
        for each in silent:
            if now_s - self._since_s[each.name] < self._bound_s:
                continue
            self._since_s[each.name] = now_s
            where = (
                f" on {', '.join(each.hosts[:4])}{', ...' if len(each.hosts) > 4 else ''}"
                if each.hosts
                else ""
            )
            why = (
                f"it has run for {self._bound_s:.0f} s{where} and no pilot of it was heard: its launcher hangs, or the "
                "file system there"
            )
            result.append(Eviction(names=[each.name], why=why, is_failure=True))
        return result


class Recancels:
    """Cancels to send once more: those that the batch system did not confirm, at each poll, and those of allocations
    that stay although it did, whenever their usual time to go has passed."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        """`known`: what the last agent left. Whether it sent its last cancels is not known."""
        self._unconfirmed = {a.name for a in allocations if a.canceled_us and a.state not in ALLOCATION_FINAL}
        self._sent_us: dict[str, int] = {}
        self._confirmed: dict[str, tuple[int, float]] = {}  #: how many, and when the last

    def sent(self, names: Iterable[str], now_us: int, *, is_confirmed: bool, now_s: float = 0.0) -> None:
        """Note a cancel. `now_s`: monotonic time."""
        for name in names:
            self._sent_us[name] = now_us
            if is_confirmed:
                self._confirmed[name] = (self._confirmed.get(name, (0, 0.0))[0] + 1, now_s)
            (self._unconfirmed.discard if is_confirmed else self._unconfirmed.add)(name)

    def due(self, living: Iterable[Allocation], now_us: int, *, pause_us: int) -> list[str]:
        """Whom to cancel again. `pause_us`: their usual time to go."""
        canceled = {a.name: a.canceled_us for a in living if a.canceled_us}
        self._unconfirmed &= canceled.keys()
        self._sent_us = {name: at_us for name, at_us in self._sent_us.items() if name in canceled}
        return [
            name
            for name, at_us in canceled.items()
            if name in self._unconfirmed or now_us - max(at_us, self._sent_us.get(name, 0)) >= pause_us
        ]

    def futile(self, living: Iterable[Allocation], heard_since: Callable[[str, float], bool]) -> list[str]:
        """Allocations that go on although the batch system has confirmed FUTILE_CANCELS cancels: their pilots were
        heard after the last cancel (`heard_since`), or they still wait. Leaves out jobs that only end slowly, such as
        in an epilog."""
        canceled = {a.name: a for a in living if a.canceled_us}
        self._confirmed = {name: each for name, each in self._confirmed.items() if name in canceled}
        return [
            name
            for name, (times, at_s) in self._confirmed.items()
            if times >= FUTILE_CANCELS
            and (canceled[name].state is AllocationState.QUEUED or heard_since(name, at_s))
        ]


def suspended(living: Iterable[Allocation], names: Container[str], now_us: int) -> list[Eviction]:
    """Those of `names`, which are suspended. Their pilots are frozen and others are on their nodes: the work goes back
    at once, and so does the memory that they hold."""
    found = [a.name for a in living if a.name in names and not _is_told(a, now_us)]
    why = "the scheduler suspended it: other jobs have its nodes, and its work is returned"
    return [Eviction(names=found, why=why)] if found else []


def hopeless(
    living: Iterable[Allocation],
    reasons: Mapping[str, str],
    now_us: int,
    *,
    is_over_limit: Callable[[Allocation], bool] = lambda _: False,
) -> list[Eviction]:
    """Those of which the batch system says that they can never start. Together they are one start that failed: the
    next try is later. Where what is asked for next will be within the limit that they met, nothing has failed."""
    found: list[Eviction] = []
    has_failed = False
    over: dict[str, list[str]] = {}
    for each in living:
        if each.name not in reasons or not _may_end(each, now_us):
            continue
        if is_over_limit(each):
            over.setdefault(reasons[each.name], []).append(each.name)
            continue
        why = f"it can never start: {reasons[each.name]}"
        found.append(Eviction(names=[each.name], why=why, is_failure=not has_failed))
        has_failed = True
    for reason, names in over.items():
        why = f"a limit has changed, and they can never start ({reason}): what is asked for from now on keeps it"
        found.append(Eviction(names=names, why=why, limit=reason))
    return found


def late(waiting: Iterable[Allocation], harvest: Harvest, now_us: int) -> list[Eviction]:
    """Those whose pilots would leave at once if they started now."""
    bound_us = int((constants.START_BY_S + LATE_SLACK_S) * 1e6)
    names = [a.name for a in waiting if _may_end(a, now_us) and now_us - a.intended_us > bound_us]
    why = f"not started within {constants.START_BY_S:.0f} s: their pilots would leave at once"
    return [Eviction(names=names, why=why)] if names else []


def doomed(
    waiting: Iterable[Allocation], sentenced_s: float, exclude: Iterable[str], now_us: int
) -> list[Eviction]:
    """Those that were asked for before the newest sentence of a node and so do not exclude it."""
    names = [a.name for a in waiting if _may_end(a, now_us) and a.intended_us < sentenced_s * 1e6]
    why = f"they may be given nodes that went into quarantine since: {', '.join(list(exclude)[:8])}"
    return [Eviction(names=names, why=why)] if names else []


def _may_end(allocation: Allocation, now_us: int) -> bool:
    return allocation.state in WAITING and not _is_told(allocation, now_us)


def _is_told(allocation: Allocation, now_us: int) -> bool:
    return bool(allocation.canceled_us) and now_us - allocation.canceled_us < AGAIN_S * 1e6
