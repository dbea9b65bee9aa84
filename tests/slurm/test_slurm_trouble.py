"""What happens to jobs on a real Slurm: each ends in one named answer, and nobody else's job is ever touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.worlds.batch.batch_slurm import SlurmWorld
from tests.worlds.batch.batch_world import KEY, Bench
from tests.worlds.batch.slurm_cluster import SlurmCluster

from tidemill import clock
from tidemill.batch.contract import Answer, Ending
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.batch.slurm.text import FIELD, RECORD
from tidemill.config.site import Cluster
from tidemill.model.machine import NodeState
from tidemill.model.state import AllocationState

pytestmark = pytest.mark.timing(batch={"UNKNOWN_S": 1.0, "COMMAND_TIMEOUT_S": 20.0})

ACTIVE, QUEUED = AllocationState.ACTIVE, AllocationState.QUEUED
QUICK = Cluster(calls_per_min_max=100_000)


@pytest.fixture
def open_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """`open_bench(cluster, qos="low")`: a bench on this cluster, with settings of the adapter."""
    opened: list[Bench] = []

    def start(cluster: SlurmCluster, **settings: object) -> Bench:
        monkeypatch.setenv("PATH", cluster.env["PATH"])
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        bench = Bench(SlurmWorld(cluster))
        config = msgspec.structs.replace(QUICK, **settings)
        folder = bench.batch.output("x").parent.parent
        bench.batch = SlurmBatchSystem(folder, config, key=KEY)
        opened.append(bench)
        return bench

    yield start
    for bench in opened:
        bench.batch.cancel(bench.names)


@pytest.fixture
def bench(slurm_cluster: SlurmCluster, open_bench: Callable[..., Bench]) -> Bench:
    return open_bench(slurm_cluster)


def test_lost_submission_is_gone_though_its_number_comes_again(
    bench: Bench, slurm_cluster: SlurmCluster
) -> None:
    for attempt in range(4):
        short = f"lost{attempt}"
        number = bench.submit(short, "sleep 600", nodes=4)
        slurm_cluster.crash_controller()
        slurm_cluster.start_controller()
        other = slurm_cluster.run_as_user(
            "sbatch", "--parsable", "-o", "/dev/null", "--chdir=/", "-J", "private", "--wrap", "sleep 600"
        ).strip()
        if other == number:
            break
        assert bench.status(short).answer is not Answer.GONE, "it was saved in time, or lost with its number"
        bench.batch.cancel([bench.name(short)])
        slurm_cluster.run("scancel", other)
    else:
        pytest.skip("slurmctld saved every submission before it was killed")
    assert bench.status(short).answer is Answer.UNCLEAR
    bench.until(lambda: bench.status(short).answer is Answer.GONE, "it is lost")
    bench.batch.cancel([bench.name(short)])
    bench.batch.shorten({bench.name(short): clock.now_s() + 60.0})
    assert bench.world.lives(other), "the private job that got its number"
    for job in slurm_cluster.run("squeue", "-h", "-r", "-o", "%A").split():
        if (
            job != other
        ):  # cancels are lost with a controller, too: jobs of before, or of other tests, may be back
            slurm_cluster.run("scancel", job)
    bench.submit("again", "exit 0")
    assert bench.wait_end("again").ending is Ending.DONE


@pytest.mark.parametrize("option", ["--comment", "--job-name"])
def test_records_in_the_name_or_comment_of_another_users_job_are_no_allocations(
    bench: Bench, slurm_cluster: SlurmCluster, option: str
) -> None:
    """Slurm takes any character there; a longer list of such texts is tried in tests/attack/site."""
    number = bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    fields = [
        "777", "R", slurm_cluster.user, "1", "n1", "2026-11-29T00:00:00", "N/A", "1:00", "2026-11-29T00:00:00", "batch",
        "(null)", "None", "1", "(null)", "(null)", "1", "0", "OK", bench.name("b"), f"tidemill {KEY}",
    ]  # fmt: skip
    other = slurm_cluster.run_as_user(
        "sbatch", "--parsable", "-H", "-o", "/dev/null", "--chdir=/", f"{option}=x{RECORD}{FIELD.join(fields)}",
        "--wrap", "sleep 60", user="daemon",
    ).strip()  # fmt: skip
    seen = bench.batch.snapshot()
    assert [each.id for each in seen.running if each.ours] == [number]
    assert "777" not in {each.id for each in seen.running} | {each.id for each in seen.queued}
    assert [each.user for each in seen.queued if each.id == other] == ["daemon"]
    slurm_cluster.run("scancel", other)


def test_node_that_fails_ends_its_allocation_without_blame(bench: Bench, slurm_cluster: SlurmCluster) -> None:
    bench.submit("a", "sleep 600")
    (node,) = bench.wait("a", ACTIVE).nodes
    try:
        slurm_cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        status = bench.wait_end("a")
        assert (status.state, status.ending) == (AllocationState.FAILED, Ending.NODE)
    finally:
        slurm_cluster.resume_node(node)


def test_requeued_allocation_waits_again_and_says_so(
    slurm_cluster: SlurmCluster, open_bench: Callable[..., Bench]
) -> None:
    bench = open_bench(slurm_cluster, directives=["--requeue"])
    number = bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    slurm_cluster.run("scontrol", "requeue", number)
    status = bench.wait("a", QUEUED)
    bench.until(lambda: bench.status("a").requeued == 1, "it was started before")
    assert status.batch_id == number


@pytest.mark.parametrize(("mode", "directive"), [("cancel", ""), ("requeue", ""), ("requeue", "--requeue")])
def test_preempted_allocation_says_so(
    mode: str, directive: str, start_slurm: Callable[..., SlurmCluster], open_bench: Callable[..., Bench]
) -> None:
    """One that may not be requeued (as ours by default) is canceled in either mode."""
    cluster = start_slurm("--nodes", "2", "--preempt", mode)
    bench = open_bench(cluster, partition="preempt", directives=[directive] if directive else [])
    bench.submit("a", "sleep 600", nodes=2)
    bench.wait("a", ACTIVE)
    snapshot = bench.batch.snapshot()
    assert {each.name: each.preempted for each in snapshot.partitions}["preempt"] == mode
    other = cluster.run_as_user(
        "sbatch", "--parsable", "-N2", "-o", "/dev/null", "--chdir=/", "--wrap", "sleep 60", user="daemon"
    ).strip()
    if directive:
        assert bench.wait("a", QUEUED).requeued <= 1
        bench.until(lambda: bench.status("a").requeued == 1, "it was started before")
    else:
        assert bench.wait_end("a").ending is Ending.PREEMPTED
    bench.until(lambda: "R" in cluster.run("squeue", "-h", "-j", other, "-o", "%t"), "the other one runs")


def test_renamed_allocation_is_known_by_number_and_key(bench: Bench, slurm_cluster: SlurmCluster) -> None:
    number = bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    slurm_cluster.run("scontrol", "update", f"JobId={number}", "JobName=pretty")
    status = bench.status("a")
    assert (status.state, status.reason) == (ACTIVE, "renamed to `pretty`")
    bench.batch.cancel([bench.name("a")])
    assert bench.wait_end("a").state is AllocationState.CANCELED


def test_held_allocation_names_who_holds_it(bench: Bench, slurm_cluster: SlurmCluster) -> None:
    bench.submit("wide", "sleep 600", nodes=4)
    bench.wait("wide", ACTIVE)
    number = bench.submit("a", "sleep 600")
    assert bench.status("a").held == ""
    slurm_cluster.run("scontrol", "hold", number)
    bench.until(lambda: bench.status("a").held == "JobHeldAdmin", "staff hold it")
    (queued,) = bench.batch.snapshot().queued
    assert not queued.eligible
    slurm_cluster.run("scontrol", "release", number)


def test_submission_asks_for_all_that_it_says(
    slurm_cluster: SlurmCluster, open_bench: Callable[..., Bench]
) -> None:
    bench = open_bench(slurm_cluster, directives=["--nice=7", "--licenses="], partition="shared")
    bench.submit("wide", "sleep 600", nodes=4)
    bench.wait("wide", ACTIVE)
    number = bench.submit(
        "a", "sleep 600", nodes=3, nodes_min=2, walltime_s=3601, walltime_min_s=600, signal_before_s=90,
        features=("left",), exclude=("n4",), start_by_s=clock.now_s() + 300.0, partition="batch",
    )  # fmt: skip
    shown = slurm_cluster.run("scontrol", "-o", "show", "job", number)
    for words in (
        "TimeLimit=01:01:00", "TimeMin=00:10:00", "NumNodes=2-3", "Features=left", "ExcNodeList=n4", "Nice=7",
        "Partition=batch", "Requeue=0", "OverSubscribe=NO", f"Comment=tidemill {KEY} contract contact=ops@example.org",
    ):  # fmt: skip
        assert words in shown, f"{words} is missing: {shown}"
    punctual = bench.submit("b", "sleep 600", start_by_s=clock.now_s() + 300.0)
    assert "Deadline=N/A" not in slurm_cluster.run("scontrol", "-o", "show", "job", punctual)


def test_snapshot_shows_reservations_drains_and_plans(bench: Bench, slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.run(
        "scontrol", "create", "reservation", "ReservationName=works", "StartTime=now+2hours", "Duration=60",
        "Nodes=n[3-4]", "Users=root", "Flags=MAINT",
    )  # fmt: skip
    slurm_cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        bench.submit("a", "sleep 600")
        (taken,) = bench.wait("a", ACTIVE).nodes
        slurm_cluster.run_as_user(
            "sbatch", "-N3", "-t30", "-o", "/dev/null", "--chdir=/", "--wrap", "sleep 60", user="daemon"
        )
        bench.until(
            lambda: any(job.planned_s for job in bench.batch.snapshot().queued), "the wide one is planned"
        )
        machine = bench.batch.snapshot()
        (works,) = machine.reservations
        assert (works.name, works.nodes, works.maintenance, works.usable) == (
            "works",
            ("n3", "n4"),
            True,
            False,
        )
        assert works.end_s - works.start_s == 3600
        states = {each.name: each.state for each in machine.nodes}
        assert taken == "n1"
        assert states == {
            "n1": NodeState.BUSY,
            "n2": NodeState.AWAY,
            "n3": NodeState.IDLE,
            "n4": NodeState.IDLE,
        }
        (waiting,) = machine.queued
        assert (waiting.user, waiting.ours, waiting.width, waiting.eligible) == ("daemon", False, 3, True)
        assert set(waiting.planned_nodes) == {"n1", "n3", "n4"}
        assert machine.running[0].ends_s == waiting.planned_s
        assert machine.plan_age_s is not None
        assert machine.plan_age_s < 60
        assert machine.hidden == []
    finally:
        slurm_cluster.resume_node("n2")


def test_hidden_jobs_are_said_to_be_hidden(
    start_slurm: Callable[..., SlurmCluster], open_bench: Callable[..., Bench]
) -> None:
    cluster = start_slurm("--nodes", "2", "--line", "PrivateData=jobs")
    bench = open_bench(cluster)
    cluster.run_as_user("sbatch", "-o", "/dev/null", "--chdir=/", "--wrap", "sleep 60", user="daemon")
    bench.submit("a", "sleep 600")
    bench.wait("a", ACTIVE)
    machine = bench.batch.snapshot()
    assert [each.ours for each in machine.running] == [True]
    assert machine.hidden == ["regular jobs (PrivateData=jobs)"]
    assert machine.are_jobs_hidden
    assert bench.batch.facts().others_hidden


def test_daemon_of_a_node_may_be_started_again_without_harm(
    bench: Bench, slurm_cluster: SlurmCluster
) -> None:
    bench.submit("a", f"sleep 2; echo done > {bench.path('done')}")
    (node,) = bench.wait("a", ACTIVE).nodes
    slurm_cluster.crash_node(node)
    slurm_cluster.start_node(node)
    assert bench.wait_end("a").ending is Ending.DONE
    bench.until_file("done", "done\n")


def test_scripts_hold_no_secrets_of_the_agents_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "s3cret")
    bench.submit("a", f"env > {bench.path('env')}", environment={"GIVEN": "1"})
    bench.wait_end("a")
    shown = bench.path("env").read_text().splitlines()
    assert "GIVEN=1" in shown
    assert f"TIDEMILL_ALLOCATION={bench.name('a')}" in shown
    assert not [line for line in shown if line.startswith(("AGENT_TOKEN", "LC_ALL", "TZ="))]
    assert Path(bench.batch.output(bench.name("a"))).exists()
