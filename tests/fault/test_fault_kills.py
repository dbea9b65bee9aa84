"""kill -9 of every part, at seeded points of a campaign: every event counts once, and its output is there once."""

from __future__ import annotations

import pytest
from tests.worlds.home.faults import Act, perform, schedule
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec

EVENTS = 160  #: of each job
DARTS = 60_000  # about 10 ms an event

pytestmark = pytest.mark.fault


def under_fire(it: World, acts: list[Act]) -> list[str]:
    """A job for each act, which meets it at work; what was met."""
    met: list[str] = []
    for act in acts:
        (job,) = it.submit("c", JobSpec(app="pi", events=EVENTS, params={"darts": DARTS}, retries=50))
        it.wait_for(
            lambda job=job, act=act: it.client.job(job).row.events_done >= act.done,
            f"{act.done} events of job {job} are done",
            timeout_s=120,
        )
        met += perform(it, act, {})
    return met


def check(it: World, seed: int, jobs: int, met: list[str]) -> None:
    row = it.wait_campaign("c", timeout_s=120)
    told = f"seed {seed}, met {met}\n{it.tails()}"
    assert row.states == {"COMPLETED": jobs}, told
    assert (row.events_done, row.events_failed) == (jobs * EVENTS, 0), told
    for each in it.client.jobs(campaign="c"):
        detail = it.client.job(each.id)
        assert output_bytes(detail) == expected_hits(detail.seed_base, EVENTS, DARTS), told


@pytest.mark.timeout(300)
def test_killed_parts_lose_and_double_nothing(fault_seed: int) -> None:
    acts = schedule(fault_seed, events=EVENTS)
    with world(nodes=2) as it:
        met = under_fire(it, acts)
        check(it, fault_seed, len(acts), met)
    assert [role.removeprefix("no ") for role in met] == [role for act in acts for role in act.what]


def test_the_same_seed_kills_the_same_parts() -> None:
    assert schedule(3, events=EVENTS) == schedule(3, events=EVENTS)
