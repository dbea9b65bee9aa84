"""Revoked credentials: a file with one line each, read again whenever it appears or changes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tidemill import log
from tidemill.errors import ConfigError, SiteError
from tidemill.files import write_durable
from tidemill.model.identity import Identity

LINES_MAX = 100_000
KINDS = ("serial", "subject", "name", "token")
_NONE = (0, 0, 0)
_DAMAGED = (-1, -1, -1)
_LOG = log.Log("server")


class Revoked:
    """The list. `why` costs one `stat` while the file does not change. Shared by threads.

    A server may have none, and one that appears later counts at once. One that had entries and is gone is an error:
    what it revoked stays revoked while the server runs, and without it the server does not start again. A file beside
    it, whose name ends with `.read`, keeps in mind that there was one; so does the database, which a pair shares.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError if the file is damaged or gone: without it revoked credentials would be accepted."""
        self._path = path
        self._lock = threading.Lock()
        self._seen = _NONE
        self._entries: frozenset[tuple[str, str]] = frozenset()
        if path is not None and (os.path.lexists(path) or _mark_of(path).exists()):
            self._read(path)

    def has_entries(self) -> bool:
        """Whether anything is revoked now."""
        if self._path is not None:
            self._again(self._path)
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
        if self._path is not None:
            self._again(self._path)
        kind = "token" if identity.via == "token" else "serial"
        credential = identity.credential.lstrip("0") if kind == "serial" else identity.credential
        for entry in ((kind, credential), ("subject", identity.subject), ("name", identity.name)):
            if entry[1] and entry in self._entries:
                return f"{entry[0]} {entry[1]}"
        return None

    def _again(self, path: Path) -> None:
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


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


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
