"""Revoked credentials: a file with one line each. Changes take effect within a second.

A separate thread reads the file. A file system that does not answer delays neither requests nor the server's end, and
earlier revocations stay in force.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill import clock, log
from tidemill.errors import ConfigError, SiteError
from tidemill.files import write_durable
from tidemill.model.identity import Identity

LINES_MAX = 100_000
PAUSE_S = 1.0  #: interval between two readings of the file
LATE_S = 30.0  #: a reading that takes longer is reported
KINDS = ("serial", "subject", "name", "token")
_NONE = (0, 0, 0)
_DAMAGED = (-1, -1, -1)
_LOG = log.Log("server")


class Revoked:
    """The list. `why` uses only what is in memory; `refresh` reads the file, and `watched` does so every second.
    Threads may share it.

    A server may have none, and one that appears later counts at once. One that had entries and is gone is an error:
    what it revoked stays revoked while the server runs, and without it the server does not start again. A file beside
    it, whose name ends with `.read`, keeps in mind that there was one; so does the database, which a pair shares.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError if the file is damaged or gone: without it revoked credentials would be accepted."""
        self._path = path
        self._lock = threading.Lock()
        self._seen = _NONE
        self._began_s: float | None = None  #: since when the thread reads the file
        self._entries: frozenset[tuple[str, str]] = frozenset()
        if path is not None and (os.path.lexists(path) or _mark_of(path).exists()):
            self._read(path)

    def has_entries(self) -> bool:
        """Whether anything is revoked now."""
        return bool(self._entries)

    def refuse_lost(self) -> None:
        """Raises ConfigError where the list is missing. For a server whose database says that it had one."""
        if self._path is not None and not os.path.lexists(self._path):
            raise ConfigError(
                f"the list of what is revoked is missing, `{self._path}`, and the database says that it had entries",
                hint="copy it from the other server of the pair, or from a backup; if nothing is revoked any more, "
                "write an empty file",
            )

    def why(self, identity: Identity) -> str | None:
        """The line that revokes an identity, or None."""
        kind = "token" if identity.via == "token" else "serial"
        credential = identity.credential.lstrip("0") if kind == "serial" else identity.credential
        for entry in ((kind, credential), ("subject", identity.subject), ("name", identity.name)):
            if entry[1] and entry in self._entries:
                return f"{entry[0]} {entry[1]}"
        return None

    @contextmanager
    def watched(self, *, pause_s: float = PAUSE_S, late_s: float = LATE_S) -> Iterator[None]:
        """Refresh the list every `pause_s` in a thread that nothing waits for, and log a reading that takes longer than
        `late_s`."""
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over, pause_s), name="revoked", daemon=True).start()
        threading.Thread(target=self._warn, args=(over, late_s), name="revoked-late", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event, pause_s: float) -> None:
        while not over.wait(pause_s):
            self._began_s = clock.monotonic_s()
            try:
                self.refresh()
            except Exception as error:  # noqa: BLE001 - top of a thread: log it and look again
                _LOG.error("revoked.unread", error=repr(error))
            self._began_s = None

    def _warn(self, over: threading.Event, late_s: float) -> None:
        told: float | None = None
        while not over.wait(late_s / 2):
            began_s = self._began_s
            if began_s is not None and began_s != told and clock.monotonic_s() > began_s + late_s:
                told = began_s
                _LOG.error("revoked.unanswered", path=str(self._path), hint="its file system does not answer")

    def refresh(self) -> None:
        """Read the file if it has appeared or changed. Takes as long as its file system does."""
        if self._path is None:
            return
        path = self._path
        with self._lock:
            if _state(path) == self._seen:
                return
            try:
                self._read(path)
            except ConfigError as error:
                if self._seen != _DAMAGED:  # what was known remains in force: a damaged file lets no one in
                    _LOG.error("revoked.unread", error=error.message)
                self._seen = _DAMAGED

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                seen = _signature(os.fstat(file.fileno()))
                text = file.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"list of what is revoked, `{path}`, cannot be read: {error}",
                hint="bring it back; if nothing is revoked any more, write an empty file",
            ) from error
        self._entries = parse(text, path)
        self._seen = seen
        _LOG.info("revoked.read", path=str(path), entries=len(self._entries))
        mark = _mark_of(path)
        if self._entries and not mark.exists():
            try:
                write_durable(mark, b"")
            except SiteError as error:  # the list counts all the same
                _LOG.error("revoked.unmarked", error=error.message)


def _mark_of(path: Path) -> Path:
    """The file that says that the list has had entries."""
    return path.with_name(f"{path.name}.read")


def _state(path: Path) -> tuple[int, int, int]:
    """Changes with the file. A link that leads nowhere is not a list that is not there."""
    try:
        return _signature(path.stat())
    except OSError:
        return _DAMAGED if os.path.lexists(path) else _NONE


def _signature(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def parse(text: str, path: Path) -> frozenset[tuple[str, str]]:
    """Kind and value of every line; `#` starts a comment. Raises ConfigError that quotes a malformed line."""
    entries = set()
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise ConfigError(f"`{path}` has {len(lines)} lines, at most {LINES_MAX}")
    for number, line in enumerate(lines, start=1):
        bare = line.split(" #")[0].strip()
        if not bare or bare.startswith("#"):
            continue
        kind, _, value = bare.partition(" ")
        value = value.strip()
        if kind not in KINDS or not value:
            raise ConfigError(
                f"`{path}` line {number}: `{line[:100]}` revokes nothing",
                hint="write `serial HEX`, `subject /DC=...`, `name NAME` or `token JTI`",
            )
        entries.add((kind, _serial(value) if kind == "serial" else value))
    return frozenset(entries)


def _serial(text: str) -> str:
    return text.lower().replace(":", "").removeprefix("0x").lstrip("0")
