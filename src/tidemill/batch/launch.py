"""What starts a command on every node of an allocation, or the ranks of a payload: srun, mpiexec, or a plain fork.

The words returned here run in the allocation, on its first node. Whatever the launcher, the command gets its number,
one TERM to the first process reaches every node as TERM, USR1 as USR1, a node whose command fails does not end the
others, and the status that comes back is not 0 if any was not.

Tried here: MPICH 4.0.2 (Hydra), Open MPI 4.1.4, srun of Slurm 22.05.8. What they do by themselves:
Hydra forwards TERM, INT, QUIT, USR1 and ALRM to all ranks, and is killed by USR2 and HUP; one rank killed by a signal
ends the others; its status is the bitwise "or" of all. Open MPI forwards USR1 and USR2; at TERM it waits for a second,
sends TERM, and KILL a second later; one rank that ends with another status than 0 ends the others, and the status that
then comes back is the first one's. So with Open MPI, TERM travels as USR2, and ranks never fail towards the launcher.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from tidemill.batch.run import ask
from tidemill.errors import ConfigError, SiteError

KINDS = ("srun", "mpich", "openmpi", "fork")
VERSION_TIMEOUT_S = 20.0

RANK_VARIABLES = (
    "TIDEMILL_RANK",
    "SLURM_PROCID",
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PALS_RANKID",
    "ALPS_APP_PE",
)
"""Who tells a process its number: our fork, srun(1), PMI-1 and -2 (MPICH), PMIx, Open MPI, HPE PALS, Cray ALPS."""

_PROGRAMS = {
    "srun": ("srun",),
    "mpich": ("mpiexec", "mpiexec.hydra", "mpiexec.mpich"),
    "openmpi": ("mpiexec", "mpiexec.openmpi"),
}

# Each node: the command's own status goes to a file, towards the launcher all is well. USR2 is the launcher's TERM.
# Launchers signal whole process groups, so the command ignores USR2.
_EACH = """status_files=$1
shift
(trap '' USR2; exec "$@") &
child=$!
forward() { forwarded=1; kill -"$1" $child 2>/dev/null; }
trap 'forward TERM' TERM USR2
trap 'forward USR1' USR1
while :; do
    forwarded=
    wait $child
    status=$?
    [ "$forwarded" ] || break
done
[ "$status_files" ] || exit $status
rank=${SLURM_PROCID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}
[ $status = 0 ] || echo $status > "$status_files.$rank"
exit 0
"""

# The first node: the launcher, its signals, and the worst of all statuses.
_ALL = """term=$1 status_files=$2
shift 2
"$@" &
child=$!
forward() { forwarded=1; kill -"$1" $child 2>/dev/null; }
trap 'forward '"$term" TERM
trap 'forward USR1' USR1
while :; do
    forwarded=
    wait $child
    worst=$?
    [ "$forwarded" ] || break
done
[ "$status_files" ] || exit $worst
for file in "$status_files".[0-9]*; do
    [ -e "$file" ] || continue
    read -r status < "$file"
    rm -f "$file"
    [ "$status" -gt $worst ] && worst=$status
done
exit $worst
"""

# Every "node" is this one.
_FORK = """nodes=$1
shift
children= rank=0
forward() { forwarded=1; kill -"$1" $children 2>/dev/null; }
trap 'forward TERM' TERM
trap 'forward USR1' USR1
while [ $rank -lt "$nodes" ]; do
    TIDEMILL_RANK=$rank "$@" &
    children="$children $!"
    rank=$((rank + 1))
done
worst=0
for child in $children; do
    while :; do
        forwarded=
        wait $child
        status=$?
        [ "$forwarded" ] || break
    done
    [ $status -gt $worst ] && worst=$status
