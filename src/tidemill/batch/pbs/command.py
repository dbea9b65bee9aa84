"""Command lines of PBS, and what its exit statuses mean. Pure. Source: qsub(1B), qalter(1B), `job.h` of OpenPBS."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemill.batch import constants
from tidemill.batch.contract import BatchSubmission, Ending
from tidemill.batch.pbs.replies import Record, read_number, text_of
from tidemill.batch.run import CommandResult, Refusal
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState

KEY, NAME = "TIDEMILL_KEY", "TIDEMILL_NAME"
OLD_NAME_CHARS_MAX = 15
"""Before PBS Professional 13 names had no more; today 236. What counts is the variable NAME."""

_ID = re.compile(rb"(?m)^(\d+(?:\[\])?(?:\.[\w.-]+)?)\s*$")

WORDS = (
    ("cannot connect to server", Refusal.AWAY),
    ("couldn't connect to cluster", Refusal.AWAY),
    ("connection refused", Refusal.AWAY),
    ("no route to host", Refusal.AWAY),
    ("communication failure", Refusal.AWAY),
    ("end of file", Refusal.AWAY),
    ("unknown job id", Refusal.UNKNOWN),
    ("job has finished", Refusal.UNKNOWN),
    ("request invalid for finished", Refusal.UNKNOWN),
    ("would exceed", Refusal.LIMIT),
    ("exceeds queue and/or server resource limits", Refusal.DENIED),
    ("array job exceeds server or queue size limit", Refusal.DENIED),
    ("limit", Refusal.LIMIT),
    ("illegal", Refusal.DENIED),
    ("unauthorized", Refusal.DENIED),
    ("unknown queue", Refusal.DENIED),
    ("unknown resource", Refusal.DENIED),
    ("invalid", Refusal.DENIED),
    ("cannot submit", Refusal.DENIED),
)
"""Words of the commands, lower case."""

USAGE_STATUS = 2
GONE_STATUSES = {153, 35}
"""`errno` modulo 256 of 15001, unknown job id, and 15139, job has finished."""

PRIORITY_MIN = -1024
"""The least priority that users may give (qsub(1B), `-p`)."""

AFTER_END_S = 10.0
"""Time from the expected end of a job to the limit that announces it: PBS must not reach the limit first."""

TOGETHER_S = 30.0
"""Jobs whose starts differ by less get one limit: the end that PBS plans with is later by at most that."""

IDS_MAX = 2_000
"""Numbers in one command: each takes some 20 bytes of the 2 MB that the words of a command may have."""

LIMITS_MAX = 3
"""Commands that may precede a deletion: they take a tenth of a second each, and count against the bound."""

_LAUNCH = {-1, -2, -3, -10, -11, -16, -17, -18, -19, -22, -30, -32}
_ENDINGS = {
    -4: Ending.NODE,  # -4 to -6: it ran, and the MoM aborted it when that started again
    -5: Ending.NODE,
    -6: Ending.NODE,
    -14: Ending.NODE,
    -20: Ending.NODE,
    -26: Ending.MEMORY,
    -27: Ending.MEMORY,
    -31: Ending.MEMORY,
    -29: Ending.WALLTIME,
    271: Ending.CANCELED,
    265: Ending.CANCELED,
}

STATES = {
    Ending.DONE: AllocationState.COMPLETED,
    Ending.WALLTIME: AllocationState.COMPLETED,
    Ending.CANCELED: AllocationState.CANCELED,
    Ending.DEADLINE: AllocationState.CANCELED,
    Ending.PREEMPTED: AllocationState.CANCELED,
}
"""All others are FAILED."""


def submit_words(submission: BatchSubmission, config: Cluster, *, key: str, account: str) -> list[str]:
    """`qsub` without `-N` and what runs. A line of `directives` comes last, and wins."""
    chunk = f"{submission.nodes}:ncpus={max(1, submission.cores)}"
    if submission.memory_mb:
        chunk += f":mem={submission.memory_mb}mb"
    if submission.gpus:
        chunk += f":ngpus={submission.gpus}"
    for feature in dict.fromkeys([*config.features, *submission.features]):
        chunk += f":{feature}" if "=" in feature else f":{feature}=True"
    # an array that may not be rerun is refused (OpenPBS since 14): "cannot submit non-rerunable Array Job"
    rerun = "n" if submission.count == 1 else "y"
    words = ["qsub", "-o", "/dev/null", "-j", "oe", "-r", rerun, "-m", "n"]
    words += ["-l", f"select={chunk}", "-l", "place=scatter:excl" if submission.nodes > 1 else "place=free"]
    words += ["-l", f"walltime={max(1, math.ceil(submission.walltime_s))}"]
    if submission.polite and constants.NICE > 0:
        words += ["-p", str(max(PRIORITY_MIN, -constants.NICE))]
    if submission.walltime_min_s is not None and submission.count == 1:
        words += ["-l", f"min_walltime={max(1, math.ceil(submission.walltime_min_s))}"]
    words += ["-v", f"{KEY}={key},{NAME}={submission.name},TIDEMILL_ABOUT={_plain(submission.comment)}"]
    if submission.count > 1:
        words += ["-J", f"0-{submission.count - 1}"]
    queue = config.reservation or submission.partition or config.partition
    words += ["-q", queue] if queue else []
    billed = submission.account or account
    words += ["-A", billed] if billed else []
    for line in config.directives:
        words += line.split()
    return words


def script_words(script: Path) -> list[str]:
    """The end of a `qsub`: what runs, in the user's login environment, as a script that PBS copies would.

    Of such a copy a login shell leads the session, which TERM ends first. The MoM then finds processes of the job alive
    and looks again at its next sample, up to 19 s after `qdel` (resmom/linux/mom_start.c, scan_for_terminated; seen on
    OpenPBS 23.06). This way our script leads the session and ends last: the nodes are free after 1 to 3 s.
    """
    return ["--", "/bin/sh", "-l", str(script)]


class RunningLimit(NamedTuple):
    """When a job started, and its limit."""

    started_s: float
    limit_s: float


def limits_before_end(jobs: Mapping[str, RunningLimit], end_s: float) -> list[tuple[int, list[str]]]:
    """The limits with which these jobs end soon after `end_s`: (walltime, names), one command each. Pure.

    Jobs that started within TOGETHER_S share a limit. At most LIMITS_MAX groups are named, the largest ones. A job
    whose limit is lower already is left out.
    """
    groups: list[tuple[float, list[str]]] = []
    for name, each in sorted(jobs.items(), key=lambda pair: (pair[1].started_s, pair[0])):
        if not groups or each.started_s - groups[-1][0] > TOGETHER_S:
            groups.append((each.started_s, []))
        groups[-1][1].append(name)
    found = []
    for started_s, names in groups:
        walltime_s = max(1, math.ceil(end_s + AFTER_END_S - started_s))
        lower = [name for name in names if walltime_s < jobs[name].limit_s]
        if lower:
            found.append((walltime_s, lower))
    return sorted(found, key=lambda group: -len(group[1]))[:LIMITS_MAX]


def read_id(output: bytes) -> str:
    """The number in what `qsub` printed, perhaps among lines of a site's hooks. Raises SiteError."""
    match = _ID.search(output)
    if match is None:
        raise SiteError(
            f"`qsub` printed `{output[:200].decode(errors='replace').strip()}`, expected a number"
        )
    return match[1].decode()


