"""`tidemill windows` on a real Slurm, without a site directory: what it says is free, the scheduler does give."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.batch.slurm_cluster import NODES, SlurmCluster

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
GUARD_S = 5
WAIT_S = 60.0


def tidemill(*words: str, env: dict[str, str], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIDEMILL, *words],
        env={**env, "TIDEMILL_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


class Looker:
    """Asks for the windows of a cluster, and submits to it."""

    def __init__(self, cluster: SlurmCluster, home: Path) -> None:
        self.cluster = cluster
        self._home = home

    def look(self, *words: str) -> Any:
        done = tidemill(
            "windows", "--guard", f"{GUARD_S}s", "--json", *words, env=self.cluster.env, home=self._home
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def steps(self, *words: str) -> list[tuple[int, float, str]]:
        return [(step["nodes"], step["seconds"], step["by"]) for step in self.look(*words)["steps"]]

    def tell(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = tidemill("windows", *words, env=self.cluster.env, home=self._home)
        assert done.returncode == 0, done.stderr
        return done

    def submit(self, nodes: int, minutes: int, *words: str) -> str:
        argv = ["sbatch", "--parsable", "-o", "/dev/null", "--chdir=/", "-N", str(nodes), "-t", str(minutes)]
        return self.cluster.run_as_user(*argv, *words, "--wrap", "sleep 900").strip()

    def state(self, job: str) -> str:
        return self.cluster.run("squeue", "-h", "-a", "-j", job, "-o", "%t").strip()

    def planned(self, job: str) -> bool:
        return self.cluster.run("squeue", "-h", "-a", "-j", job, "-o", "%Y").strip() not in ("", "(null)")

    def busy_and_planned(self) -> tuple[str, str]:
        """Two nodes run for ten minutes; a job that needs all of them is planned after that."""
        first = self.submit(2, 10)
        self.cluster.wait(lambda: self.state(first) == "R", "the first job runs")
        head = self.submit(NODES, 10)
        self.cluster.wait(lambda: self.planned(head), "the head job is planned")
        return first, head


@pytest.fixture
def looker(slurm_cluster: SlurmCluster, tmp_path: Path) -> Looker:
    return Looker(slurm_cluster, tmp_path / "home")


def test_what_no_planned_job_needs_is_given_at_once_and_no_more(looker: Looker) -> None:
    _, head = looker.busy_and_planned()
    ((nodes, seconds, by),) = looker.steps()

    assert (nodes, by) == (2, f"job {head}")
    assert 500 < seconds <= 600
    fits = looker.submit(nodes, int(seconds) // 60, "--nice=1000")
    looker.cluster.wait(lambda: looker.state(fits) == "R", "a job of the window's size starts")
    assert looker.steps() == []

    looker.cluster.run("scancel", fits)
    looker.cluster.wait(lambda: looker.steps() != [], "its nodes are idle again")
    longer = looker.submit(1, int(seconds) // 60 + 3, "--nice=1000")
    looker.cluster.wait(lambda: looker.planned(longer), "a longer one is planned for later")
    assert looker.state(longer) == "PD"


def test_reservations_drained_nodes_and_features_count(looker: Looker) -> None:
    cluster = looker.cluster
    names = cluster.run("sinfo", "-h", "-p", "batch", "-N", "-o", "%N").split()
    start = (datetime.now(UTC) + timedelta(minutes=20)).strftime("%Y-%m-%dT%H:%M:%S")
    cluster.run(
        "env", "TZ=UTC", "scontrol", "create", "reservation", "reservationname=maint", f"starttime={start}",
        "duration=30", "users=root", "flags=maint", f"nodes={names[0]}",
    )  # fmt: skip
    cluster.run("scontrol", "update", f"nodename={names[1]}", "state=drain", "reason=test")
    try:
        # Slurm marks nodes as planned until its next cycle, also for jobs that have been canceled.
        cluster.wait(lambda: looker.look()["promised"] == 0, "no node is kept for an earlier test's job")
        found = looker.look()
        assert (found["partition"], found["nodes"], found["idle"]) == ("batch", NODES, NODES - 1)
        (rest, part) = found["steps"]
        assert rest["nodes"] == NODES - 2
        assert (part["nodes"], part["by"]) == (NODES - 1, "reservation maint")
        assert 1100 < part["seconds"] <= 1200
        ((nodes, _, by),) = looker.steps("--feature", "left")
        assert (nodes, by) == (1, "reservation maint")
        assert [step[0] for step in looker.steps("--feature", "right")] == [NODES // 2]
        assert [step[0] for step in looker.steps("--width", str(NODES - 1))] == [NODES - 1]
    finally:
        cluster.run("scontrol", "update", f"nodename={names[1]}", "state=resume")


def test_people_get_a_table_and_what_could_not_be_seen(looker: Looker) -> None:
    _, head = looker.busy_and_planned()
    told = looker.tell("--partition", "batch")
    header, line = told.stdout.splitlines()
    assert header.split() == ["NODES", "FOR", "UNTIL", "LIMITED", "BY"]
    assert line.split()[0] == "2"
    assert line.endswith(f"job {head}")
    assert f"2 of {NODES} nodes of partition batch are idle" in told.stderr

    none = looker.tell("--width", "3")
    assert none.stdout == f"no window of 3 nodes: 2 of {NODES} nodes of partition batch are idle\n"


def test_a_partition_that_is_not_there_names_the_nearest(looker: Looker, tmp_path: Path) -> None:
    done = tidemill("windows", "--partition", "bach", env=looker.cluster.env, home=tmp_path)
    assert done.returncode == 2
    assert "has no partition `bach`" in done.stderr
    assert "did you mean `batch`?" in done.stderr


def test_without_any_batch_system_it_says_where_it_looked(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    done = tidemill("windows", env=env, home=tmp_path)
    assert done.returncode == 3
    assert "no batch system was found: `squeue`, `pbsnodes` and `qhost` are not on PATH" in done.stderr
    named = tidemill("windows", "--batch", "pbs", env=env, home=tmp_path)
    assert named.returncode == 3
    assert "the commands of pbs are not on PATH: qstat, pbsnodes" in named.stderr


def test_a_site_directory_and_a_batch_system_are_not_named_together(tmp_path: Path) -> None:
    done = tidemill("windows", str(tmp_path), "--batch", "slurm", env=dict(os.environ), home=tmp_path)
    assert done.returncode == 2
    assert "not both" in done.stderr
    nowhere = tidemill("windows", str(tmp_path), env=dict(os.environ), home=tmp_path)
    assert nowhere.returncode == 2
    assert "is not a site directory" in nowhere.stderr


def test_a_sites_own_configuration_counts(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir(mode=0o700)
    (site / "site.toml").write_text(
        'name = "a"\nserver = "unix:/nowhere"\n[local]\nnodes = 3\n[node]\ncores = 1\n'
    )
    done = tidemill("windows", str(site), "--json", env=dict(os.environ), home=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["nodes"], told["idle"], told["steps"][0]["nodes"]) == (3, 3, 3)


def test_a_slow_or_broken_batch_system_is_an_error_that_says_so(tmp_path: Path) -> None:
    for name in ("squeue", "sinfo", "scontrol", "sdiag", "sbatch", "scancel"):
        command = tmp_path / name
        command.write_text(
            "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"
        )
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = tidemill("windows", "--batch", "slurm", env=env, home=tmp_path)
    assert done.returncode == 3
    assert "Unable to contact slurm controller" in done.stderr
