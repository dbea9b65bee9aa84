"""The state tables are closed: every state is reachable, final states are what they say, each edge has a reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

from tidemill.model import state

Table = tuple[type[StrEnum], Mapping[tuple[StrEnum, StrEnum], str], StrEnum]

TABLES: list[Table] = [
    (state.JobState, state.JOB_TRANSITIONS, state.JobState.WAITING),  # type: ignore[list-item]
    (state.LeaseState, state.LEASE_TRANSITIONS, state.LeaseState.ACTIVE),  # type: ignore[list-item]
    (state.AllocationState, state.ALLOCATION_TRANSITIONS, state.AllocationState.INTENDED),  # type: ignore[list-item]
]
tables = pytest.mark.parametrize(
    ("states", "transitions", "start"), TABLES, ids=lambda each: getattr(each, "__name__", "")
)


@tables
def test_every_state_is_reached_from_the_first(
    states: type[StrEnum], transitions: Mapping[tuple[StrEnum, StrEnum], str], start: StrEnum
) -> None:
    reached = {start}
    while more := {after for before, after in transitions if before in reached} - reached:
        reached |= more

    assert reached == set(states)


@tables
def test_every_edge_joins_two_different_states_and_has_a_reason(
    states: type[StrEnum], transitions: Mapping[tuple[StrEnum, StrEnum], str], start: StrEnum
) -> None:
    assert start in states
    for (before, after), reason in transitions.items():
        assert before is not after
        assert reason.strip()


@tables
def test_a_state_is_named_as_it_is_written(
    states: type[StrEnum], transitions: Mapping[tuple[StrEnum, StrEnum], str], start: StrEnum
) -> None:
    assert start in states
    assert transitions
    assert [str(each) for each in states] == [each.name for each in states]


def test_an_ended_allocation_stays_ended_unless_it_was_only_lost() -> None:
    left = {before for before, _ in state.ALLOCATION_TRANSITIONS if before in state.ALLOCATION_FINAL}
    assert left == {state.AllocationState.LOST}


def test_every_allocation_state_that_is_not_final_can_end() -> None:
    for each in set(state.AllocationState) - state.ALLOCATION_FINAL:
        assert any(
            before is each and after in state.ALLOCATION_FINAL
            for before, after in state.ALLOCATION_TRANSITIONS
        )


def test_an_ended_job_only_goes_on_when_it_is_retried() -> None:
    after_final = {after for before, after in state.JOB_TRANSITIONS if before in state.JOB_FINAL}

    assert after_final == {state.JobState.WAITING, state.JobState.RUNNING}


def test_of_a_completed_job_only_canceled_events_are_tried_again() -> None:
    whys = [why for edge, why in state.JOB_TRANSITIONS.items() if edge[0] is state.JobState.COMPLETED]
    assert whys
    assert all(why.startswith("its owner retries canceled events") for why in whys), whys


def test_a_settled_lease_stays_settled() -> None:
    assert not [edge for edge in state.LEASE_TRANSITIONS if edge[0] is state.LeaseState.SETTLED]
