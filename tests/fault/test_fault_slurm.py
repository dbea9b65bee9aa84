"""A real Slurm breaks while a campaign runs in it: no event is lost or counted twice, no foreign job is touched."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable

import pytest
from tests.worlds.batch.slurm_cluster import OTHER_USER, REACH, USER, SlurmCluster
from tests.worlds.batch.slurm_world import SlurmWorld, slurm_world
from tests.worlds.home.oracle import output_bytes

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root"),
]
EVENTS = 600
JOB = f"""campaign = "c"
[[job]]
command = ["sh", "-c", "sleep 0.25; echo {{event}} {{seed}} > hits"]
events = {EVENTS}
retries = 50
outputs = [{{name = "hits", path = "hits", kind = "concat"}}]
[job.resources]
cores = 1
memory_mb = 200
event_s = 0.25
"""
Start = Callable[..., SlurmCluster]


def cluster_of(start_slurm: Start, *options: str) -> SlurmCluster:
    return start_slurm("--nodes", "4", "--cores", "2", *REACH, *options)


def running(cluster: SlurmCluster) -> list[str]:
    """Ids of our pilots that run."""
    words = ("squeue", "-h", "-a", "-r", "-t", "R", "-o", "%i %j")
    return [line.split()[0] for line in cluster.run(*words).splitlines() if " tm-here-e" in line]


def check(it: SlurmWorld) -> None:
    (detail,) = it.wait_jobs("c", 180.0)
    assert detail.row.state == "COMPLETED", it.tails()
    assert (detail.row.events_done, detail.row.events_failed) == (EVENTS, 0), it.tails()
    lines = (f"{event} {1 + detail.seed_base + event}\n" for event in range(EVENTS))
    assert output_bytes(detail) == "".join(lines).encode(), it.tails()


def plant(cluster: SlurmCluster, user: str, name: str, comment: str) -> str:
    """A job that is not ours, whatever it is called."""
    words = ("sbatch", "--parsable", "-p", "shared", "-n", "1", "-t", "60", "-J", name, "--comment", comment)
    return cluster.run_as_user(
        *words, "-D", "/", "-o", "/dev/null", "--wrap", "sleep 1000", user=user
    ).strip()


def test_a_controller_that_forgets_jobs_and_gives_their_numbers_again(start_slurm: Start) -> None:
    cluster = cluster_of(start_slurm)
    with slurm_world(cluster) as it:
        planted = [
            plant(cluster, OTHER_USER, "tm-here-e1-1", "tidemill 0123456789abcdef here contact=somebody"),
            plant(cluster, USER, "tm-here-e1-2", "mine, and nothing of Tidemill's"),
        ]
        saved = cluster.conf.parents[1] / "state" / "job_state"
        planted_s = time.time()
        it.wait_for(
            lambda: saved.exists() and saved.stat().st_mtime > planted_s, "Slurm has saved what it was given"
        )
        it.submit_file(JOB)
        it.wait_for(lambda: len(running(cluster)) > 0, "pilots run")
        for _ in range(2):
            cluster.crash_controller()  # what it accepted in its last seconds is forgotten, its numbers come again
            time.sleep(1.0)  # the outage itself
            cluster.start_controller()
            for number in range(3):
                cluster.run_as_user(
                    "sbatch", "-p", "shared", "-J", f"other{number}", "-D", "/", "-o", "/dev/null", "--wrap", "sleep 3",
                    user=OTHER_USER,
                )  # fmt: skip
        check(it)
        alive = cluster.run("squeue", "-h", "-a", "-t", "R,PD", "-o", "%i").split()
        assert set(planted) <= set(alive), cluster.run("squeue", "-a", "-t", "all")


@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_that_die_or_are_drained_and_pilots_that_others_end(start_slurm: Start, seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_of(start_slurm, "--line", "SlurmdTimeout=3")
    nodes = (cluster.conf.parent / "nodes").read_text().split()
    with slurm_world(cluster) as it:
        it.submit_file(JOB)
        it.wait_for(lambda: len(running(cluster)) > 1, "pilots run")
        for round_number in range(3):
            node = rng.choice(nodes)
            deed = rng.choice(["crash", "drain", "down", "cancel"])
            if deed == "crash":
                cluster.crash_node(node)
                time.sleep(rng.uniform(0.1, 4.0))
                cluster.start_node(node)
            elif deed == "cancel" and round_number < 2:  # a third one would stop the site
                for job in running(cluster)[:1]:
                    cluster.run("scancel", job)
            else:
                cluster.run(
                    "scontrol",
                    "update",
                    f"nodename={node}",
                    f"state={'down' if deed == 'down' else 'drain'}",
                    "reason=test",
                )
                time.sleep(rng.uniform(0.1, 2.0))
                resume = [
                    "scontrol",
                    "update",
                    f"nodename={node}",
                    "state=resume",
                ]  # refused if it came back by itself
                subprocess.run(resume, env=cluster.env_root, capture_output=True, check=False)
        check(it)


def test_preempted_and_requeued_pilots_lose_nothing(start_slurm: Start) -> None:
    cluster = cluster_of(start_slurm, "--preempt", "requeue", "--grace", "1")
    with slurm_world(cluster, partition="preempt", harvest='policy = "preempt"') as it:
        it.submit_file(JOB)
        it.wait_for(lambda: len(running(cluster)) > 1, "pilots run")
        for _ in range(3):
            words = (
                "sbatch",
                "-p",
                "batch",
                "-N",
                "3",
                "-t",
                "1",
                "-D",
                "/",
                "-o",
                "/dev/null",
                "--wrap",
                "sleep 2",
            )
            cluster.run_as_user(*words, user=OTHER_USER)
            time.sleep(3.0)  # regular jobs come and go
        check(it)
