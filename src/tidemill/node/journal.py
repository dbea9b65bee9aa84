"""What the pilots of a fleet have recorded, each record once, whichever journals hold it.

A record is in the lead's journal, in the pilot's own, or in both (the lead was lost between fsync and acknowledgement,
or was silent for 10 s). Pilots number their records from 1 without gaps, so (pilot, number) names one.

Any process that has the fleet's secret can write records. One that no pilot of this version writes is skipped and
logged: it stops neither the other records nor the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from tidemill.errors import ProtocolError, SiteError
from tidemill.files import names_in
from tidemill.log import Log
from tidemill.model.intervals import IntervalSet
from tidemill.node.framed import READ_BYTES_MAX, FramedTail, decode_lines, next_whole
from tidemill.wire.node import FORM_BASE, Done, Ended, Failed, Noted, OutputRef, Record, job_of

NUMBER_MAX = 1 << 62
"""Of jobs and grants; a step of the site's own has a number above 2^60."""

AMOUNT_MAX = 1 << 53
"""Of all other numbers: in microseconds 285 years, in bytes 9 PB. Sums over a thousand of them have 64 bits."""

PILOT_CHARACTERS_MAX = 200
"""As the lead has it."""

TEXT_CHARACTERS_MAX = 16_384
"""Of one text; a pilot keeps 4 kB of stderr."""

REFUSED_TOLD_MAX = 20
"""Records of one journal that are named in the log when they are passed over."""

_decode = msgspec.json.Decoder(Record).decode
_log = Log("journal")
_IDENTITIES = frozenset({"job", "grant", "program"})
_SIGNED = frozenset({"exit_status", "signal"})


def _getter(names: list[str]) -> Any:
    """What returns these fields of a record as a tuple."""
    return attrgetter(*names, names[0])  # of a single name it would return no tuple


def _fields(kind: type) -> tuple[Any, Any]:
    """What returns the amounts of a record, and its texts."""
    hints = get_type_hints(kind)
    numbers = [name for name, hint in hints.items() if hint in (int, int | None)]
    texts = [name for name, hint in hints.items() if hint is str]
    return _getter([name for name in numbers if name not in _IDENTITIES | _SIGNED]), _getter(texts)


_FIELDS = {kind: _fields(kind) for kind in get_args(Record)}
_PLACE = _fields(OutputRef)


def _decode_record(content: bytes) -> Record:
    """The record, its numbers and texts within what a pilot writes. Raises ValueError."""
    record: Record = _decode(content)
    if (
        type(record) is Failed
    ):  # a payload that speaks the range protocol itself says up to 64 KiB: no fault of a pilot
        record = msgspec.structs.replace(
            record,
            message=record.message[:TEXT_CHARACTERS_MAX],
            stderr_tail=record.stderr_tail[:TEXT_CHARACTERS_MAX],
        )
    number = getattr(record, "job", None)
    if number is not None and number >= FORM_BASE:
        record = msgspec.structs.replace(record, job=job_of(number))
    amounts, texts = _FIELDS[type(record)]
    _check(amounts(record), texts(record))
    for name in _IDENTITIES:
        if not 0 <= (getattr(record, name, 0) or 0) < NUMBER_MAX:
            raise ValueError(f"`{name}` is out of range")
    if record.s < 1 or len(record.p) > PILOT_CHARACTERS_MAX or not record.p.isprintable():
        raise ValueError("no pilot has this name, or no record this number")
    if type(record) is Done:
        for output in record.outputs:
            _check(_PLACE[0](output), _PLACE[1](output))
    elif type(record) is Noted:
        _check([abs(number) for number in record.numbers.values()], record.numbers)
    return record


def _check(amounts: Iterable[int | None], texts: Iterable[str]) -> None:
    for amount in amounts:
        if amount is not None and not 0 <= amount < AMOUNT_MAX:
            raise ValueError(f"{str(amount)[:30]} is out of range")
    for text in texts:
        if len(text) > TEXT_CHARACTERS_MAX:
            raise ValueError(f"a text of {len(text)} characters, at most {TEXT_CHARACTERS_MAX}")


