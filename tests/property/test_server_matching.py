"""Matching: never an event twice, never beyond what is wanted, by priority and age, and shares converge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.intervals import IntervalSet
from tidemill.server.core.matching import (
    CAMPAIGN_WINDOW_MIN,
    CAMPAIGNS_MIN,
    Candidate,
    Claim,
    Contender,
    OwnerAccount,
    decayed,
    match,
    shortlist,
)


@st.composite
def claims_of(draw: st.DrawFn) -> list[Claim]:
    """Campaigns with jobs that have gaps, sorted as the store gives them."""
    claims, job = [], 0
    for campaign in range(1, draw(st.integers(1, 4)) + 1):
        candidates = []
        for _ in range(draw(st.integers(0, 6))):
            job += 1
            lengths = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=3))
            free, at = [], 0
            for length, gap in lengths:
                free.append((at, at + length))
                at += length + gap
            candidates.append(
                Candidate(job, draw(st.integers(-3, 3)), free, draw(st.floats(0.001, 100, allow_nan=False)))
            )
        candidates.sort(key=lambda each: (each.rank, each.job))
        claims.append(Claim(campaign, draw(st.floats(0.1, 10)), draw(st.floats(0, 1e6)), candidates))
    return claims


@given(claims_of(), st.floats(0.01, 5000), st.integers(1, 20))
def test_no_event_is_leased_twice_and_nothing_beyond_the_bounds(
    claims: list[Claim], want_core_s: float, ranges_max: int
) -> None:
    found = match(claims, want_core_s=want_core_s, ranges_max=ranges_max)
    candidates = {each.job: each for claim in claims for each in claim.candidates}
    taken: dict[int, IntervalSet] = {}
    for each in found.ranges:
        free = IntervalSet(candidates[each.job].free)
        assert free.covers(each.first, each.first + each.count)
        assert (
            taken.setdefault(each.job, IntervalSet()).add(each.first, each.first + each.count) == each.count
        )
    assert len(found.ranges) <= ranges_max
    dearest = max((each.event_core_s for each in candidates.values()), default=0.0)
    assert found.core_s <= want_core_s + dearest
    assert found.core_s == pytest.approx(sum(each.core_s for each in found.ranges))


@given(claims_of(), st.floats(0.01, 5000))
def test_within_a_campaign_nobody_is_overtaken(claims: list[Claim], want_core_s: float) -> None:
    found = match(claims, want_core_s=want_core_s, ranges_max=10_000)
    for claim in claims:
        order = [each.job for each in claim.candidates]
        got = list(dict.fromkeys(each.job for each in found.ranges if each.campaign == claim.campaign))
        assert got == order[: len(got)]
        for job in got[:-1]:  # all but the last are leased whole
            free = sum(end - first for first, end in claim.candidates[order.index(job)].free)
            assert sum(each.count for each in found.ranges if each.job == job) == free


@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=5), st.floats(0.1, 20))
def test_shares_converge(shares: list[float], event_core_s: float) -> None:
    used = [0.0] * len(shares)
    first = [0] * len(shares)
    for _ in range(100):
        claims = [
            Claim(number, share, used[number], [Candidate(number, 0, [(first[number], 10**9)], event_core_s)])
            for number, share in enumerate(shares)
        ]
        for each in match(claims, want_core_s=500, ranges_max=100).ranges:
            used[each.campaign] += each.core_s
            first[each.campaign] = each.first + each.count
    total, weight = sum(used), sum(shares)
    for had, share in zip(used, shares, strict=True):
        assert abs(had / total - share / weight) < 0.02


@given(claims_of())
def test_everything_is_leased_when_the_site_wants_everything(claims: list[Claim]) -> None:
    found = match(claims, want_core_s=1e9, ranges_max=10_000)
    free = sum(end - first for claim in claims for each in claim.candidates for first, end in each.free)
    assert sum(each.count for each in found.ranges) == free
    assert found.dry == {claim.campaign for claim in claims}


def test_core_seconds_halve_with_time_and_a_clock_that_goes_back_changes_nothing() -> None:
    assert decayed(100.0, since_us=0, now_us=10_000_000, half_life_s=10) == 50.0
    assert decayed(100.0, since_us=10_000_000, now_us=0, half_life_s=10) == 100.0


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=4), st.lists(st.floats(0.2, 5), min_size=4, max_size=4)
)
def test_owners_get_their_shares_however_many_campaigns_each_has(
    campaigns: list[int], shares: list[float]
) -> None:
    accounts = [OwnerAccount(f"o{number}", shares[number]) for number in range(len(campaigns))]
    of = [account for account, number in zip(accounts, campaigns, strict=True) for _ in range(number)]
    used, first = [0.0] * len(of), [0] * len(of)
    for _ in range(100):
        claims = [
            Claim(number, 1.0, used[number], [Candidate(number, 0, [(first[number], 10**9)], 1.0)], account)
            for number, account in enumerate(of)
        ]
        for each in match(claims, want_core_s=500, ranges_max=100).ranges:
            used[each.campaign] += each.core_s
            first[each.campaign] = each.first + each.count
            of[each.campaign].used_core_s += each.core_s
    total, weight = sum(used), sum(account.shares for account in accounts)
    for account in accounts:
        assert abs(account.used_core_s / total - account.shares / weight) < 0.02
        own = [had for had, owner in zip(used, of, strict=True) if owner is account]
        assert max(own) - min(own) <= 0.02 * total + 1


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), min_size=1, max_size=300), st.integers(1, 9_000)
)
def test_a_window_is_divided_between_owners_first(rows: list[tuple[int, float]], window: int) -> None:
    accounts = [OwnerAccount(f"o{number}") for number in range(6)]
    contenders = [Contender(number, 1.0, used, accounts[owner]) for number, (owner, used) in enumerate(rows)]
    chosen = shortlist(contenders, window)
    assert sum(chosen.values()) <= window + CAMPAIGN_WINDOW_MIN * len(chosen)
    assert len(chosen) <= max(CAMPAIGNS_MIN, window // CAMPAIGN_WINDOW_MIN)
    assert {rows[number][0] for number in chosen} == {owner for owner, _ in rows}, "every owner has a turn"
    for owner in range(6):
        own = [(used, number) for number, (of, used) in enumerate(rows) if of == owner]
        looked = [number in chosen for _, number in sorted(own)]
        assert looked == sorted(looked, reverse=True), "those that have had the least"
