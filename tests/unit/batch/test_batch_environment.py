"""The environment of batch commands: the user's shell has no effect."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.environment import ALLOWED
from tests.fakes.slurm.fake import install

from tidemill.batch.contract import BatchSubmission, BatchSystem
from tidemill.batch.environment import ONE_LANGUAGE, PASSED, SERVER_VARIABLES, batch_environment, ignored
from tidemill.batch.polite import Budget
from tidemill.batch.run import run
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.batch.slurm.node_time import TIMEOUT_S, ask_sacct
from tidemill.config.site import Cluster
from tidemill.errors import SiteError

pytestmark = pytest.mark.timing(batch={"UNKNOWN_S": 0.0})

KEY = "0123456789abcdef"
HOSTILE = {
    "SQUEUE_USERS": "ada", "SQUEUE_PARTITION": "shared", "SQUEUE_ACCOUNT": "phys", "SQUEUE_STATES": "R",
    "SQUEUE_QOS": "long", "SQUEUE_NAMES": "x", "SQUEUE_LICENSES": "x", "SQUEUE_FORMAT": "%i", "SQUEUE_SORT": "S",
    "SCANCEL_INTERACTIVE": "true", "SCANCEL_PARTITION": "shared", "SCANCEL_STATE": "PENDING", "SCANCEL_VERBOSE": "9",
    "SLURM_TIME_FORMAT": "relative", "SLURM_BITSTR_LEN": "8", "SLURM_CLUSTERS": "other", "SLURM_DEBUG_FLAGS": "all",
    "SBATCH_GRES": "gpu:1", "SBATCH_ARRAY_INX": "0-1", "SBATCH_CLUSTERS": "other", "SBATCH_WAIT": "1",
    "SBATCH_ACCOUNT": "phys", "SALLOC_ACCOUNT": "phys", "SLURM_ACCOUNT": "phys", "SACCT_FEDERATION": "1",
    "SCONTROL_ALL": "1", "SINFO_PARTITION": "shared", "SLURM_JOB_ID": "7",
    "PBS_DEFAULT": "elsewhere", "PBS_SERVER": "elsewhere", "PBS_DPREFIX": "#X", "PBS_PRIMARY": "elsewhere",
    "SGE_LONG_QNAMES": "9", "SGE_SINGLE_LINE": "1", "SGE_DEBUG_LEVEL": "2 0 0", "MORE_INFO": "1",
    "AWS_SECRET_ACCESS_KEY": "secret", "PYTHONPATH": "/nowhere", "LC_ALL": "de_DE.UTF-8", "TZ": "Europe/Berlin",
    "LC_TIME": "de_DE.UTF-8", "LANG": "de_DE.UTF-8",
}  # fmt: skip


def slurm(folder: Path) -> BatchSystem:
    return SlurmBatchSystem(folder, Cluster(launcher="fork", calls_per_min_max=1000), key=KEY)


def submit(batch: BatchSystem) -> str:
    return batch.submit(
        BatchSubmission(name="tm-here-e1-1", command=["true"], nodes=1, cores=1, memory_mb=0, walltime_s=60.0)
    )


def cancel(batch: BatchSystem) -> None:
    submit(batch)
    batch.cancel(["tm-here-e1-1"])


def test_what_passes_is_a_short_list_that_is_known_to_the_fakes() -> None:
    assert PASSED | set(SERVER_VARIABLES) | set(ONE_LANGUAGE) == ALLOWED
    kept = {name: f"of {name}" for name in PASSED}
    assert batch_environment(kept | HOSTILE) == kept | ONE_LANGUAGE


def test_the_server_of_pbs_is_the_one_that_the_site_names() -> None:
    named = batch_environment(HOSTILE, server="pbs.example.org")
    assert named == dict.fromkeys(SERVER_VARIABLES, "pbs.example.org") | ONE_LANGUAGE
    assert batch_environment(HOSTILE) == ONE_LANGUAGE


@pytest.mark.parametrize(
    "script",
    ["import site_of_a_centre", 'import os; os.environ["CENTRE_CONF"]', 'exit("CENTRE: unbound variable")'],
)
def test_a_wrapper_that_needs_a_variable_of_the_shell_fails_with_the_way_to_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    (tmp_path / "site_of_a_centre.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SiteError) as failed:
        run([sys.executable, "-c", script])
    assert "first on PATH, can set what it needs" in str(failed.value.hint)


def test_a_command_gets_that_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    seen = Budget(Cluster(server="pbs.example.org")).query(
        [sys.executable, "-c", "import os; print(*os.environ)"]
    )
    assert set(seen.output.decode().split()) <= ALLOWED
    assert set(run([sys.executable, "-c", "import os; print(*os.environ)"]).split()) <= PASSED | set(
        ONE_LANGUAGE
    )


@pytest.mark.parametrize(
    "act",
    [
        lambda batch: batch.snapshot(), lambda batch: batch.glance(), lambda batch: batch.facts(),
        lambda batch: batch.machine(), submit, cancel,
        lambda batch: submit(batch) and batch.status(["tm-here-e1-1"]),
        lambda batch: submit(batch) and batch.shorten({"tm-here-e1-1": 0.0}),
        lambda batch: ask_sacct(["sacct", "-a"], TIMEOUT_S),
    ],
    ids=["snapshot", "glance", "facts", "machine", "submit", "cancel", "status", "shorten", "accounting"],
)  # fmt: skip
def test_every_act_on_slurm_is_done_whatever_the_shell_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[BatchSystem], object]
) -> None:
    """The fake commands refuse to answer if they find another variable."""
    accounting = ["AccountingStorageType = accounting_storage/slurmdbd"]
    install(tmp_path / "bin", {"crowd": {"running": 3, "waiting": 3, "nodes": 4}, "config": accounting})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    batch = slurm(tmp_path / "site")
    act(batch)
    assert ask_sacct(["sacct", "-a"], TIMEOUT_S).status == 0
    assert batch.calls.failures == 0


def test_a_variable_that_is_not_on_the_list_is_refused_by_the_fakes(tmp_path: Path) -> None:
    install(tmp_path / "bin", {})
    clean = {"PATH": os.environ["PATH"], **ONE_LANGUAGE}
    words = [str(tmp_path / "bin" / "squeue")]
    assert run(words, environ=clean) == ""
    with pytest.raises(Exception, match="the environment holds SQUEUE_USERS"):
        run(words, environ={**clean, "SQUEUE_USERS": "ada"})


def test_a_token_of_slurm_that_was_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "import sys; sys.exit('slurm_load_jobs error: Protocol authentication error')"
    monkeypatch.delenv("SLURM_JWT", raising=False)
    with pytest.raises(SiteError) as failed:
        run([sys.executable, "-c", refusal])
    assert failed.value.hint is None
    monkeypatch.setenv("SLURM_JWT", "a.b.c")
    with pytest.raises(SiteError) as failed:
        run([sys.executable, "-c", refusal])
    assert "the token in SLURM_JWT may have expired" in (failed.value.hint or "")


OF_A_JOB = {
    "slurm": """SBATCH_MEM_BIND SBATCH_MEM_BIND_VERBOSE SLURM_ARRAY_TASK_ID SLURM_CLUSTER_NAME SLURM_CPUS_ON_NODE
        SLURM_CPU_BIND_LIST SLURM_CONTAINER SLURM_DISTRIBUTION SLURM_EXPORT_ENV SLURM_GPUS_ON_NODE SLURM_GPU_BIND
        SLURM_GPU_FREQ SLURM_GTIDS SLURM_HET_SIZE SLURM_JOBID SLURM_JOB_GPUS_HET_GROUP_1 SLURM_JOB_RESERVATION
        SLURM_LAUNCH_NODE_IPADDR SLURM_LOCALID SLURM_MEM_PER_CPU SLURM_NNODES SLURM_NODE_ALIASES SLURM_NPROCS
        SLURM_NTASKS_PER_GPU SLURM_OOM_KILL_STEP SLURM_OVERCOMMIT SLURM_PRIO_PROCESS SLURM_PROCID SLURM_PROFILE
        SLURM_PTY_WIN_COL SLURM_RESTART_COUNT SLURM_SHARDS_ON_NODE SLURM_SRUN_COMM_PORT SLURM_STEP_NODELIST
        SLURM_SUBMIT_HOST SLURM_TASKS_PER_NODE SLURM_TASK_PID SLURM_THREADS_PER_CORE SLURM_TOPOLOGY_ADDR_PATTERN
        SLURM_TRES_PER_TASK SLURM_UMASK SLURM_ARBITRARY_NODELIST SLURM_ACCTG_FREQ SLURM_NETWORK SLURM_LABELIO
        SLURM_SPANK_SETTING SLURMD_NODENAME SLURMD_DEBUG""",
    "pbs": """PBS_ARRAYID PBS_ARRAY_ID PBS_ARRAY_INDEX PBS_ENVIRONMENT PBS_GPUFILE PBS_JOBCOOKIE PBS_JOBDIR PBS_JOBID
        PBS_JOBNAME PBS_MICFILE PBS_MOMPORT PBS_NNODES PBS_NODEFILE PBS_NODENUM PBS_NP PBS_NUM_NODES PBS_NUM_PPN
        PBS_O_HOME PBS_O_WORKDIR PBS_PPN PBS_QUEUE PBS_SID PBS_TASKNUM PBS_TMPDIR PBS_VERSION PBS_VNODENUM
        PBS_WALLTIME""",
    "gridengine": """SGE_ACCOUNT SGE_ARCH SGE_BINARY_PATH SGE_BINDING SGE_CKPT_DIR SGE_CWD_PATH SGE_HGR_gpu
        SGE_JOBEXIT_STAT SGE_JOB_SPOOL_DIR SGE_NOTIFY_KILL_SIGNAL SGE_O_HOST SGE_RSH_COMMAND SGE_STARTER_SHELL_PATH
        SGE_STDERR_PATH SGE_TASK_STEPSIZE""",
}


@pytest.mark.parametrize("kind", OF_A_JOB)
def test_what_a_batch_system_sets_in_a_job_is_not_taken_for_a_wish_of_the_user(kind: str) -> None:
    assert ignored(OF_A_JOB[kind].split()) == []


def test_what_a_user_has_set_is_told_apart_from_what_a_job_finds_set() -> None:
    wishes = (
        "PBS_DPREFIX SBATCH_GRES SBATCH_QOS SGE_LONG_QNAMES SLURM_GRES SLURM_HINT SLURM_TIMELIMIT SQUEUE_SORT"
    )
    assert ignored(wishes.split()) == wishes.split()
    assert ignored(
        ["SQUEUE_USERS", "SBATCH_GRES", "SLURM_CONF", "SLURM_JOB_ID", "PBS_JOBID", "HOME", "SGE_ROOT"]
    ) == [
        "SBATCH_GRES",
        "SQUEUE_USERS",
    ]
