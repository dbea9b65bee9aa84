"""Dumps of Slurm's sacct, `sacct -P` with its header: columns are found by name, in any order, others are passed over.

Column names and the words of their values: sacct(1). `sacct -D` prints every run of a requeued job, otherwise the last.
Steps (`123.batch`) are part of their job and not counted; hours are those of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.batch.log_times import LogClock
from tidemill.batch.slurm import text
from tidemill.batch.slurm.times import parse_span
from tidemill.errors import ConfigError
from tidemill.model.number import whole
from tidemill_study.accounting.past_jobs import PastJob, Remark, Remarks
from tidemill_study.accounting.runs import SeenRuns

COLUMNS = (
    "JobID,JobIDRaw,User,Account,Partition,Submit,Eligible,Start,End,ElapsedRaw,NNodes,NCPUS,TimelimitRaw,"
    "State,Reservation,TotalCPU,JobName"
)
"""What is worth having. JobIDRaw makes elements of arrays cheap to tell apart; a job's name may hold the separator, and
does no harm where it is last."""
COMMAND = f"sacct -a -D -X -P --noconvert -S 2026-01-01 -E now -o {COLUMNS}"
PLAIN_COMMAND = (
    "sacct -a -D -X -P --noconvert -S 2026-01-01 -E now -o JobID,JobIDRaw,Partition,Submit,Start,End,ElapsedRaw,"
    "NNodes,NCPUS,TimelimitRaw,State"
)
"""What a simulation uses: nothing that says whose the jobs were."""
NEEDED = {
    "JobID": ("jobid", "jobidraw"),
    "Start": ("start",),
    "End": ("end",),
    "NNodes": ("nnodes", "allocnodes"),
}
"""Columns by Slurm's names, and those that are as good."""
CLOCK_CHANGES_S = (3600, -3600, 1800, -1800)
"""Daylight saving time moves clocks by an hour, on Lord Howe Island by half of one."""
COUNTS_MAX = 10_000
_NAMES = {
    "id": ("jobid", "jobidraw"),
    "raw": ("jobidraw",),
    "name": ("jobname",),
    "user": ("user", "uid"),
    "account": ("account",),
    "partition": ("partition",),
    "submit": ("submit",),
    "eligible": ("eligible",),
    "start": ("start",),
    "end": ("end",),
    "elapsed_s": ("elapsedraw",),
    "elapsed": ("elapsed",),
    "nodes": ("nnodes", "allocnodes"),
    "cores": ("ncpus", "alloccpus"),
    "limit_min": ("timelimitraw",),
    "limit": ("timelimit",),
    "state": ("state",),
    "reservation": ("reservation",),
    "cpu": ("totalcpu",),
}


class HeaderError(ConfigError):
    """The dump has no header that names what is needed."""


class Columns(NamedTuple):
    """Where the columns of a dump are; -1 = there is none."""

    separator: str
    number: int
    trailing: int  #: 1: each line ends with the separator (`sacct -p`)
    id: int
    raw: int
    name: int
    user: int
    account: int
    partition: int
    submit: int
    eligible: int
    start: int
    end: int
    elapsed_s: int
    elapsed: int
    nodes: int
    cores: int
    limit_min: int
    limit: int
    state: int
    reservation: int
    cpu: int


def columns_of(line: str, where: str = "the dump") -> Columns:
    """The columns that a header names. Raises ConfigError when one is missing that nothing can stand in for."""
    match = re.match(r"\w+(\W+)\w", line)
    separator = match[1] if match else "|"
    names = [each.strip().lower() for each in line.rstrip("\r\n").split(separator)]
    trailing = int(len(names) > 1 and not names[-1])
    names = names[: len(names) - trailing]
    lacking = [name for name, group in NEEDED.items() if not any(each in names for each in group)]
    if lacking:
        raise HeaderError(
            f"{where} lacks {', '.join(f'`{each}`' for each in lacking)}: its header is `{line.strip()[:120]}`",
            hint=f"make it by `{COMMAND}`",
        )
    places = {
        field: next((names.index(each) for each in wanted if each in names), -1)
        for field, wanted in _NAMES.items()
    }
    return Columns(separator, len(names), trailing, **places)


