"""What is said of jobs that sites have and do not run: one sentence, from figures of the last poll of the site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import SIM, NotingSession, Site, World, done, leases

from tidemill import clock
from tidemill.batch.reasons import slurm_meaning
from tidemill.cli.jobs.explain import story
from tidemill.model.figures.awaited import Hindrance, NodeCounts, QueuedReason
from tidemill.model.job import JobSpec
from tidemill.server.core.campaign_names import find
from tidemill.server.read import api_pages
from tidemill.server.read.job_search import Filter
from tidemill.wire.api import Capacity, JobRow
from tidemill.wire.monitoring import AwaitedNodes, TransferView
from tidemill.wire.views import packed

SHARED = NodeCounts(nodes=6, shared=6, free_min=3, free_max=3, cores=8)
ON_SHARED = (
    "waiting for a wholly idle node: 6 nodes have 3 of 8 cores free, and this version uses whole nodes"
)


def capacity(**changes: Any) -> Capacity:
    return Capacity(
        want_core_s=0, want_ranges_max=0, slot_cores_max=8, slot_memory_mb_max=4000, devices={}, event_s={}, nodes=6,
        busy_cores=0, adhoc=True, **changes,
    )  # fmt: skip


def idle(nodes: NodeCounts, **changes: Any) -> AwaitedNodes:
    return AwaitedNodes(
        polled_us=clock.now_us(), hindrances=[Hindrance(cause="idle", nodes=nodes)], why="idle", **changes
    )


def listed(world: World) -> list[JobRow]:
    return api_pages.jobs(world.reader, Filter(), before=None, limit=10).jobs


def campaign_phase(world: World) -> str:
    """In the list, and on its own."""
    (row,) = api_pages.campaigns(world.reader)
    assert api_pages.campaign(world.reader, find(world.reader, row.name, row.owner)).phase == row.phase
    return row.phase


def in_queue(word: str, number: int) -> AwaitedNodes:
    queued = [QueuedReason(reason=word, allocations=number, meaning=slurm_meaning(word))]
    return AwaitedNodes(asked_us=clock.now_us() - 77_000_000, polled_us=clock.now_us(), queued=queued)


def test_a_page_of_campaigns_reads_sites_once_and_no_whole_jobs(world: World) -> None:
    """A job's row may hold a megabyte of its events, and programs ask for this page every other second."""
    for name in "abcde":
        world.submit(*[SIM] * 3, campaign=name)
    site = Site(world)
    site.sync()
    site.sync(capacity=capacity(awaits=idle(SHARED)))
    session: Any = NotingSession(world.reader)
    assert [row.phase for row in api_pages.campaigns(session)] == 5 * ["ASSIGNED"]
    asked = Counter(name for name, _ in session.found)
    assert (asked["sites"], asked["sites_of_jobs"], asked["jobs_by_id"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("awaits", "said"),
    [
        (lambda: idle(SHARED), ON_SHARED),
        (lambda: idle(NodeCounts(nodes=6, full=6)), "waiting for an idle node: all 6 nodes are fully in use"),
        (
            lambda: idle(NodeCounts(nodes=8, full=6, away=2)),
            "waiting for an idle node: of 8 nodes 6 are fully in use; 2 are down or drained",
        ),
        (
            lambda: idle(NodeCounts(nodes=2, away=2)),
            "waiting for an idle node: all 2 nodes are down or drained",
        ),
        (
            lambda: in_queue("PartitionTimeLimit", 4),
            "wait in the queue; the batch system says `PartitionTimeLimit`: its time limit is above the limit of the "
            "partition: it cannot start as it is",
        ),
        (
            lambda: AwaitedNodes(asked_us=clock.now_us() - 5_000_000, polled_us=clock.now_us(), starting=1),
            "ago, has started, and its pilot has not reported yet",
        ),
        (lambda: idle(SHARED, next_us=1_000_000), f"{ON_SHARED}; the next poll is due now"),
        (
            lambda: msgspec.structs.replace(idle(SHARED), polled_us=clock.now_us() - 300_000_000),
            f"{ON_SHARED}; that was so at the last poll, 5 m",
        ),
    ],
)
def test_a_job_whose_site_has_no_pilot_at_work_is_assigned_and_says_what_the_site_waits_for(
    world: World, awaits: Callable[[], AwaitedNodes], said: str
) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(capacity=capacity(awaits=awaits()))
    found = world.job(job)
    assert (found.row.state, found.row.phase) == ("RUNNING", "ASSIGNED")
    assert found.waits_for == "no_allocation"
    assert said in (found.waits_hint or "")
    assert "(" not in (found.waits_hint or "")
    assert [row.shown_state for row in listed(world)] == ["ASSIGNED"]
    assert campaign_phase(world) == "ASSIGNED"
    site.sync(capacity=capacity())
    assert [row.shown_state for row in listed(world)] == ["RUNNING"]
    assert campaign_phase(world) == ""
    site.sync(done(lease))
    assert [row.shown_state for row in listed(world)] == ["COMPLETED"]


def test_a_job_that_no_pilot_has_is_assigned_although_pilots_work_on_others(world: World) -> None:
    big, gpu = world.submit(JobSpec(app="sim", events=4), SIM)
    site = Site(world)
    site.sync()
    site.sync(capacity=capacity(unstarted=str(gpu), more=idle(SHARED)))
    assert {row.id: row.shown_state for row in listed(world)} == {big: "RUNNING", gpu: "ASSIGNED"}
    found = world.job(gpu)
    assert found.waits_for == "assigned"
    assert found.waits_hint is not None
    assert (
        "none of the nodes that Tidemill has there runs it yet: it needs a free slot of 1 core"
        in found.waits_hint
    )
    assert f"for more nodes: {ON_SHARED}" in found.waits_hint
    assert world.job(big).waits_for == "running"
    assert campaign_phase(world) == "", "one of its jobs runs"


def test_a_job_with_payloads_at_work_waits_for_nothing_although_some_of_its_events_wait(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=8))
    site = Site(world)
    site.sync(want=4, ranges=1)
    site.sync(want=0)
    assert world.job(job).waits_for == "running", "it asks for no more, and what it has runs"
    site.sync(capacity=capacity(more=idle(SHARED)))
    found = world.job(job)
    assert found.waits_for == "running"
    assert found.waits_hint == f"payloads of it run; site s, for more nodes: {ON_SHARED}"
    assert f"site s, for more nodes: {ON_SHARED}" in story(found, now_us=clock.now_us())
    site.sync(capacity=capacity(awaits=idle(SHARED)))
    assert world.job(job).waits_for == "site_wants_nothing", "its pilots have left"


