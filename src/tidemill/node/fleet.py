"""The agent's side of a fleet directory: makes it, writes work files into it, reads what the lead reports.

Knows files only: not which work goes where, nor what becomes of the results (see `journal`, `bundle`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, ConfigError, ProtocolError, SiteError
from tidemill.files import (
    make_directories,
    names_in,
    read_bounded,
    sync_directory,
    write_durable,
    write_whole,
)
from tidemill.wire.node import (
    FORMAT,
    Alive,
    End,
    Grant,
    IoArea,
    JobDef,
    LeadAddress,
    Manifest,
    Program,
    Share,
    Withdrawn,
    WorkFile,
)

SMALL_FILE_BYTES_MAX = 1 << 20
WORK_FILE_BYTES_MAX = 64 << 20
"""A work file above this is refused: the agent splits its grants over several."""

BEAT_S_MAX = 5.0
"""The longest interval between heartbeats; a tenth of `dead_after_s` applies where that is shorter."""

_WORK_NAME = re.compile(r"(\d{6,})\.json")
_DIRECTORIES = ("work", "journal", "bundle")
_T = TypeVar("_T")


class Fleet:
    """One fleet directory. `next_number` is the number of the next work file; one writer at a time."""

    def __init__(self, directory: Path, manifest: Manifest, next_number: int) -> None:
        self.directory = directory
        self.manifest = manifest
        self.next_number = next_number
        self._count = 0
        self._beat_s = clock.monotonic_s()

    @property
    def journal(self) -> Path:
        """Where lead and pilots leave records."""
        return self.directory / "journal"

    @property
    def bundle(self) -> Path:
        """Where pilots leave outputs and logs."""
        return self.directory / "bundle"

    @property
    def secret(self) -> Path:
        """The file whose text lets a pilot join the lead."""
        return self.directory / "secret"

    def write_work(
        self,
        *,
        programs: list[Program] | None = None,
        jobs: list[JobDef] | None = None,
        grants: list[Grant] | None = None,
        order: WorkOrder | None = None,
    ) -> int:
        """Give work and orders to the lead; return the number of the file, which is durable by then.

        Raises SiteError when the file cannot be written (nothing is given then; the same number is used
        again).
        """
        orders = order or WorkOrder()
        content = msgspec.json.encode(
            WorkFile(
                format=FORMAT,
                number=self.next_number,
                programs=programs or [],
                jobs=jobs or [],
                grants=grants or [],
                cancel_jobs=orders.cancel_jobs,
                shares=orders.shares,
                ended=orders.ended,
                ends=orders.ends,
                io=orders.io,
                leave=orders.leave,
                drain=orders.drain,
                close=orders.close,
                withdrawn=orders.withdrawn or None,
            )
        )
        if len(content) > WORK_FILE_BYTES_MAX:
            raise SiteError(
                f"work file {self.next_number} of `{self.directory}` has {len(content)} bytes, "
                f"at most {WORK_FILE_BYTES_MAX}",
                hint="give fewer grants at once",
                transient=False,
            )
        write_durable(self.directory / "work" / f"{self.next_number:06}.json", content)
        number = self.next_number
        self.next_number += 1
        return number

    def read_work(self, number: int) -> WorkFile:
        """A work file as it was written. Raises SiteError where there is none, ProtocolError where it is damaged."""
        path = self.directory / "work" / f"{number:06}.json"
        content = read_bounded(path, WORK_FILE_BYTES_MAX)
        if content is None:
            raise SiteError(f"there is no work file `{path}`", transient=False)
        return _decode(path, content, WorkFile)

    def lead_address(self) -> LeadAddress | None:
        """Where the lead listens; None until it first does. It may be dead: only a connection can show that."""
        path = self.directory / "lead.json"
        content = read_bounded(path, SMALL_FILE_BYTES_MAX)
        return None if content is None else _decode(path, content, LeadAddress)

    def beat(self, epoch: int) -> None:
        """Show lead and pilots that the agent of this epoch lives, if a heartbeat is due. Raises SiteError.

        A leap in the count is as good as a step: what counts is that it changes.
        """
        now = clock.monotonic_s()
        if now < self._beat_s:
            return
        self._beat_s = now + min(BEAT_S_MAX, self.manifest.settings.dead_after_s / 10)
        self._count += 1
        alive = Alive(format=FORMAT, epoch=epoch, count=self._count)
        write_whole(self.directory / "alive.json", msgspec.json.encode(alive))

    def stop(self, reason: str) -> None:
        """Make lead and pilots drain and leave, also those that cannot be reached otherwise."""
        write_durable(self.directory / "STOP", reason.encode() + b"\n")

    def is_stopped(self) -> bool:
        """Whether the fleet directory holds a STOP file."""
        return (self.directory / "STOP").exists()


class WorkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a work file holds besides grants; see `WorkFile`."""

    cancel_jobs: list[int] = []
    withdrawn: list[Withdrawn] = []
    shares: list[Share] = []
    ended: list[str] = []
    ends: list[End] = []
    io: list[IoArea] | None = None
    leave: list[str] = []
    drain: bool = False
    close: bool = False


