"""Whose fault it is that a payload that spans nodes failed, by what its launcher printed. Pure.

Sources of the words that are read: srun of Slurm 22.05 (`src/srun/libsrun/launch.c`, `src/slurmd/slurmstepd`), Hydra of
MPICH 4.0 (`bt_main.c`), mpirun of Open MPI 4.1 (`help-orterun.txt`); each was also seen on a real one in the tests.
"""

from __future__ import annotations

import re

from tidemill.model.failure import FailureClass
from tidemill.wire.node import Failed

NOT_FOUND = 127
"""Exit status of env(1) and shells where the program does not exist."""

_RANKS = (
    re.compile(r"srun: error: (?P<node>[^\s:]+): tasks? (?P<rank>[\d,\-]+): (?P<how>[^\n]+)"),
    re.compile(
        r"process rank (?P<rank>\d+) with PID \d+ on\s+node (?P<node>\S+) exited on\s+(?P<how>signal \d+[^\n.]*)"
    ),
    re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+(?P<how>Exit code:\s+\d+)(?P<node>)"),
    re.compile(r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<node>\S+)[^\n]*\n(?P<how>[^\n]*KILLED[^\n]*)"),
    re.compile(r"PID \d+ RUNNING AT (?P<node>\S+)\n=\s+(?P<how>EXIT CODE: \d+)(?P<rank>)"),
)
_NODE = re.compile(
    r"DUE TO NODE \S+ FAILURE|Node failure on \S+|ORTE has lost communication with a remote daemon|"
    r"HYDU_sock_[a-z]+ [^\n]*(?:lost|reset)|unable to (?:reach|contact) [^\n]*daemon",
    re.IGNORECASE,
)
_LAUNCHER = re.compile(r"^(?:/usr/bin/)?env: \W?([^\s:'‘’`\"]+)\W?: No such file or directory", re.MULTILINE)  # noqa: RUF001


def explain(record: Failed, failure: FailureClass) -> tuple[FailureClass, str]:
    """Class and message of a failed payload that spans nodes, by what its launcher printed."""
    text = record.stderr_tail
    absent = _LAUNCHER.search(text)
    if record.exit_status == NOT_FOUND and absent is not None:
        why = f"there is no `{absent[1]}` on the first node: set PATH in the application's environment"
        return FailureClass.DISPATCH, f"{why}, or `cluster.launcher` of the site"
    if failure is not FailureClass.PAYLOAD:
        return failure, record.message
    lost = _NODE.search(text)
    if lost is not None:
        return FailureClass.NODE, f"{record.message}; the launcher says: {lost[0]}"
    for pattern in _RANKS:
        found = pattern.search(text)
        if found is not None:
            who = f"rank {found['rank']}" if found["rank"] else "a rank"
            where = f" on {found['node']}" if found["node"] else ""
            return failure, f"{who}{where}: {' '.join(found['how'].split())} ({record.message})"
    return failure, record.message
