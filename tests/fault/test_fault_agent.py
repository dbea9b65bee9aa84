"""A stopped agent that wakes after a take-over does nothing; a second agent is refused."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tests.worlds.home.oracle import output_bytes
from tests.worlds.home.processes import send
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec, Output, OutputKind, Resources

pytestmark = pytest.mark.fault
EVENTS = 300


def run_site(it: World, *options: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """`tidemill site run` on the same directory, inside the same PID namespace as the rest."""
    command = [sys.executable, "-m", "tidemill.cli.main", "site", "run", str(it.home / "site"), *options]
    return subprocess.run(it.inside(command), capture_output=True, text=True, timeout=timeout_s, check=False)


def test_a_second_agent_is_refused_and_told_where_the_first_is() -> None:
    with world() as it:
        answer = run_site(it)
        assert answer.returncode in (2, 3), answer.stderr
        (agent,) = it.processes("agent")
        assert str(it.inner_pid(agent)) in answer.stderr
        assert "--take-over" in answer.stderr


@pytest.mark.timeout(150)
def test_a_stopped_agent_that_wakes_after_a_take_over_does_nothing() -> None:
    with world() as it:
        # the clock, not the processor, keeps it going until another agent is there
        spec = JobSpec(
            command=["/bin/sh", "-c", "sleep 0.1; echo {event} {seed} > hits"], events=EVENTS, retries=50,
            outputs=[Output(name="hits", path="hits", kind=OutputKind.CONCAT)],
            resources=Resources(cores=1, event_s=0.1),
        )  # fmt: skip
        (job,) = it.submit("c", spec)
        it.wait_for(lambda: it.client.job(job).row.events_done > 10, "the job runs")
        (old,) = it.processes("agent")
        assert send(old, signal.SIGSTOP)
        new = subprocess.Popen(
            it.inside(
                [
                    sys.executable,
                    "-m",
                    "tidemill.cli.main",
                    "site",
                    "run",
                    str(it.home / "site"),
                    "--take-over",
                ]
            ),
            stderr=subprocess.DEVNULL,
        )
        try:
            done = it.client.job(job).row.events_done
            it.wait_for(lambda: it.client.job(job).row.events_done > done, "the new agent works")
            assert send(old, signal.SIGCONT)
            it.wait_for(lambda: all(p.pid != old.pid for p in it.processes("agent")), "the old agent leaves")
            it.wait_campaign("c")
            detail = it.client.job(job)
            assert detail.row.state == "COMPLETED", it.tails()
            assert detail.row.events_done == EVENTS
            lines = (f"{event} {1 + detail.seed_base + event}\n" for event in range(EVENTS))
            assert output_bytes(detail) == "".join(lines).encode()
            assert "epoch" in (it.home / "site.log").read_text()
        finally:
            new.kill()
            new.wait()
