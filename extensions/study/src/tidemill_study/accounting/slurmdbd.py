"""Past jobs of a real slurmdbd: sacct, window by window, so that no reply is larger than a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from tidemill.batch.log_times import LogClock
from tidemill.batch.run import CommandResult, LongReplyError, ask
from tidemill.batch.slurm.text import FIELD
from tidemill.errors import SiteError
from tidemill_study.accounting import sacct
from tidemill_study.accounting.past_jobs import PastJob, Remarks
from tidemill_study.accounting.runs import SeenRuns

WINDOW_S = 86_400
WINDOW_S_MAX = 30 * 86_400
WINDOW_S_MIN = 60
REPLY_BYTES_MAX = 64_000_000
SMALL_BYTES = 4_000_000
"""After a smaller reply the next window is twice as long."""
TIMEOUT_S = 600.0

Ask = Callable[[list[str]], CommandResult]


def ask_sacct(command: list[str]) -> CommandResult:
    """Run sacct in UTC. Raises SiteError when it does not answer, and OverflowError when it prints too much."""
    try:
        return ask(command, timeout_s=TIMEOUT_S, bytes_max=REPLY_BYTES_MAX)
    except LongReplyError as error:
        raise OverflowError(error.message) from error


def jobs(
    since_s: int,
    until_s: int,
    remarks: Remarks,
    *,
    filters: tuple[str, ...] = ("-a",),
    asked: Ask = ask_sacct,
) -> Iterator[PastJob]:
    """Jobs that were eligible, or ran, between two times, each once. Raises SiteError.

    Without states sacct selects what was eligible before the end of a window and had not ended before its start, so
    that a long job is in many windows: it is taken from the one in which it became eligible, or else from the first.
    """
    clock, runs = LogClock(UTC), SeenRuns()
    at_s, length_s = since_s, WINDOW_S
    while at_s < until_s:
        end_s = min(until_s, at_s + length_s)
        command = [
            "sacct",
            *filters,
            "-D",
            "-X",
            "-P",
            "--noconvert",
            f"--delimiter={FIELD}",
            "-o",
            sacct.COLUMNS,
        ]
        command += ["-S", _text(at_s), "-E", _text(end_s)]
        try:
            reply = asked(command)
        except OverflowError as error:
            if length_s <= WINDOW_S_MIN:
                raise SiteError(f"sacct prints too much even for {length_s} s: {error}") from error
            length_s = max(WINDOW_S_MIN, length_s // 4)
            continue
        if reply.status != 0:
            raise reply.error(hint="is there a slurmdbd, and may you read all users' jobs?")
        first, last = at_s if at_s > since_s else None, end_s if end_s < until_s else None
        lines = _numbered(reply.output, remarks)
        yield from sacct.read(lines, remarks, clock, keep=_within(first, last), runs=runs)
        at_s = end_s
        if len(reply.output) < SMALL_BYTES:
            length_s = min(WINDOW_S_MAX, 2 * length_s)


def _numbered(output: bytes, remarks: Remarks) -> Iterator[tuple[int, str]]:
    """The lines of a reply, numbered through all replies."""
    for line in output.decode("utf-8", "replace").split("\n"):
        remarks.line += 1
        yield remarks.line, f"{line}\n"


def _within(first_s: int | None, last_s: int | None) -> Callable[[int | None], bool]:
    """Whether a time lies in a window; None = open. A job without a time belongs to the first window."""

    def test(at_s: int | None) -> bool:
        if at_s is None:
            return first_s is None
        return (first_s is None or at_s >= first_s) and (last_s is None or at_s < last_s)

    return test


def _text(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
