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
    is_unasked = (
        False  #: nothing was asked of the server: what we would show it is not good, or it is not trusted
    )

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

    def unasked(self) -> TransferError:
        """This error, raised before the server was asked for the file."""
        self.is_unasked = True
        return self


class NoSpaceError(TransferError):
    """A file cannot be written at the site: its disk or quota is full."""


class TooLargeError(TransferError):
    """A file whose server reports no size has more bytes than may be read of it now."""


class NotPermittedError(TransferError):
    """The site's configuration permits no such move; another site's may."""

    fault = FaultKind.SITE


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was fetched. `sha256`: hexadecimal, of the bytes that were written; None = it was not asked for."""

    size_bytes: int
    sha256: str | None


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to fetch, as its file system shows it now. `version` differs whenever the content may differ."""

    path: str
    size_bytes: int
    version: str


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A remote file that the site's configuration permits. `path` is decoded and begins with `/`; `written` (HTTP only)
    is the path as the URL has it, and so is `query`. For `s3` the host is the bucket. `sent_by`: the first place, if
    its server redirected to this one."""

    url: str
    scheme: str
    host: str
    port: int
    path: str
    query: str
    endpoint: Endpoint
    written: str = ""
    sent_by: RemoteFile | None = None

    @property
    def shown(self) -> str:
        """For messages and logs: without the query, in which signatures are."""
        return self.url.partition("?")[0]

    @property
    def named(self) -> str:
        """For messages: in quotes, after the URL that led here."""
        if self.sent_by is None:
            return f"`{self.shown}`"
        return f"`{self.sent_by.shown}`, which sends us on to `{self.shown}`"


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """A remote file as its server describes it. `version` differs where the content may differ. `checksums`: algorithm
    -> hexadecimal, as far as the server sent them unasked. `is_told` False: the server generates the file while it
    sends it; `size_bytes` is then the most that may be read of it."""

    size_bytes: int
    version: str
    checksums: dict[str, str] = {}
    is_told: bool = True


class Watch:
    """The deadline and the cancel flag of a running move, and the progress that it reports in bytes."""

    def __init__(self, *, deadline_s: float, stall_s: float, canceled: threading.Event | None = None) -> None:
        self.until_s = clock.monotonic_s() + deadline_s
        self.stall_s = stall_s
        self.canceled = canceled or threading.Event()
        self.bytes = 0  #: moved so far, by the attempt under way
        self.size_bytes = 0  #: of the file, once it is known
        self.on_progress: Callable[[int], None] | None = None  #: is called with `bytes` whenever they change
        self._sign = 0
        self._since_s = clock.monotonic_s()

    @property
    def idle_s(self) -> float:
        """For how long nothing was moved."""
        return clock.monotonic_s() - self._since_s

    def begin(self) -> None:
        """Another attempt starts."""
        self._since_s = clock.monotonic_s()

    def progress(self, moved: int) -> None:
        """Record that `moved` bytes of the file are moved; raises what `check` raises."""
        if moved != self.bytes:
            self.bytes = moved
            self._since_s = clock.monotonic_s()
            if self.on_progress is not None:
                self.on_progress(moved)
        self.check()

    def live(self, sign: int) -> None:
        """Record a sign of life: a `sign` that differs from the last is progress, even where `bytes` stays the same."""
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
        """Write the whole file under its own name; replaces what is there. `known`: its checksums, as far as they are
        made already. Returns the checksums that the server reported while it wrote: one that differs from the file's
        may have been asked for too early.
        """

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Give a file that `write` made its final name, on the same server; replaces what is there."""

    def checksum(self, place: RemoteFile, algorithm: str, watch: Watch) -> str | None:
        """The checksum that the server itself reports; None if it cannot."""

    def digest(self, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """SHA-256 of the remote file, read back without storing it; None = the adapter needs a copy."""

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete the file; a missing file is not an error."""

    def rest(self) -> None:
        """Close, after a move, the connections that were kept for its next step."""


def of_os_error(error: OSError, what: str) -> TransferError:
    """The TransferError for a failed system call on one of our own files or sockets."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"failed to {what}: no space left at the site",
            hint="free space or quota in the site directory, or lower `stage_bytes_max`",
        )
    return TransferError(f"failed to {what}: {error.strerror or error}")
