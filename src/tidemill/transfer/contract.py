"""What moves data for one URL scheme: the contract of adapters, and what all of them say and raise.

An adapter does one attempt. Allow-list, retries, checksums, temporary names of local files and limits are `mover`'s.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tidemill import clock
from tidemill.config.transfer import Endpoint
from tidemill.errors import SiteError
from tidemill.model.failure import FailureClass, FaultKind

DIRECTORIES_MAX = 32
"""Levels of directories that are made for an output, at most."""


SUM_BYTES_PER_S = 20e6
"""A server reads its files at least so fast when it is asked for a checksum."""


class Direction(StrEnum):
    """Which way data go."""

    IN = "in"
    OUT = "out"

    @property
    def failure(self) -> FailureClass:
        """The class of what goes wrong on this way."""
        return FailureClass.STAGE_IN if self is Direction.IN else FailureClass.STAGE_OUT


class TransferError(SiteError):
    """A move failed. `failure`: its class, where the adapter knows it; `missing`: there is no such file."""

    fault: FaultKind | None = None  #: None = as the class has it

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        transient: bool = True,
        failure: FailureClass | None = None,
        missing: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.failure = failure
        self.missing = missing


class NoSpaceError(TransferError):
    """A file cannot be written at the site: its disk or quota is full."""


class TooLargeError(TransferError):
    """A file whose size nobody told has more bytes than may be read of it now."""


class NotPermittedError(TransferError):
    """The site's configuration permits no such move; another site's may."""

    fault = FaultKind.SITE


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came. `sha256`: hexadecimal, of the bytes that were written; None = nobody asked for it."""

    size_bytes: int
    sha256: str | None


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to come, as its place tells it now. `version` differs whenever the content may differ."""

    path: str
    size_bytes: int
    version: str


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A remote file that the site's configuration permits. `path` is not percent-encoded and begins with `/`, `query`
    is as it was written. For `s3` the host is the bucket."""

    url: str
    scheme: str
    host: str
    port: int
    path: str
    query: str
    endpoint: Endpoint

    @property
    def shown(self) -> str:
        """For messages and logs: without the query, in which signatures are."""
        return self.url.partition("?")[0]


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """A remote file as its server tells it. `version` differs where the content may differ; `checksums`: algorithm ->
    hexadecimal, as far as the server told them without being asked for one. `is_told` False: the server makes the file
    while it sends it; then `size_bytes` is what may be read of it, at most."""

    size_bytes: int
    version: str
    checksums: dict[str, str] = {}
    is_told: bool = True


class Watch:
    """What a move is told while it runs, and what it tells: bytes moved, the deadline, whether it was canceled."""

    def __init__(self, *, deadline_s: float, stall_s: float, canceled: threading.Event | None = None) -> None:
        self.until_s = clock.monotonic_s() + deadline_s
        self.stall_s = stall_s
        self.canceled = canceled or threading.Event()
        self.bytes = 0  #: moved so far, by the attempt under way
        self.size_bytes = 0  #: of the file, once it is known
        self.told: Callable[[int], None] | None = None  #: is called with `bytes` whenever they change
        self._sign = 0
        self._since_s = clock.monotonic_s()

    def begin(self) -> None:
        """Another attempt starts."""
        self._since_s = clock.monotonic_s()

    def tell(self, moved: int) -> None:
        """So many bytes of the file are moved; raises what `check` raises."""
        if moved != self.bytes:
            self.bytes = moved
            self._since_s = clock.monotonic_s()
            if self.told is not None:
                self.told(moved)
        self.check()

    def live(self, sign: int) -> None:
        """The move goes on whenever `sign` is another number than before, also where `bytes` stay the same."""
        if sign != self._sign:
            self._sign = sign
            self._since_s = clock.monotonic_s()

    def check(self) -> None:
        """Raise TransferError when the move was canceled, is too late, or has moved nothing for too long."""
        now = clock.monotonic_s()
        if self.canceled.is_set():
            raise TransferError("it was canceled", transient=False)
        if now > self.until_s:
            raise TransferError(
                f"its time is up, {self.bytes} bytes were moved",
                hint="split the file, or use an endpoint that is faster",
                transient=False,
            )
        if now > self._since_s + self.stall_s:
            raise TransferError(
                f"nothing was moved for {self.stall_s:g} s, after {self.bytes} bytes",
                hint="the server or the network hangs",
            )

    def patient(self, size: int) -> Watch:
        """A watch over a server that reads a file of this size: nothing is moved meanwhile. Canceled with this one."""
        left_s = max(0.0, self.until_s - clock.monotonic_s())
        return Watch(deadline_s=left_s, stall_s=self.stall_s + size / SUM_BYTES_PER_S, canceled=self.canceled)

    def wait(self, seconds: float) -> None:
        """Sleep, unless canceled or late before. Raises TransferError."""
        self.canceled.wait(max(0.0, min(seconds, self.until_s - clock.monotonic_s())))
        self.begin()
        self.check()


class Adapter(Protocol):
    """One way of moving files. All raise TransferError, which names what was tried and what came back."""

    resumes: bool  #: `read` can go on where an earlier one broke off
    tells_at_once: bool  #: `stat` has all checksums that the server knows
    in_order: bool  #: what `read` sums up beside a client is sure to be the file; else only if the server says the same

    def stat(self, place: RemoteFile, watch: Watch) -> Stat:
        """Size and version; a TransferError with `missing` where there is no such file."""

    def read(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """Bring the file to `target`. If that exists and the adapter resumes, it holds the file's beginning.

        `needed`: checksums that will be asked for, so better made on the way; SHA-256 as well where the file comes so
        slowly that it costs nothing. Returns those of the whole file that were made, more or fewer.
        """

    def write(
        self, source: Path, place: RemoteFile, watch: Watch, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Put the file there under its own name, whole: replaces what is there. `known`: its checksums, as far as
        somebody made them already. Returns what the server told meanwhile of what it wrote: if that is not what it
        should be, it may have been asked too early.
        """

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Give a file that `write` made its final name, on the same server; replaces what is there."""

    def checksum(self, place: RemoteFile, algorithm: str, watch: Watch) -> str | None:
        """What the server itself says, None if it cannot."""

    def digest(self, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """SHA-256 of the bytes there, all read once more and kept nowhere; None = it takes a copy."""

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete it; fine if it is not there."""

    def rest(self) -> None:
        """A move has ended: let go of connections that were kept for its next step."""


def of_os_error(error: OSError, what: str) -> TransferError:
    """The TransferError for a failed system call on one of our own files or sockets."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"failed to {what}: no space left at the site",
            hint="free space or quota in the site directory, or lower `stage_bytes_max`",
        )
    return TransferError(f"failed to {what}: {error.strerror or error}")
