"""A site whose compute nodes do not reach the login node: work and results travel by files alone."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.home.oracle import output_bytes
from tests.worlds.home.processes import send
from tests.worlds.home.world import Options, World, world

from tidemill.config import loads
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.job import JobSpec, Output, OutputKind, Resources
from tidemill.node.journal import FleetJournal
from tidemill.wire.api import JobDetail
from tidemill.wire.node import Ended

CLOSED = """[harvest]
tcp = "nodes"
"""


@pytest.fixture
def closed() -> Iterator[Callable[..., World]]:
    """Starts a home whose site has no lead."""
    with contextlib.ExitStack() as stack:

        def start(dead_after_s: float = 20.0) -> World:
            timing = {"site": {"TOP_UP_S": 0.5, "DRAIN_S": 1, "DEAD_AFTER_S": dead_after_s}}
            options = Options(nodes=2, cores=2, extra=CLOSED, timing=timing)
            return stack.enter_context(world(options=options))

        yield start


def spec(events: int, event_s: float = 0.2) -> JobSpec:
    return JobSpec(
        command=["/bin/sh", "-c", f"sleep {event_s}; echo $TIDEMILL_FIRST > hits"],
        events=events,
        outputs=[Output(name="hits", path="hits", kind=OutputKind.CONCAT)],
        resources=Resources(event_s=event_s),
        retries=20,
    )


def check(it: World, job: int, events: int) -> JobDetail:
    it.wait_campaign("c")
    detail = it.client.job(job)
    assert detail.row.state == "COMPLETED", it.tails()
    assert (detail.row.events_done, detail.row.events_failed) == (events, 0), it.tails()
    assert output_bytes(detail) == "".join(f"{event}\n" for event in range(events)).encode()
    return detail


def started(it: World, job: int, events: int) -> None:
    it.wait_for(lambda: it.client.job(job).row.events_done >= events, f"{events} events are done")


def test_a_campaign_is_done_without_a_lead_whatever_is_killed(
    closed: Callable[..., World],
) -> None:
    it = closed()
    (job,) = it.submit("c", spec(100))
    started(it, job, 8)
    assert not it.processes("lead")
    send(it.processes("pilot")[0], signal.SIGKILL)
    started(it, job, 30)
    it.restart("agent")
    check(it, job, 100)


def test_a_job_that_is_canceled_is_stopped_and_its_nodes_do_the_next_one(
    closed: Callable[..., World],
) -> None:
    it = closed()
    (endless,) = it.submit("endless", spec(50, event_s=600.0))
    it.wait_for(lambda: len(it.processes("pilot")) > 0, "pilots run")
    (job,) = it.submit("c", spec(20))
    it.client.cancel([endless])
    check(it, job, 20)


def test_pilots_leave_a_silent_agent_and_nothing_is_lost(closed: Callable[..., World]) -> None:
    it = closed(dead_after_s=2.0)
    (job,) = it.submit("c", spec(60))
    started(it, job, 8)
    (agent,) = it.processes("agent")
    send(agent, signal.SIGSTOP)
    it.wait_for(lambda: not it.processes("pilot"), "the pilots leave")
    send(agent, signal.SIGCONT)
    check(it, job, 60)


def test_a_stop_file_empties_the_site(closed: Callable[..., World]) -> None:
    it = closed()
    (job,) = it.submit("c", spec(400))
    started(it, job, 8)
    (it.home / "site" / "STOP").write_text("maintenance\n")
    it.wait_for(lambda: not it.processes("pilot"), "the pilots leave", 20.0)
    (fleet,) = (it.home / "site" / "fleets").glob("e*")
    reasons = {each.reason for each in FleetJournal(fleet / "journal").read() if isinstance(each, Ended)}
    assert reasons <= {"drain", "stop"}
    assert reasons


def test_allocations_of_several_nodes_are_refused_without_a_lead() -> None:
    text = 'name = "a"\nserver = "unix:/a"\n[harvest]\ntcp = "closed"\nwidth = 2\n'
    with pytest.raises(ConfigError, match="allocations have one node"):
        loads(text, SiteConfig, source=Path("site.toml"))
