"""Who gets room in the stage: no more than there is, in the order of need; neither large nor small ones starve."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.site.data.budget import (
    HELD_SHARE,
    NO_ROOM,
    OVERTAKEN_MAX_S,
    OVERTAKEN_S,
    OwnerRooms,
    OwnerShares,
    SpaceNeed,
    StageBudget,
    StageRoom,
    StageSpace,
    admit,
    is_held_for,
)

ROOMS = st.builds(StageRoom, st.integers(0, 100), st.integers(0, 20))
WAITS = st.floats(0, 20 * OVERTAKEN_S)


@st.composite
def needs(draw: st.DrawFn) -> list[SpaceNeed]:
    rows = draw(st.lists(st.tuples(ROOMS, WAITS), max_size=12))
    return [SpaceNeed(job, room, -waited_s) for job, (room, waited_s) in enumerate(rows)]


@given(needs(), ROOMS, ROOMS, st.booleans())
def test_what_is_admitted_fits_and_goes_by_age(
    waiting: list[SpaceNeed], free: StageRoom, capacity: StageRoom, is_held: bool
) -> None:
    jobs = admit(waiting, StageSpace(free, capacity), now_s=0.0, is_held=is_held)
    found = [need for job in jobs for need in waiting if need.job == job]
    assert sum(need.room.bytes for need in found) <= free.bytes
    assert sum(need.room.files for need in found) <= free.files
    assert [each.since_s for each in found] == sorted(each.since_s for each in found)
    assert {need.job for need in waiting if need.room == NO_ROOM} <= set(jobs)
    order = sorted(waiting, key=lambda each: (each.since_s, each.job))
    left = free
    for need in order:
        if need.room == NO_ROOM or left.holds(need.room):
            assert need.job in jobs
            left = left.less(need.room)
        elif is_held and -need.since_s >= OVERTAKEN_S and capacity.holds(need.room):
            later = order[order.index(need) + 1 :]
            assert not [each for each in later if each.job in jobs and each.room != NO_ROOM]
            break


@given(st.integers(0, 12))
def test_turns_grow_so_that_room_is_held_for_longer_than_any_job_takes(turn: int) -> None:
    turns_s = [min(OVERTAKEN_S * 2**each, OVERTAKEN_MAX_S) for each in range(turn + 1)]
    starts_s = sum((1 + HELD_SHARE) * each for each in turns_s[:-1])
    assert not is_held_for(starts_s)
    assert not is_held_for(starts_s + turns_s[-1] - 1)
    assert is_held_for(starts_s + turns_s[-1])
    assert is_held_for(starts_s + (1 + HELD_SHARE) * turns_s[-1] - 1)


@given(st.floats(0, 1000 * OVERTAKEN_MAX_S))
def test_room_is_held_for_a_constant_share_of_the_time(scarce_s: float) -> None:
    """It was held for ever longer turns: what could never fit kept all others out in the end."""
    probes = [scarce_s + OVERTAKEN_MAX_S * each / 4 for each in range(12)]
    assert sum(map(is_held_for, probes)) <= 10


@given(st.floats(60, 20_000), st.integers(51, 100), st.integers(1, 50))
def test_neither_a_huge_input_nor_an_endless_stream_of_small_ones_starves(
    run_s: float, huge: int, small: int
) -> None:
    """A new small job comes whenever one has ended; each holds its inputs for `run_s`."""
    limit, step_s = 100, 30.0
    held: list[tuple[float, int]] = []  # until when, bytes
    waiting = [SpaceNeed(0, StageRoom(huge, 1), 0.0)]
    budget = StageBudget(StageRoom(limit, 1000))
    number, now_s, got_huge_s = 0, 0.0, -1.0
    got_small_after_s = 0.0
    while now_s < 40 * (run_s + OVERTAKEN_S) and (got_huge_s < 0 or got_small_after_s <= got_huge_s):
        held = [each for each in held if each[0] > now_s]
        while len(waiting) < 5:
            number += 1
            waiting.append(SpaceNeed(number, StageRoom(small, 1), now_s))
        free = StageRoom(limit - sum(size for _, size in held), 1000)
        budget.waiting = {each.job: each for each in waiting}
        budget._asked_s = dict.fromkeys(budget.waiting, now_s)
        for job in budget.admitted(StageSpace(free, budget.limit), now_s=now_s):
            need = next(each for each in waiting if each.job == job)
            waiting.remove(need)
            held.append((now_s + run_s, need.room.bytes))
            if job == 0:
                got_huge_s = now_s
            else:
                got_small_after_s = now_s
        now_s += step_s
    assert 0 <= got_huge_s <= 6 * (run_s + 2 * OVERTAKEN_S), "the huge one starved"
    assert got_small_after_s > got_huge_s, "the small ones starved"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "done", "fail", "full", "refuse"]),
            st.integers(0, 5),
            st.sets(st.sampled_from("abcdef")),
        ),
        max_size=40,
    )
)
def test_nothing_is_reserved_twice_or_for_nobody(story: list[tuple[str, int, set[str]]]) -> None:
    limit = StageRoom(100, 5)
    budget = StageBudget(limit)
    for at_s, (what, job, keys) in enumerate(story):
        if what == "ask":
            contents = {key: StageRoom(10 * (ord(key) - 96), 1) for key in keys}
            budget.reserve(
                job, contents, more=NO_ROOM, space=StageSpace(limit.less(budget.taken), limit), now_s=at_s
            )
        elif what == "full":
            budget.found_full(now_s=at_s)
            budget.put_back(job, now_s=at_s)
        elif what == "refuse":
            budget.give_up(job, StageRoom(10, 1))
        else:
            budget.withdraw(job)
            budget.release(job)
        assert limit.holds(budget.taken)
        assert all(each.jobs for each in budget.reserved.values())
    for job in range(6):
        budget.withdraw(job)
        budget.release(job)
    assert not budget.reserved
    assert not budget.waiting
    assert not budget._first_s
    assert not budget._asked_s
    assert not budget._recounts


@given(st.integers(1, 50), st.integers(101, 300))
def test_what_can_never_fit_keeps_nobody_out_and_ends(small: int, huge: int) -> None:
    space = StageSpace(StageRoom(50, 10), StageRoom(100, 10))
    budget = StageBudget(StageRoom(1000, 10))
    assert not budget.reserve(1, {"h": StageRoom(huge, 1)}, more=NO_ROOM, space=space, now_s=0.0)
    for now_s in range(60, 100_000, 600):
        budget.asks(1, now_s=now_s)
        assert budget.reserve(2, {"s": StageRoom(small, 1)}, more=NO_ROOM, space=space, now_s=now_s)
        budget.release(2)
        budget.withdraw(2)
    assert budget.late(99_000, now_s=99_500) == [1]
    assert not budget.late(100_000, now_s=99_500)


def test_needs_that_follow_each_other_leave_turns_to_those_that_overtake() -> None:
    """Each large job had turns of its own: with many of them, room was always held for one."""
    space = StageSpace(StageRoom(50, 10), StageRoom(100, 10))
    budget = StageBudget(space.capacity)
    got = 0
    for minute in range(0, 48 * 60, 5):
        now_s = 60.0 * minute
        for job in range(minute // 5):  # one more each 5 minutes, and the oldest goes after a day
            budget.waiting.setdefault(job, SpaceNeed(job, StageRoom(80, 1), now_s))
            budget.asks(job, now_s=now_s)
        got += budget.reserve(-1, {"s": StageRoom(10, 1)}, more=NO_ROOM, space=space, now_s=now_s)
        budget.release(-1)
        budget.withdraw(-1)
    assert got >= 48 * 12 // 3 - 12


def test_a_job_that_fetches_its_first_inputs_for_nothing_does_so_less_and_less_often() -> None:
    space = StageSpace(StageRoom(50, 10), StageRoom(100, 10))
    budget = StageBudget(space.capacity)
    tries: list[float] = []
    for at_s in range(0, 7200, 10):
        if not at_s or budget.recounts(now_s=at_s):
            assert budget.reserve(1, {"first": StageRoom(40, 1)}, more=NO_ROOM, space=space, now_s=at_s)
            assert not budget.reserve(1, {"second": StageRoom(60, 1)}, more=NO_ROOM, space=space, now_s=at_s)
            budget.give_up(1, NO_ROOM)
            tries.append(at_s)
    assert tries == [0, 60, 180, 420, 900, 1860, 3780]
    assert not budget.reserved


def test_one_owners_full_stage_leaves_room_for_anothers_first_inputs_and_puts_them_first() -> None:
    """Alone an owner has all of it; a need of hers that is larger than her part holds up her own jobs only."""
    capacity, eves = StageRoom(100, 100), [SpaceNeed(n, StageRoom(10, 1), float(n), "eve") for n in range(20)]
    whole = StageSpace(capacity, capacity)
    assert len(admit(eves, whole, now_s=0, is_held=False)) == 10
    shared = OwnerShares(owners=2)
    assert len(admit(eves, whole, now_s=0, is_held=False, shares=shared)) == 7
    full = OwnerShares({"eve": StageRoom(70, 7)}, owners=2)
    ada = SpaceNeed(99, StageRoom(10, 1), 50.0, "ada")
    assert admit(
        [*eves, ada], StageSpace(StageRoom(30, 93), capacity), now_s=60, is_held=False, shares=full
    ) == [99]
    huge = SpaceNeed(0, StageRoom(100, 1), -1e6, "eve")
    space = StageSpace(StageRoom(90, 93), capacity)
    assert admit([huge, eves[1], ada], space, now_s=60, is_held=True, shares=shared) == [99]
    assert admit([huge], whole, now_s=60, is_held=False, shares=shared) == [0], "a single job may have all"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "drop", "forget"]), st.integers(0, 4), st.sets(st.sampled_from("abc"))
        )
    )
)
def test_what_owners_hold_is_what_their_jobs_have_each_content_once(
    story: list[tuple[str, int, set[str]]],
) -> None:
    rooms, model = OwnerRooms(), dict[int, set[str]]()
    for what, job, keys in story:
        owner = "ada" if job % 2 else "eve"
        if what == "hold":
            rooms.asks(job, owner, now_s=0)
            rooms.hold(job, {key: (StageRoom(ord(key), 1), ord(key)) for key in keys})
            model.setdefault(job, set()).update(keys)
        elif what == "drop":
            rooms.drop_events(job, {ord(key) for key in keys}.__contains__)
            model[job] = model.get(job, set()) & keys
        else:
            rooms.forget(job)
            model.pop(job, None)
    shares = rooms.shares(now_s=0)
    for owner, odd in (("ada", 1), ("eve", 0)):
        held = set[str]().union(*(each for job, each in model.items() if job % 2 == odd))
        assert shares.has(owner) == StageRoom(sum(map(ord, held)), len(held))
    assert shares.of_jobs == {job: StageRoom(sum(map(ord, it)), len(it)) for job, it in model.items() if it}
