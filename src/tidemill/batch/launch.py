"""What starts a command on every node of an allocation, or the ranks of a payload: srun, pbsdsh, mpiexec, or a fork.

The words returned here run in the allocation, on its first node. Whatever the launcher, the command gets its number,
one TERM to the first process reaches every node as TERM, USR1 as USR1, a node whose command fails does not end the
others, and the status that comes back is not 0 if any was not.

Tried here: MPICH 4.0.2 (Hydra), Open MPI 4.1.4, srun of Slurm 22.05.8. What they do by themselves:
Hydra forwards TERM, INT, QUIT, USR1 and ALRM to all ranks, and is killed by USR2 and HUP; one rank killed by a signal
ends the others; its status is the bitwise "or" of all. Open MPI forwards USR1 and USR2; at TERM it waits for a second,
sends TERM, and KILL a second later; one rank that ends with another status than 0 ends the others, and the status that
then comes back is the first one's. So with Open MPI, TERM travels as USR2, and ranks never fail towards the launcher.
pbsdsh of OpenPBS 23.06 starts a command on each node through the MoMs, ends with 0 whatever the commands do, and dies
of USR1: signals travel by a second pbsdsh. Under PBS an mpiexec without its library (Debian's) would start all ranks on
the first node: it gets the list of hosts, and pbsdsh in place of ssh. A rank that finds more of its kind on its
node than there should be ends with MISPLACED before the command starts.
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

KINDS = ("srun", "pbsdsh", "mpich", "openmpi", "fork")
MISPLACED = 78
"""Exit status of a launch whose ranks are not on the nodes that they should be on."""

MISPLACED_WORDS = "tidemill: ranks are not on their nodes"
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
"""Variables that number a process: of our fork, srun(1), PMI-1 and -2 (MPICH), PMIx, Open MPI, HPE PALS, Cray ALPS."""

_PROGRAMS = {
    "srun": ("srun",),
    "mpich": ("mpiexec", "mpiexec.hydra", "mpiexec.mpich"),
    "openmpi": ("mpiexec", "mpiexec.openmpi"),
}

# The first node, before the launcher: how many hosts there really are, and under PBS where they are. An mpiexec without
# PBS's library reaches them by pbsdsh, in the place of ssh: AGENT HOST COMMAND (rsh(1)). What a site sets stays.
_HOSTS = """agents=
trap '[ -z "$agents" ] || rm -rf "$agents"' EXIT
if [ -s "${PBS_NODEFILE:-}" ]; then
    TIDEMILL_HOSTS=$(uniq "$PBS_NODEFILE" | wc -l)
elif [ -s "${PE_HOSTFILE:-}" ]; then
    TIDEMILL_HOSTS=$(cut -d ' ' -f 1 "$PE_HOSTFILE" | sort -u | wc -l)
else
    TIDEMILL_HOSTS=${SLURM_JOB_NUM_NODES:-1}
fi
export TIDEMILL_HOSTS
if [ -s "${PBS_NODEFILE:-}" ] && [ "$TIDEMILL_HOSTS" -gt 1 ] && command -v pbsdsh >/dev/null; then
    agents=$(mktemp -d) || exit 1
    (umask 077; uniq "$PBS_NODEFILE" > "$agents/hosts")
    {
        echo '#!/bin/sh'
        echo 'while [ "${1#-}" != "$1" ]; do shift; done'
        echo 'host=$1'
        echo 'shift'
        echo 'exec pbsdsh -h "$host" -- /bin/sh -c "$*"'
    } > "$agents/agent"
    chmod 700 "$agents/agent"
    # the first node starts all daemons of Open MPI: those of a tree would not find the agent on their own nodes
    export HYDRA_LAUNCHER="${HYDRA_LAUNCHER:-rsh}" HYDRA_LAUNCHER_EXEC="${HYDRA_LAUNCHER_EXEC:-$agents/agent}"
    export HYDRA_HOST_FILE="${HYDRA_HOST_FILE:-$agents/hosts}"
    export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-$agents/agent}" OMPI_MCA_routed_radix=4096
    export OMPI_MCA_orte_default_hostfile="${OMPI_MCA_orte_default_hostfile:-$agents/hosts}"
    export PRTE_MCA_plm_ssh_agent="${PRTE_MCA_plm_ssh_agent:-$agents/agent}" PRTE_MCA_prte_routed_radix=4096
    export PRTE_MCA_prte_default_hostfile="${PRTE_MCA_prte_default_hostfile:-$agents/hosts}"
