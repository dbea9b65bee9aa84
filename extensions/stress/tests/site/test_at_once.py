"""A job with `at_once` at a real site: no more of its events run at the same time, and hardly ever fewer."""

from __future__ import annotations

import random

from tests.worlds.home.world import Options, World, world

from tidemill.model.job import JobSpec, Resources
from tidemill_stress import level
from tidemill_stress.payloads import Payload, taken

# Between two events there are some hundredths of a second, on a busy machine more: an event is long beside them.
LIMIT, EVENTS, EVENT_S = 3, 24, 2.0
COMMAND = ["/bin/sh", "-c", f"sleep {EVENT_S}"]


def spec(**changes: object) -> JobSpec:
    resources = Resources(event_s=EVENT_S, memory_mb=100)
    return JobSpec(command=COMMAND, events=EVENTS, at_once=LIMIT, timed=True, resources=resources)


def payloads(site: World, job: int) -> list[Payload]:
    page = site.client.times(job, after=0)
    return taken(page.times)


def ran(site: World, job: int) -> level.RunningCurve:
    """The number running over time, when all have ended."""
    found = payloads(site, job)
    assert len(found) >= EVENTS
    return level.running(found)


def test_so_many_events_run_at_the_same_time_on_all_nodes_together() -> None:
    with world(nodes=4, cores=2) as site:
        (job,) = site.submit("c", spec())
        said = site.run("job", "explain", str(job)).stdout
        assert "at most 3 of its events run at the same time, all at one site (`at_once`)" in said
        assert site.wait_campaign("c").events_done == EVENTS
        curve = ran(site, job)
        assert max(curve.counts) == LIMIT
        full = curve.counts.index(LIMIT)  # until then nodes start
        busy = curve.times_s[full], curve.times_s[-LIMIT - 1]
        assert level.mean_running(curve, *busy) > 0.9 * LIMIT
        assert len({each.node for each in payloads(site, job)}) >= 2


def test_the_limit_holds_while_agent_and_lead_are_killed_and_others_use_what_is_left() -> None:
    with world(nodes=2, cores=3) as site:
        (job,) = site.submit("c", spec())
        site.submit("other", JobSpec(command=COMMAND, events=12, resources=Resources(event_s=EVENT_S)))
        dice = random.Random(5)
        for role, done in (("agent", 4), ("lead", 10), ("agent", 16)):
            site.wait_for(lambda done=done: site.client.campaign("c").events_done >= done, f"{done} events")
            assert site.kill(role, dice)
        assert site.wait_campaign("c").events_done == EVENTS
        assert site.wait_campaign("other").events_done == 12
        assert max(ran(site, job).counts) <= LIMIT


def test_without_a_lead_no_more_run_either() -> None:
    timing = {"site": {"TOP_UP_S": 0.5, "DRAIN_S": 1}}
    options = Options(nodes=2, cores=3, extra='[harvest]\ntcp = "nodes"\n', timing=timing)
    with world(options=options) as site:
        (job,) = site.submit("c", spec())
        assert site.wait_campaign("c", timeout_s=110).events_done == EVENTS
        assert max(ran(site, job).counts) <= LIMIT
