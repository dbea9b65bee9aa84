"""Payloads that span nodes, as a node sees them: what starts them, with which words and variables."""

from __future__ import annotations

import msgspec

from tidemill.batch.launch import detect, mpi_words
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.log import Log
from tidemill.model.job import Width

ENV = "/usr/bin/env"
"""Finds the launcher on the node's PATH, where it need not lie as here."""

PASSED = [
    "PATH",
    "LD_LIBRARY_PATH",
    "TIDEMILL_ALLOCATION",
    *("SLURM*", "PBS_*", "NCPUS", "JOB_ID", "JOB_NAME", "QUEUE", "NHOSTS", "NSLOTS", "PE_HOSTFILE", "SGE_*"),
    *("LSB_*", "LS_*", "COBALT_*", "PMI_*", "PMI2_*", "PMIX_*", "PALS_*", "ALPS_*"),
    *("OMPI_*", "PRTE_*", "HYDRA_*", "MPICH_*", "MPIEXEC_*", "I_MPI_*", "UCX_*", "FI_*", "CRAY*"),
]
"""Variables of the allocation that launchers and MPI libraries read; payloads of ordinary jobs see none of them."""

_log = Log("ranks")


class Launching(msgspec.Struct, frozen=True):
    """How a site starts payloads that span nodes: with what (empty = not at all), on how many nodes at most."""

    launcher: str = ""
    nodes: int = 0


def find_launcher(config: SiteConfig) -> str:
    """`srun`, `mpich`, `openmpi`, or empty where there is nothing that connects ranks."""
    try:
        wanted = config.cluster.launcher
        # pbsdsh starts processes on nodes, but connects no ranks: mpiexec does, by pbsdsh
        kind = detect("auto" if wanted == "pbsdsh" else wanted, own="srun" if config.batch == "slurm" else "")
    except ConfigError as error:
        _log.warning("launcher.absent", reason=error.message, hint=error.hint)
        return ""
    return "" if kind == "fork" else kind


def launcher_words(launcher: str, width: Width) -> list[str]:
    """What stands before the program and its arguments. Raises ConfigError for an unknown launcher."""
    return mpi_words(launcher, width.nodes, width.ranks, [])


def rank_environment(width: Width, cores: int) -> dict[str, str]:
    """Variables of a payload that spans nodes, besides its events."""
    return {
        "OMP_NUM_THREADS": str(cores),
        "TIDEMILL_CORES": str(cores),
        "TIDEMILL_NODES": str(width.nodes),
        "TIDEMILL_RANKS": str(width.ranks),
    }
