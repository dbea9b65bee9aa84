"""The environment of every command of a batch system: a short list of what passes, whatever the user's shell exports.

SQUEUE_USERS in a profile would hide regular jobs from the agent; SBATCH_ARRAY_INX would turn one allocation into two.
These commands have no options that undo all such variables, so none of them passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL",
        # For clients outside the system's folders: it changes which library is loaded, never what is asked.
        # PYTHONPATH and the like do not pass: a centre's wrapper brings its own modules, and a user's can break it.
        "LD_LIBRARY_PATH",
        # Variables that identify the user: the path of a Kerberos ticket (PBS, plugins of Slurm), the socket of
        # auth/slurm in an unusual place, and the token of auth/jwt. The token changes nothing in a request, and without
        # munge and auth/slurm it is the only way in (slurm.schedmd.com, "jwt"). Scripts of jobs unset it.
        "KRB5CCNAME", "SLURM_SACK_SOCKET", "SLURM_JWT",
        # The cluster's place: slurm.conf(5); sge_intro(1); pbs.conf(8B)
        "SLURM_CONF", "SLURM_CONF_SERVER",
        "SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT",
        "PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME",
    }
)  # fmt: skip
"""Variables that pass. The server of PBS is not among them: the site names it (`cluster.server`)."""

ONE_LANGUAGE = {"LC_ALL": "C", "TZ": "UTC"}
"""Makes replies parsable: English, bytes unchanged, and UTC."""

SERVER_VARIABLES = ("PBS_DEFAULT", "PBS_SERVER")
"""Variables that make Torque, PBS Professional and OpenPBS use another server than that of pbs.conf(8B)."""

OBEYED_PREFIXES = (
    "SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SACCT_", "SCONTROL_", "SINFO_", "SPRIO_", "PBS_", "SGE_",
)  # fmt: skip
"""Prefixes of the variables that commands of batch systems obey."""

OF_A_JOB = (
    "SLURM_JOB", "SLURM_STEP", "SLURM_TASK", "SLURM_NODE", "SLURM_LOCAL", "SLURM_PROC", "SLURM_CPU", "SLURM_SUBMIT_",
    "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_CLUSTER_NAME", "SLURM_GTIDS", "SLURM_GPU", "SLURM_SCRIPT_",
    "SLURM_LAUNCH_", "SLURM_SRUN_", "SLURM_TOPOLOGY_", "SLURM_WORKING_", "SLURM_PRIO_", "SLURM_OOM", "SLURM_UMASK",
    "SLURM_PTY_", "SLURM_ARRAY_", "SLURM_EXPORT_", "SLURM_MEM_", "SLURM_MPI_", "SLURM_DIST", "SLURM_HET_", "SLURMD_",
    "SLURM_RESTART_", "SLURM_SHARDS_", "SLURM_OVERCOMMIT", "SLURM_PROFILE", "SLURM_THREADS_PER_CORE", "SLURM_TRES_",
    "SLURM_CONTAINER", "SLURM_ARBITRARY_", "SLURM_ACCTG_FREQ", "SLURM_NETWORK", "SLURM_LABELIO", "SLURM_OPEN_MODE",
    "SLURM_SPANK_", "SLURM_PACK_", "SLURM_RLIMIT_", "SLURM_PMI", "SLURM_SLUID", "SBATCH_MEM_BIND",
    "PBS_O_", "PBS_JOB", "PBS_NODE", "PBS_TASK", "PBS_MOM", "PBS_QUEUE", "PBS_ENVIRONMENT", "PBS_ARRAY", "PBS_COOKIE",
    "PBS_NP", "PBS_NUM_", "PBS_NNODES", "PBS_PPN", "PBS_GPUFILE", "PBS_MICFILE", "PBS_WALLTIME", "PBS_VNODENUM",
    "PBS_VERSION", "PBS_TMPDIR", "PBS_SID", "PBS_CPUSET_",
    "SGE_O_", "SGE_TASK_", "SGE_JOB", "SGE_STD", "SGE_CWD", "SGE_ARCH", "SGE_BINARY_", "SGE_ACCOUNT", "SGE_CKPT",
    "SGE_BINDING", "SGE_HGR_", "SGE_RSH_COMMAND", "SGE_NOTIFY_", "SGE_STARTER_",
)  # fmt: skip
"""Prefixes of variables that a batch system itself sets in a job: sbatch(1) and srun(1), "output environment
variables", and env.c of Slurm; qsub(1B) of OpenPBS and Torque; qsub(1) and queue_conf(5) of Grid Engine and Univa's."""


def batch_environment(environ: Mapping[str, str], *, server: str = "") -> dict[str, str]:
    """The environment of a batch command. `server`: the server of PBS in site.toml."""
    passed = {name: environ[name] for name in PASSED if name in environ}
    named = dict.fromkeys(SERVER_VARIABLES, server) if server else {}
    return {**passed, **named, **ONE_LANGUAGE}


def ignored(names: Iterable[str]) -> list[str]:
    """Variables that a user has set for batch commands and that Tidemill ignores."""
    return sorted(
        name
        for name in names
        if name.startswith(OBEYED_PREFIXES) and name not in PASSED and not name.startswith(OF_A_JOB)
    )