def is_header(line: str) -> bool:
    """Whether a line is a header of sacct's, also of one that lacks columns: `columns_of` says which are needed."""
    return bool(re.match(r"(?i)(\w+\W+)*jobid(raw)?\b", line)) and not any(
        letter.isdigit() for letter in line
    )


def read(
    lines: Iterable[tuple[int, str]],
    remarks: Remarks,
    clock: LogClock,
    *,
    keep: Callable[[int | None], bool] = lambda at_s: True,
    runs: SeenRuns | None = None,
) -> Iterator[PastJob]:
    """The jobs of a dump, as they come. Raises ConfigError without a header that names what is needed.

    `keep`: of the time at which a job became eligible, or else was submitted; others are passed over. `seen`: runs of
    dumps that were read before.
    """
    reader: _Rows | None = None
    runs = SeenRuns() if runs is None else runs
    head = ""
    for number, line in lines:
        if reader is None or (line[:3] == head and is_header(line)):  # dumps that were put together repeat it
            if line.strip():
                name, own = remarks.file_of(number)
                where = f"`{name}`, line {own}" if name else f"line {own}"
                reader, head = _Rows(columns_of(line, where), remarks, clock, (runs, keep)), line[:3]
            continue
        if len(line) < 2:
            continue
        remarks.lines += 1
        job = reader.job(number, line)
        if job is not None:
            remarks.jobs += 1
            yield job
    if reader is None:
        raise HeaderError("the dump is empty: it has no header", hint=f"make it by `{COMMAND}`")