def test_a_job_that_another_site_runs_is_running(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=8))
    sites = [Site(world, name) for name in ("a", "b")]
    for site in sites:
        site.sync(want=4, ranges=1)
    for idle_site in (0, 1):
        sites[idle_site].sync(capacity=capacity(awaits=idle(SHARED)))
        sites[1 - idle_site].sync(capacity=capacity())
        assert [row.shown_state for row in listed(world)] == ["RUNNING"]
        assert world.job(job).waits_for == "running"
    sites[0].sync(capacity=capacity(unstarted=str(job)))
    sites[1].sync(capacity=capacity(awaits=idle(SHARED)))
    assert [row.shown_state for row in listed(world)] == ["ASSIGNED"]
    assert world.job(job).waits_for == "assigned"


def test_what_a_site_has_just_been_given_runs_nowhere_until_it_says_so(world: World) -> None:
    (one,) = world.submit(SIM)
    site = Site(world)
    site.sync()
    assert [row.shown_state for row in listed(world)] == ["ASSIGNED"]
    assert (world.job(one).waits_for, campaign_phase(world)) == ("assigned", "ASSIGNED")
    site.sync(capacity=capacity())
    assert [row.shown_state for row in listed(world)] == ["RUNNING"]


def test_more_of_a_job_does_not_stop_what_runs_of_it(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=80))
    sites = [Site(world, name) for name in ("a", "b")]
    for site in sites:
        assert leases(site.sync(want=4, ranges=1))
        assert [row.shown_state for row in listed(world)] == ["ASSIGNED"]
        assert leases(site.sync(want=4, ranges=1)), "more of the job, of which it has run something"
        assert [row.shown_state for row in listed(world)] == ["RUNNING"]
        site.sync(capacity=capacity(unstarted=str(job)))


def test_a_job_whose_inputs_are_fetched_says_so(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    site.sync()
    move = TransferView(
        job=job, way="in", names=["events"], places=["https://dav.example.org"], tries=2, under_way=True
    )
    site.sync(capacity=capacity(unstarted=str(job)), views=packed(transfers=[move]))
    found = world.job(job)
    assert (found.waits_for, found.row.phase) == ("fetching", "ASSIGNED")
    assert found.waits_hint == (
        "site s fetches its input `events` from https://dav.example.org; it failed 2 times before"
    )


def test_nothing_is_claimed_of_a_job_whose_site_is_silent(world: World) -> None:
    (job,) = world.submit(SIM)
    Site(world).sync()
    found = api_pages.job(world.reader, job, cache={}, silent={"s"})
    assert found.waits_for == "site_silent"
    assert "it is with s" in (found.waits_hint or "")


@pytest.mark.parametrize("text", ["x", "5-1", "1" * 30_000, "-3"])
def test_a_list_of_jobs_that_is_none_is_not_kept(world: World, text: str) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    site.sync()
    site.sync(capacity=capacity(unstarted=text))
    assert world.job(job).waits_for == "running"


def test_figures_that_a_site_makes_up_are_kept_in_bounds(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    site.sync()
    huge = NodeCounts(nodes=2**70, shared=-5, away=2**70)
    wild = AwaitedNodes(
        polled_us=-1,
        starting=2**70,
        hindrances=[Hindrance(cause="idle", nodes=huge), *[Hindrance(cause="x" * 10_000)] * 50],
        queued=[QueuedReason(reason="y" * 10_000, allocations=2**70, meaning="z" * 10_000)] * 50,
    )
    site.sync(capacity=capacity(awaits=wild, more=wild))
    assert len(world.job(job).waits_hint or "") < 10_000


def test_work_that_no_site_asks_for_says_what_the_sites_wait_for(world: World) -> None:
    (job,) = world.submit(SIM)
    Site(world).sync(capacity=capacity(awaits=idle(SHARED)))
    found = world.job(job)
    assert (found.waits_for, found.row.phase) == ("site_wants_nothing", "")
    assert found.waits_hint == f"the sites that could run it ask for no more work now; site s: {ON_SHARED}"
    Site(world, "t").sync(capacity=capacity(more=idle(SHARED)))
    assert "site t has as much work as it asks for, and asks again when some of it is done" in (
        world.job(job).waits_hint or ""
    )
