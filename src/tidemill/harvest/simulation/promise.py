"""What regular jobs are promised, and whether pairs of runs show that it is kept. Pure.

No class of jobs waits more than 2 % or 15 s longer, whichever is larger; the largest jobs at most 1 % longer; the mean
over all jobs grows not at all. An interval decides: kept if it lies within the bound, broken if it lies beyond,
else unsure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tidemill.harvest.simulation.outcome import MeanDelay, RelativeChange

WAIT_CHANGE_MAX = 0.02
"""A class waits longer by at most this part of what it waits without us, or by DELAY_S_MAX, whichever is more."""
DELAY_S_MAX = 15.0
"""Half of a scheduler's usual cycle (Slurm, bf_interval: 30 s): a smaller delay is within the scheduler's own noise."""
LARGEST_CHANGE_MAX = 0.01
MEAN_CHANGE_MAX = 0.0
SENTENCE = (
    "no class waits more than 2 % or 15 s longer, whichever is larger; the largest jobs at most 1 %; the mean of all "
    "not at all"
)


class PromiseState(StrEnum):
    """What the interval says."""

    KEPT = "kept"
    BROKEN = "broken"
    UNSURE = "unsure"

    @property
    def text(self) -> str:
        """For people."""
        return "not sure" if self is PromiseState.UNSURE else str(self)


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


def class_verdict(change: RelativeChange, delay_s: MeanDelay, *, is_largest: bool = False) -> PromiseState:
    """Whether a class keeps the promise: by the relative change of its mean wait, and by the change in seconds."""
    if is_largest and change.mean is not None:
        return within(change, LARGEST_CHANGE_MAX)
    found = {within(change, WAIT_CHANGE_MAX), within(delay_s, DELAY_S_MAX)}
    if PromiseState.KEPT in found:  # the larger bound holds if one of both does
        return PromiseState.KEPT
    if change.mean is None:
        return within(delay_s, DELAY_S_MAX)
    return PromiseState.BROKEN if found == {PromiseState.BROKEN} else PromiseState.UNSURE


def mean_verdict(change: RelativeChange, delay_s: MeanDelay) -> PromiseState:
    """Whether the mean wait of all jobs grows; if no job waits without Tidemill, the bound of a class applies."""
    return within(delay_s, DELAY_S_MAX) if change.mean is None else within(change, MEAN_CHANGE_MAX)


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
        else PromiseState.KEPT
        if counted == {PromiseState.KEPT}
        else PromiseState.UNSURE
    )
    return Promise(verdict=verdict, mean=mean, broken=broken, unsure=unsure)
