"""gsiftp:// and ftp://: bytes by globus-url-copy, everything else by the control connection (`gsi`).

The adapter asks a server for checksums of what it has written while more data arrives, so that little is left to read
at the end. All steps of a move use one control connection, because its log-in takes as long as a small file.

globus-url-copy resumes by itself after a broken connection, by restart markers (`-rst`). A new attempt of the adapter
starts from the beginning: with several streams it is unknown which parts of the file are there.
"""

from __future__ import annotations

import ftplib
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tidemill import clock
from tidemill.log import Log
from tidemill.model.number import canonical_checksum, whole
from tidemill.transfer import program
from tidemill.transfer.checksum import Growing, joined_adler32
from tidemill.transfer.contract import DIRECTORIES_MAX, RemoteFile, Stat, TransferError, Watch
from tidemill.transfer.credentials import REFUSED, check_expiry, credential_error, environment
from tidemill_gridftp.gsi import WAIT_S, Control

PACKAGE = "of the Grid Community Toolkit, in Debian `globus-gass-copy-progs`"
RESTARTS = ["-rst", "-rst-retries", "4", "-rst-interval", "2", "-rst-timeout", "60"]
BLOCK_BYTES = 1 << 18
"""Of globus-url-copy: with 4 MB the caches of the processor are missed, and it takes a third longer."""

FOLLOW_BYTES = 64 << 20
"""A server is asked for the checksum of pieces not smaller than this."""

LOOK_S = 0.05
_WORDS = {"adler32": "ADLER32", "sha256": "SHA256", "md5": "MD5"}
_log = Log("gridftp")


