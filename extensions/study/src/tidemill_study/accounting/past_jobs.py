"""A past job, whatever system accounted for it, and the counted remarks of a reader. Pure data."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec


class PastJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run of a job, or a job that never ran (`start_s` None). `end_s` None: it still ran when the log was written.

    Times are seconds since 1970 by the clock of the host that wrote the log: a dump without a time zone has local time
    (see `times.LogClock`). `state` is the first word of the batch system's state, in capitals. `requeue` counts the
    earlier runs of the same id. `cores` (on all nodes) 0, `limit_s` and `cpu_s` None: the log does not have it.
    """

    id: str
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""
    submit_s: int | None = None
    eligible_s: int | None = None
    start_s: int | None = None
    end_s: int | None = None
    run_s: int | None = None  #: run time, where a log has it without a start
    nodes: int = 0
    cores: int = 0
    cpu_s: int | None = None  #: CPU time of all processes
    limit_s: int | None = None
    state: str = ""
    reservation: str = ""
    requeue: int = 0


class Remark(StrEnum):
    """What a reader says of a log besides its jobs."""

    UNREADABLE = "unreadable"
    CUT = "cut"  #: the last line
    GZIP_SHORT = "gzip_short"
    GZIP_DAMAGED = "gzip_damaged"
    NO_DAY = "no_day"  #: of a directory of daily files
    REPEATED = "repeated"
    ORPHAN_STEP = "orphan_step"
    REQUEUED = "requeued"
    NOT_STARTED = "not_started"
    RUNNING = "running"
    RUNAWAY = "runaway"
    BACKWARDS = "backwards"
    ELAPSED = "elapsed"
    NO_NODES = "no_nodes"
    NO_SUBMIT = "no_submit"
    LEFT_OUT = "left_out"


SENTENCES = {
    Remark.UNREADABLE: "{count} of {lines} could not be read",
    Remark.CUT: "the log is cut short: its last line is left out",
    Remark.GZIP_SHORT: "the gzip file ends early",
    Remark.GZIP_DAMAGED: "the gzip file is damaged",
    Remark.NO_DAY: "the log has a gap",
    Remark.REPEATED: "{count} left out: the same record of a job was read before",
    Remark.ORPHAN_STEP: "{count} left out: a step whose job is not in the log",
    Remark.REQUEUED: "{count} with a further run of a requeued job: each run counts",
    Remark.NOT_STARTED: "{count} without a start (canceled before it, or waiting): no nodes were held",
    Remark.RUNNING: "{count} without an end: the job holds its nodes until the end of the log",
    Remark.RUNAWAY: "{count} left out: no end, and more than a day past the time limit",
    Remark.BACKWARDS: "{count} left out: the job ends before it starts, as after a clock change",
    Remark.ELAPSED: "{count} with an end that contradicts the elapsed time, as after a clock change: start + elapsed "
    "is taken",
    Remark.NO_NODES: "{count} left out: no number of nodes",
    Remark.NO_SUBMIT: "{count} without a time of submission: the start is taken for it",
    Remark.LEFT_OUT: "{count} left out",
}


class RemarkCount(NamedTuple):
    """Lines of one kind: how many, the number of the first, and why it is one."""

    lines: int
    first: int
    why: str


class Remarks:
    """Lines that were read, and counts of those that are remarkable."""

    def __init__(self) -> None:
        self.lines = 0  #: that hold a record, comments and headers not counted
        self.line = 0  #: the number of the line that was read last
        self.jobs = 0
        self.passed: Counter[str] = Counter()  #: records of other types, by type
        self.noted: dict[Remark, RemarkCount] = {}
        self._files: list[tuple[int, str]] = []

    def begin(self, name: str) -> None:
        """Note that the lines after `line` are of this file."""
        self._files.append((self.line, name))

    def file_of(self, line: int) -> tuple[str, int]:
        """The file of a line, "" if there is none, and its number in that file."""
        place = bisect_left(self._files, line, key=lambda each: each[0]) - 1
        before, name = self._files[place] if place >= 0 else (0, "")
        return name, line - before

    def where(self, line: int) -> str:
        """A line for people: `line 1,067`; in a directory of files `line 12 of `20261104``."""
        name, number = self.file_of(line)
        return f"line {number:,}" + (f" of `{name}`" if len(self._files) > 1 else "")

    def add(self, remark: Remark, line: int, why: str = "") -> None:
        """Count a line; the first of its kind is kept as the example."""
        known = self.noted.get(remark)
        self.noted[remark] = (
            RemarkCount(1, line, why) if known is None else known._replace(lines=known.lines + 1)
        )

    def count(self, remark: Remark) -> int:
        """How many lines have this remark."""
        known = self.noted.get(remark)
        return 0 if known is None else known.lines

    def sentences(self, *, but: Container[Remark] = ()) -> Iterator[str]:
        """The remarks for people, in the order of `Remark`; `but`: without these."""
        for remark in Remark:
            known = self.noted.get(remark)
            if known is None or remark in but:
                continue
            count = f"{known.lines:,} {'line' if known.lines == 1 else 'lines'}"
            text = SENTENCES[remark].format(count=count, lines=f"{self.lines:,}")
            if known.why:
                text += f": {known.why}"
            where = (
                f", {'first ' if known.lines > 1 else ''}at {self.where(known.first)}" if known.first else ""
            )
            yield text + where
