"""What regular jobs are promised, and whether pairs of runs show that it is kept. Pure.

No class of jobs waits more than 2 % or 15 s longer, whichever is larger; the class of jobs over a quarter of the
machine at most 1 % longer; the mean over all jobs grows not at all. An interval decides: kept if it lies within the
bound, broken if it lies beyond, else unsure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tidemill.harvest.account.waits import MeanDelay, RelativeChange

WAIT_CHANGE_MAX = 0.02
"""A class waits longer by at most this part of what it waits without us, or by DELAY_S_MAX, whichever is more."""
DELAY_S_MAX = 15.0
"""Half of a scheduler's usual cycle (Slurm, bf_interval: 30 s): a smaller delay is within the scheduler's own noise."""
LARGEST_CHANGE_MAX = 0.01
"""Jobs that are all over the last bound of `model.figures.job_classes` but one: a quarter of the machine."""
MEAN_CHANGE_MAX = 0.0
JOBS_MIN = 30
"""Fewer jobs show no promise kept, however well the runs agree: another month has other jobs."""
SENTENCE = (
    "no class waits more than 2 % or 15 s longer, whichever is larger; the jobs over a quarter of the machine at "
    "most 1 %; the mean of all not at all"
)


class WaitBound(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer jobs may wait: relatively, or in seconds, whichever is larger; None = no such bound."""

    change: float | None
    delay_s: float | None

    @property
    def text(self) -> str:
        """For people: `2 % or 15 s`."""
        parts = [] if self.change is None else [f"{self.change:.0%}".replace("%", " %")]
        return " or ".join([*parts, *([] if self.delay_s is None else [f"{self.delay_s:.0f} s"])])


class PromiseState(StrEnum):
    """Whether the 95 % interval keeps or breaks the promise."""

    KEPT = "kept"
    BROKEN = "broken"
    UNSURE = "unsure"
    UNJUDGED = "unjudged"  #: the log does not say when jobs were submitted

    @property
    def text(self) -> str:
        """The state in words for people."""
        return {PromiseState.UNSURE: "not sure", PromiseState.UNJUDGED: "no verdict"}.get(self, str(self))


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A class and its verdict; `belongs`: whether the promise is kept only if this class's verdict says so."""

    name: str
    verdict: PromiseState
    belongs: bool


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over all classes; `mean` is that of all jobs. `broken`, `unsure`: names of classes (`all`: the mean).

    It is kept if the mean and every class of size and of length keep it, and broken if any class surely breaks it,
    also one of size and length together, which are too small to show that they keep it.
    """

    verdict: PromiseState
    mean: PromiseState
    broken: list[str]
    unsure: list[str]


def class_bound(change: RelativeChange, *, is_largest: bool = False) -> WaitBound:
    """The bound of a class; `is_largest`: all its jobs are over a quarter of the machine. Without any wait only seconds
    can be compared."""
    if change.mean is None:
        return WaitBound(change=None, delay_s=DELAY_S_MAX)
    if is_largest:
        return WaitBound(change=LARGEST_CHANGE_MAX, delay_s=None)
    return WaitBound(change=WAIT_CHANGE_MAX, delay_s=DELAY_S_MAX)


def mean_bound(change: RelativeChange) -> WaitBound:
    """The bound of the mean over all jobs; if no job waits without Tidemill, that of a class."""
    return class_bound(change) if change.mean is None else WaitBound(change=MEAN_CHANGE_MAX, delay_s=None)


def verdict_of(bound: WaitBound, change: RelativeChange, delay_s: MeanDelay) -> PromiseState:
    """Whether a change lies within its bound: the larger one holds if one of both does."""
    found = set()
    if bound.change is not None:
        found.add(within(change, bound.change))
    if bound.delay_s is not None:
        found.add(within(delay_s, bound.delay_s))
    if PromiseState.KEPT in found:
        return PromiseState.KEPT
    return PromiseState.BROKEN if found == {PromiseState.BROKEN} else PromiseState.UNSURE


def class_verdict(change: RelativeChange, delay_s: MeanDelay, *, is_largest: bool = False) -> PromiseState:
    """Whether a class keeps the promise: by the relative change of its mean wait, and by the change in seconds."""
    return verdict_of(class_bound(change, is_largest=is_largest), change, delay_s)


def mean_verdict(change: RelativeChange, delay_s: MeanDelay) -> PromiseState:
    """Whether the mean wait of all jobs grows."""
    return verdict_of(mean_bound(change), change, delay_s)


def at_best(verdict: PromiseState, *, jobs: int, is_judged: bool = True) -> PromiseState:
    """A verdict over a log with this number of jobs: too few show that the promise is broken, but not that it is kept.
    None at all if jobs are submitted at their starts (not `is_judged`), for want of a better time: no wait is known
    then."""
    if not is_judged:
        return PromiseState.UNJUDGED
    return PromiseState.UNSURE if verdict is PromiseState.KEPT and jobs < JOBS_MIN else verdict


def within(bounds: RelativeChange | MeanDelay, most: float) -> PromiseState:
    """Where an interval lies."""
    if bounds.low is None or bounds.high is None:
        return PromiseState.UNSURE
    return (
        PromiseState.KEPT
        if bounds.high <= most
        else PromiseState.BROKEN
        if bounds.low > most
        else PromiseState.UNSURE
    )


def promise_of(mean: PromiseState, classes: Sequence[Judged]) -> Promise:
    """The verdict over the mean and all classes."""
    judged = [Judged(name="all", verdict=mean, belongs=True), *classes]
    broken = [each.name for each in judged if each.verdict is PromiseState.BROKEN]
    unsure = [each.name for each in judged if each.verdict is PromiseState.UNSURE]
    counted = {each.verdict for each in judged if each.belongs}
    verdict = (
        PromiseState.BROKEN
        if broken
        else next(iter(counted))
        if counted in ({PromiseState.KEPT}, {PromiseState.UNJUDGED})
        else PromiseState.UNSURE
    )
    return Promise(verdict=verdict, mean=mean, broken=broken, unsure=unsure)
