from __future__ import annotations

from typing import Any

import msgspec
from tests import wire_values
from tests.effort import lines_run

from tidemill.site.fleet.handout import INTERVALS, Book, Given, Seat, plan, shares_of
from tidemill.wire.node import Done, Ended, Grant, JobDef, Program, Returned, Started, form_number

T = 60.0


def program(number: int = 1, **changes: Any) -> Program:
    return wire_values.program(number, **{"event_s": 1.0, "memory_mb": 100, "range_s": 1.0, **changes})


def job(number: int = 1, of: int = 1) -> JobDef:
    return JobDef(
        job=number, program=of, argv=[], env={}, params="{}", seed_base=0, events=1_000_000, inputs=[]
    )


def grant(number: int, count: int, *, of: int = 1) -> Grant:
    return Grant(grant=number, job=of, first=0, count=count, chunk_max=None)


def book(*grants: Grant, **changes: Any) -> Book:
    made = Book()
    made.define([program(**changes)], [job()])
    for each in grants:
        made.add(each)
    return made


def seat(name: str, cores: int = 2, **changes: Any) -> Seat:
    values: dict[str, Any] = {"memory_mb": 1000} | changes
    return Seat(allocation=name, cores=cores, **values)


def done(pilot: str, number: int, piece: Grant, *, event_s: float = 1.0) -> Done:
    values = {
        "p": pilot,
        "s": number,
        "grant": piece.grant,
        "job": piece.job,
        "first": piece.first,
        "count": piece.count,
        "payloads": 1,
        "slot": 0,
        "started_us": 0,
        "ended_us": 0,
        "wall_us": int(piece.count * event_s * 1e6),
        "setup_us": 0,
        "user_us": 0,
        "system_us": 0,
        "rss_kb": 0,
        "read_bytes": None,
        "write_bytes": None,
        "outputs": [],
    }
    return msgspec.convert(values, Done)


def started(pilot: str) -> Started:
    return Started(
        p=pilot,
        s=1,
        allocation=pilot.rsplit(".", 2)[0],
        node="n",
        rank=0,
        cores=2,
        memory_mb=1000,
        isolation="namespaces",
        note="",
        version="1",
        at_us=0,
    )


def give(it: Book, given: list[Given]) -> dict[str, int]:
    for each in given:
        for piece in each.grants:
            it.give(each.allocation, piece)
    return {each.allocation: sum(piece.count for piece in each.grants) for each in given}


def test_each_allocation_gets_work_for_some_intervals_at_its_cores() -> None:
    it = book(grant(1, 100_000))
    counts = give(it, plan(it, [seat("a", 2), seat("b", 8)], top_up_s=T))
    assert counts == {"a": 2 * INTERVALS * T, "b": 8 * INTERVALS * T}
    assert plan(it, [seat("a", 2), seat("b", 8)], top_up_s=T) == []


def test_what_was_run_is_made_up_for_at_the_measured_pace() -> None:
    it = book(grant(1, 100_000))
    [first] = plan(it, [seat("a", 1)], top_up_s=T)
    give(it, [first])
    piece = msgspec.structs.replace(first.grants[0], count=60)
    it.on_record(done("a.r0.i1", 2, piece, event_s=0.5))
    assert it.held_core_s("a") == (INTERVALS * T - 60) * 0.5
    counts = give(it, plan(it, [seat("a", 1)], top_up_s=T))
    assert counts == {"a": 240}
    assert it.held_core_s("a") == INTERVALS * T


def test_the_pace_of_another_form_of_a_job_is_measured_too() -> None:
    made, number = Book(), form_number(1, 2)
    made.define([program()], [job(number)])
    made.add(grant(1, 100_000, of=number))
    [first] = plan(made, [seat("a", 1)], top_up_s=T)
    give(made, [first])
    piece = msgspec.structs.replace(first.grants[0], job=1, count=60)  # as journals are read
    made.on_record(done("a.r0.i1", 2, piece, event_s=0.5))
    assert made.held_core_s("a") == (INTERVALS * T - 60) * 0.5
    made.cancel([number])
    assert made._paces == {}


