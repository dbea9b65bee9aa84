"""Failures grouped by class and cause, each with what to do next. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.model.failure import FailureClass, cause_of, step_after
from tidemill.wire.api import FailureRow

EXAMPLES_MAX = 5


class CauseGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one class and one cause (messages that differ in numbers only are one cause)."""

    failure: FailureClass
    cause: str
    count: int
    final: int
    examples: list[FailureRow]
    next_step: str = ""  #: for the first of the examples


def group_failures(rows: Iterable[FailureRow | None]) -> list[CauseGroup]:
    """Failures by class and cause, the most frequent first."""
    groups: dict[tuple[FailureClass, str], list[FailureRow]] = {}
    for row in rows:
        if row is not None:
            groups.setdefault((row.evidence.failure, cause_of(row.evidence)), []).append(row)
    made = [_group(failure, cause, members) for (failure, cause), members in groups.items()]
    return sorted(made, key=lambda group: (-group.count, group.failure, group.cause))


def _group(failure: FailureClass, cause: str, members: list[FailureRow]) -> CauseGroup:
    examples = sorted(members, key=lambda each: not each.final)[:EXAMPLES_MAX]
    return CauseGroup(
        failure=failure,
        cause=cause,
        count=len(members),
        final=sum(each.final for each in members),
        examples=examples,
        next_step=step_of(examples[0]),
    )


def step_of(row: FailureRow) -> str:
    """What to do about a failure."""
    return step_after(row.evidence, job=row.job, event=row.event)
