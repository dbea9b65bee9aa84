"""Join the HepMC3 files `part-000000`, ... of `$TIDEMILL_INPUTS` (or the work directory) into `merged`, in this order.

Events are copied as they are, but for the cross-section: each gets the one of all events, each part weighted with its
number of events. Checked: every part is whole, event numbers ascend over all parts, the result holds every event.
Files are read as text, event by event: fast, and nothing is rounded anew. The format: "HepMC3 event record library for
Monte Carlo event generators", A. Buckley et al., Comput. Phys. Commun. 260 (2021) 107310, section 4.3. One file and the
standard library only, so that the digest in the application's file covers all of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

PART = re.compile(r"part-([0-9]+)")
START = b"HepMC::Asciiv3-START_EVENT_LISTING"
END = b"HepMC::Asciiv3-END_EVENT_LISTING"
CROSS_SECTION = b"A 0 GenCrossSection "
GZIP_MAGIC = b"\x1f\x8b"
HEADER_LINES_MAX = 100_000  # run attributes may embed a generator's whole configuration


class BadFile(Exception):
    """A file that is not whole HepMC3; says which, where and what was found."""


@dataclass(frozen=True)
class CrossSection:
    """The cross-section in pb that a generator states after `attempted` events, of which it accepted `accepted`."""

    value_pb: float
    error_pb: float
    accepted: int
    attempted: int

    def line(self) -> bytes:
        """As an attribute of an event with one weight."""
        values = f"{self.value_pb:.8e} {self.error_pb:.8e} {self.accepted} {self.attempted}"
        return CROSS_SECTION + values.encode() + b"\n"


@dataclass(frozen=True)
class Event:
    """The lines of one event, line ends included."""

    number: int
    lines: list[bytes]

    def cross_section(self) -> CrossSection | None:
        """What the generator said with this event."""
        for line in self.lines:
            if line.startswith(CROSS_SECTION):
                value, error, accepted, attempted, *_ = line[len(CROSS_SECTION) :].split()
                return CrossSection(float(value), float(error), int(accepted), int(attempted))
        return None


def is_gzip(path: Path) -> bool:
    """Whether the file is compressed, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def open_file(path: Path) -> BinaryIO:
    """The text of the file, compressed or not."""
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip(path) else path.open("rb")


