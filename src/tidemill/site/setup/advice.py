"""What batch systems say when something is wrong, and what to do about it. Pure."""

from __future__ import annotations

import re

_ADVICE = (
    (r"could not establish a configuration source|SGE_ROOT|act_qmaster|ClusterName needs|pbs\.conf",
     "the batch commands are installed but belong to no cluster: load the centre's module, or log in to a login node"),
    (r"unable to contact slurm controller|unable to contact qmaster|commlib error|cannot connect to server|"
     r"connection refused|controller.{0,200} not responding|timed? ?out|did not answer",
     "the batch system's controller does not answer: try again; if it lasts, ask the centre's staff"),
    (r"no program", "are you on a login node, with the batch commands on PATH? `--batch local` uses this machine"),
    (r"invalid account|account/partition|unknown project|unauthorized request|project .{0,200} does not exist|"
     r"invalid .{0,200}project|charge account",
     "name an account of yours: [[accounts]] of site.toml, or `tidemill site init --account NAME`; Slurm lists them: "
     "sacctmgr show assoc user=$USER"),
    (r"invalid partition|unknown queue|requested queue .{0,200} does not exist|partition name specified",
     "name a partition that exists: `partition` in [cluster] of site.toml, or `tidemill site init --partition NAME`"),
    (r"not permitted to use this partition|access.?/?permission denied|not allowed|no suitable queue|"
     r"not authorized|access to queue is denied",
     "you may not use it: name another `partition` in [cluster] of site.toml (`tidemill site init --partition NAME`), "
     "or ask the centre's staff for access"),
    (r"is not up|partition.{0,200}(down|inactive|drain)|required partition not available|queue is not enabled|"
     r"disabled on requested",
     "the partition is closed: wait, or name another one in [cluster] of site.toml (`tidemill site init --partition "
     "NAME`)"),
    (r"qos|accounting/qos|job violates|limit|exceeds",
     "a limit of the centre stands in the way: ask for less, or ask the staff"),
    (r"disk quota|quota exceeded|no space left",
     "free some space, or make the site elsewhere: `tidemill site init DIR`"),
)  # fmt: skip


MESSAGE_CHARACTERS_MAX = 10_000


def advise(message: str) -> str | None:
    """What to do about an error of a batch system, None where we do not know."""
    for pattern, advice in _ADVICE:
        if re.search(pattern, message[:MESSAGE_CHARACTERS_MAX], re.IGNORECASE):
            return advice
    return None


def is_unconfigured(message: str) -> bool:
    """Whether batch commands are installed here, but no cluster behind them is."""
    return bool(re.search(_ADVICE[0][0], message, re.IGNORECASE))
