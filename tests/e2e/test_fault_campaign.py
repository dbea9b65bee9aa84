"""kill -9 of every part, at random times: every event counts once, and its output is there once."""

from __future__ import annotations

import random
import time

import pytest
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec

ROLES = ("server", "agent", "lead", "pilot", "slot", "payload", "batch")
EVENTS = 240
DARTS = 60_000  # about 10 ms an event

pytestmark = pytest.mark.fault


def chaos(it: World, rng: random.Random, campaign: str, kills: int) -> list[str]:
    """Kill random parts, each alone or two at once, until so many kills are done or the campaign has ended."""
    told: list[str] = []
    while len(told) < kills and it.client.campaign(campaign).states.get("COMPLETED", 0) == 0:
        time.sleep(rng.uniform(0.02, 0.6))
        for role in rng.sample(ROLES, k=rng.choice((1, 1, 2))):
            if it.kill(role, rng):
                told.append(role)
    return told


@pytest.mark.timeout(300)
def test_killed_parts_lose_and_double_nothing(fault_seed: int) -> None:
    rng = random.Random(fault_seed)
    with world(nodes=2) as it:
        (job,) = it.submit("c", JobSpec(app="pi", events=EVENTS, params={"darts": DARTS}, retries=50))
        killed = chaos(it, rng, "c", kills=rng.randint(2, 6))
        row = it.wait_campaign("c")
        detail = it.client.job(job)
        said = f"seed {fault_seed}, killed {killed}\n{it.tails()}"
        assert detail.row.state == "COMPLETED", said
        assert (row.events_done, row.events_failed) == (EVENTS, 0), said
        assert output_bytes(detail) == expected_hits(detail.seed_base, EVENTS, DARTS), said
