"""The lines of a log, plain or gzip, one file or a directory of daily ones; a damaged end costs what comes after it
only."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, timedelta
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill_study.accounting.past_jobs import Remark, Remarks

LINE_BYTES_MAX = 1_000_000
"""sacct prints node lists and command lines; nothing that is of use is as long."""
DAILY = re.compile(r"((?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))(?:\.gz)?$")
"""The name of a file of PBS's accounting."""
GAPS_MAX = 3


def log_files(path: Path) -> list[Path]:
    """The file, or the files of a directory by name: PBS writes one a day, named `YYYYMMDD`. Raises ConfigError."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    if not files:
        raise ConfigError(f"the directory `{path}` holds no file")
    return files


def log_lines(path: Path, remarks: Remarks) -> Iterator[tuple[int, str]]:
    """(number, text with its line end) of all lines, numbered through all files; `remarks` knows the file of each.

    A last line has no line end if the log was cut, or written without one: the reader of its format judges that. Raises
    ConfigError for what cannot be opened or read.
    """
    number = 0
    files = log_files(path)
    empty = set()
    for file in files:
        before = number
        remarks.begin(file.name)
        for raw in _raw_lines(file, remarks):
            number += 1
            remarks.line = number
            if len(raw) < LINE_BYTES_MAX:
                yield number, raw.decode("utf-8", "replace")
            else:
                remarks.lines += 1
                remarks.add(Remark.UNREADABLE, number, f"more than {LINE_BYTES_MAX:,} bytes")
        if number == before:
            empty.add(file.name)
    if path.is_dir() and (text := gaps([file.name for file in files], empty)):
        remarks.add(Remark.NO_DAY, 0, text)


def gaps(names: Sequence[str], empty: AbstractSet[str]) -> str:
    """What lacks between the first and the last of daily files; "" = nothing. `empty`: names of files without a line.

    Later and earlier days may have no jobs yet, or none that were kept.
    """
    days = {day: name for name in names if (day := day_of(name)) is not None}
    full = sorted(day for day, name in days.items() if name not in empty)
    if not full:
        return ""
    between = (full[0] + timedelta(days=k) for k in range((full[-1] - full[0]).days))
    lacking = [day for day in between if day not in days or days[day] in empty]
    if not lacking:
        return ""
    parts = [
        f"`{days.get(day, f'{day:%Y%m%d}')}` is {'empty' if day in days else 'absent'}"
        for day in lacking[:GAPS_MAX]
    ]
    if len(lacking) > GAPS_MAX:
        parts.append(f"and {len(lacking) - GAPS_MAX:,} more")
    return f"{', '.join(parts)}: jobs of {'that day' if len(lacking) == 1 else 'those days'} are missing"


def day_of(name: str) -> date | None:
    """The day of a daily file; None = it is not one."""
    match = DAILY.match(name)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:  # such as 20260231
        return None


def _raw_lines(path: Path, remarks: Remarks) -> Iterator[bytes]:
    before, number, last = remarks.line, 0, b""
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                number, last = number + 1, line
                yield line
    except EOFError:
        after = _after(remarks.where(before + number), last)
        remarks.add(Remark.GZIP_SHORT, 0, f"everything after {after} is missing")
    except (zlib.error, gzip.BadGzipFile) as error:
        after = _after(remarks.where(before + number), last)
        remarks.add(Remark.GZIP_DAMAGED, 0, f"what comes after {after} is missing ({error})")
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror or error}") from error


def _after(where: str, line: bytes) -> str:
    at = time_in(line[:1000].decode("utf-8", "replace"))
    return f"{where} ({at})" if at else where


def time_in(line: str) -> str:
    """The time of a line, `2026-11-03 09:12`: of PBS the first, of sacct the earliest; "" = it has none."""
    if match := re.match(r"(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d)", line):
        return f"{match[3]}-{match[1]}-{match[2]} {match[4]}"
    return min(re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d", line), default="").replace("T", " ")
