"""Seeds of events: a pure function of job and first event, unique in the campaign, positive, within 31 bits.

Within a campaign the jobs' events are numbered consecutively (`base`), from an offset that depends on the
campaign's name, so that two campaigns of one application do not repeat each other's events. Consecutive seeds stay
distinct modulo 900,000,000, the largest seed that Pythia 8 ("Random Numbers" in its manual) and CLHEP's
HepJamesRandom accept.
"""

from __future__ import annotations

import hashlib

OFFSET_MAX = 900_000_000
CAMPAIGN_EVENTS_MAX = 2**31 - 1 - OFFSET_MAX


def campaign_offset(campaign: str) -> int:
    """Where a campaign's seeds start: 0 <= offset < OFFSET_MAX."""
    return int.from_bytes(hashlib.sha256(campaign.encode()).digest()[:8], "big") % OFFSET_MAX


def seed(seed_base: int, event: int) -> int:
    """The seed of an event; `seed_base` = campaign offset + number of events of the campaign's earlier jobs."""
    return 1 + seed_base + event
