"""The audit log: who changed what, as lines that can be appended to and not altered unnoticed.

    SERVER/audit/2026-11.jsonl      one file a month, one JSON object a line, mode 0600

Each line holds the SHA-256 of the line before it, across files. A change and its note are committed in one
transaction of the database; from there the note goes into the file, once: lines carry the note's number (`o`). Notes
say who (subject and serial number, never a key, token or secret), what, on what, and a few facts.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from tidemill import clock, log
from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import append_durable, make_directories
from tidemill.model.identity import Act, Identity
from tidemill.server.database.unit_of_work import UnitOfWork, take_numbers
from tidemill.wire.api import LeaseOrder, SyncRequest

FOLDER = "audit"
NOTES_MAX = 1_000  #: moved at once
REFUSED_MAX = 100  #: refusals logged a minute; of the others only their number
REFUSED_DAY_MAX = 2_000  #: and logged a day; beyond that one line a minute, in all some 5 MB a day
TEXT_MAX = 500
DAY_US = 86_400_000_000
SYNC_NOTE_US = 60_000_000  #: the syncs of a site are summed up, and logged at most once in this time
MONTH_S_MAX = 31 * 86400.0
START = "0" * 64
PIECE_BYTES = 64 * 1024
_FILE = re.compile(r"^\d{4}-\d{2}\.jsonl$")
_LOG = log.Log("audit")
_ENCODER = msgspec.json.Encoder()


class AuditNote(msgspec.Struct, kw_only=True):
    """A note."""

    role: str
    name: str
    via: str
    subject: str
    credential: str
    act: str
    on: str
    facts: dict[str, Any]


class AuditLine(AuditNote, kw_only=True):
    """A note as it stands in the log. `o`: highest number of a note of the database up to here."""

    n: int
    at: str
    o: int
    prev: str
    torn: bool = False  #: the line before it was cut off when the machine stopped


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was found intact. `head`: SHA-256 of the last line; a copy of it kept elsewhere can prove more later."""

    files: int
    lines: int
    first: int
    last: int
    head: str


def note(work: UnitOfWork, identity: Identity, act: Act, on: str, **facts: Any) -> None:
    """Log a change if and only if its transaction is committed."""
    number = take_numbers(work.session, "next_audit", 1)
    body = _ENCODER.encode(entry(identity, act, on, **facts))
    work.session.run("insert_audit", id=number, at_us=work.now_us, body=body)


def entry(identity: Identity, act: str, on: str, **facts: Any) -> AuditNote:
    """A note of what an identity did."""
    short = {key: _short(each) if isinstance(each, str) else each for key, each in facts.items()}
    return AuditNote(
        role=identity.role, name=_short(identity.name), via=identity.via, subject=_short(identity.subject),
        credential=_short(identity.credential), act=str(act), on=_short(on), facts=short,
    )  # fmt: skip


def _short(text: str) -> str:
    return text[:TEXT_MAX]


