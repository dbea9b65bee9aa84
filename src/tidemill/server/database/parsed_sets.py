"""Interval sets with many gaps, of jobs and leases, remembered with the texts that the database has of them.

The writer needs the same few sets in each transaction, and 100,000 gaps take 0.1 s to parse. A remembered set is used
only where the database still has exactly its text, so nothing that happened meanwhile can make it wrong: neither a
transaction that was undone nor the other server of a pair.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.intervals import IntervalSet
from tidemill.server.database.rows import Sets, StoredJob

LARGE_TEXT = 4_096  #: characters from which a text is worth remembering; it is parsed in 0.5 ms
PARSED_BYTES_MAX = 128 << 20  #: two sets of 600,000 gaps
GAP_BYTES = 80  #: of an interval: two numbers, and a pointer to each


class _Parsed(NamedTuple):
    text: str
    events: IntervalSet  #: never given out: others get copies

    @property
    def bytes(self) -> int:
        return len(self.text) + GAP_BYTES * self.events.gaps


class ParsedSets:
    """Remembers the sets that were used last, up to a sum of bytes. For one thread."""

    def __init__(self, *, large_text: int = LARGE_TEXT, bytes_max: int = PARSED_BYTES_MAX) -> None:
        self._large_text, self._bytes_max = large_text, bytes_max
        self._known: dict[tuple[int, str], _Parsed] = {}  #: by number and column; what was used last is last
        self.bytes = 0  #: what all of it takes, about

    def sets_of(self, job: StoredJob) -> Sets:
        """A job's sets, to be changed."""
        return Sets(
            self.parse((job.id, "done"), job.done),
            self.parse((job.id, "failed"), job.failed),
            self.parse((job.id, "leased"), job.leased),
            self.parse((job.id, "canceled"), job.canceled),
        )

    def write(self, job: StoredJob, sets: Sets) -> None:
        """Give a job the texts of its sets."""
        job.done = self.text((job.id, "done"), sets.done)
        job.failed = self.text((job.id, "failed"), sets.failed)
        job.leased = self.text((job.id, "leased"), sets.leased)
        job.canceled = self.text((job.id, "canceled"), sets.canceled)

    def parse(self, key: tuple[int, str], text: str) -> IntervalSet:
        """What `IntervalSet.parse` returns. `key`: the number of its job or lease, and the column."""
        if len(text) < self._large_text:
            return IntervalSet.parse(text)
        parsed = self._known.get(key)
        if parsed is None or parsed.text != text:
            parsed = _Parsed(text, IntervalSet.parse(text))
        self._keep(key, parsed)
        return parsed.events.copy()

    def text(self, key: tuple[int, str], events: IntervalSet) -> str:
        """What `str` returns. An unchanged set keeps its text."""
        parsed = self._known.get(key)
        if parsed is None or parsed.events != events:
            parsed = _Parsed(str(events), events.copy())
        self._keep(key, parsed)
        return parsed.text

    def _keep(self, key: tuple[int, str], parsed: _Parsed) -> None:
        before = self._known.pop(key, None)
        if before is not None:
            self.bytes -= before.bytes
        size = parsed.bytes
        if len(parsed.text) < self._large_text or size > self._bytes_max:
            return
        while self.bytes + size > self._bytes_max:
            self.bytes -= self._known.pop(next(iter(self._known))).bytes
        self._known[key] = parsed
        self.bytes += size
