"""Whatever is told in whatever order: an open event is free or held by one allocation, and only free ones are given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.site.fleet.test_site_handout import book, done, grant, seat, started

from tidemill.model.intervals import IntervalSet
from tidemill.site.fleet.handout import Book, plan
from tidemill.wire.node import Ended, Returned

NAMES = ("a.1", "a.2", "b")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plan", "done", "returned", "ended", "back", "again"]),
        st.sampled_from(NAMES),
        st.integers(1, 3),
        st.integers(0, 59),
        st.integers(1, 30),
    ),
    max_size=30,
)


def check(it: Book, settled: dict[int, IntervalSet]) -> None:
    for number in (1, 2, 3):
        seen = IntervalSet(settled[number])
        holders = [it.holds(name).get(number, IntervalSet()) for name in NAMES]
        for events in (it.free().get(number, IntervalSet()), *holders):
            for first, end in events:
                assert seen.add(first, end) == end - first
        assert seen.covers(0, 60)


@given(STEPS)
def test_every_open_event_is_in_one_place(steps: list[tuple[str, str, int, int, int]]) -> None:
    it = book(*(grant(number, 60) for number in (1, 2, 3)))
    settled = {number: IntervalSet() for number in (1, 2, 3)}
    for kind, name, number, first, count in steps:
        count = min(count, 60 - first)
        pilot = f"{name}.r0.i1"
        if kind == "plan":
            before = {n: IntervalSet(events) for n, events in it.free().items()}
            for each in plan(it, [seat(one, number) for one in NAMES], top_up_s=float(count)):
                for piece in each.grants:
                    end = piece.first + piece.count
                    assert before[piece.grant].remove(piece.first, end) == piece.count
                    it.give(each.allocation, piece)
        elif kind == "done":
            settled[number].add(first, first + count)
            piece = grant(number, 60)
            it.on_record(
                done(pilot, 1, type(piece)(grant=number, job=1, first=first, count=count, chunk_max=None))
            )
        elif kind == "returned":
            it.on_record(
                Returned(p=pilot, s=1, grant=number, job=1, first=first, count=count, reason="drain")
            )
        elif kind == "ended":
            it.on_record(Ended(p=pilot, s=1, reason="idle", message="", busy_us=0, slot_us=0, at_us=0))
        elif kind == "back":
            it.take_back(name)
        else:
            it.on_record(started(f"{name}.r0.i2"))
        check(it, settled)
