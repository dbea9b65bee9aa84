"""Seeds over all campaigns and events: within 31 bits, positive, distinct."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.seed import CAMPAIGN_EVENTS_MAX, OFFSET_MAX, campaign_offset, seed

events = st.integers(0, CAMPAIGN_EVENTS_MAX - 1)


@given(st.text(max_size=100), events)
def test_every_seed_is_positive_and_within_31_bits(campaign: str, event: int) -> None:
    assert 0 <= campaign_offset(campaign) < OFFSET_MAX
    assert 1 <= seed(campaign_offset(campaign), event) <= 2**31 - 1


@given(st.text(max_size=100), events, events)
def test_two_events_of_a_campaign_have_the_same_seed_only_if_they_are_one(
    campaign: str, one: int, two: int
) -> None:
    base = campaign_offset(campaign)

    assert (seed(base, one) == seed(base, two)) == (one == two)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_a_seed_does_not_depend_on_how_events_are_cut_into_jobs(sizes: list[int]) -> None:
    base = campaign_offset("c")
    bases = [base + sum(sizes[:number]) for number in range(len(sizes))]
    seeds = [
        seed(job_base, event) for job_base, size in zip(bases, sizes, strict=True) for event in range(size)
    ]

    assert seeds == [seed(base, event) for event in range(sum(sizes))]
