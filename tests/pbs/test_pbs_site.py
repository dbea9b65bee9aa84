"""A whole site on PBS, with the policy that is the default there, beside a regular job; on complete fake commands."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.worlds.batch.batch_pbs import CORES, PbsWorld, person
from tests.worlds.batch.batch_pbs import world as pbs_world
from tests.worlds.batch.batch_world import KEY
from tests.worlds.home.world import Options, World, world

from tidemill.batch.pbs import PbsBatchSystem
from tidemill.config.site import Cluster, SiteConfig
from tidemill.harvest.plan.policies import Policy
from tidemill.model.job import JobSpec, Resources
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.planning import Starts
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.state.site_state import SiteState

SITE = """batch = "pbs"
contact = "test@example.org"
[cluster]
calls_per_min_max = 1200
launcher = "fork"
"""
TIMING = {"site": {"STARTS_PER_NODE_HOUR": 600, "CYCLE_S": 1, "STARTUP_S": 0.5, "SLACK_S": 2, "DEATH_S": 1}}
REGULAR = "regular"


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    """Two nodes of four processors."""
    with pbs_world(request, tmp_path) as made:
        yield made


def ask(*words: str, user: str | None = None) -> list[str]:
    """What a command prints, word by word."""
    return subprocess.run(
        words, env=person(user or ""), capture_output=True, text=True, check=True
    ).stdout.split()


def test_a_machine_whose_look_takes_longer_than_the_pause_between_two_is_used(pbs: PbsWorld) -> None:
    (pbs.state / "slow").write_text("0.3")  # four of them make a look, every 0.5 s one is due
    with world(options=Options(nodes=2, cores=CORES, extra=SITE, timing=TIMING)) as it:
        command = JobSpec(command=["true"], events=8, resources=Resources(cores=1, event_s=0.1))
        (job,) = it.submit("slow", command)
        it.wait_campaign("slow")
        assert it.client.job(job).row.state == "COMPLETED"
        (pbs.state / "slow").unlink()
        pbs.stop()


def test_a_campaign_runs_beside_regular_jobs_and_leaves_with_its_work(pbs: PbsWorld, tmp_path: Path) -> None:
    script = tmp_path / "regular.sh"
    script.write_text("sleep 600\n")  # it outlasts ours, which leave after `idle_s` only
    wants = ["-l", f"select=1:ncpus={CORES}", "-l", "walltime=0:12:00"]
    theirs = ask("qsub", "-N", "calc", *wants, str(script), user=REGULAR)
    with world(options=Options(nodes=2, cores=CORES, extra=SITE, timing=TIMING)) as it:
        command = JobSpec(command=["sleep", "0.1"], events=80, resources=Resources(cores=1, event_s=0.1))
        (job,) = it.submit("pbs", command)
        it.wait_campaign("pbs")
        detail = it.client.job(job)
        assert (detail.row.state, detail.row.events_done) == ("COMPLETED", 80), detail.row.reason
        assert not detail.failures
        assert ask("qselect", "-u", REGULAR) == theirs  # it ran beside ours, on a node of its own
        log = (it.home / "site.log").read_text()
        ours = [line for line in log.splitlines() if "allocation.submitted" in line]
        assert ours, it.tails()
        assert all('"count":1' in line for line in ours), "one node was idle"
        it.wait_for(lambda: ask("qselect") == theirs, "our allocations leave when there is no work")


def test_a_job_whose_nodes_are_idle_is_waited_for_one_iteration_and_four_cycles(
    pbs: PbsWorld, tmp_path: Path
) -> None:
    pbs.configure(scheduler_iteration="600")
    (pbs.state / "no-scheduler").touch()
    script = tmp_path / "regular.sh"
    script.write_text("true\n")
    ask("qsub", "-N", "calc", "-l", f"select=1:ncpus={CORES}", str(script), user=REGULAR)
    config = SiteConfig(name="here", server="unix:/s", batch="pbs", mode="run", nodes_max=2)
    batch = PbsBatchSystem(tmp_path / "batch", Cluster(launcher="fork"), key=KEY)
    machine = SiteMachine(config, tmp_path, batch, Costs(1.0))
    assert machine.snapshot is not None
    seen = msgspec.structs.replace(machine.snapshot, starts_nothing="")  # as if it were only slow
    work = Demand(events=100, core_s=1e6, slot_cores=1, cores=CORES)

    def used_after(seconds: float) -> int:
        """Nodes that it asks for then, and at the plan after that."""
        for at_s in (seconds, seconds + 1):
            machine.apply_snapshot(msgspec.structs.replace(seen, at_s=seen.at_s + at_s))
            plans = machine.plans(SiteState(site="here"), work, Starts(), Policy.YIELD)
        return sum(count for plan in plans for _, count, _ in plan.submit)

    assert used_after(0) == 1, "one is left to the job"
    assert used_after(700) == 1
    assert used_after(720) == 2


def test_what_can_never_start_is_deleted_with_the_reason(pbs: PbsWorld) -> None:
    """Nodes have four processors, and the site asks for five of one."""
    site = SITE + f'directives = ["-l select=1:ncpus={CORES + 1}"]\n'
    with world(options=Options(nodes=2, cores=CORES, extra=site)) as it:
        it.submit("never", JobSpec(command=["true"], events=4, resources=Resources(cores=1, event_s=0.1)))
        said = "it can never start: Can Never Run"
        it.wait_for(lambda: said in it.tails(), "it is said")
        it.wait_for(lambda: not ask("qselect"), "it does not wait for ever")


def test_a_scheduler_that_is_down_is_said_and_nothing_is_lost(pbs: PbsWorld) -> None:
    with world(options=Options(nodes=2, cores=CORES, extra=SITE, timing=TIMING)) as it:
        held = it.home / "held"  # keeps work waiting until the allocations end, however late
        held.touch()
        script = f'while [ "$1" -ge 8 ] && [ -e {held} ]; do sleep 0.1; done; sleep 0.5'
        command = JobSpec(
            command=["sh", "-c", script, "sh", "{event}"],
            events=60,
            resources=Resources(cores=1, event_s=0.5),
        )
        (job,) = it.submit("pbs", command)
        it.wait_for(lambda: it.client.job(job).row.events_done > 4, "it works")
        (pbs.state / "no-scheduler").touch()
        for number in ask("qselect"):
            ask("qdel", number)  # the allocations end, and no others can start
        it.wait_for(lambda: "Q" in states(getpass.getuser()), "others are submitted")
        held.unlink()
        pbs.age(60)
        it.wait_for(
            lambda: (
                "has not reported yet; for more nodes: PBS's scheduler does not run"
                in " ".join(it.run("site", "status").stdout.split())
            ),
            "it is said",
        )
        told = " ".join(it.run("site", "status").stdout.split())
        assert "PBS's scheduler does not run" in told
        found = it.run("doctor", "--site", str(it.home / "site"))
        assert found.returncode == 2
        assert "PBS's scheduler does not run" in " ".join(found.stdout.split())
        (pbs.state / "no-scheduler").unlink()
        it.wait_campaign("pbs")
        detail = it.client.job(job)
        assert (detail.row.state, detail.row.events_done) == ("COMPLETED", 60), detail.row.reason
        assert "scheduler" not in it.run("site", "status").stdout


def states(user: str) -> list[str]:
    """States of a user's jobs, the oldest first."""
    records = " ".join(ask("qstat", "-f")).split("Job Id: ")[1:]
    return [each.split(" job_state = ")[1][0] for each in records if f" Job_Owner = {user}@" in each]


