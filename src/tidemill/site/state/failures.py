"""What a failure of a payload means: whose fault it is, and what becomes of the failed range. Pure.

A failed range is run again, split in halves, failed for good, or returned to the server. For payloads that span nodes
the launcher's output says more than the record. Sources of the words that are recognized: srun of Slurm 22.05
(`src/srun/libsrun/launch.c`, `src/slurmd/slurmstepd`), Hydra of MPICH 4.0 (`bt_main.c`), mpirun of Open MPI 4.1
(`help-orterun.txt`); each was also seen on a real one in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from tidemill.batch.launch import MISPLACED_WORDS
from tidemill.model.application import Runtime
from tidemill.model.failure import POLICY, FailureClass
from tidemill.routing.attribution import FarTrouble
from tidemill.site.state.site_state import UndonePiece
from tidemill.wire.node import Failed

FRUITLESS_MAX = 50
"""A job's work returns to the server after this many failures that do not count, without a success in between."""

LAUNCHES_MAX = 2
"""... after this many where the launcher does not put ranks on their nodes: each try meets the same launcher."""

FAR_SAID_MAX = 10
"""Up to this many failures of an event are excused by far-input trouble that only the payload's output shows."""

FAR_SEEN_MAX = 100
"""... and up to this many by trouble that the site saw itself."""

FAR_EVENTS_MAX = 1000
"""Events of one failed range for which these failures are counted."""

RETURNS_MAX = 10
"""... or after this many pilots in a row that could not fit it into the time or memory they had."""

REPORTED_MAX = 20
"""Failures of a job that are reported as evidence, besides the final ones."""

NOT_FOUND = 127
"""Exit status of env(1) and shells where the program does not exist."""

_RUNTIMES = {
    "apptainer": Runtime.APPTAINER,
    "singularity": Runtime.APPTAINER,
    "shifter": Runtime.SHIFTER,
    "podman-hpc": Runtime.PODMAN_HPC,
    "podman": Runtime.PODMAN,
    "ch-run": Runtime.CHARLIECLOUD,
}
"""Programs that start containers, as their projects call them."""

_EXECUTE = re.compile(r"failed to execute `(?:[^`]*/)?(?P<program>" + "|".join(_RUNTIMES) + ")`")
_RANKS = (
    re.compile(r"srun: error: (?P<node>[^\s:]+): tasks? (?P<rank>[\d,\-]+): (?P<how>[^\n]+)"),
    re.compile(
        r"process rank (?P<rank>\d+) with PID \d+ on\s+node (?P<node>\S+) exited on\s+(?P<how>signal \d+[^\n.]*)"
    ),
    re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+(?P<how>Exit code:\s+\d+)(?P<node>)"),
    re.compile(
        r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<node>\S{1,255})(?:\s[^\n]{0,300})?\n"
        r"(?P<how>[^\n]{0,300}KILLED[^\n]*)"
    ),
    re.compile(r"PID \d+ RUNNING AT (?P<node>\S+)\n=\s+(?P<how>EXIT CODE: \d+)(?P<rank>)"),
)
_NODE = re.compile(
    r"DUE TO NODE \S+ FAILURE|Node failure on \S+|ORTE has lost communication with a remote daemon|"
    r"HYDU_sock_[a-z]{1,30} [^\n]{0,300}(?:lost|reset)|unable to (?:reach|contact) [^\n]{0,300}daemon",
    re.IGNORECASE,
)
_LAUNCHER = re.compile(r"^(?:/usr/bin/)?env: \W?([^\s:'‘’`\"]+)\W?: No such file or directory", re.MULTILINE)  # noqa: RUF001


_MISPLACED = re.compile(re.escape(MISPLACED_WORDS) + r"[^\n]{0,300}")


class RetryVerdict(msgspec.Struct, frozen=True):
    """`again`: to be granted again. `failed`: events failed for good. `counted`: events with one more failure."""

    again: list[UndonePiece]
    failed: list[int]
    counted: list[int]


def failure_class(name: str) -> FailureClass:
    """The class a record names; an unknown one (of a newer pilot) is the payload's."""
    try:
        return FailureClass(name)
    except ValueError:
        return FailureClass.PAYLOAD


