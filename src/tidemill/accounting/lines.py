"""The lines of a log, plain or gzip, one file or a directory of daily ones; a damaged end costs its last line only."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from tidemill.accounting.records import Remark, Remarks
from tidemill.errors import ConfigError

LINE_BYTES_MAX = 1_000_000
"""sacct prints node lists and command lines; nothing that is of use is as long."""


def log_files(path: Path) -> list[Path]:
    """The file, or the files of a directory by name: PBS writes one a day, named `YYYYMMDD`. Raises ConfigError."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    if not files:
        raise ConfigError(f"the directory `{path}` holds no file")
    return files


def log_lines(path: Path, remarks: Remarks) -> Iterator[tuple[int, str]]:
    """(number, text with its line end) of all lines, numbered through all files.

    A last line has no line end if the log was cut, or written without one: the reader of its format judges that. Raises
    ConfigError for what cannot be opened or read.
    """
    number = 0
    for file in log_files(path):
        for raw in _raw_lines(file, remarks, number):
            number += 1
            remarks.line = number
            if len(raw) < LINE_BYTES_MAX:
                yield number, raw.decode("utf-8", "replace")
            else:
                remarks.lines += 1
                remarks.add(Remark.UNREADABLE, number, f"more than {LINE_BYTES_MAX:,} bytes")


def _raw_lines(path: Path, remarks: Remarks, before: int) -> Iterator[bytes]:
    number = before
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remarks.add(Remark.CUT, number + 1, f"`{path.name}`: {error}")
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror or error}") from error
