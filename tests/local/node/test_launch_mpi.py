"""Launchers really start commands: both mpiexec of Debian's packages, and the plain fork."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.worlds.home.processes import snapshot

from tidemill import clock
from tidemill.batch import launch
from tidemill.errors import ConfigError

TIMEOUT_S = 30.0
RANK = "rank=${TIDEMILL_RANK:-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; "
PROGRAMS = {"mpich": "mpiexec.mpich", "openmpi": "mpiexec.openmpi", "fork": "sh"}


@pytest.fixture(params=["mpich", "openmpi", "fork"])
def kind(request: pytest.FixtureRequest) -> str:
    if shutil.which(PROGRAMS[request.param]) is None:
        pytest.skip(f"there is no {PROGRAMS[request.param]}")
    return str(request.param)


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", RANK + script]


def wait_for(path: Path) -> None:
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    while not path.exists():
        assert clock.monotonic_s() < deadline_s, f"waited in vain for {path}"
        clock.sleep_s(0.01)


def ended(process: subprocess.Popen[bytes], files: Path) -> int:
    """Its status. One that does not end is shown with what there is of it."""
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        left = [(each.pid, each.parent, each.argv[:3]) for each in snapshot().values()
                if str(files) in " ".join(each.argv) or "mpi" in " ".join(each.argv[:1])]  # fmt: skip
        pytest.fail(f"it does not end; files: {sorted(each.name for each in files.iterdir())}; left: {left}")


def test_each_node_gets_a_number_and_the_words_as_they_are(kind: str, tmp_path: Path) -> None:
    odd = "a b'c\"$(false)`\\*"
    script = f'printf "%s" "$1" > {tmp_path}/$rank'
    done = run(launch.launch_words(kind, 3, [*shell(script), "sh", odd], status_files=tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("012", odd)


def test_node_that_fails_leaves_the_others_alone_and_the_worst_status_comes_back(
    kind: str, tmp_path: Path
) -> None:
    script = (
        f"[ $rank = 1 ] && exit 5; sleep 0.3; touch {tmp_path}/ran.$rank; [ $rank = 2 ] && exit 9; exit 0"
    )
    done = run(launch.launch_words(kind, 3, shell(script), status_files=tmp_path / "s"))
    assert done.returncode == 9, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ran.0", "ran.2"], "no status file is left"


def test_statuses_of_an_earlier_run_count_for_nothing(tmp_path: Path) -> None:
    dsh = tmp_path / "bin" / "pbsdsh"
    dsh.parent.mkdir()
    dsh.write_text('#!/bin/sh\nshift\nfor PBS_NODENUM in 0 1; do export PBS_NODENUM; "$@"; done\n')
    dsh.chmod(0o755)
    for name in ("s.0", "s.2", "s.pid.2"):
        (tmp_path / name).write_text("9\n")
    words = launch.launch_words("pbsdsh", 2, ["true"], status_files=tmp_path / "s")
    env = {**os.environ, "PATH": f"{dsh.parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("s.*"))


def test_an_allocation_whose_launcher_failed_is_not_held_for_each_of_its_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("pbsdsh", "exit 1"), ("sleep", f"echo >> {tmp_path}/slept")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    words = launch.launch_words("pbsdsh", 50, ["true"], status_files=tmp_path / "s")
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == launch.MISPLACED
    assert "node 49 of 50 has no status" in done.stderr
    assert len((tmp_path / "slept").read_text()) < 50, "seconds, of all nodes together"


def test_node_that_is_killed_counts_as_failed(kind: str, tmp_path: Path) -> None:
    script = f"[ $rank = 1 ] && kill -9 $$; sleep 0.2; touch {tmp_path}/ran.$rank"
    done = run(launch.launch_words(kind, 2, shell(script), status_files=tmp_path / "s"))
    assert done.returncode == 137, done.stderr
    assert (tmp_path / "ran.0").exists()


def test_one_term_ends_all_and_each_may_finish(kind: str, tmp_path: Path) -> None:
    script = (
        f"trap 'sleep 0.2; touch {tmp_path}/end.$rank; exit 3' TERM; "
        f"trap 'touch {tmp_path}/usr1.$rank' USR1; touch {tmp_path}/up.$rank; while :; do sleep 0.05; done"
    )
    words = launch.launch_words(kind, 2, shell(script), status_files=tmp_path / "s")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for rank in "01":
                wait_for(tmp_path / f"up.{rank}")
            process.send_signal(signal.SIGUSR1)
            for rank in "01":
                wait_for(tmp_path / f"usr1.{rank}")
            process.send_signal(signal.SIGTERM)
            status = ended(process, tmp_path)
        finally:
            process.kill()
    assert status == 3
    assert (tmp_path / "end.0").exists()
    assert (tmp_path / "end.1").exists()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_payload_has_all_its_ranks_and_dies_as_one(mpi: str, tmp_path: Path) -> None:
    if shutil.which(PROGRAMS[mpi]) is None:
        pytest.skip(f"there is no {PROGRAMS[mpi]}")
    done = run(launch.mpi_words(mpi, 2, 4, shell(f"touch {tmp_path}/$rank")))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == list("0123")
    for path in tmp_path.iterdir():
        path.unlink()
    done = run(launch.mpi_words(mpi, 2, 2, shell(f"echo $TIDEMILL_NODE > {tmp_path}/$rank")))
    assert {path.read_text() for path in tmp_path.iterdir()} == {f"{platform.node()}\n"}, done.stderr
    done = run(launch.mpi_words(mpi, 1, 2, shell("[ $rank = 1 ] && kill -9 $$; exec sleep 20")))
    assert done.returncode != 0


def test_launcher_is_recognised_by_its_version(kind: str) -> None:
    if kind == "fork":
        assert launch.detect("fork") == "fork"
        assert launch.detect("auto", own="srun") == "srun"
    else:
        assert launch.kind_of(PROGRAMS[kind]) == kind
        assert launch.kind_of(launch.program(kind)) == kind
        assert any("4." in each for each in launch.describe())


def test_one_node_needs_no_launcher_and_unknown_ones_are_errors() -> None:
    assert launch.launch_words("srun", 1, ["x", "y"]) == ["x", "y"]
    with pytest.raises(ConfigError, match="is not a launcher"):
        launch.launch_words("aprun", 2, ["x"])
    with pytest.raises(ConfigError, match="one rank"):
        launch.mpi_words("fork", 1, 2, ["x"])


def test_number_is_read_from_whoever_tells_it() -> None:
    assert launch.rank_of({"PMI_RANK": "3"}) == 3
    assert launch.rank_of({"OMPI_COMM_WORLD_RANK": "2", "HOME": "/"}) == 2
    assert launch.rank_of({"SLURM_PROCID": "x"}) == 0


@pytest.mark.parametrize("kind", ["mpich", "openmpi"], indirect=True)  # a fork's nodes are one host
@pytest.mark.parametrize("is_payload", [True, False])
def test_ranks_that_are_all_on_the_first_node_are_an_error_and_do_not_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_payload: bool
) -> None:
    # an allocation of two hosts, whose second one nobody reaches
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    ran = shell(f"touch {tmp_path}/ran")
    if is_payload:
        words = launch.mpi_words(kind, 2, 4, ran)
    else:
        words = launch.launch_words(kind, 2, ran, status_files=tmp_path / "s")
    done = run(words)
    assert done.returncode == launch.MISPLACED, done.stderr
    assert launch.MISPLACED_WORDS in done.stderr
    assert not (tmp_path / "ran").exists()