def test_little_work_is_spread_over_all_that_could_take_some() -> None:
    it = book(grant(1, 100))
    counts = give(it, plan(it, [seat(f"a.{k}", 2) for k in range(10)], top_up_s=T))
    assert set(counts.values()) == {10}
    assert it.free_events == 0


def test_who_has_least_goes_first_and_the_last_event_is_given() -> None:
    it = book(grant(1, 3))
    it.give("a", grant(1, 2))
    assert give(it, plan(it, [seat("a", 1), seat("b", 1)], top_up_s=T)) == {"b": 1}


def test_nobody_gets_what_does_not_fit_memory_devices_or_the_time_left() -> None:
    it = book(grant(1, 10), memory_mb=2000)
    it.define([program(2, devices={"gpu": 1}), program(3, event_s=500.0)], [job(2, 2), job(3, 3)])
    it.add(grant(2, 10, of=2))
    it.add(grant(3, 10, of=3))
    assert plan(it, [seat("a", remaining_s=400.0)], top_up_s=T) == []
    [given] = plan(it, [seat("a", devices={"gpu": 2}, remaining_s=400.0)], top_up_s=T)
    assert {piece.grant for piece in given.grants} == {2}
    [given] = plan(it, [seat("a", remaining_s=4000.0)], top_up_s=T)
    assert {piece.grant for piece in given.grants} == {3}


def test_no_more_is_given_than_fits_the_time_left() -> None:
    it = book(grant(1, 1000))
    assert give(it, plan(it, [seat("a", 2, remaining_s=30.0)], top_up_s=T)) == {"a": 60}


def test_what_is_returned_or_left_by_an_ended_pilot_goes_to_others() -> None:
    it = book(grant(1, 100))
    give(it, plan(it, [seat("a.1", 1)], top_up_s=T))
    assert it.free_events == 0
    record = Returned(p="a.1.r0.i1", s=2, grant=1, job=1, first=10, count=5, reason="drain")
    it.on_record(record)
    assert it.free_events == 5
    it.on_record(record)
    assert it.free_events == 5
    it.on_record(Ended(p="a.1.r0.i1", s=3, reason="drain", message="", busy_us=0, slot_us=0, at_us=0))
    assert it.free_events == 100
    assert give(it, plan(it, [seat("a.2", 1)], top_up_s=T)) == {"a.2": 100}


def test_a_result_that_comes_after_its_work_was_taken_back_counts_for_whoever_has_it_now() -> None:
    it = book(grant(1, 100))
    it.give("a", grant(1, 100))
    it.take_back("a")
    it.give("b", grant(1, 100))
    it.on_record(done("a.r0.i1", 2, grant(1, 40)))
    assert (it.open_events, it.has_open) == (60, True)
    assert it.held_core_s("b") == 60
    it.on_record(done("b.r0.i1", 2, grant(1, 100)))
    assert (it.open_events, it.has_open) == (0, False)
    assert it.grants == {}


def test_a_start_that_follows_another_leaves_the_old_ones_work_to_be_given_anew() -> None:
    it = book(grant(1, 100))
    assert not it.on_record(started("a.7.r0.i1"))
    it.give("a.7", grant(1, 50))
    assert it.on_record(started("a.7.r0.i2"))
    assert it.free_events == 100
    assert not it.on_record(started("a.7.r0.i3"))


def test_canceled_jobs_are_forgotten() -> None:
    it = book(grant(1, 100))
    it.give("a", grant(1, 50))
    it.cancel([1])
    assert (it.open_events, it.holds("a")) == (0, {})


def test_parts_of_one_grant_are_told_by_their_place() -> None:
    it = book(grant(1, 1000))
    grants, places = shares_of(plan(it, [seat("a", 1), seat("b", 1)], top_up_s=T))
    assert [(piece.grant, piece.first, piece.count) for piece in grants] == [(1, 0, 180), (1, 180, 180)]
    assert places == {"a": [0], "b": [1]}


def test_the_work_to_plan_an_allocation_does_not_grow_with_their_number() -> None:
    lines = []
    for number in (100, 1000):
        it = book(*[grant(each, 500) for each in range(1, 2 * number + 1)])
        seats = [seat(f"a.{k}", 64) for k in range(number)]
        lines.append(lines_run(lambda it=it, seats=seats: plan(it, seats, top_up_s=T)) / number)  # type: ignore[misc]
        it = book(*[grant(each, 500) for each in range(1, 2 * number + 1)])
        given = plan(it, seats, top_up_s=T)
        assert len(given) == number
        assert sum(piece.count for each in given for piece in each.grants) <= 1000 * number
    assert lines[1] < 1.1 * lines[0], lines


