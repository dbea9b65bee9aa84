"""Payloads that span nodes, on emulated nodes with real MPI libraries: width, ends of all kinds, turns."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.mpi_world import KINDS, darts, lines_of, mpi_world
from tests.worlds.home.processes import Process, send, snapshot
from tests.worlds.home.world import World

from tidemill.model.job import JobSpec
from tidemill.wire.api import JobDetail

SLOW_MS = 100_000 // 2


@pytest.fixture(scope="module", params=KINDS)
def it(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each MPI's world; a test that has nothing to do with the launcher takes one."""
    with mpi_world(request.param) as running:
        yield running


def ended(it: World, campaign: str, *specs: JobSpec) -> list[JobDetail]:
    jobs = it.submit(campaign, *specs)
    it.wait_campaign(campaign)
    return [it.client.job(job) for job in jobs]


def ranks_of(it: World) -> list[Process]:
    """The running ranks of the world."""
    return [each for each in it.processes("payload") if each.argv and "/darts-" in each.argv[0]]


def asleep(rank: Process) -> bool:
    """Whether its main thread waits for a timer."""
    try:
        return "nanosleep" in Path(f"/proc/{rank.pid}/wchan").read_text()
    except OSError:
        return False


def allocations_of(it: World, width: int) -> list[str]:
    """Names of the allocations of this width that ever were."""
    table = it.home / "site" / "batch" / "state.json"
    text = table.read_text() if table.exists() else ""
    return [part for part in text.split('"name":"')[1:] if f'"nodes":{width}' in part]


def test_every_event_runs_once_on_ranks_of_exactly_as_many_nodes(it: World) -> None:
    before = len(allocations_of(it, 2))
    one, two = ended(
        it,
        "once",
        darts(nodes=2, ranks=4, events=40),
        darts(nodes=2, ranks=2, events=8, darts=2000),
    )
    assert (one.row.state, two.row.state) == ("COMPLETED", "COMPLETED"), one.row.reason + two.row.reason
    assert [event for event, _, _ in lines_of(one)] == list(range(40))
    assert {rank for _, rank, _ in lines_of(one)} == {0, 1, 2, 3}
    assert [event for event, _, _ in lines_of(two)] == list(range(8))
    assert {rank for _, rank, _ in lines_of(two)} <= {0, 1}
    assert len(allocations_of(it, 2)) <= before + 1  # one served both, whatever their ranks
    assert "payloads span nodes: ranks run outside of the slot" in (it.home / "site.log").read_text()


def test_a_killed_rank_ends_its_payload_and_is_named(it: World) -> None:
    (job,) = it.submit("killed", darts(nodes=2, ranks=4, sleep_ms=SLOW_MS))
    it.wait_for(lambda: len(ranks_of(it)) == 4, "four ranks run")
    # rank 0 has the event; until it is there a rank may die in MPI_Init, where launchers say other things
    it.wait_for(lambda: any(asleep(each) for each in ranks_of(it)), "they have left MPI_Init")
    victim = sorted(ranks_of(it), key=lambda each: each.pid)[-1]
    others = [each for each in ranks_of(it) if each.pid != victim.pid]
    assert send(victim, signal.SIGKILL)
    it.wait_for(lambda: bool(it.client.job(job).failures), "the failure is told")
    assert not {(each.pid, each.start) for each in others} & {
        (each.pid, each.start) for each in snapshot().values()
    }
    evidence = it.client.job(job).failures[0].evidence
    assert evidence.failure == "payload"
    assert "rank" in evidence.message
    assert "9" in evidence.message or "Killed" in evidence.message or "137" in evidence.message
    it.client.cancel([job])
    it.wait_for(lambda: not ranks_of(it), "no rank is left")


@pytest.mark.parametrize("it", ["mpich"], indirect=True)
def test_a_canceled_job_is_canceled_whole_and_its_allocation_serves_the_next(it: World) -> None:
    (job,) = it.submit("gone", darts(nodes=2, ranks=4, sleep_ms=SLOW_MS))
    it.wait_for(lambda: len(ranks_of(it)) == 4, "four ranks run")
    it.client.cancel([job])
    it.wait_for(lambda: not ranks_of(it), "all ranks are gone", timeout_s=5)
    (after,) = ended(it, "after", darts(nodes=2, ranks=4, events=4))
    assert after.row.state == "COMPLETED", after.row.reason


@pytest.mark.parametrize("it", ["mpich"], indirect=True)
def test_a_pilot_killed_with_its_ranks_loses_and_repeats_nothing(it: World) -> None:
    (job,) = it.submit("fault", darts(nodes=2, ranks=4, events=24, sleep_ms=60))
    it.wait_for(lambda: it.client.job(job).row.events_done > 3, "some events are done")
    assert it.kill("pilot", random.Random(1))
    it.wait_campaign("fault")
    detail = it.client.job(job)
    assert detail.row.state == "COMPLETED", detail.row.reason
    assert [event for event, _, _ in lines_of(detail)] == list(range(24))
    assert all(each.evidence.failure != "payload" for each in detail.failures)
