"""The site's log: what happened, one framed line each, durable before anything follows from it.

    SITE/log/EPOCH-SEGMENT.snap    one framed line: the whole state before the segment's first line
    SITE/log/EPOCH-SEGMENT.log     framed lines: entries of `site/state/site_state.py`

Each epoch writes only its own files. It starts by writing a snapshot of what it read from its predecessors, so
bytes that a predecessor appends later are never read by anyone; the first line of its log records how far each file
was read. A long segment is condensed: a new snapshot, then a new segment.

Lines that the file system has damaged are passed over where whole ones follow, and reported: what stood there is lost.
An entry behind them that cannot follow without them is dropped and reported, too. What no whole line follows is a torn
tail: its writer died, and nothing was built on it.
"""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.errors import ProtocolError, SiteError, TidemillError
from tidemill.files import append, names_in, open_append, write_durable
from tidemill.log import Log
from tidemill.node.framed import decode_lines, frame
from tidemill.site.state import lifelines
from tidemill.site.state.pool import WorkPool
from tidemill.site.state.site_state import Entry, SiteState, decode_hook, encode_hook

_NAME = re.compile(r"(\d{6,})-(\d{6,})\.(snap|log)")
_encoder = msgspec.json.Encoder(enc_hook=encode_hook)
_decode_entry = msgspec.json.Decoder(Entry, dec_hook=decode_hook).decode
_decode_state = msgspec.json.Decoder(SiteState, dec_hook=decode_hook).decode
_CANNOT_FOLLOW = (TidemillError, LookupError, ValueError, TypeError, AttributeError, AssertionError)
_LOST = (
    "the file system damaged it: what stood there is lost, what follows is read; an operator's `tidemill site "
    "reset-epoch` at the server has lost work run again"
)
DAMAGE_TOLD_MAX = 20
DROPPED_MAX = 20
"""Entries that cannot follow damage; each costs another replay."""

SEGMENTS_KEPT = 3
SEGMENT_BYTES_MAX = 256 << 20
"""A longer segment is condensed, too, however few its lines are."""
_log = Log("agent")


class Restored:
    """What a new epoch starts from: the pool, and how many bytes of which files it was read from."""

    def __init__(self, pool: WorkPool, read: dict[str, int], lines: int) -> None:
        self.pool = pool
        self.read = read
        self.lines = lines


def restore(directory: Path, site: str) -> Restored:
    """The state by the newest whole snapshot and its log; a new state where there is none.

    Raises SiteError where files cannot be read, ProtocolError where they are of a newer version or another site.
    """
    gc.disable()  # hundreds of thousands of records appear and none goes: collecting would double the time
    try:
        return _restore(directory, site)
    finally:
        gc.enable()


def _restore(directory: Path, site: str) -> Restored:
    for epoch, segment in sorted(_segments(directory), reverse=True):
        name = f"{epoch:06}-{segment:06}"
        content = _read(directory / f"{name}.snap")
        states, _ = decode_lines(content, _decode_state, source=f"`{directory / name}.snap`")
        if not states:
            _log.error("log.damaged", file=f"{directory / name}.snap", start=0, end=len(content), hint=_LOST)
            continue
        if states[0].site != site:
            raise ProtocolError(
                f"`{directory}` is the log of site `{states[0].site}`, not of `{site}`",
                hint="one site directory serves one site: name another directory",
            )
        path = directory / f"{name}.log"
        found = _entries(path, _read(path, missing_ok=True))
        pool = _replayed(states[0], found)
        if pool is None:
            pool = _replayed_in_part(path, content, found)
        return Restored(pool, {f"{name}.snap": len(content), path.name: found.used}, len(found.entries))
    return Restored(WorkPool(SiteState(site=site)), {}, 0)


class _Found(NamedTuple):
    """What a log holds. `whole`: how many entries no damage comes before; `used`: bytes up to the torn tail."""

    entries: list[Entry]
    whole: int
    used: int


def _entries(path: Path, content: bytes) -> _Found:
    """The entries of all correct lines; reports what is passed over between them."""
    damage: list[tuple[int, int]] = []
    entries, used = decode_lines(
        content, _decode_entry, source=f"`{path}`", damage=lambda start, end: damage.append((start, end))
    )
    for start, end in damage[:DAMAGE_TOLD_MAX]:
        _log.error("log.damaged", file=str(path), start=start, end=end, hint=_LOST)
    if len(damage) > DAMAGE_TOLD_MAX:
        _log.error("log.damaged", file=str(path), places=len(damage), hint=_LOST)
    whole = content.count(b"\n", 0, damage[0][0]) if damage else len(entries)
    return _Found(entries, whole, used)


