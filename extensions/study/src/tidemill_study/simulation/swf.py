"""Workloads in the Standard Workload Format: 18 numbers a record, `;` before comments, gzip or plain.

Format: D. Feitelson and others, https://www.cs.huji.ac.il/labs/parallel/workload/swf.html, version 2.2. Columns used:
2 submit, 3 wait, 4 run time, 5 processors (8, those requested, if 5 is unknown), 9 requested time, 11 status. If the
header states more processors than nodes (`MaxProcs`, `MaxNodes`), processors are converted to nodes; without a header,
one processor counts as one node.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text
from tidemill_study.simulation import sharing
from tidemill_study.simulation.timeline import BusyNodes, empty_spells, most_busy, overfull_share

FIELDS = 18
FIELDS_MIN = 9  #: up to the requested time; shorter records exist in no log, but longer tails are often cut
LINE_CHARS_MAX = 10_000
RECORDS_MAX = 20_000_000
NEVER_STARTED, BEFORE_FIRST_END, NO_RUN_TIME = "never started", "before the first end", "no run time"
SKIPPED = {
    NEVER_STARTED: ("job", "never started"),
    BEFORE_FIRST_END: ("job", "submitted before the first end"),
}
"""What was left out and why, where "record with" does not fit."""
PARTIAL_STATUS = {2, 3, 4}  #: parts of a job that was checkpointed; its sum has a record of its own


class Job(NamedTuple):
    """A regular job. `limit_s`: what it asked for, at least its run time."""

    submit_s: int
    run_s: int
    width: int
    limit_s: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A workload. Times count from the first submission; `outages` are (start, end) of the whole machine."""

    name: str
    nodes: int
    nodes_from: str
    jobs: list[Job]
    outages: list[tuple[int, int]]
    skipped: dict[str, int]
    notes: list[str]
    has_submissions: bool = True  #: False: the log lacks them, and the starts stand in for them


class Raw(NamedTuple):
    """A record as it is in the file."""

    line: int
    submit_s: int
    wait_s: int
    run_s: int
    width: int
    limit_s: int


def read(path: Path, *, nodes: int | None = None) -> Trace:
    """The trace of a file. `nodes` overrides the header.

    Raises ConfigError, with the line number, if the file is not valid SWF, is truncated, has negative times or jobs
    wider than the machine, if its jobs share nodes, or if no job is left. Records without a run time or width are
    skipped and counted.
    """
    header: dict[str, int] = {}
    skipped: dict[str, int] = {}
    records = list(records_of(path, header, skipped))
    if not records:
        raise ConfigError(
            f"`{path}` has no job that can be replayed ({skipped_text(skipped) or 'no record at all'})",
            hint="a trace has one line of 18 numbers for each job (Standard Workload Format)",
        )
    per_node = processors_per_node(header)
    parts = sum(each.width % per_node > 0 for each in records)
    records, size, source = sized(records, header, nodes)
    if parts > sharing.PARTS_SHARE_MAX * len(records):
        has_starts = all(each.wait_s >= 0 for each in records)
        overfull = overfull_share(timeline_of(records), size) if has_starts else None
        sharing.check(path.name, parts=parts, jobs=len(records), cores=per_node, overfull=overfull)
    return trace_of(path, records, nodes=(size, source), skipped=skipped)