class AuditLog:
    """Appends; one per server process. Shared by threads."""

    def __init__(self, place: Path, *, now_us: Callable[[], int] = clock.now_us) -> None:
        """Find the end of the log: reads the last lines only. Raises SiteError if it cannot be read. The clock is an
        argument for tests."""
        self._now_us = now_us
        self._place = place / FOLDER
        self._lock = threading.Lock()
        self._refused: deque[tuple[str, str]] = deque(maxlen=REFUSED_MAX)
        self._refusals = 0
        self._minute = self._day = self._told_today = 0
        try:
            make_directories(self._place, 0o077)
            self._find_end()
        except OSError as error:
            raise SiteError(
                f"audit log in `{self._place}` cannot be used: {error}", transient=False
            ) from error

    def _find_end(self) -> None:
        self._n, self._o, self._prev, self._file, self._torn, self._lost = 0, 0, START, "", False, False
        for path in reversed(_files(self._place)):
            line = None
            for text in _lines_back(path):
                line = _parsed(text)
                if not self._file:
                    self._file = path.name
                    self._prev, self._torn = hashlib.sha256(text).hexdigest(), line is None
                    _end_line(path)
                if line is not None:
                    break
            if line is not None:
                self._n, self._o = line.n, line.o
                return

    # ---- refusals: of strangers too, so never one file write each ------------------------------------------------

    def refused(self, who: str, why: str) -> None:
        """Note that a request was refused. Cheap; logged with the next `append`."""
        with self._lock:
            self._refusals += 1
            self._refused.append((_short(who), _short(why)))

    def _take_refusals(self, now_us: int) -> list[AuditNote]:
        minute = now_us // 60_000_000
        if not self._refusals or minute == self._minute:
            return []
        if now_us // DAY_US != self._day:
            self._day, self._told_today = now_us // DAY_US, 0
        room = REFUSED_DAY_MAX - self._told_today
        told = [_refusal(who, why) for who, why in list(self._refused)[: max(0, room)]]
        self._told_today += len(told)
        more = self._refusals - len(told)
        if more:
            told.append(_refusal("several", f"{more} more refusals"))
        self._refused.clear()
        self._refusals, self._minute = 0, minute
        return told

    # ---- append --------------------------------------------------------------------------------------------------

    def append(self, notes: list[tuple[int, int, bytes]], *own: AuditNote) -> int:
        """Write notes (number, time, encoded AuditNote), the server's own and what was refused; durable on return. The
        number of lines of the log. Raises SiteError when the disk refuses: then nothing of it counts as logged."""
        now_us = self._now_us()
        with self._lock:
            before = (list(self._refused), self._refusals, self._minute, self._day, self._told_today)
            try:
                if self._lost:
                    self._find_end()
                lines: dict[str, list[bytes]] = {}
                for number, at_us, body in notes:
                    if number > self._o:
                        self._line(lines, at_us, msgspec.json.decode(body, type=AuditNote), number)
                for each in [*own, *self._take_refusals(now_us)]:
                    self._line(lines, now_us, each, self._o)
                for name, texts in lines.items():
                    self._write(name, texts)
            except (OSError, SiteError) as error:
                self._lost = True  # how much of it was written is found out before the next
                self._refused = deque(
                    before[0], REFUSED_MAX
                )  # some may be logged twice: better than not at all
                _, self._refusals, self._minute, self._day, self._told_today = before
                raise SiteError(f"audit log in `{self._place}` cannot be written: {error}") from error
            return self._n

    def _line(self, lines: dict[str, list[bytes]], at_us: int, note: AuditNote, number: int) -> None:
        at = clock.utc_text(at_us)
        self._file = max(self._file, f"{at[:7]}.jsonl")  # a clock that goes back opens no older file
        self._n, self._o = self._n + 1, max(self._o, number)
        line = AuditLine(
            **msgspec.structs.asdict(note), n=self._n, at=at, o=self._o, prev=self._prev, torn=self._torn
        )
        text = _ENCODER.encode(line)
        self._prev, self._torn = hashlib.sha256(text).hexdigest(), False
        lines.setdefault(self._file, []).append(text)

    def _write(self, name: str, texts: list[bytes]) -> None:
        path = self._place / name
        new = not path.exists()
        append_durable(path, b"".join(each + b"\n" for each in texts))
        if new:
            _LOG.info("audit.head", lines=self._n, head=self._prev, file=name)

    def join(self, write: Callable[[Callable[[UnitOfWork], int]], int]) -> None:
        """Before the first change, let the database's numbers continue after the log's: a database that is older than
        the log, restored from a copy or made anew, would use numbers again, and their notes would count as logged.
        `write` runs a transaction."""

        def go_on(work: UnitOfWork) -> int:
            behind = self._o + 1 - take_numbers(work.session, "next_audit", 0)
            if behind > 0:
                take_numbers(work.session, "next_audit", behind)
            return behind

        behind = write(go_on)
        if behind > 0:
            _LOG.warning("audit.database_older", numbers=behind)
            self.append([], _system("database", "it is older than this log", numbers=behind))

    def take_over(self, term: int) -> None:
        """This server of a pair writes from now on: what the other one noted stands in its own log. `term` orders the
        pieces of both."""
        self.append([], _system("take-over", f"term {term}", first_note=self._o + 1))

    @property
    def head(self) -> tuple[int, str]:
        """Number of lines, and the hash of the last one."""
        return self._n, self._prev

    def begins_us(self) -> int:
        """When the first month of the log began; 0 while there is none."""
        files = _files(self._place)
        if not files:
            return 0
        return int(datetime.strptime(f"{files[0].stem} +0000", "%Y-%m %z").timestamp()) * 1_000_000

    def prune(self, kept_s: float) -> list[str]:
        """Remove months that ended longer ago than that, if as many months of the log came since: a clock that is years
        ahead for a while removes nothing. Their names. The log says so before it happens."""
        now_us = self._now_us()
        before = clock.utc_text(now_us - int(kept_s * 1e6))[:7]
        since = max(1, ceil(kept_s / MONTH_S_MAX))
        gone = [path for path in _files(self._place)[:-since] if path.name[:7] < before]
        for path in gone:
            note = _system("removed", path.name, lines_to=_last_number(path), kept_s=kept_s)
            self.append([], note)
            path.unlink()
            _LOG.info("audit.removed", file=path.name, kept_s=kept_s)
        return [path.name for path in gone]


def _refusal(who: str, why: str) -> AuditNote:
    return _system("refused", who, why=why)


def _system(act: str, on: str, **facts: Any) -> AuditNote:
    return AuditNote(role="", name="", via="", subject="", credential="", act=act, on=on, facts=facts)


def _last_number(path: Path) -> int:
    return next((each.n for each in map(_parsed, _lines_back(path)) if each is not None), 0)