class _Rows:
    """Rows below one header."""

    def __init__(
        self,
        columns: Columns,
        remarks: Remarks,
        clock: LogClock,
        choice: tuple[SeenRuns, Callable[[int | None], bool]],
    ) -> None:
        self._columns = columns
        self._remarks = remarks
        self._clock = clock
        self._seen, self._keep = choice
        self._parent = ""
        self._counts: dict[str, int] = {"": 0}

    def job(self, number: int, line: str) -> PastJob | None:
        """The job of a line; None for steps and for what cannot be read, which is counted."""
        at = self._columns
        parts = line.rstrip("\r\n").split(at.separator)
        if not line.endswith("\n") and self._is_cut(parts):
            self._remarks.add(Remark.CUT, number)
            return None
        if len(parts) > at.number and at.name == at.number - 1:
            parts[at.name :] = [
                at.separator.join(parts[at.name : len(parts) - at.trailing]),
                *[""] * at.trailing,
            ]
        if len(parts) != at.number + at.trailing:
            self._unreadable(number, f"{len(parts)} fields instead of {at.number + at.trailing}")
            return None
        id = parts[at.id]
        base, dot, _ = id.partition(".")
        if dot:
            if base != self._parent:
                self._remarks.add(Remark.ORPHAN_STEP, number, f"step `{id[:40]}`")
            return None
        if not base[:1].isdigit():
            self._unreadable(number, f"`{id[:40]}` is not a job id")
            return None
        self._parent = id
        try:
            return self._made(number, parts)
        except ValueError as error:
            self._unreadable(number, f"job {id[:40]}: {error}"[:160])
            return None

    def _is_cut(self, parts: Sequence[str]) -> bool:
        """Whether the last line, which has no line end, may lack something that is used."""
        at = self._columns
        return len(parts) != at.number + at.trailing or (not at.trailing and at.number - 1 in at[3:])

    def _unreadable(self, number: int, why: str) -> None:
        self._remarks.add(Remark.UNREADABLE, number, why)

    def _made(self, number: int, parts: Sequence[str]) -> PastJob | None:
        """Raises ValueError for a field that cannot be read."""
        at, clock = self._columns, self._clock
        submit_s = clock.seconds(parts[at.submit]) if at.submit >= 0 else None
        eligible_s = clock.seconds(parts[at.eligible]) if at.eligible >= 0 else None
        if not self._keep(submit_s if eligible_s is None else eligible_s):
            return None
        start_s, end_s = clock.seconds(parts[at.start]), clock.seconds(parts[at.end])
        state = parts[at.state].partition(" ")[0] if at.state >= 0 else ""
        id = parts[at.id]
        run = self._seen.run(parts[at.raw] if at.raw >= 0 else id, (submit_s, start_s, end_s, state))
        if run < 0:
            self._remarks.add(Remark.REPEATED, number, f"job {id[:40]}")
            return None
        if run:
            self._remarks.add(Remark.REQUEUED, number, f"job {id[:40]}")
        nodes = self._count(parts[at.nodes])
        if start_s is not None and end_s is not None:
            start_s, end_s = self._span(number, parts, start_s, end_s)
        if start_s is None:
            self._remarks.add(Remark.NOT_STARTED, number)
            end_s = None
        elif end_s is None:
            self._remarks.add(Remark.RUNNING, number, f"job {id[:40]}")
        return PastJob(
            id=id,
            user=parts[at.user] if at.user >= 0 else "",
            account=parts[at.account] if at.account >= 0 else "",
            partition=parts[at.partition] if at.partition >= 0 else "",
            name=parts[at.name] if at.name >= 0 else "",
            submit_s=submit_s,
            eligible_s=eligible_s,
            start_s=start_s,
            end_s=end_s,
            nodes=nodes,
            cores=self._count(parts[at.cores]) if at.cores >= 0 else 0,
            limit_s=self._limit_s(parts),
            cpu_s=self._cpu_s(parts[at.cpu]) if at.cpu >= 0 else None,
            state=state.upper(),
            reservation=parts[at.reservation] if at.reservation >= 0 else "",
            requeue=run,
        )

    def _count(self, word: str) -> int:
        """`12`, `1.5K`; the same few are in most lines. Raises ValueError."""
        known = self._counts.get(word)
        if known is None:
            known = text.count(word)
            if len(self._counts) < COUNTS_MAX:
                self._counts[word] = known
        return known

    def _span(self, number: int, parts: Sequence[str], start_s: int, end_s: int) -> tuple[int | None, int]:
        """Start and end, once they agree with the elapsed time as far as they can.

        Elapsed leaves out suspended time, so that an end may be later than start + elapsed; it is taken for wrong where
        it is earlier, or later by just as much as clocks are changed.
        """
        elapsed_s = self._elapsed_s(parts)
        if end_s < start_s and not elapsed_s and parts[self._columns.state].startswith("CANCELLED"):
            return None, end_s
        if elapsed_s is not None:
            surplus_s = end_s - start_s - elapsed_s
            if surplus_s < -1 or surplus_s in CLOCK_CHANGES_S:
                self._remarks.add(Remark.ELAPSED, number, f"job {parts[self._columns.id][:40]}")
                return start_s, start_s + elapsed_s
        return start_s, end_s

    def _elapsed_s(self, parts: Sequence[str]) -> int | None:
        at = self._columns
        if at.elapsed_s >= 0:
            return whole(parts[at.elapsed_s])
        if at.elapsed >= 0 and (span_s := parse_span(parts[at.elapsed])) is not None:
            return int(span_s)
        return None

    def _cpu_s(self, word: str) -> int | None:
        """`1-02:03:04`, `03:04.567`."""
        span_s = parse_span(word.partition(".")[0]) if ":" in word else None
        return None if span_s is None else int(span_s)

    def _limit_s(self, parts: Sequence[str]) -> int | None:
        """In `TimelimitRaw` minutes; UNLIMITED and Partition_Limit are None."""
        at = self._columns
        if at.limit_min >= 0 and (minutes := whole(parts[at.limit_min])) is not None:
            return minutes * 60
        if at.limit >= 0 and (span_s := parse_span(parts[at.limit])) is not None:
            return int(span_s)
        return None
