"""Payloads that span nodes: their programs, the limits of applications, and whose fault a failure is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidemill.batch.launch import MISPLACED, MISPLACED_WORDS
from tidemill.config.site import Cluster, SiteConfig
from tidemill.errors import ConfigError, JobError
from tidemill.model.failure import FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Resources, Width
from tidemill.site.applications.catalogue import Applications, load_application
from tidemill.site.applications.launching import ENV, Launching, find_launcher, launcher_words
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.state import site_state
from tidemill.site.state.failures import explain
from tidemill.wire.node import Failed, JobDef, Program

APP = """name = "sim"
executable = "{program}"
arguments = ["-n{{events}}", "{{seed}}", "-t{{cores}}", "{{{{x}}}}"]
nodes_max = 4
ranks_max = 16
{more}
"""


def approve(folder: Path, more: str = "") -> Applications:
    program = folder / "prog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (folder / "apps").mkdir()
    (folder / "apps" / "sim.toml").write_text(APP.format(program=program, more=more))
    applications = Applications(folder / "apps")
    applications.refresh()
    assert not applications.problems
    return applications


def prepare(it: Preparer, spec: JobSpec) -> tuple[Program, JobDef]:
    it.begin()
    job = site_state.SiteJob(
        id=1, campaign="c", seed_base=5, spec=spec, open=IntervalSet(), done=IntervalSet()
    )
    program = it.program(spec, None)
    return program, it.job(job, program, [])


def preparer(folder: Path, launcher: str = "srun", *, shared: bool = False, adhoc: bool = False) -> Preparer:
    config = SiteConfig(name="x", server="unix:/x", shared=shared, allow_adhoc=adhoc)
    it = Preparer(config, approve(folder), NodeShape(8, 8000, {}))
    it.begin(Launching(launcher, 3))
    return it


def test_the_launcher_starts_the_program_in_the_one_slot_of_the_first_node(tmp_path: Path) -> None:
    spec = JobSpec(app="sim", resources=Resources(nodes=2, ranks=8, cores=2))
    program, job = prepare(preparer(tmp_path), spec)
    words = ["srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--kill-on-bad-exit=1"]
    assert program.executable == "/usr/bin/env"
    words += ["/bin/sh", "-c", 'export TIDEMILL_NODE="$SLURMD_NODENAME"; exec "$@"', "sh"]
    assert job.argv == [*words, str(tmp_path / "prog"), "-n{events}", "{seed}", "-t2", "{{x}}"]
    assert (program.cores, program.memory_mb, program.batch_commands) == (1, 0, True)
    assert (program.env["TIDEMILL_NODES"], program.env["TIDEMILL_RANKS"]) == ("2", "8")
    assert (program.env["TIDEMILL_CORES"], program.env["OMP_NUM_THREADS"]) == ("2", "2")
    assert {"SLURM*", "PMI_*", "OMPI_*", "PATH"} <= set(program.pass_env)


def test_an_ordinary_job_of_the_same_application_keeps_its_templates_and_its_environment(
    tmp_path: Path,
) -> None:
    it = preparer(tmp_path)
    prepare(it, JobSpec(app="sim", resources=Resources(nodes=2)))
    program, job = prepare(it, JobSpec(app="sim"))
    assert job.argv == ["-n{events}", "{seed}", "-t{cores}", "{{x}}"]
    assert (program.pass_env, program.batch_commands) == ([], False)


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_no_word_of_a_launcher_is_taken_for_a_template(tmp_path: Path, kind: str) -> None:
    _, job = prepare(preparer(tmp_path, kind), JobSpec(app="sim", resources=Resources(nodes=2)))
    words = launcher_words(kind, Width(2, 2))
    assert [word.replace("{{", "{").replace("}}", "}") for word in job.argv[: len(words)]] == words
    assert all("{" not in word.replace("{{", "") for word in job.argv[: len(words)])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Resources(nodes=4), "spans 4 nodes, this site gives it at most 3"),
        (Resources(nodes=5), "may span 4 nodes, the job asks for 5"),
        (Resources(nodes=2, ranks=18), "may have 16 ranks, the job asks for 18"),
        (Resources(nodes=1, ranks=8, cores=2), "8 ranks of 2 cores on each node"),
    ],
)
def test_a_site_refuses_what_its_nodes_or_the_application_forbid(
    tmp_path: Path, asked: Resources, told: str
) -> None:
    with pytest.raises(JobError, match=told):
        prepare(preparer(tmp_path), JobSpec(app="sim", resources=asked))


def test_without_a_launcher_and_for_strangers_commands_it_says_so(tmp_path: Path) -> None:
    wide = Resources(nodes=2)
    with pytest.raises(JobError, match="no MPI launcher"):
        prepare(preparer(tmp_path, ""), JobSpec(app="sim", resources=wide))
    other = tmp_path / "other"
    other.mkdir()
    it = preparer(other, shared=True, adhoc=True)
    with pytest.raises(JobError, match="approved applications only"):
        prepare(it, JobSpec(command=["/bin/true"], resources=wide))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("[resources]\nnodes = 2", "jobs ask for them"),
        ('mode = "range"', "do not go together"),
        ("range_s = 1.0\n[resources]\nranks = 2", "jobs ask for them"),
    ],
)
def test_wrong_application_files_are_refused(tmp_path: Path, more: str, told: str) -> None:
    approve(tmp_path)
    path = tmp_path / "apps" / "sim.toml"
    path.write_text(APP.format(program=tmp_path / "prog", more=more))
    with pytest.raises(ConfigError, match=told):
        load_application(path)


@pytest.mark.parametrize(("nodes", "ranks"), [("0", "4"), ("8", "4"), ("2", "-1")])
def test_limits_that_cannot_be_are_refused(tmp_path: Path, nodes: str, ranks: str) -> None:
    approve(tmp_path)
    path = tmp_path / "apps" / "sim.toml"
    text = APP.format(program=tmp_path / "prog", more="")
    path.write_text(text.replace("nodes_max = 4", f"nodes_max = {nodes}").replace("= 16", f"= {ranks}"))
    with pytest.raises(ConfigError, match=r"nodes_max|ranks_max"):
        load_application(path)


def test_a_fork_is_no_launcher(tmp_path: Path) -> None:
    config = SiteConfig(name="x", server="unix:/x", cluster=Cluster(launcher="fork"))
    assert find_launcher(config) == ""
    slurm = SiteConfig(name="x", server="unix:/x", batch="slurm")
    assert find_launcher(slurm) == "srun"


def failed(stderr: str, message: str = "exit status 1", status: int | None = 1) -> Failed:
    return Failed(
        p="a.r0.i1", s=1, grant=1, job=1, first=0, count=1, event=None, failure="payload", message=message,
        exit_status=status, signal=None, stderr_tail=stderr, slot=0, at_us=0, wall_us=0, user_us=0, system_us=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("srun: error: n2: task 3: Killed\n", "rank 3 on n2: Killed (exit status 1)"),
        (
            "srun: error: n1: tasks 0-1: Exited with exit code 7",
            "rank 0-1 on n1: Exited with exit code 7 (exit status 1)",
        ),
        (
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 8868 RUNNING AT vm\n=   EXIT CODE: 9\n",
            "a rank on vm: EXIT CODE: 9 (exit status 1)",
        ),
        (
            "mpiexec noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed).",
            "rank 2 on vm: signal 9 (Killed) (exit status 1)",
        ),
        (
            "detected that one or more processes exited\n  Process name: [[47046,1],3]\n  Exit code:    137",
            "rank 3: Exit code: 137 (exit status 1)",
        ),
        ("Segmentation fault\n", "exit status 1"),
    ],
)
def test_a_rank_that_died_is_named_where_its_launcher_names_it(text: str, told: str) -> None:
    assert explain(failed(text), FailureClass.PAYLOAD) == (FailureClass.PAYLOAD, told)


def test_a_lost_node_and_an_absent_launcher_are_no_fault_of_the_payload() -> None:
    lost = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE n2 FAILURE, SEE LOG ***"
    failure, message = explain(failed(lost), FailureClass.PAYLOAD)
    assert failure is FailureClass.NODE
    assert "NODE n2 FAILURE" in message
    absent = "env: 'srun': No such file or directory\n"
    failure, message = explain(failed(absent, status=127), FailureClass.PAYLOAD)
    assert failure is FailureClass.DISPATCH
    assert "no `srun` on the first node" in message
    assert explain(failed(lost), FailureClass.WALLTIME)[0] is FailureClass.WALLTIME


def test_ranks_that_are_not_on_their_nodes_are_a_failure_of_the_batch_system() -> None:
    words = f"{MISPLACED_WORDS}: 8 of them are on n1, where 2 should be"
    failure, message = explain(failed(f"{words}\n{words}\n", status=MISPLACED), FailureClass.PAYLOAD)
    assert failure is FailureClass.BATCH
    assert message == words.removeprefix("tidemill: ")


def test_what_env_says_here_is_understood() -> None:
    done = subprocess.run([ENV, "no-such-launcher"], capture_output=True, text=True, check=False)
    failure, message = explain(failed(done.stderr, status=done.returncode), FailureClass.PAYLOAD)
    assert failure is FailureClass.DISPATCH
    assert "`no-such-launcher`" in message
