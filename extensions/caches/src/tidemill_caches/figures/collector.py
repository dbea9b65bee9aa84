"""Takes a running cache's records and counters, and keeps their sums in CACHE/figures. Run by its supervisor."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from tidemill import clock, files, log
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill_caches.figures.connections import Growth, connections_of, udp_owners
from tidemill_caches.figures.gstream import DATAGRAM_BYTES_MAX, Sequences, parse_datagram
from tidemill_caches.figures.ledger import CacheLedger

SUMS = "sums.json"
SUMS_BYTES_MAX = 64 << 20
BUFFER_BYTES = 8 << 20
"""Receive buffer of the socket, as far as the system allows: holds 5,000 unread datagrams."""
DATAGRAMS_MAX = 20_000
"""At one step: a sender that never pauses does not keep the supervisor from its other work."""
OWNERS_READ_MAX = 3
"""Times in one step that the kernel is asked whose the senders' ports are."""
WRITE_S = 10.0
FORMAT = 1
_log = log.Log("cache")
_decode = msgspec.json.Decoder(CacheLedger).decode


def sums_path(directory: Path) -> Path:
    """Where the sums of a cache directory are."""
    return directory / "figures" / SUMS


def read_sums(directory: Path) -> CacheLedger | None:
    """The sums of a cache, None where nothing was ever counted. Raises SiteError, ProtocolError."""
    path = sums_path(directory)
    content = files.read_bounded(path, SUMS_BYTES_MAX)
    if content is None:
        return None
    try:
        ledger = _decode(content)
    except UNDECODABLE as error:
        raise ProtocolError(f"`{path}` cannot be read: {error}") from error
    if ledger.format != FORMAT:
        raise ProtocolError(f"`{path}` has format {ledger.format}, this program reads format {FORMAT}")
    return ledger


class FiguresCollector:
    """Counts what a cache does. `port`: the UDP port of loopback to which xrootd sends its records."""

    def __init__(self, directory: Path) -> None:
        """Take up the sums of before. Raises SiteError where no socket can be had."""
        self._directory = directory
        self.ledger = self._begin()
        self._sequences = Sequences()
        self._lost_before = self.ledger.lost
        self._growth = Growth()
        self._pid = 0
        self._trusted: set[int] = set()  #: ports of xrootd, which keeps them while it runs
        self._next_s = 0.0
        self._written = b""
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._socket.bind(("127.0.0.1", 0))
        except OSError as error:
            raise SiteError(f"failed to open a UDP port on loopback: {error.strerror}") from error
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        """The socket's, for those who wait for several."""
        return self._socket.fileno()

    def step(self, pid: int, port: int) -> None:
        """Take what has come since the last step. `pid`: of xrootd, 0 = it does not run; `port`: of its clients."""
        self._receive()
        if pid != self._pid:
            self._pid, self._trusted = pid, set()
        if pid:
            try:
                origin, client = self._growth.update(connections_of(pid), port)
                self.ledger.wire_origin_bytes += origin
                self.ledger.wire_client_bytes += client
            except SiteError as error:
                _log.debug("cache.connections", reason=error.message)
        if clock.monotonic_s() >= self._next_s:
            self.write()

    def write(self) -> None:
        """Make the sums durable, if there are new ones. A full disk ends nothing: they are kept in memory."""
        self._next_s = clock.monotonic_s() + WRITE_S
        content = msgspec.json.encode(self.ledger)
        if content == self._written:
            return
        try:
            files.write_durable(sums_path(self._directory), content, mode=0o644)
            self._written = content
        except SiteError as error:
            _log.warning("cache.figures_unwritten", reason=error.message, hint=error.hint)

    def close(self) -> None:
        """Take what is there, keep it, and let the port go."""
        self._receive()
        self.write()
        self._socket.close()

    def _begin(self) -> CacheLedger:
        path = sums_path(self._directory)
        try:
            ledger = read_sums(self._directory)
        except ProtocolError as error:
            aside = path.with_name(f"{SUMS}.unreadable")
            _log.warning("cache.figures_unreadable", reason=error.message, kept=str(aside))
            try:
                path.replace(aside)
            except OSError as cause:
                raise SiteError(f"failed to rename `{path}`: {cause.strerror}") from cause
            ledger = None
        return ledger or CacheLedger(since_us=clock.now_us())

    def _receive(self) -> None:
        senders = _Senders(self._trusted)
        for _ in range(DATAGRAMS_MAX):
            try:
                content, sender = self._socket.recvfrom(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                _log.warning("cache.figures", reason=error.strerror)
                break
            if sender[0] == "127.0.0.1" and senders.is_own(sender[1]):
                self._apply_datagram(content)
            else:
                self.ledger.foreign += 1
        self.ledger.lost = self._lost_before + self._sequences.lost

    def _apply_datagram(self, content: bytes) -> None:
        try:
            datagram = parse_datagram(content)
        except ProtocolError as error:
            self.ledger.malformed += 1
            _log.debug("cache.datagram", reason=error.message)
            return
        if datagram is None:
            return
        self._sequences.on_datagram(datagram.stream, datagram.number)
        self.ledger.malformed += datagram.malformed
        for close in datagram.closes:
            self.ledger.add_close(close)


class _Senders:
    """Whose datagrams count, for one step: those from ports of this user. Any user of the host may send to loopback."""

    def __init__(self, trusted: set[int]) -> None:
        self._trusted = trusted
        self._owners: dict[int, int] | None = {}
        self._left = OWNERS_READ_MAX

    def is_own(self, port: int) -> bool:
        if port in self._trusted:
            return True
        if self._owners is not None and port not in self._owners and self._left:
            self._left -= 1
            self._owners = udp_owners()
        is_own = self._owners is None or self._owners.get(port) == os.geteuid()
        if is_own:
            self._trusted.add(port)
        return is_own