def is_of_the_way(far: FarTrouble | None, undone: list[tuple[int, int]], before: Mapping[int, int]) -> bool:
    """Whether a failure is a trouble of the way to a far input, and counts against no event. `before`: how often each
    event failed so; a payload that always prints an error of the network fails in the end."""
    if far is None or not far.is_sites:
        return False
    most = max((before.get(first, 0) for first, _ in undone), default=0)
    return most < (FAR_SEEN_MAX if far.is_seen else FAR_SAID_MAX)


def fruitless_max(failure: FailureClass) -> int:
    """A job's work returns to the server after more failures than this that do not count, the last of this class."""
    return LAUNCHES_MAX if failure is FailureClass.BATCH else FRUITLESS_MAX


def decide(
    failure: FailureClass,
    undone: list[tuple[int, int]],
    *,
    culprit: int | None,
    failures: Mapping[int, int],
    retries: int,
) -> RetryVerdict:
    """What becomes of the events `undone` (intervals of one failed range, ascending, not empty).

    A failure of a class that does not count leaves all pieces as they were. A named culprit alone is charged with the
    failure, and so is the event of a range of one. A longer range is split in halves until single events are left.
    """
    if not POLICY[failure].counts:
        return RetryVerdict([UndonePiece(first, end - first) for first, end in undone], [], [])
    if culprit is not None and any(first <= culprit < end for first, end in undone):
        rest = [piece for first, end in undone for piece in around(first, end, culprit)]
        return _blame(culprit, rest, failures=failures, retries=retries)
    if len(undone) == 1 and undone[0][1] - undone[0][0] == 1:
        return _blame(undone[0][0], [], failures=failures, retries=retries)
    return RetryVerdict([piece for first, end in undone for piece in _halves(first, end)], [], [])


def _blame(event: int, rest: list[UndonePiece], *, failures: Mapping[int, int], retries: int) -> RetryVerdict:
    if failures.get(event, 0) + 1 > retries:
        return RetryVerdict(rest, [event], [event])
    return RetryVerdict([*rest, UndonePiece(event, 1, 1)], [], [event])


def around(first: int, end: int, event: int) -> list[UndonePiece]:
    """The interval without the event."""
    if not first <= event < end:
        return [UndonePiece(first, end - first)]
    pieces = [UndonePiece(first, event - first), UndonePiece(event + 1, end - event - 1)]
    return [piece for piece in pieces if piece.count]


def _halves(first: int, end: int) -> list[UndonePiece]:
    count = end - first
    if count == 1:
        return [UndonePiece(first, 1, 1)]
    half = (count + 1) // 2
    return [UndonePiece(first, half, half), UndonePiece(first + half, count - half, count - half)]


def with_runtime(message: str) -> str:
    """A failure's message; where a container runtime did not start, with the setting that names its program."""
    match = _EXECUTE.search(message)
    if match is None:
        return message
    runtime = _RUNTIMES[match["program"]]
    return f"{message}; `containers.{runtime}.command` in the site's site.toml names the container runtime"


def explain(record: Failed, failure: FailureClass) -> tuple[FailureClass, str]:
    """Class and message of a failed payload that spans nodes, by what its launcher printed."""
    text = record.stderr_tail
    absent = _LAUNCHER.search(text)
    if record.exit_status == NOT_FOUND and absent is not None:
        why = f"there is no `{absent[1]}` on the first node: set PATH in the application's environment"
        return FailureClass.DISPATCH, f"{why}, or `cluster.launcher` of the site"
    misplaced = _MISPLACED.search(text)
    if misplaced is not None:
        return FailureClass.BATCH, misplaced[0].removeprefix("tidemill: ")
    if failure is not FailureClass.PAYLOAD:
        return failure, record.message
    lost = _NODE.search(text)
    if lost is not None:
        return FailureClass.NODE, f"{record.message}; the launcher says: {lost[0]}"
    for pattern in _RANKS:
        match = pattern.search(text)
        if match is not None:
            who = f"rank {match['rank']}" if match["rank"] else "a rank"
            where = f" on {match['node']}" if match["node"] else ""
            return failure, f"{who}{where}: {' '.join(match['how'].split())} ({record.message})"
    return failure, record.message
