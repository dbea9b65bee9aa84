"""The broker's state between ticks, for any steps in any order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tidemill.site.nodes.tick_state import LastReply, NextPoll, NodesWanted, TickState, Undecided

STEPS: dict[str, Callable[[TickState], TickState]] = {
    "wants": lambda state: state.wants(True),
    "wants none": lambda state: state.wants(False),
    "hurried": TickState.hurried,
    "seen change": TickState.seen_change,
    "polling": TickState.polling,
    "lost": lambda state: state.lost("cannot connect"),
    "snapshot": lambda state: state.answered(has_snapshot=True, again=("a",)),
    "statuses": lambda state: state.answered(has_snapshot=False),
    "doubted": lambda state: state.answered(
        has_snapshot=True, doubted="no witness", starts_nothing="drained"
    ),
    "futile": lambda state: state.answered(
        has_snapshot=False, again=("a",), doubted="no witness", starts_nothing="drained"
    ),
    "evicted": TickState.evicted,
    "planned": TickState.planned,
    "repeated": TickState.repeated,
    "stopped": TickState.stopped,
    "resumed": TickState.resumed,
}


def is_since(steps: list[str], step: set[str], until: set[str]) -> bool:
    """Whether one of `step` came, and none of `until` after it."""
    last = next((each for each in reversed(steps) if each in step or each in until), "")
    return last in step


@given(st.lists(st.sampled_from(sorted(STEPS))))
def test_each_part_says_what_came_last_whatever_the_order(steps: list[str]) -> None:
    state = TickState()
    for step in steps:
        state = STEPS[step](state)
    answers = {"snapshot", "statuses", "doubted", "futile"}
    assert state.is_wanted == is_since(steps, {"wants"}, {"wants none"})
    assert state.owes_evictions == is_since(steps, answers, {"evicted"})
    assert state.owes_plan == is_since(steps, {"snapshot", "doubted"}, {"planned"})
    assert bool(state.again) == is_since(steps, {"snapshot", "futile"}, {"statuses", "doubted", "repeated"})
    assert state.is_stopped == is_since(steps, {"stopped"}, {"resumed"})
    assert (state.next_poll is not NextPoll.REGULAR) == is_since(
        steps, {"hurried", "seen change"}, {"polling"}
    )
    assert (state.next_poll is NextPoll.PAID) == is_since(steps, {"seen change"}, {"polling"})
    assert bool(state.reply.unreachable) == is_since(steps, {"lost"}, answers)
    assert bool(state.reply.doubted) == is_since(steps, {"doubted", "futile"}, answers | {"lost"})
    assert not (state.reply.unreachable and (state.reply.doubted or state.reply.starts_nothing))


@given(st.lists(st.sampled_from(sorted(STEPS))), st.lists(st.sampled_from(sorted(STEPS))))
def test_work_is_new_from_the_tick_it_is_wanted_until_a_poll_begins(
    before: list[str], after: list[str]
) -> None:
    state = TickState()
    for step in before:
        state = STEPS[step](state)
    state = state.wants(False).wants(True)
    for step in after:
        assert state.has_new_work
        state = STEPS[step](state)
        if step in {"polling", "wants none"}:
            assert not state.has_new_work
            return


def test_every_legal_combination_is_reached_and_none_beside_them() -> None:
    reached = frontier = {TickState()}
    while frontier:
        frontier = {step(state) for state in frontier for step in STEPS.values()} - reached
        reached = reached | frontier
    replies = [
        LastReply(), LastReply(unreachable="cannot connect"), LastReply(doubted="no witness", starts_nothing="drained")
    ]  # fmt: skip
    legal = product(NodesWanted, NextPoll, Undecided, [(), ("a",)], [False, True], replies)
    assert reached == {TickState(*each) for each in legal}