class GridFtpAdapter:
    """Moves files over GridFTP: a `contract.Adapter`."""

    resumes = False
    tells_at_once = False
    in_order = False

    def __init__(self) -> None:
        self._idle: list[tuple[str, Control]] = []  #: connections between two steps, with whom they are for
        self._lock = threading.Lock()

    def stat(self, place: RemoteFile, watch: Watch) -> Stat:
        """The size of the file (SIZE); its version is the size and the time of the last change (MDTM)."""
        with self.control(place, "query", watch) as control:
            control.voidcmd("TYPE I")
            size = control.sendcmd(f"SIZE {place.path}")
            changed = control.sendcmd(f"MDTM {place.path}")
        size_bytes = whole(size.strip().removeprefix("213 "))
        if size_bytes is None:
            raise TransferError(
                f"`{place.shown}`: the server reported no size: `{size[:100]}`", transient=False
            )
        return Stat(size_bytes=size_bytes, version=f"{size[4:].strip()} {changed[4:].strip()}")

    def read(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """Fetch the file from its beginning; returns the checksums made on the way, none with several streams."""
        target.unlink(missing_ok=True)
        words = [_url(place), _local(target)]
        if place.endpoint.connections > 1:
            self._copy(place, words, watch, "read", lambda _: program.size_of(target))
            return {}
        with Growing(target, needed) as growing:
            self._copy(place, words, watch, "read", lambda _: program.size_of(target))
            return growing.end()

    def write(
        self, source: Path, place: RemoteFile, watch: Watch, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the file; returns the checksums that the server reported for the whole file meanwhile."""
        self._make_directories(place, watch)
        with _Following(self, place, watch, source.stat().st_size) as following:
            self._copy(
                place,
                [_local(source), _url(place)],
                watch,
                "write",
                lambda pid: min(program.bytes_read(pid), program.size_of(source)),
            )
            return following.end()

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Give a file that `write` made its final name."""
        with self.control(final, "name", watch) as control:
            control.rename(place.path, final.path)

    def checksum(self, place: RemoteFile, algorithm: str, watch: Watch) -> str | None:
        """The checksum that the server computes (CKSM); None if it refuses."""
        try:
            with self.control(place, "ask the checksum of", watch, timeout_s=watch.stall_s) as control:
                answer = control.sendcmd(f"CKSM {_WORDS[algorithm]} 0 -1 {place.path}")
        except TransferError as error:
            if error.transient or error.missing:
                raise
            return None
        return canonical_checksum(algorithm, answer[4:].strip())

    def digest(self, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """None: reading the file back needs a copy."""
        return None

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete the file; a missing file is not an error."""
        try:
            with self.control(place, "delete", watch) as control:
                control.delete(place.path)
        except TransferError as error:
            if not error.missing:
                raise

    def rest(self) -> None:
        """Close the control connections that were kept between the steps of a move."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, control in idle:
            control.close()

    @contextmanager
    def control(
        self, place: RemoteFile, verb: str, watch: Watch, *, timeout_s: float | None = None
    ) -> Iterator[Control]:
        """A connection to the server of this place, for one step. Raises TransferError for what goes wrong with it."""
        watch.check()
        if place.scheme == "ftp" and not place.path.isascii():
            raise TransferError(
                f"failed to {verb} `{place.shown}`: names beyond ASCII do not go by `ftp:`",
                hint="rename the file or use `gsiftp:`; globus-gridftp-server 13.24 drops such bytes of plain commands",
                transient=False,
            )
        whose = f"{place.scheme} {place.host} {place.port} {place.endpoint}"
        try:
            control = self._again(whose) or Control(place, timeout_s=min(WAIT_S, watch.stall_s))
            control.wait(min(WAIT_S, watch.stall_s) if timeout_s is None else timeout_s)
            try:
                yield control
            except (ftplib.error_temp, ftplib.error_perm):  # it replied, and waits for the next command
                self._keep(whose, control, watch)
                raise
            except BaseException:
                control.close()
                raise
            self._keep(whose, control, watch)
        except (
            ftplib.Error,
            OSError,
            EOFError,
            ValueError,
        ) as error:  # ValueError: bytes that are not text, or not base64
            words = (
                "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            )
            raise _error(
                place, verb, words.replace("\n", " / "), refused=isinstance(error, ftplib.error_perm)
            ) from error

    def _again(self, whose: str) -> Control | None:
        """A connection that was kept and still answers."""
        while True:
            with self._lock:
                found = next((each for each in self._idle if each[0] == whose), None)
                if found is None:
                    return None
                self._idle.remove(found)
            try:
                found[1].wait(WAIT_S)
                found[1].voidcmd("NOOP")
            except (ftplib.Error, OSError, EOFError, ValueError):
                found[1].close()
            else:
                return found[1]

    def _keep(self, whose: str, control: Control, watch: Watch) -> None:
        with self._lock:
            if not watch.canceled.is_set():
                self._idle.append((whose, control))
                return
        control.close()  # its move ended meanwhile: no later step will use it

    def _copy(
        self, place: RemoteFile, urls: list[str], watch: Watch, verb: str, progress: Callable[[int], int]
    ) -> None:
        if place.endpoint.certificate is not None:
            check_expiry(place, place.endpoint.certificate)
        words = [program.find("globus-url-copy", PACKAGE), "-q", "-bs", str(BLOCK_BYTES), *RESTARTS]
        words += ["-stall-timeout", str(max(1, int(watch.stall_s)))]
        if place.scheme == "gsiftp" or place.endpoint.connections > 1:
            words += ["-fast", "-p", str(place.endpoint.connections)]
        reply = program.run([*words, *urls], watch, environ=environment(place.endpoint), progress=progress)
        if reply.status != 0:
            raise _error(place, verb, f"{reply.program} ended with status {reply.status}: {reply.last_words}")

    def _make_directories(self, place: RemoteFile, watch: Watch) -> None:
        names = place.path.strip("/").split("/")[:-1]
        with self.control(place, "make the directories of", watch) as control:
            missing = []
            for depth in range(len(names), max(0, len(names) - DIRECTORIES_MAX), -1):
                folder = "/" + "/".join(names[:depth])
                try:
                    control.cwd(folder)
                    break
                except ftplib.error_perm:
                    missing.append(folder)
            for folder in reversed(missing):
                control.mkd(folder)


class _Following:
    """Asks a server for the checksum of a file that is being written there, piece by piece: in a thread, by a
    connection of its own. With several streams pieces come in any order: then nothing is asked."""

    def __init__(self, adapter: GridFtpAdapter, place: RemoteFile, watch: Watch, size: int) -> None:
        self._adapter, self._place, self._size = adapter, place, size
        self._callers = watch.patient(size)
        self._is_left = threading.Event()
        self._watch = Watch(
            deadline_s=self._callers.until_s - clock.monotonic_s(),
            stall_s=self._callers.stall_s,
            canceled=self._is_left,
        )
        self._found: dict[str, str] = {}
        self._is_written = threading.Event()
        self._thread = threading.Thread(target=self._work, name="following", daemon=True)

    def __enter__(self) -> _Following:
        if self._place.endpoint.connections == 1 and self._size >= 2 * FOLLOW_BYTES:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_left.set()
        self._is_written.set()

    def end(self) -> dict[str, str]:
        """The checksum that the server reported for the whole file once it was written; empty if there is none."""
        self._is_written.set()
        self._callers.begin()
        while self._thread.is_alive():
            self._thread.join(2 * LOOK_S)
            self._callers.check()
        return self._found

    def _work(self) -> None:
        try:
            with self._adapter.control(
                self._place, "ask the checksum of", self._watch, timeout_s=self._watch.stall_s
            ) as control:
                control.voidcmd("TYPE I")
                self._ask(control)
        except TransferError as error:
            _log.debug("following.ended", url=self._place.shown, reason=error.message)

    def _ask(self, control: Control) -> None:
        at, found = 0, canonical_checksum("adler32", "1")
        while found is not None and at < self._size:
            self._watch.check()
            is_written = self._is_written.is_set()
            there = _there(control, self._place)
            if there - at < FOLLOW_BYTES and not is_written:
                self._is_written.wait(LOOK_S)
                continue
            if not at < there <= self._size:
                return
            answer = control.sendcmd(f"CKSM ADLER32 {at} {there - at} {self._place.path}")
            more = canonical_checksum("adler32", answer[4:].strip())
            found = None if more is None else joined_adler32(found, more, there - at)
            at = there
        if found is not None and _there(control, self._place) == self._size:
            self._found = {"adler32": found}


def _there(control: Control, place: RemoteFile) -> int:
    """Bytes of a file that is being written; 0 while there is none."""
    try:
        return whole(control.sendcmd(f"SIZE {place.path}").strip().removeprefix("213 ")) or 0
    except ftplib.error_perm:
        return 0


def _error(place: RemoteFile, verb: str, words: str, *, refused: bool = False) -> TransferError:
    what = f"failed to {verb} `{place.shown}`: {words[-program.QUOTE_CHARS_MAX :]}"
    text = words.lower()
    if "no such file" in text or "file not found" in text:
        return TransferError(what, transient=False, missing=True)
    if "no space left" in text or "quota" in text:
        return TransferError(what, hint="there is no space left: free some, or wait until others do")
    if "not allowed" in text or "permission denied" in text or REFUSED.search(words):
        return credential_error(place, words[-program.QUOTE_CHARS_MAX :])
    return TransferError(
        what,
        hint="the server or the network is unreachable: it is tried again",
        transient=not refused or "500" not in text,
    )


def _url(place: RemoteFile) -> str:
    return f"{place.scheme}://{place.host}:{place.port}{quote(place.path, safe='/')}"


def _local(path: Path) -> str:
    return "file://" + quote(str(path.absolute()), safe="/")
