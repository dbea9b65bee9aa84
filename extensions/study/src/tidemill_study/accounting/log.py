"""The entry point for accounting logs of all kinds: detects the kind of a file and reads its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from enum import StrEnum
from pathlib import Path

from tidemill.batch.log_times import LogClock
from tidemill.errors import ConfigError
from tidemill_study.accounting import pbs, sacct, swf
from tidemill_study.accounting.history import History
from tidemill_study.accounting.lines import log_lines
from tidemill_study.accounting.past_jobs import PastJob, Remarks


class LogKind(StrEnum):
    """Whose accounting a log is."""

    SACCT = "sacct"
    PBS = "pbs"
    SWF = "swf"


def kind_of(line: str) -> LogKind:
    """The kind of a log by its first line."""
    if pbs.RECORD.match(line):
        return LogKind.PBS
    return LogKind.SACCT if sacct.is_header(line) else LogKind.SWF


def kind_of_file(path: Path) -> LogKind:
    """The kind of a log by its first line that is not empty. Raises ConfigError."""
    remarks = Remarks()
    first = next((line for _, line in log_lines(path, remarks) if line.strip()), "")
    if not first:
        raise ConfigError("; ".join([f"`{path}` is empty", *remarks.sentences()]))
    return kind_of(first)


def jobs_of(
    path: Path, remarks: Remarks, *, kind: LogKind, zone: tzinfo | None = None, header: dict[str, int]
) -> Iterator[PastJob]:
    """The jobs of a log as they come; `header` gets what an SWF log says of its machine. Raises ConfigError."""
    lines = log_lines(path, remarks)
    match kind:
        case LogKind.SACCT:
            yield from sacct.read(lines, remarks, LogClock(zone))
        case LogKind.PBS:
            yield from pbs.read(lines, remarks)
        case LogKind.SWF:
            yield from swf.read(path, lines, remarks, header)


def history_of(
    path: Path, *, kind: LogKind | None = None, zone: tzinfo | None = None, partition: str | None = None
) -> History:
    """The past of a machine by its log. Raises ConfigError, which quotes the remarks when no job is left."""
    kind = kind or kind_of_file(path)
    remarks = Remarks()
    history = History(path.name, remarks, kind=kind)
    jobs = jobs_of(path, remarks, kind=kind, zone=zone, header=history.header)
    try:
        history.add_jobs(jobs, partition=partition)
    except sacct.HeaderError as error:
        raise ConfigError(error.message, hint=f"make it by `{sacct.PLAIN_COMMAND}`") from error
    return history