def _lines_back(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The lines of a file from the last to the first, without their ends; holds a piece and the longest line."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        if at == 0:
            return
        file.seek(at - 1)
        at -= file.read(1) == b"\n"
        ends: list[bytes] = []  # of the line whose beginning was not read yet, the last piece first
        while at > 0:
            size = min(piece_bytes, at)
            at -= size
            file.seek(at)
            first, *whole = file.read(size).split(b"\n")
            if whole:
                yield whole[-1] + b"".join(reversed(ends))
                yield from reversed(whole[:-1])
                ends = []
            ends.append(first)
        yield b"".join(reversed(ends))


def _end_line(path: Path) -> None:
    """Where the machine stopped or the disk was full, the last line was cut off: it stays as it is, and ends."""
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _parsed(text: bytes) -> AuditLine | None:
    try:
        return msgspec.json.decode(text, type=AuditLine)
    except UNDECODABLE:
        return None


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if _FILE.match(path.name))


def verify(place: Path, *, at_least: int = 0) -> Verified:
    """Read the whole log of a server's directory. Raises SiteError that names the first line that does not fit.

    `at_least`: the number of lines that the database knows of. Cost: reads every file once.
    """
    folder = place / FOLDER
    if not folder.is_dir():
        raise SiteError(f"there is no audit log in `{place}`", transient=False)
    chain, found = _Chain(), _files(folder)
    for path in found:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                why = chain.refuse(text.removesuffix(b"\n"))
                if why is not None:
                    raise _altered(f"`{path}` line {number}", why)
    if chain.lines and str(chain.first - 1) not in chain.removed:
        raise _altered(f"`{found[0]}`", f"it begins with line {chain.first}, and nothing says why")
    if chain.last < at_least:
        raise _altered(f"`{folder}`", f"it ends at line {chain.last}, the database knows of {at_least}")
    return Verified(
        files=len(found), lines=chain.lines, first=chain.first, last=chain.last, head=chain.prev or START
    )


class _Chain:
    """Follows lines from the first that is there."""

    def __init__(self) -> None:
        self.prev, self.torn = "", False
        self.first = self.last = self.lines = 0
        self.removed = {"0"}  #: last lines of months that the log says were removed in their time

    def refuse(self, text: bytes) -> str | None:
        """Why a line does not follow the one before; None if it does."""
        line, before = _parsed(text), self.prev
        self.prev = hashlib.sha256(text).hexdigest()
        if line is None:
            self.torn = True
            return None
        if self.torn and not line.torn:
            return "the line before it cannot be read"
        if (before or line.n == 1) and line.prev != (before or START):
            return "it does not follow the line before it"
        if self.last and line.n != self.last + 1:
            return f"it is number {line.n}, after {self.last}"
        self.first, self.last, self.lines, self.torn = self.first or line.n, line.n, self.lines + 1, False
        if line.act == "removed" and not line.role:
            self.removed.add(str(line.facts.get("lines_to", 0)))
        return None


def _altered(where: str, why: str) -> SiteError:
    return SiteError(
        f"the audit log was altered: {where}: {why}",
        hint="compare with a copy, or with the heads (`audit.head`) in the server's log",
        transient=False,
    )


class SyncTally(msgspec.Struct, frozen=True, kw_only=True):
    """What the syncs of a site did since they were last logged. `told_us`, `epoch`: when, and of which agent."""

    told_us: int = 0
    epoch: int | None = None
    syncs: int = 0
    reports: int = 0
    leases: int = 0
    events: int = 0


class SyncTallies:
    """Sums up what the syncs of a site did, so that the log has one line a minute of it instead of one each.

    Used by the writer alone. What a transaction counts holds once it is committed: `settle` after it, `forget` when
    it was undone.
    """

    def __init__(self) -> None:
        self._kept: dict[str, SyncTally] = {}
        self._staged: dict[str, SyncTally] = {}

    def note(self, work: UnitOfWork, identity: Identity, request: SyncRequest) -> None:
        """Count a sync; log it with those before, if the last note is old or another agent acts for the site."""
        site = request.site
        leases = [
            order for order in work.new_orders(work.memory.site_ids[site]) if isinstance(order, LeaseOrder)
        ]
        before = self._staged.get(site) or self._kept.get(site) or SyncTally()
        now = SyncTally(
            told_us=before.told_us, epoch=before.epoch, syncs=before.syncs + 1,
            reports=before.reports + len(request.reports), leases=before.leases + len(leases),
            events=before.events + sum(order.count for order in leases),
        )  # fmt: skip
        is_new = before.epoch != request.epoch
        is_due = work.now_us - before.told_us >= SYNC_NOTE_US
        if is_new or (is_due and (now.reports or now.leases)):
            note(
                work, identity, Act.SYNC, f"site {site}", epoch=request.epoch, host=request.host, syncs=now.syncs,
                reports=now.reports, leases=now.leases, events=now.events,
            )  # fmt: skip
            now = SyncTally(told_us=work.now_us, epoch=request.epoch)
        self._staged[site] = now

    def settle(self) -> None:
        """The transaction was committed."""
        self._kept |= self._staged
        self._staged.clear()

    def forget(self) -> None:
        """The transaction was undone."""
        self._staged.clear()
