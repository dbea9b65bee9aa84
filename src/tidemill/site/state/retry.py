"""What becomes of a failed range: again, split in halves, failed for good, or back to the server. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.model.failure import POLICY, FailureClass
from tidemill.site.state.state import Piece

FRUITLESS_MAX = 50
"""A job gives back its work after so many failures that do not count, without any success between."""

RETURNS_MAX = 10
"""... or after so many pilots in turn that could not fit it into the time or memory they had."""

REPORTED_MAX = 20
"""Failures of a job that are reported as evidence, besides the final ones."""


class Verdict(msgspec.Struct, frozen=True):
    """`again`: to be granted again. `failed`: events failed for good. `counted`: events with one more failure."""

    again: list[Piece]
    failed: list[int]
    counted: list[int]


def failure_class(name: str) -> FailureClass:
    """The class a record names; an unknown one (of a newer pilot) is the payload's."""
    try:
        return FailureClass(name)
    except ValueError:
        return FailureClass.PAYLOAD


def decide(
    failure: FailureClass,
    undone: list[tuple[int, int]],
    *,
    culprit: int | None,
    failures: Mapping[int, int],
    retries: int,
) -> Verdict:
    """What becomes of the events `undone` (intervals of one failed range, ascending, not empty).

    A class that does not count gives all back as they were. A named culprit alone takes the blame. A range of one
    event takes it itself. A longer range is split in halves until single events are left.
    """
    if not POLICY[failure].counts:
        return Verdict([Piece(first, end - first) for first, end in undone], [], [])
    if culprit is not None and any(first <= culprit < end for first, end in undone):
        rest = [piece for first, end in undone for piece in _around(first, end, culprit)]
        return _blame(culprit, rest, failures=failures, retries=retries)
    if len(undone) == 1 and undone[0][1] - undone[0][0] == 1:
        return _blame(undone[0][0], [], failures=failures, retries=retries)
    return Verdict([piece for first, end in undone for piece in _halves(first, end)], [], [])


def _blame(event: int, rest: list[Piece], *, failures: Mapping[int, int], retries: int) -> Verdict:
    if failures.get(event, 0) + 1 > retries:
        return Verdict(rest, [event], [event])
    return Verdict([*rest, Piece(event, 1, 1)], [], [event])


def _around(first: int, end: int, event: int) -> list[Piece]:
    """The interval without the event."""
    if not first <= event < end:
        return [Piece(first, end - first)]
    pieces = [Piece(first, event - first), Piece(event + 1, end - event - 1)]
    return [piece for piece in pieces if piece.count]


def _halves(first: int, end: int) -> list[Piece]:
    count = end - first
    if count == 1:
        return [Piece(first, 1, 1)]
    half = (count + 1) // 2
    return [Piece(first, half, half), Piece(first + half, count - half, count - half)]
