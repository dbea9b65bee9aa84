"""Seeds: within what generators accept, distinct in a campaign, fixed for ever."""

from __future__ import annotations

from tidemill.model.seed import CAMPAIGN_EVENTS_MAX, OFFSET_MAX, campaign_offset, seed


def test_the_largest_seed_of_the_largest_campaign_fits_31_bits() -> None:
    assert seed(OFFSET_MAX - 1, CAMPAIGN_EVENTS_MAX - 1) <= 2**31 - 1


def test_the_first_seed_is_positive() -> None:
    assert seed(0, 0) == 1


def test_seeds_never_change_between_versions() -> None:
    # A campaign that is repeated years later must give the same events.
    assert campaign_offset("quickstart") == 789_521_716


def test_jobs_of_one_campaign_share_no_seed() -> None:
    base = campaign_offset("c")
    first = {seed(base, event) for event in range(1000)}
    second = {seed(base + 1000, event) for event in range(1000)}

    assert not first & second