class JournalTail(FramedTail[Record]):
    """Reads what is new in one journal file."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        super().__init__(path, _decode_record, offset=offset, refuse=self._pass_over)
        self._refused = 0

    def _pass_over(self, why: str) -> None:
        self._refused += 1
        if self._refused <= REFUSED_TOLD_MAX:
            hint = "update tidemill here if its pilots are newer; if not, the fleet's secret has leaked"
            _log.warning("record.refused", reason=why, hint=hint, refused=self._refused)


OPERATIONS_PER_JOURNAL = 2
"""Of one read on a shared file system: an open and a close. The listing counts once."""


def read_interval_s(journals: int, *, operations_per_s_max: float, interval_s: float) -> float:
    """Seconds between two reads of this number of growing journals: `interval_s`, or longer where the file system's
    budget requires it. 1,000 journals at 100 operations/s: 20 s."""
    operations = 1 + OPERATIONS_PER_JOURNAL * journals
    return max(interval_s, operations / operations_per_s_max)


class Merge:
    """Drops records that came before; keeps which numbers of each pilot have come."""

    def __init__(
        self, seen: dict[str, IntervalSet] | None = None, ended: dict[str, int] | None = None
    ) -> None:
        """`seen`: numbers of each pilot's records that have come; `ended`: pilot -> number of its Ended record. The
        caller's own, which grow with each `deduplicate`: they are kept nowhere else."""
        self._seen = {} if seen is None else seen
        self._last = {pilot: _last(numbers) for pilot, numbers in self._seen.items()}
        self._ended = {} if ended is None else ended

    def deduplicate(self, records: Iterable[Record]) -> list[Record]:
        """The records that are new, those of one pilot in ascending order of their numbers."""
        new: list[Record] = []
        in_order = True
        for record in records:
            pilot, number = record.p, record.s
            numbers = self._seen.get(pilot)
            if numbers is None:
                numbers = self._seen[pilot] = IntervalSet()
                self._last[pilot] = 0
            if numbers.add(number, number + 1):
                if number > self._last[pilot]:
                    self._last[pilot] = number
                else:
                    in_order = False
                new.append(record)
                if type(record) is Ended:
                    self._ended[record.p] = record.s
        if not in_order:
            new.sort(key=lambda record: (record.p, record.s))
        return new

    def is_complete(self, pilot: str) -> bool:
        """Whether the pilot has ended and every record of it has come."""
        last = self._ended.get(pilot)
        return last is not None and self._seen[pilot].covers(1, last + 1)

    def missing(self, pilot: str) -> list[tuple[int, int]]:
        """Half-open intervals of numbers below the pilot's highest one that have not come."""
        numbers = self._seen.get(pilot)
        return [] if numbers is None else numbers.missing(1, self._last[pilot])


