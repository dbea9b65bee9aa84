"""The lines of a list (`--each FILE`, `kind = "each"`): counted and checked as they are read, never held whole."""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tidemill.errors import ConfigError, SiteError

if TYPE_CHECKING:
    from tidemill.model.job import JobSpec

LINES_MAX = 100_000_000
PIECE_BYTES = 1 << 20
EMPTY_MAX = 100_000  #: empty lines are counted up to this number
_EMPTY_LINE = re.compile(rb"\n(?=\r?\n)")
NOT_UTF8 = "`iconv -f LATIN1 -t UTF-8 FILE > NEW` converts a list in Latin-1"
HAS_NUL = (
    "`tr -d '\\0' < FILE > NEW` removes them, `iconv -f UTF-16 -t UTF-8 FILE > NEW` converts a list in UTF-16"
)


class CountedLines:
    """The pieces of a file, and the number of its `lines` and `empty` lines so far. `empty` stops at EMPTY_MAX or a
    little above. The last line need not end with a line break.

    Iterating raises ConfigError for text that is not UTF-8 or holds NUL, which no argument can: otherwise each event
    would fail when it reads its line.
    """

    def __init__(self, file: BinaryIO, *, source: str) -> None:
        self._file, self._source, self.lines, self.empty = file, source, 0, 0

    def __iter__(self) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        is_open, before = False, b"\n"
        while piece := self._file.read(PIECE_BYTES):
            self._check(decoder, piece)
            self.lines += piece.count(b"\n")
            if self.empty < EMPTY_MAX:
                self.empty += len(_EMPTY_LINE.findall(before + piece))
            is_open = not piece.endswith(b"\n")
            end = (before + piece)[-2:]
            before = end if end == b"\n\r" else end[-1:]
            yield piece
            if self.lines > LINES_MAX:
                return  # a pipe may never end
        self._check(decoder, b"", final=True)
        self.lines += is_open

    def _check(self, decoder: codecs.IncrementalDecoder, piece: bytes, *, final: bool = False) -> None:
        try:
            decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            number = self.lines + before.count(b"\n") + 1
            raise ConfigError(
                f"{self._source}, line {number}: byte 0x{error.object[error.start]:02x} is not valid UTF-8",
                hint=NOT_UTF8,
            ) from error
        nul = piece.find(b"\0")
        if nul >= 0:
            number = self.lines + piece.count(b"\n", 0, nul) + 1
            raise ConfigError(f"{self._source}, line {number}: it holds a NUL byte", hint=HAS_NUL)


def check_lines(path: Path) -> None:
    """Raises ConfigError unless a list can be read and is UTF-8 text without NUL."""
    try:
        with path.open("rb") as file:
            deque(CountedLines(file, source=f"`{path}`"), maxlen=0)
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror}") from error


def check_lists(jobs: Iterable[JobSpec], *, source: Path) -> None:
    """Raises ConfigError for a list (`kind = "each"`) of a job file that is on this machine and not UTF-8 text."""
    from tidemill.model.job import InputKind

    seen: set[str] = set()
    for index, job in enumerate(jobs):
        for one in job.inputs:
            if one.kind is InputKind.EACH and one.url not in seen:
                seen.add(one.url)
                try:
                    check_list(one.url)
                except ConfigError as error:
                    message = f"{source}: `job[{index}]`: input `{one.name}`: {error.message}"
                    raise ConfigError(message, hint=error.hint) from error


def check_list(url: str) -> None:
    """Check a list that is given as a path or `file:` URL. The site checks a list that is not on this machine, or that
    only the site may read."""
    from tidemill.transfer.file import local_path

    if not url.startswith(("/", "file:")):
        return
    try:
        path = local_path(url)
    except SiteError:
        return  # the server reports what is wrong with it
    if path.is_file() and os.access(path, os.R_OK):
        check_lines(path)
