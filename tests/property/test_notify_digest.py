"""Digests: nothing is lost, nobody is flooded, nothing waits forever, whatever happens when."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidemill.server.notices.digests import (
    HOUR_US,
    DigestLimits,
    DueDigest,
    NoticeKey,
    Pending,
    decide,
    retry_after_us,
)

S = 1_000_000
LIMITS = st.builds(
    DigestLimits,
    gather_us=st.integers(0, 60 * S),
    digest_us=st.integers(0, 1800 * S),
    per_hour_max=st.integers(1, 20),
    items_max=st.integers(1, 5),
)
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 4 * HOUR_US), st.sampled_from(["a", "b"]), st.integers(0, 8)), max_size=60
)


def play(
    arrivals: list[tuple[int, str, int]], limits: DigestLimits, look_us: int
) -> tuple[list[tuple[int, DueDigest]], dict[NoticeKey, int], Counter[NoticeKey]]:
    """Messages with their times, what still waits, and how often each thing arrived. Things that arrive while the same
    waits join it, as notices do."""
    waiting: dict[NoticeKey, int] = {}
    sent: dict[str, list[int]] = {}
    messages: list[tuple[int, DueDigest]] = []
    came: Counter[NoticeKey] = Counter()
    left = sorted(arrivals)
    for now in range(0, 30 * HOUR_US, look_us):
        while left and left[0][0] <= now:
            at, target, subject = left.pop(0)
            key = NoticeKey(target, str(subject), "job")
            if key not in waiting:
                came[key] += 1
            waiting.setdefault(key, at)
        if not left and not waiting:
            break
        pending = [Pending(key, first) for key, first in waiting.items()]
        for batch in decide(pending, sent, now, limits):
            messages.append((now, batch))
            sent.setdefault(batch.target, []).append(now)
            for key in batch.keys:
                del waiting[key]
    return messages, waiting, came


@given(ARRIVALS, LIMITS, st.sampled_from([7 * S, 60 * S, 600 * S]))
def test_everything_that_happens_is_told_exactly_once(
    arrivals: list[tuple[int, str, int]], limits: DigestLimits, look_us: int
) -> None:
    messages, waiting, came = play(arrivals, limits, look_us)

    assert not waiting
    assert Counter(key for _, batch in messages for key in batch.keys) == came
    assert all(key.target == batch.target for _, batch in messages for key in batch.keys)


@given(ARRIVALS, LIMITS)
def test_nobody_is_told_more_often_than_the_limits_say(
    arrivals: list[tuple[int, str, int]], limits: DigestLimits
) -> None:
    messages, _, _ = play(arrivals, limits, 60 * S)

    for target in ("a", "b"):
        times = [at for at, batch in messages if batch.target == target]
        assert all(later - at >= limits.digest_us for at, later in pairwise(times))
        for at in times:
            assert sum(at - HOUR_US < other <= at for other in times) <= limits.per_hour_max
    assert all(1 <= len(batch.keys) <= limits.items_max for _, batch in messages)


@given(ARRIVALS, LIMITS)
def test_what_was_told_to_one_addressee_changes_nothing_for_another(
    arrivals: list[tuple[int, str, int]], limits: DigestLimits
) -> None:
    alone = [each for each in arrivals if each[1] == "a"]

    together, _, _ = play(arrivals, limits, 60 * S)
    apart, _, _ = play(alone, limits, 60 * S)

    assert [each for each in together if each[1].target == "a"] == apart


@given(st.integers(0, 10**18), st.integers(-(10**17), 10**17), LIMITS)
def test_a_clock_that_jumps_delays_nothing_for_longer_than_the_limits(
    now_us: int, jump_us: int, limits: DigestLimits
) -> None:
    key = NoticeKey("a", "x", "job")
    later = now_us + max(limits.gather_us, limits.digest_us, HOUR_US)

    decided = decide([Pending(key, now_us + jump_us)], {"a": [now_us + jump_us]}, now_us, limits)
    if not decided:
        decided = decide([Pending(key, now_us + jump_us)], {"a": [now_us + jump_us]}, later, limits)

    assert decided == [DueDigest("a", (key,))] or jump_us > later - now_us - limits.gather_us


@given(st.integers(0, 10_000), st.integers(1, 10**7), st.integers(1, 10**9))
def test_pauses_between_tries_grow_and_are_bounded(failures: int, first_us: int, longest_us: int) -> None:
    pause, more = (retry_after_us(each, first_us, longest_us) for each in (failures, failures + 1))

    assert 0 < pause <= more <= longest_us or first_us > longest_us
