"""The cluster that tests run on is a real one, used as an ordinary user, and leaves nothing behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.worlds.batch.slurm_cluster import NODES, SCRIPT, SlurmCluster


def test_an_ordinary_users_job_runs_on_an_emulated_node(slurm_cluster: SlurmCluster) -> None:
    out = slurm_cluster.space / "out"
    words = [
        "sbatch",
        "--parsable",
        "-o",
        "/dev/null",
        "--chdir=/",
        "--wrap",
        f"id -un > {out}; echo $SLURMD_NODENAME >> {out}",
    ]
    job = slurm_cluster.run_as_user(*words).strip()
    assert job.isdigit()
    slurm_cluster.wait(lambda: out.exists() and len(out.read_text().split()) == 2, "it ran")
    assert out.read_text().split() == ["nobody", "n1"]


def test_two_clusters_live_side_by_side_and_stop_whole(start_slurm: Callable[..., SlurmCluster]) -> None:
    one, two = start_slurm("--nodes", "2"), start_slurm("--nodes", "10", "--line", "KillWait=7")
    assert one.run("sinfo", "-h", "-p", "batch", "-o", "%D %N").split() == ["2", "n[1-2]"]
    assert two.run("sinfo", "-h", "-p", "batch", "-o", "%D %N").split() == ["10", "n[01-10]"]
    assert "KillWait                = 7 sec" in two.run("scontrol", "show", "config")
    two.run_as_user("sbatch", "-o", "/dev/null", "--wrap", "sleep 7919")
    two.wait(lambda: "R" in two.run("squeue", "-h", "-o", "%t"), "it runs")
    two.wait(lambda: "sleep\0007919" in _command_lines(), "its process is there")
    two.stop()
    assert "sleep\0007919" not in _command_lines()
    assert not two.directory.exists()
    assert len(one.run("sinfo", "-h", "-N").splitlines()) == 2 * 3


def test_a_cluster_that_was_stopped_starts_again_with_the_jobs_that_it_had(
    start_slurm: Callable[..., SlurmCluster],
) -> None:
    cluster = start_slurm("--nodes", "2")
    for _ in range(3):
        words = ("sbatch", "-o", "/dev/null", "--chdir=/", "-p", "batch", "-w", "n1", "--wrap", "sleep 1000")
        cluster.run_as_user(*words)
    cluster.wait(lambda: "R" in cluster.run("squeue", "-h", "-o", "%t").split(), "one runs")
    cluster.stop_controller()  # so that it has saved them
    for verb in ("stop", "start"):
        done = subprocess.run(
            [SCRIPT, verb, cluster.directory / "c"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert len(cluster.run("squeue", "-h", "-o", "%i").split()) == 3


def test_the_sessions_cluster_is_idle_at_the_start(slurm_cluster: SlurmCluster) -> None:
    assert slurm_cluster.run("squeue", "-h", "-a", "-t", "PD,R,S") == ""
    assert slurm_cluster.run("sinfo", "-h", "-N", "-p", "batch", "-o", "%T").split() == ["idle"] * NODES


def test_a_node_that_never_says_that_its_job_has_ended_is_not_taken_for_idle(
    start_slurm: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    """`sinfo -t idle` counts it; the next test's job on all nodes would wait until it is given up."""
    epilog = tmp_path / "epilog"
    epilog.write_text("#!/bin/sh\nsleep 300\n")
    epilog.chmod(0o755)
    cluster = start_slurm("--nodes", "2", "--line", f"Epilog={epilog}")
    cluster.run_as_user("sbatch", "-o", "/dev/null", "--chdir=/", "--wrap", "true")
    cluster.wait(lambda: "completing" in cluster.run("sinfo", "-h", "-N", "-o", "%T"), "its end is not told")
    assert cluster.run("sinfo", "-h", "-p", "batch", "-t", "idle", "-o", "%D").strip() == "2"
    cluster.cancel_all()
    assert set(cluster.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}
    words = ["sbatch", "--parsable", "-N2", "-o", "/dev/null", "--chdir=/", "--wrap", "true"]
    wide = cluster.run_as_user(*words).strip()
    cluster.wait(
        lambda: "CG" in cluster.run("squeue", "-h", "-j", wide, "-o", "%t"), "the next one ran on both"
    )


def _command_lines() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)