def create_fleet(directory: Path, manifest: Manifest) -> Fleet:
    """Make a fleet directory (0700) with its manifest and a new secret. Durable on return, never seen half-made.

    Raises ConfigError where it exists, SiteError where it cannot be made.
    """
    if directory.exists():
        raise ConfigError(
            f"fleet directory `{directory}` exists", hint="a fleet directory is made once; open it"
        )
    building = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(building, ignore_errors=True)
        make_directories(building, 0o077)
        for name in _DIRECTORIES:
            (building / name).mkdir(mode=0o700)
        write_durable(building / "secret", secrets.token_hex(32).encode() + b"\n")
        write_durable(building / "manifest.json", msgspec.json.encode(manifest))
        building.rename(directory)
        sync_directory(directory.parent)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise SiteError(f"failed to make fleet directory `{directory}`: {error.strerror}") from error
    return Fleet(directory, manifest, 1)


def open_fleet(directory: Path) -> Fleet:
    """The fleet directory made earlier, with the number that follows its last work file.

    Raises ConfigError where it is not a fleet directory or has a newer format, ProtocolError where work files are
    missing.
    """
    path = directory / "manifest.json"
    content = read_bounded(path, SMALL_FILE_BYTES_MAX)
    if content is None:
        raise ConfigError(f"`{directory}` is not a fleet directory: it has no manifest.json")
    manifest = _decode(path, content, Manifest)
    if manifest.format > FORMAT:
        raise ConfigError(
            f"`{path}` has format {manifest.format}, this version reads up to {FORMAT}",
            hint="update tidemill here",
        )
    return Fleet(directory, manifest, _last_number(directory / "work") + 1)


def _last_number(work: Path) -> int:
    """The highest number of the work files, 0 where there is none; they have no gaps."""
    names = names_in(work)
    if names is None:
        raise SiteError(f"failed to list `{work}`: there is no such directory")
    numbers = sorted(int(match[1]) for match in map(_WORK_NAME.fullmatch, names) if match)
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            raise ProtocolError(
                f"work file {expected} is missing in `{work}`, which goes up to {numbers[-1]}",
                hint="the lead waits for it for ever: close this fleet and start another",
            )
    return len(numbers)


def work_files(fleet: Path, kind: type[_T]) -> Iterator[_T]:
    """The work files of a fleet directory in their order, with the fields that `kind` has; none where the directory no
    longer exists. Raises SiteError, ProtocolError."""
    for name in sorted(filter(_WORK_NAME.fullmatch, names_in(fleet / "work") or []), key=len):
        path = fleet / "work" / name
        content = read_bounded(path, WORK_FILE_BYTES_MAX)
        if content is not None:
            yield _decode(path, content, kind)


def _decode(path: Path, content: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise ProtocolError(f"failed to read `{path}` as {kind.__name__}: {error}") from error