done
exit $worst
"""


def launch_words(kind: str, nodes: int, command: list[str], *, status_files: Path | None = None) -> list[str]:
    """The words that run `command` once on each of the allocation's nodes; on one node the command itself.

    `kind`: one of KINDS. `status_files`: start of the names of small files on a file system that all nodes share, for
    the statuses of those that fail; without it the launcher's own rules hold when a node's command fails. Raises
    ConfigError.
    """
    if nodes == 1 and kind in KINDS:
        return list(command)
    if kind == "fork":
        return ["/bin/sh", "-c", _FORK, "sh", str(nodes), *command]
    if kind == "srun":
        # Where Slurm binds tasks (TaskPlugin=task/affinity), one task of a node would get one core: pilots bind slots.
        words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
        return [*words, "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", *command]
    each = ["/bin/sh", "-c", _EACH, "sh", os.fspath(status_files or ""), *command]
    if kind == "mpich":
        started = [program(kind), "-n", str(nodes), "-ppn", "1", "-bind-to", "none", *each]
        return ["/bin/sh", "-c", _ALL, "sh", "TERM", os.fspath(status_files or ""), *started]
    if kind == "openmpi":
        rules = _openmpi_rules(keep_others=status_files is not None)
        started = [program(kind), "-n", str(nodes), "--map-by", "node", "--bind-to", "none"]
        return [
            "/bin/sh", "-c", _ALL, "sh", "USR2", os.fspath(status_files or ""), *rules, *started, *each,
        ]  # fmt: skip
    raise _unknown(kind)


def mpi_words(kind: str, nodes: int, ranks: int, command: list[str]) -> list[str]:
    """The words that run a payload of R ranks on N nodes, evenly spread; one rank that fails ends them all.

    Raises ConfigError, also for `fork` with more than one rank: a fork cannot connect ranks.
    """
    per_node = -(-ranks // nodes)
    if kind == "srun":
        return [
            "srun", f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={per_node}",
            "--kill-on-bad-exit=1", *command,
        ]  # fmt: skip
    if kind == "mpich":
        return [program(kind), "-n", str(ranks), "-ppn", str(per_node), *command]
    if kind == "openmpi":
        each = ["/bin/sh", "-c", _EACH, "sh", "", *command]
        started = [program(kind), "-n", str(ranks), "--map-by", "node", "--rank-by", "slot"]
        rules = _openmpi_rules(keep_others=False)
        return ["/bin/sh", "-c", _ALL, "sh", "USR2", "", *rules, *started, *each]
    if kind == "fork" and ranks == 1:
        return list(command)
    if kind == "fork":
        raise ConfigError(f"`fork` starts one rank, not {ranks}", hint="set `cluster.launcher` to mpiexec")
    raise _unknown(kind)


def program(kind: str) -> str:
    """The program of a launcher on PATH, the plain name where that is of this kind. Where none is found the plain name:
    it may be found on the nodes."""
    for name in _PROGRAMS[kind]:
        if kind == "srun" and shutil.which(name):
            return name
        if kind_of(name) == kind:
            return name
    return _PROGRAMS[kind][0]


def detect(wanted: str, *, own: str = "") -> str:
    """The kind of launcher for `cluster.launcher`; `own`: the batch system's own, which `auto` prefers.

    Raises ConfigError when mpiexec is wanted and there is none.
    """
    if wanted in ("fork", "srun"):
        return wanted
    if wanted == "auto" and own:
        return own
    for name in ("mpiexec", "mpiexec.hydra", "mpiexec.openmpi"):
        kind = kind_of(name)
        if kind:
            return kind
    if wanted == "auto":
        return "fork"
    raise ConfigError("there is no mpiexec of MPICH or Open MPI on PATH", hint="`cluster.launcher`")


def describe() -> list[str]:
    """The launchers that are here, for people: `mpiexec (Open MPI 4.1.4)`."""
    found = ["srun"] if shutil.which("srun") else []
    for name in ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi"):
        text = _version(name)
        kind = kind_of(name)
        if kind:
            shown = "MPICH" if kind == "mpich" else "Open MPI"
            match = re.search(r"Version:\s*(\S+)|\)\s+(\d[\w.]*)", text)
            found.append(f"{name} ({shown} {next(filter(None, match.groups()), '')})" if match else name)
    return found


def kind_of(name: str) -> str:
    """`mpich`, `openmpi` or empty for a program that is another one, or not there."""
    text = _version(name)
    if "HYDRA" in text or "Intel(R) MPI" in text:
        return "mpich"
    return "openmpi" if "OpenRTE" in text or "Open MPI" in text else ""


def rank_of(environ: Mapping[str, str]) -> int:
    """A process's number, as its launcher tells it; 0 where none does."""
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


@lru_cache
def _version(name: str) -> str:
    if shutil.which(name) is None:
        return ""
    try:
        reply = ask([name, "--version"], timeout_s=VERSION_TIMEOUT_S)
    except SiteError:
        return ""
    return reply.output.decode(errors="replace") + reply.errors


def _openmpi_rules(*, keep_others: bool) -> list[str]:
    """Variables of mpirun(1), of Open MPI 4 and (PRTE) 5: it may run as root, which is a container's usual user; more
    processes than cores are none of its business; a node that fails leaves the others alone."""
    rules = ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    rules += ["OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"]
    if keep_others:
        rules += ["OMPI_MCA_orte_abort_on_non_zero_status=0"]
    return rules


def _unknown(kind: str) -> ConfigError:
    return ConfigError(f"`{kind}` is no launcher", hint=f"known: {', '.join(KINDS)}")
