"""What a JSON body holds, counted while its pieces come, before anything of it is decoded.

A body of 22 MB may stand for 4.7 GB of records (measured: 2,000,000 jobs of 11 bytes). Strings are skipped, brackets
and commas counted; whether the text is JSON at all is for the decoder to say. Linear, whatever is sent. Pure.
"""

from __future__ import annotations

import re

from tidemill.server.errors import RequestError
from tidemill.wire.api import SUBMIT_JOBS_MAX

VALUES_MAX = 2_000_000  #: of one body; about 100 bytes each once decoded
RECORDS_MAX = SUBMIT_JOBS_MAX + 1_000  #: jobs, and subscriptions beside them
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_OPENING = frozenset(b"[{")
_RECORD = ord("{")


class BodyCount:
    """Counts one body. Raises RequestError as soon as there is too much of it."""

    def __init__(self) -> None:
        self.values = 0
        self._objects = 0
        self._records = 0
        self._depth = 0
        self._brackets: list[bytes] = []  #: those that were not followed yet
        self._in_string = self._escaped = False

    @property
    def records(self) -> int:
        """Objects in lists of the outermost object: the jobs of a submission."""
        for brackets in self._brackets:
            self._follow(brackets)
        self._brackets.clear()
        return self._records

    def feed(self, piece: bytes) -> None:
        """The next piece."""
        bare = self._bare(piece)
        objects = bare.count(b"{")
        self._objects += objects
        self.values += bare.count(b",") + bare.count(b"[") + objects
        if self.values > VALUES_MAX:
            raise RequestError(
                f"the request holds more than {VALUES_MAX} values", hint="send it in smaller parts"
            )
        self._brackets.append(bare.translate(None, _NO_BRACKETS))
        if self._objects > RECORDS_MAX and self.records > RECORDS_MAX:
            raise RequestError(
                f"more than {SUBMIT_JOBS_MAX} jobs in one request", hint="send several requests"
            )

    def _follow(self, brackets: bytes) -> None:
        depth = self._depth
        for mark in brackets:
            if mark in _OPENING:
                self._records += depth == 2 and mark == _RECORD
                depth += 1
            else:
                depth -= 1
        self._depth = depth

    def _bare(self, piece: bytes) -> bytes:
        """The piece without strings, where the first may have begun earlier and the last may end later."""
        start = 0
        if self._in_string:
            rest = _REST.match(piece, int(self._escaped))
            end = len(piece) if rest is None else rest.end()
            self._escaped = piece[end : end + 1] == b"\\"  # the last byte: what it stands before comes next
            if self._escaped or end >= len(piece):
                return b""
            self._in_string, start = False, end + 1
        text = piece[start:]
        slashes = len(text) - len(text.rstrip(b"\\"))
        self._escaped = slashes % 2 == 1
        bare = _STRINGS.sub(b"", (text[:-1] if self._escaped else text) + b'"')
        self._in_string = not bare.endswith(b'"')  # the quote that was added closed a string
        return bare.partition(b'"')[0]