def read_header(path: Path) -> list[bytes]:
    """The lines before the first event. Raises BadFile if the file is not HepMC3 ASCII."""
    header = []
    with open_file(path) as file:
        for line in file:
            if line.startswith((b"E ", END)):
                break
            header.append(line)
            if len(header) > HEADER_LINES_MAX:
                break
    if not any(line.startswith(START) for line in header):
        raise BadFile(f"`{path}` is not HepMC3 ASCII: `{START.decode()}` is not at its beginning")
    return header


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file in its order. Raises BadFile if it is not HepMC3 or its end is missing."""
    try:
        read_header(path)
        with open_file(path) as file:
            yield from _cut(file, path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(f"`{path}`: its compressed data are corrupt or end early: {error}") from error


def _cut(file: BinaryIO, path: Path) -> Iterator[Event]:
    lines: list[bytes] = []
    started = False
    for line in file:
        if line.startswith((b"E ", END)):
            if started:
                yield Event(_number(lines[0], path), lines)
            if line.startswith(END):
                return
            lines = []
            started = True
        lines.append(line)
    raise BadFile(f"`{path}`: the last line `{END.decode()}` is missing: the file is cut off")


def _number(line: bytes, path: Path) -> int:
    words = line.split()
    if len(words) < 4 or not words[1].isdigit():
        raise BadFile(f"`{path}`: expected `E NUMBER VERTICES PARTICLES`, found {line[:80]!r}")
    return int(words[1])


@dataclass(frozen=True)
class MergeSummary:
    """What the first reading of a part finds."""

    path: Path
    events: int
    first: int
    last: int
    cross_section: CrossSection | None


def find_parts(directory: Path) -> list[Path]:
    """The parts in the order of their numbers. Raises BadFile if there is none."""
    numbered = [(int(match[1]), path) for path in directory.iterdir() if (match := PART.fullmatch(path.name))]
    if not numbered:
        raise BadFile(f"no file named `part-000000` or so in `{directory}`")
    return [path for _, path in sorted(numbered)]


def summarise(path: Path) -> MergeSummary:
    """Read a part once. Raises BadFile if it is cut off or its events are not in ascending order."""
    count, first, last = 0, -1, -1
    cross_section = None
    for event in read_events(path):
        if event.number <= last:
            raise BadFile(f"`{path}`: event {event.number} follows event {last}")
        first = event.number if count == 0 else first
        last = event.number
        count += 1
        cross_section = event.cross_section() or cross_section
    return MergeSummary(path, count, first, last, cross_section)


def check_order(parts: list[MergeSummary]) -> None:
    """Raise BadFile if parts overlap or are not in the order of their events."""
    before: MergeSummary | None = None
    for part in parts:
        if part.events and before is not None and part.first <= before.last:
            raise BadFile(
                f"`{part.path}` starts with event {part.first}, but `{before.path}` before it ends with {before.last}"
            )
        before = part if part.events else before


def combine(parts: list[MergeSummary]) -> CrossSection | None:
    """The cross-section of all events; None if a part with events does not state its own."""
    told = [
        (part.events, part.cross_section) for part in parts if part.events and part.cross_section is not None
    ]
    total = sum(events for events, _ in told)
    if not told or total != sum(part.events for part in parts):
        return None
    return CrossSection(
        value_pb=math.fsum(events * each.value_pb for events, each in told) / total,
        error_pb=math.sqrt(math.fsum((events * each.error_pb) ** 2 for events, each in told)) / total,
        accepted=total,
        attempted=sum(max(each.attempted, events) for events, each in told),
    )


def write(parts: list[MergeSummary], out: BinaryIO) -> int:
    """Write all events; their number."""
    cross_section = combine(parts)
    out.writelines(read_header(next((part for part in parts if part.events), parts[0]).path))
    count = 0
    for part in parts:
        for event in read_events(part.path):
            for line in event.lines:
                replaced = cross_section is not None and line.startswith(CROSS_SECTION)
                out.write(cross_section.line() if replaced and cross_section is not None else line)
            count += 1
    out.write(END + b"\n\n")
    return count


def merge(paths: list[Path], merged: Path) -> dict[str, object]:
    """Join the parts into `merged`, in the order given; what was joined. Raises BadFile."""
    parts = [summarise(path) for path in paths]
    check_order(parts)
    expected = sum(part.events for part in parts)
    unfinished = merged.with_name(merged.name + ".unfinished")
    with unfinished.open("wb") as file:
        if is_gzip(paths[0]):
            # level 1: 0.4 of the size at half the time of the default; no time stamp: same input, same bytes
            with gzip.GzipFile("", "wb", 1, file, 0) as out:
                written = write(parts, cast(BinaryIO, out))
        else:
            written = write(parts, file)
        file.flush()
        os.fsync(file.fileno())
    if written != expected:
        raise BadFile(f"wrote {written} events of {expected}: a part changed while it was read")
    unfinished.replace(merged)
    cross_section = combine(parts)
    with_events = [part for part in parts if part.events]
    return {
        "parts": len(parts),
        "events": written,
        "first": with_events[0].first if with_events else None,
        "last": with_events[-1].last if with_events else None,
        "cross_section_pb": cross_section.value_pb if cross_section else None,
        "cross_section_error_pb": cross_section.error_pb if cross_section else None,
    }


def main() -> int:
    """Exit status 0 and one line of JSON, or 1 and what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        type=Path,
        help="in the order of their events; none: `part-*` in `$TIDEMILL_INPUTS`, or here",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("merged"))
    options = parser.parse_args()
    try:
        parts = options.parts or find_parts(Path(os.environ.get("TIDEMILL_INPUTS", ".")))
        print(json.dumps(merge(parts, options.output)))
    except (BadFile, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