fi
"""

# Each task of srun(1), which sets SLURMD_NODENAME in it: the variable of Tidemill came with the launcher's environment.
_NAMED = 'export TIDEMILL_NODE="$SLURMD_NODENAME"; exec "$@"'

# Each rank: the name of its host, since mpiexec gives all ranks the first node's variables. Then whether there are too
# many of its kind on its node: TIDEMILL_HOSTS is seen on the first node at least, where all ranks are when the launcher
# reaches no other.
_PLACED = """export TIDEMILL_NODE="$(uname -n)"
here=${MPI_LOCALNRANKS:-${OMPI_COMM_WORLD_LOCAL_SIZE:-1}}
if [ "$here" -gt "$most" ] && [ "${TIDEMILL_HOSTS:-1}" -gt 1 ]; then
    echo "@WORDS@: $here of them are on $(uname -n), where $most should be: the launcher does not reach the other" \
        "$((TIDEMILL_HOSTS - 1)) nodes; see cluster.launcher" >&2
    placed=
else
    placed=1
fi
""".replace("@WORDS@", MISPLACED_WORDS)

# A rank of a payload: itself, where it should be.
_RANK = f"""most=$1
shift
{_PLACED}
[ "$placed" ] || exit {MISPLACED}
exec "$@"
"""

# Each node: the command's own status goes to a file, towards the launcher all is well. USR2 is the launcher's TERM.
# Launchers signal whole process groups, so the command ignores USR2.
_EACH = f"""status_files=$1 most=$2
shift 2
{_PLACED}
rank=${{PBS_NODENUM:-0}}
if [ "$most" = 0 ]; then
    (umask g-w,o-w; echo $$ > "$status_files.pid.$rank")
else
    rank=${{SLURM_PROCID:-${{PMI_RANK:-${{OMPI_COMM_WORLD_RANK:-0}}}}}}
fi
if [ "$placed" ]; then
    (trap '' USR2; exec "$@") &
else
    (exit {MISPLACED}) &
fi
child=$!
forward() {{ forwarded=1; kill -"$1" $child 2>/dev/null; }}
trap 'forward TERM' TERM USR2
trap 'forward USR1' USR1
while :; do
    forwarded=
    wait $child
    status=$?
    [ "$forwarded" ] || break
done
[ "$status_files" ] || exit $status
[ $status = 0 ] && [ "$most" != 0 ] || (umask g-w,o-w; echo $status > "$status_files.$rank")
exit 0
"""
# The first node: the launcher, its signals, and the worst of all statuses.
_ALL = (
    """term=$1 status_files=$2
shift 2
"""
    + _HOSTS
    + """
[ -z "$status_files" ] || rm -f "$status_files".[0-9]*  # of an earlier run of this element
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
)