def _replayed(state: SiteState, found: _Found) -> WorkPool | None:
    """The state with all entries; None where one cannot follow the damage before it. Raises ProtocolError."""
    pool = WorkPool(state)
    for number, entry in enumerate(found.entries):
        try:
            pool.apply(entry)
        except _CANNOT_FOLLOW:
            if number < found.whole:
                raise
            return None
    return pool


def _replayed_in_part(path: Path, snapshot: bytes, found: _Found) -> WorkPool:
    """The state without the entries that cannot follow. Each try starts from the snapshot, so that nothing of such an
    entry is left; after `DROPPED_MAX` all others are dropped, too."""
    dropped: set[int] = set()
    while True:
        states, _ = decode_lines(snapshot, _decode_state)
        pool = WorkPool(states[0])
        for number, entry in enumerate(found.entries):
            if number in dropped:
                continue
            if len(dropped) == DROPPED_MAX and number > max(dropped):
                _log.error(
                    "log.entries_dropped", file=str(path), entries=len(found.entries) - number, hint=_LOST
                )
                return pool
            try:
                pool.apply(entry)
            except _CANNOT_FOLLOW as error:
                kind = type(entry).__name__
                _log.error("log.entry_dropped", file=str(path), entry=kind, cause=repr(error), hint=_LOST)
                dropped.add(number)
                break
        else:
            return pool


class SiteLog:
    """Appends entries of one epoch. `apply` changes the pool and notes the entry; `commit` makes all noted durable."""

    def __init__(self, directory: Path, epoch: int, pool: WorkPool, *, lines_max: int) -> None:
        self._directory = directory
        self._epoch = epoch
        self._segment = 0
        self._lines_max = lines_max
        self._lines = self._bytes = 0
        self._pending: list[bytes] = []
        self._untold: list[lifelines.Line] = []
        self._descriptor = -1
        self.is_broken = False  #: a write failed: what is in memory may not be durable, the agent has to end
        self.pool = pool
        self.condense()

    def apply(self, entry: Entry) -> None:
        """Take an entry over into the pool and note it; it is durable after the next `commit`."""
        self._pending.append(frame(_encoder.encode(entry)))
        if _log.explains:
            self._untold += lifelines.lines(entry, self.pool.state.have)
        self.pool.apply(entry)

    def commit(self) -> bool:
        """Make everything noted durable; whether there was anything. Raises SiteError: then nothing may follow."""
        if not self._pending:
            return False
        content = b"".join(self._pending)
        self._bytes += len(content)
        try:
            append(self._descriptor, content)  # one for all entries of a step
        except OSError as error:
            self.is_broken = True
            raise SiteError(
                f"failed to write the site's log in `{self._directory}`: {error.strerror}",
                hint="check free space and quota; the agent goes on from what is durable when it is started again",
            ) from error
        self._lines += len(self._pending)
        self._pending.clear()
        for event, fields in self._untold:
            _log.debug(event, **fields)
        self._untold.clear()
        if self._lines >= self._lines_max or self._bytes >= SEGMENT_BYTES_MAX:
            self.condense()
        return True

    def condense(self) -> None:
        """Write a snapshot and go on in a new segment. Raises SiteError."""
        assert not self._pending, "entries must be durable before they are condensed"
        self._segment += 1
        self._lines = self._bytes = 0
        name = f"{self._epoch:06}-{self._segment:06}"
        write_durable(self._directory / f"{name}.snap", frame(_encoder.encode(self.pool.state)))
        path = self._directory / f"{name}.log"
        self.close()
        try:
            self._descriptor = open_append(path, exclusive=True)
        except OSError as error:
            raise SiteError(f"failed to start `{path}`: {error.strerror}") from error
        self._prune()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _prune(self) -> None:
        for epoch, segment in sorted(_segments(self._directory))[:-SEGMENTS_KEPT]:
            if epoch <= self._epoch:
                for kind in ("log", "snap"):
                    (self._directory / f"{epoch:06}-{segment:06}.{kind}").unlink(missing_ok=True)


def _segments(directory: Path) -> list[tuple[int, int]]:
    matches = [
        match for match in map(_NAME.fullmatch, names_in(directory) or []) if match and match[3] == "snap"
    ]
    return [(int(match[1]), int(match[2])) for match in matches]


def _read(path: Path, *, missing_ok: bool = False) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if missing_ok:
            return b""
        raise SiteError(f"failed to read `{path}`: it is gone") from error
    except OSError as error:
        raise SiteError(f"failed to read `{path}`: {error.strerror}") from error