def limited(at_once: int, *grants: Grant, **changes: Any) -> Book:
    it = book(*grants, **changes)
    it.define([], [msgspec.structs.replace(job(), at_once=at_once)])
    return it


def test_of_a_job_with_at_once_no_more_is_held_than_that_and_nothing_is_queued() -> None:
    it = limited(5, grant(1, 1_000), cores=1)
    given = plan(it, [seat(name, 2) for name in "abcd"], top_up_s=T)
    assert sorted(give(it, given).values()) == [1, 2, 2]
    assert {piece.chunk_max for each in given for piece in each.grants} == {1}
    assert plan(it, [seat(name, 2) for name in "abcd"], top_up_s=T) == []
    [first] = [each for each in given if len(it.holds(each.allocation)) and each.allocation == "a"]
    it.on_record(done("a.r0.i1", 2, msgspec.structs.replace(first.grants[0], count=1)))
    assert sum(give(it, plan(it, [seat(name, 2) for name in "abcd"], top_up_s=T)).values()) == 1


def test_what_an_allocation_holds_besides_leaves_no_slot_for_a_job_with_at_once() -> None:
    it = limited(5, grant(1, 1_000), grant(2, 1, of=2))
    it.define([], [job(2)])
    it.give("a", grant(2, 1, of=2))
    assert give(it, plan(it, [seat("a", 1), seat("b", 1)], top_up_s=T)) == {"b": 1}


def test_what_is_done_is_forgotten_and_a_job_that_comes_again_is_defined_again() -> None:
    made = Book()
    made.define([program(1), program(2)], [job(1), job(2), job(3, of=2)])
    for number, of in ((1, 1), (2, 1), (3, 2), (4, 3)):
        made.add(grant(number, 10, of=of))
    made.on_record(done("a.r0.i1", 1, grant(1, 10)))
    assert (set(made.jobs), made.event_core_s(1)) == ({1, 2, 3}, 1.0)
    for number, of in ((2, 1), (4, 3)):
        made.on_record(msgspec.structs.replace(done("a.r0.i1", 1, grant(number, 10)), job=of))
    assert (set(made.jobs), set(made.programs), set(made.grants)) == ({2}, {1}, {3})
    made.define([program(1)], [job(1)])
    made.add(grant(5, 10))
    assert made.needs([grant(5, 10)])[1] == [job(1)]
    made.cancel([1, 2])
    left = (made.jobs, made.programs, made.grants, made._paces, made._grants_of, made._jobs_of)
    assert [len(each) for each in left] == [0] * 6


def test_what_is_held_behind_events_that_fill_the_cores_is_not_at_work() -> None:
    """As the lead says it of its pilots: `crates/lead/src/ledger/tests.rs`."""
    made = Book()
    made.define([program()], [job(1), job(2)])
    first, behind = grant(1, 2), grant(2, 2, of=2)
    for each in (first, behind):
        made.add(each)
        made.give("a", each)
    assert made.at_work({}) == set(), "no pilot has been heard"
    assert made.at_work({"a": 2}) == {1}, "two events of the first job fill two cores"
    assert made.at_work({"a": 3}) == {1, 2}
    made.on_record(done("a.r0.i1", 1, msgspec.structs.replace(first, count=1)))
    assert made.at_work({"a": 2}) == {1, 2}, "a core is free for the second job"
    made.on_record(done("a.r0.i1", 2, msgspec.structs.replace(first, first=1, count=1)))
    assert made.at_work({"a": 2}) == {2}, "the first job is over"


def test_forms_of_a_job_are_at_work_as_the_job() -> None:
    made = Book()
    made.define([program()], [job(form_number(7, 2))])
    made.add(grant(1, 2, of=form_number(7, 2)))
    made.give("a", grant(1, 2, of=form_number(7, 2)))
    assert made.at_work({"a": 2}) == {7}