# The first node under PBS: every node writes its status, so that one which never started is missed. Signals go to the
# process that each has noted.
_PBSDSH = """nodes=$1 status_files=$2 each=$3
shift 3
rm -f "$status_files".[0-9]* "$status_files".pid.[0-9]*  # of an earlier run of this element
pbsdsh -- /bin/sh -c "$each" sh "$status_files" 0 "$@" &
child=$!
forward() {
    forwarded=1
    pbsdsh -- /bin/sh -c 'read -r pid < "$1.pid.${PBS_NODENUM:-0}" && kill -"$2" "$pid"' sh "$status_files" "$1" &
}
trap 'forward TERM' TERM
trap 'forward USR1' USR1
while :; do
    forwarded=
    wait $child
    launched=$?
    [ "$forwarded" ] || break
done
worst=0 rank=0 tries=15  # of all nodes together: an allocation whose launcher failed is not held for it
while [ $rank -lt "$nodes" ]; do
    file=$status_files.$rank
    while [ ! -s "$file" ] && [ $tries -gt 0 ]; do  # a file system may show it later
        sleep 1
        tries=$((tries - 1))
    done
    if [ -s "$file" ] && read -r status < "$file"; then
        [ "$status" -gt $worst ] && worst=$status
    else
        echo "@WORDS@: pbsdsh ended with $launched, and node $rank of $nodes has no status" >&2
        worst=@MISPLACED@
    fi
    rm -f "$file" "$status_files.pid.$rank"
    rank=$((rank + 1))
done
exit $worst
""".replace("@WORDS@", MISPLACED_WORDS).replace("@MISPLACED@", str(MISPLACED))

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
    if kind == "pbsdsh":
        if status_files is None:
            raise ConfigError("`pbsdsh` does not report how its commands ended", hint="`status_files`")
        return ["/bin/sh", "-c", _PBSDSH, "sh", str(nodes), os.fspath(status_files), _EACH, *command]
    each = ["/bin/sh", "-c", _EACH, "sh", os.fspath(status_files or ""), "1", *command]
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
            "--kill-on-bad-exit=1", "/bin/sh", "-c", _NAMED, "sh", *command,
        ]  # fmt: skip
    if kind == "mpich":
        each = ["/bin/sh", "-c", _RANK, "sh", str(per_node), *command]
        started = [program(kind), "-n", str(ranks), "-ppn", str(per_node), *each]
        return ["/bin/sh", "-c", _ALL, "sh", "TERM", "", *started]
    if kind == "openmpi":
        each = ["/bin/sh", "-c", _EACH, "sh", "", str(per_node), *command]
        started = [program(kind), "-n", str(ranks), "--map-by", "node", "--rank-by", "slot"]
        rules = _openmpi_rules(keep_others=False)
        return ["/bin/sh", "-c", _ALL, "sh", "USR2", "", *rules, *started, *each]
    if kind == "fork" and ranks == 1:
        return list(command)
    if kind in ("fork", "pbsdsh"):
        raise ConfigError(
            f"`{kind}` connects no ranks: it starts one rank, not {ranks}",
            hint="set `cluster.launcher` to mpiexec",
        )
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
    if wanted in ("fork", "srun", "pbsdsh"):
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
    result = [name for name in ("srun", "pbsdsh") if shutil.which(name)]
    for name in ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi"):
        text = _version(name)
        kind = kind_of(name)
        if kind:
            shown = "MPICH" if kind == "mpich" else "Open MPI"
            match = re.search(r"Version:\s*(\S+)|\)\s+(\d[\w.]*)", text)
            result.append(f"{name} ({shown} {next(filter(None, match.groups()), '')})" if match else name)
    return result


def kind_of(name: str) -> str:
    """`mpich`, `openmpi` or empty for a program that is another one, or not there."""
    text = _version(name)
    if "HYDRA" in text or "Intel(R) MPI" in text:
        return "mpich"
    return "openmpi" if "OpenRTE" in text or "Open MPI" in text else ""


def rank_of(environ: Mapping[str, str]) -> int:
    """A process's number, as its launcher sets it in the environment; 0 where no launcher sets one."""
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


@lru_cache
def _version(name: str) -> str:
    if shutil.which(name) is None:
        return ""
    try:
        # this asks no batch system, and an MPI that was moved needs variables of its module, such as OPAL_PREFIX
        reply = ask([name, "--version"], timeout_s=VERSION_TIMEOUT_S, environ=os.environ)
    except SiteError:
        return ""
    return reply.output.decode(errors="replace") + reply.errors


def _openmpi_rules(*, keep_others: bool) -> list[str]:
    """Variables of mpirun(1), of Open MPI 4 and (PRTE) 5: it may run as root, a container's usual user, and may start
    more processes than cores. With `keep_others`, a node that fails leaves the others running."""
    rules = ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    rules += ["OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"]
    if keep_others:
        rules += ["OMPI_MCA_orte_abort_on_non_zero_status=0"]
    return rules


def _unknown(kind: str) -> ConfigError:
    return ConfigError(f"`{kind}` is not a launcher", hint=f"known: {', '.join(KINDS)}")