def sized(records: list[Raw], header: dict[str, int], nodes: int | None) -> tuple[list[Raw], int, str]:
    """The records in nodes, ordered by submission, the size of the machine, and where that is from."""
    records.sort(key=lambda each: each.submit_s)
    per_node = processors_per_node(header)
    if per_node > 1:
        records = [each._replace(width=-(-each.width // per_node)) for each in records]
    return records, *machine_size(records, header, nodes, per_node)


def trace_of(path: Path, records: list[Raw], *, nodes: tuple[int, str], skipped: dict[str, int]) -> Trace:
    """The trace of records that are ordered by submission; `nodes`: how many there are, and where that is from.

    Raises ConfigError for a job that is wider than the machine.
    """
    size, source = nodes
    for each in records:
        if each.width > size:
            raise ConfigError(
                f"`{path}`, line {each.line}: a job of {each.width} nodes on a machine of {size} ({source})",
                hint="--nodes N sets the size of the machine",
            )
    first = records[0].submit_s
    outages, note = outages_of(records, size)
    return Trace(
        name=path.name,
        nodes=size,
        nodes_from=source,
        jobs=[Job(r.submit_s - first, r.run_s, r.width, max(r.limit_s, r.run_s)) for r in records],
        outages=[(start - first, end - first) for start, end in outages],
        skipped=skipped,
        notes=[note] if note else [],
    )


def records_of(path: Path, header: dict[str, int], skipped: dict[str, int]) -> Iterator[Raw]:
    """The jobs of a file; fills `header` and counts what is `skipped`."""
    for number, line in enumerate(lines_of(path), start=1):
        text = line.strip()
        if not text:
            continue
        if text.startswith(";"):
            note_header(text, header)
            continue
        if number > RECORDS_MAX:
            raise ConfigError(f"`{path}` has more than {RECORDS_MAX:,} lines")
        record, reason = parsed(path, number, text)
        if record is None:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            yield record


def note_header(text: str, header: dict[str, int]) -> None:
    """Keep what a comment says of the machine, or of when the log began."""
    if match := re.match(r";\s*(MaxNodes|MaxProcs|UnixStartTime)\s*:\s*([0-9]{1,18})(?![0-9])", text):
        header[match[1]] = int(match[2])


def lines_of(path: Path) -> Iterator[str]:
    """Lines of a plain or gzip file; ConfigError if it cannot be read whole."""
    number = 0
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(LINE_CHARS_MAX):
                number += 1
                yield line.decode("utf-8", "replace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(
            f"`{path}` is cut short or damaged after line {number}: {error}", hint="fetch the file again"
        ) from error
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror or error}") from error


def parsed(path: Path, number: int, text: str) -> tuple[Raw | None, str]:
    """A record, or None and the reason why it is skipped."""
    words = text.split()
    where = f"`{path}`, line {number}"
    try:
        values = [int(float(word)) for word in words[:FIELDS]]
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{where} is not a record of the Standard Workload Format: `{text[:80]}`",
            hint="a record has 18 numbers; a dump of sacct begins with its header, a record of PBS with a date",
        ) from None
    if len(values) < FIELDS_MIN:
        raise ConfigError(
            f"{where} has {len(values)} fields instead of {FIELDS}: `{text[:80]}`",
            hint="is the file cut short, or in another format?",
        )
    _, submit_s, wait_s, run_s, used, _, _, asked, limit_s = values[:FIELDS_MIN]
    for name, value, least in (("submit", submit_s, 0), ("wait", wait_s, -1), ("run", run_s, -1)):
        if value < least:
            raise ConfigError(f"{where} has a negative {name} time: {value}")
    if len(values) > 10 and values[10] in PARTIAL_STATUS:
        return None, "part of a job"
    if run_s <= 0:
        return None, NO_RUN_TIME
    width = used if used > 0 else asked
    if width <= 0:
        return None, "no number of processors"
    return Raw(number, submit_s, wait_s, run_s, width, limit_s), ""


def processors_per_node(header: dict[str, int]) -> int:
    """How many processors of the columns are one node."""
    nodes, processors = header.get("MaxNodes", 0), header.get("MaxProcs", 0)
    return processors // nodes if nodes > 0 and processors >= 2 * nodes else 1


def machine_size(
    records: list[Raw], header: dict[str, int], nodes: int | None, per_node: int
) -> tuple[int, str]:
    """Nodes of the machine, and where that is from: the option, the header, else the most that the log ever used."""
    if nodes is not None:
        return nodes, "--nodes"
    if per_node > 1 or header.get("MaxNodes", 0) > 0:
        return header["MaxNodes"], "MaxNodes of the header"
    if header.get("MaxProcs", 0) > 0:
        return header["MaxProcs"], "MaxProcs of the header"
    widest = max(each.width for each in records)
    used = most_busy(timeline_of(records)) if all(each.wait_s >= 0 for each in records) else 0
    if used > widest:
        return used, "no header: the most nodes that the log shows busy at once"
    return widest, "no header: the widest job"


def timeline_of(records: list[Raw]) -> BusyNodes:
    """Busy nodes by the starts of the log."""
    timeline = BusyNodes()
    for each in records:
        start_s = each.submit_s + each.wait_s
        timeline.add(start_s, start_s + each.run_s, each.width)
    return timeline


def outages_of(records: list[Raw], nodes: int) -> tuple[list[tuple[int, int]], str]:
    """When the machine was out of service, and why that cannot be known, if so."""
    if any(each.wait_s < 0 for each in records):
        return [], "the log does not record all starts: outages cannot be seen"
    timeline = timeline_of(records)
    if (share := overfull_share(timeline, nodes)) > sharing.OVERFULL_SHARE_MAX:
        return [], overfull_note(share)
    return empty_spells(timeline, ((r.submit_s, r.submit_s + r.wait_s) for r in records)), ""


def overfull_note(share: float) -> str:
    """Why the starts of a log are not trusted."""
    return (
        f"by its own starts the log overfills the machine for {100 * share:.0f} % of the time: they are not trusted, "
        "outages cannot be seen"
    )


def skipped_text(skipped: dict[str, int]) -> str:
    """What was skipped, in words."""
    found = [
        (count, *SKIPPED.get(reason, ("record", f"with {reason}")))
        for reason, count in sorted(skipped.items())
    ]
    return ", ".join(f"{counted_text(count, what)} {why}" for count, what, why in found)