class FleetJournal:
    """All journals of a fleet directory as one stream without duplicates.

    One `read` costs one listing of FLEET/journal and one open per journal that may still grow; a pilot's own
    journal is left alone once all its records have come, or it is retired.
    """

    def __init__(
        self,
        directory: Path,
        *,
        offsets: Mapping[str, int] | None = None,
        seen: dict[str, IntervalSet] | None = None,
        ended: dict[str, int] | None = None,
    ) -> None:
        """`offsets`: bytes that were read of each journal; `seen`, `ended`: see `Merge`."""
        self._directory = directory
        self._merge = Merge(seen, ended)
        self._tails = {name: JournalTail(directory / name, offset=at) for name, at in (offsets or {}).items()}
        self._retired: set[str] = set()
        self._moved: set[str] = set()  #: journals from which more was read since the last call of `moved`
        #: of a `read` that found something all the same
        self._failed: SiteError | ProtocolError | None = None
        self.growing = 0
        self.is_behind = False  #: the last `read` stopped at its bound

    def read(self, bytes_max: int = READ_BYTES_MAX) -> list[Record]:
        """New records, each once; those of one pilot in ascending order within one call, and almost always across.

        At most about `bytes_max` bytes are read: call again while something comes. Raises SiteError, ProtocolError;
        where other journals could be read, only with the next call, so that nothing of them is lost.
        """
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        found: list[Record] = []
        left = bytes_max
        names = [name for name in self._names() if not self._is_over(name)]
        self.growing = len(names)
        for name in names:
            tail = self._tails.get(name)
            if tail is None:
                tail = self._tails[name] = JournalTail(self._directory / name)
            before = tail.offset
            try:
                found += tail.read(left)
            except (SiteError, ProtocolError) as error:
                self._failed = self._failed or error
            if tail.offset != before:
                self._moved.add(name)
            left -= tail.offset - before
            if left <= 0:
                break
        self.is_behind = left <= 0
        if self._failed is not None and not found:
            failed, self._failed = self._failed, None
            raise failed
        return self._merge.deduplicate(found)

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes read of each journal."""
        return {name: tail.offset for name, tail in self._tails.items()}

    def moved(self) -> dict[str, int]:
        """Offsets of the journals from which more was read since the last call. The cost grows with these journals
        only."""
        moved, self._moved = self._moved, set()
        return {name: self._tails[name].offset for name in sorted(moved)}

    def retire(self, allocation: str) -> list[Record]:
        """Read what an allocation's pilots have left behind, and leave their journals alone from now on.

        For allocations that the batch system ended a while ago (a network file system may show what was written
        last only after its cache's time, often 60 s): a pilot that was killed never reports its end, and its
        journal would be opened for ever. One that is started later under the same name has another journal. Raises
        SiteError, ProtocolError: then nothing of it counts as read.
        """
        found: list[Record] = []
        names = [
            name
            for name in self._names()
            if allocation_of(name.removesuffix(".log")) == allocation and not self._is_over(name)
        ]
        tails = [self._tails.setdefault(name, JournalTail(self._directory / name)) for name in names]
        before = [tail.offset for tail in tails]
        try:
            for tail in tails:
                tail.damage_s = 0.0  # nothing more is to come
                while new := tail.read():
                    found += new
        except (SiteError, ProtocolError):
            for tail, offset in zip(tails, before, strict=True):
                tail.offset = offset
            raise
        self._moved.update(
            name for name, tail, at in zip(names, tails, before, strict=True) if tail.offset != at
        )
        self._retired.update(name.removesuffix(".log") for name in names)
        return self._merge.deduplicate(found)

    def _is_over(self, name: str) -> bool:
        pilot = name.removesuffix(".log")
        return self._merge.is_complete(pilot) or pilot in self._retired

    def is_complete(self, pilot: str) -> bool:
        """Whether the pilot has ended and every record of it has come."""
        return self._merge.is_complete(pilot)

    def missing(self, pilot: str) -> list[tuple[int, int]]:
        """Record numbers of a pilot that should be in some journal and have not come yet."""
        return self._merge.missing(pilot)

    def _names(self) -> list[str]:
        """Journal files, the leads' first in order of incarnation: that keeps a pilot's records in order."""
        names = [name for name in names_in(self._directory) or [] if name.endswith(".log")]
        return sorted(names, key=_reading_order)


def allocation_of(pilot: str) -> str:
    """The allocation in a name made by `pilot_id`; a lead's journal has none."""
    return pilot.rsplit(".", 2)[0] if pilot.count(".") >= 2 else ""


def _last(numbers: IntervalSet) -> int:
    """The highest number of the set, 0 where it is empty."""
    intervals = list(numbers)
    return intervals[-1][1] - 1 if intervals else 0


def _reading_order(name: str) -> tuple[int, int, str]:
    incarnation = name.removeprefix("lead-").removesuffix(".log")
    if name.startswith("lead-") and incarnation.isdecimal():
        return (0, int(incarnation), name)
    return (1, 0, name)


def replay(directory: Path, offsets: Mapping[str, int]) -> Iterator[list[Record]]:
    """The records of the first `offsets[name]` bytes of each journal, in pieces, as they were read before.

    What an incomplete line leaves is the reader's to come; damage was passed over then, and is again. Raises
    SiteError, ProtocolError.
    """
    for name in sorted(offsets, key=_reading_order):
        at, end = 0, offsets[name]
        while at < end:
            size = min(READ_BYTES_MAX, end - at)
            content = _read_bytes(directory / name, at, size)
            records, used = decode_lines(content, _decode_record, source=name, refuse=_skip)
            if not used:
                used = next_whole(content, is_all=len(content) < size or at + size >= end)
            if not used:
                break
            at += used
            yield records


def _skip(why: str) -> None:
    """Ignore damage, which was logged when it was read first."""


def _read_bytes(path: Path, at: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(size)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SiteError(f"failed to read `{path}` at {at}: {error.strerror}") from error


def read_records(data: bytes) -> tuple[list[Record], int]:
    """Records of the whole lines at the start of `data`, and the bytes they take (for one-off reading)."""
    return decode_lines(data, _decode_record)