EVENTS = 400  #: events, more than can run until a test removes the file that makes each take a second


def slow_work(it: World) -> tuple[JobSpec, Path]:
    """Work that lasts as long as the test needs it, however busy the machine is; and the file that makes it slow."""
    slow = it.home / "slow"
    slow.touch()
    script = f"if [ -e {slow} ]; then sleep 1; fi"
    needs = Resources(cores=1, event_s=1)
    return JobSpec(command=["sh", "-c", script], events=EVENTS, resources=needs), slow


@pytest.mark.parametrize("wish", [(f"2:ncpus={CORES}", "scatter:excl"), (f"{CORES + 1}:ncpus=1", "free")])
def test_nodes_are_given_back_to_a_regular_job_that_waits(
    pbs: PbsWorld, tmp_path: Path, wish: tuple[str, str]
) -> None:
    """All of the machine is ours; then somebody wants all of it, for three seconds."""
    script = tmp_path / "regular.sh"
    script.write_text("sleep 3\n")
    with world(options=Options(nodes=2, cores=CORES, extra=SITE, timing=TIMING)) as it:
        command, slow = slow_work(it)
        (job,) = it.submit("pbs", command)
        it.wait_for(lambda: it.client.job(job).row.events_done > 8, "it works")
        wants = ["-l", f"select={wish[0]}", "-l", f"place={wish[1]}", "-l", "walltime=0:02:00"]
        ask("qsub", "-N", "calc", *wants, str(script), user=REGULAR)
        it.wait_for(lambda: states(REGULAR) != ["Q"], "it starts")
        assert it.client.job(job).row.events_done < EVENTS, "before our work is done"
        slow.unlink()
        it.wait_campaign("pbs")
        detail = it.client.job(job)
        assert (detail.row.state, detail.row.events_done) == ("COMPLETED", EVENTS), detail.row.reason
        assert not detail.failures


@pytest.mark.parametrize("order", ["S", "D"])
def test_work_of_what_is_preempted_is_done_again_and_the_site_goes_on(
    pbs: PbsWorld, tmp_path: Path, order: str
) -> None:
    pbs.configure(preempt_order=order, job_history_enable="True")
    script = tmp_path / "urgent.sh"
    script.write_text("sleep 5\n")
    with world(options=Options(nodes=2, cores=CORES, extra=SITE, timing=TIMING)) as it:
        command, slow = slow_work(it)
        (job,) = it.submit("pbs", command)
        it.wait_for(lambda: it.client.job(job).row.events_done > 4, "it works")
        for _ in range(2):  # two allocations each time: more than `foreign_cancels`
            wants = ["-l", f"select=2:ncpus={CORES}", "-l", "place=scatter:excl", "-l", "walltime=0:02:00"]
            ask("qsub", "-q", "urgent", "-N", "urgent", *wants, str(script), user=REGULAR)
            it.wait_for(lambda: states(REGULAR)[-1:] != ["Q"], "it starts")
            it.wait_for(lambda: "S" not in states(getpass.getuser()), "nothing of ours stays suspended")
            it.wait_for(lambda: not states(REGULAR), "it ends")
            done = it.client.job(job).row.events_done
            it.wait_for(lambda done=done: it.client.job(job).row.events_done > done, "ours work again")
        slow.unlink()
        it.wait_campaign("pbs")
        detail = it.client.job(job)
        assert (detail.row.state, detail.row.events_done) == ("COMPLETED", EVENTS), detail.row.reason
        assert not detail.failures