def element_id(batch_id: str, index: int | None) -> str:
    """`12[].server` and 3: `12[3].server`."""
    return batch_id if index is None else batch_id.replace("[]", f"[{index}]", 1)


def short_id(batch_id: str) -> str:
    """Without the server, whose name has several forms."""
    return batch_id.partition(".")[0]


def ending_of(exit_status: str) -> Ending:
    """What `Exit_status` says. Absent: it never started, and was deleted. Unknown negative numbers: UNKNOWN."""
    if not re.fullmatch(r"-?[0-9]{1,18}", exit_status):
        return Ending.CANCELED
    number = int(exit_status)
    if number in _ENDINGS:
        return _ENDINGS[number]
    if number in _LAUNCH:
        return Ending.LAUNCH
    if number < 0:
        return Ending.UNKNOWN
    return Ending.FAILED if number else Ending.DONE


def is_preempted(comment: str) -> bool:
    """Whether the history says that the scheduler ended a job (`preempt_order = D`): `... and terminated by
    Scheduler@pbs`, where a person's `qdel` says `terminated by ada@host` (OpenPBS 23.06)."""
    return "terminated by Scheduler@" in comment


def is_hopeless(comment: str) -> bool:
    """Whether the scheduler says of a job that waits that it cannot start on this machine, whatever ends: PBS takes
    such jobs, and keeps them."""
    return comment.startswith("Can Never Run")


def has_failed_starts(comment: str) -> bool:
    """Whether PBS itself holds a job, or a whole array, because 20 starts of it failed: `job held, too many failed
    attempts to run`. A person's hold has the comment `Job held by ...` (req_runjob.c, req_holdjob.c of OpenPBS)."""
    return "too many failed attempts to run" in comment


def node_aliases(nodes: Iterable[str]) -> dict[str, str]:
    """The machine's name of each node by that name and by the part before its first dot, where that is one node's."""
    found: dict[str, str] = {}
    shorts: dict[str, list[str]] = {}
    for name in nodes:
        found[name] = name
        shorts.setdefault(name.partition(".")[0], []).append(name)
    return {short: names[0] for short, names in shorts.items() if len(names) == 1} | found


def node_name(host: str, aliases: Mapping[str, str]) -> str:
    """The machine's name of a host that calls itself so (`uname -n`), or whose vnode is called so: either may have a
    domain that the other lacks. The same name where no node fits."""
    return aliases.get(host) or aliases.get(host.partition(".")[0]) or host


def read_array_count(job: Record) -> int:
    """How many elements an array has, by its record; 1 for a single job. Tidemill's arrays begin at 0."""
    last = text_of(job, "array_indices_submitted").rpartition("-")[2]
    return read_number(last) + 1 if last else 1


def is_usage_error(reply: CommandResult) -> bool:
    """Whether a command does not know one of its options."""
    return reply.status == USAGE_STATUS and "usage:" in reply.errors.lower()


def _plain(text: str) -> str:
    """Text that `-v` takes: commas part its variables, blanks and quotes are read by shells of old versions."""
    return re.sub(r"[^A-Za-z0-9@._:/+-]", "_", text)[:200] or "-"
