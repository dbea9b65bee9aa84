"""Inputs that programs open, laid out for payloads: a URL where the way is one, a file to stage where it is a copy.

A copy that is there stays: nothing is gained by another way then.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tidemill.errors import SiteError
from tidemill.model.failure import FailureClass
from tidemill.model.job import CATALOGUE, Input
from tidemill.routing.routes import RouteWay
from tidemill.site.data.fetching import StageContents, WantedFile
from tidemill.site.data.moves import MovesPendingError
from tidemill.site.data.owners import Reader
from tidemill.site.data.routing import (
    FoundFile,
    InputRoutes,
    SoughtFile,
    attempt_of,
    is_far,
    origin_of,
    url_file,
    write_url,
)
from tidemill.transfer.contract import NotPermittedError, TransferError
from tidemill.transfer.file import Roots, is_location


class OpenedJob(NamedTuple):
    """A job whose inputs are laid out: its number, who reads, and where its files may lie on this site."""

    job: int
    reader: Reader
    roots: Roots


class OpenedInputs:
    """Lays out what programs open. Thread-safe."""

    def __init__(self, routes: InputRoutes, contents: StageContents) -> None:
        self._routes = routes
        self._contents = contents

    def shared(self, of: OpenedJob, one: Input, path: Path, awaits: list[str]) -> WantedFile | None:
        """The file to have at `path`; None = payloads open a URL, or `awaits` says what has to come first. Raises
        TransferError."""
        sha256 = None if one.sha256 is None else one.sha256.removeprefix("sha256:").lower()
        label = f"input `{one.name}`"
        sought = SoughtFile(one.url, label, named=one.url, sha256=sha256, is_shared=True)
        if path.exists():
            return None
        if not one.is_opened:
            file = self._routes.resolve(sought)
        else:
            attempt = attempt_of(of.reader.opening, one, None)
            file = self._routes.choose(sought, of.reader.opening, attempt=attempt)
            if file.route.way is not RouteWay.STAGE and not self._has_size(file, of, awaits):
                return None
        self._routes.note(of.job, one, None, file)
        if one.is_opened and file.route.way is not RouteWay.STAGE:
            write_url(url_file(path), file.route, file.beside)
            return None
        return WantedFile(
            file.route.url,
            sha256,
            of.roots,
            path,
            with_digest=sha256 is None,
            adler32=file.adler32,
            owner=of.reader.owner,
        )

    def each(self, of: OpenedJob, one: Input, event: tuple[int, str], path: Path) -> WantedFile | None:
        """The file to have at `path` for a line; None = payloads open a URL. Raises TransferError."""
        number, line = event
        if path.exists():
            return None
        label = f"line {number + 1} of input `{one.name}`"
        sought = SoughtFile(line, label, named=one.url)
        if not is_far(line):
            return WantedFile(line, None, of.roots, path, owner=of.reader.owner)
        if not one.is_opened:
            if not line.startswith(CATALOGUE):
                return WantedFile(line, None, of.roots, path, owner=of.reader.owner)
            file = self._routes.resolve(sought)
        else:
            attempt = attempt_of(of.reader.opening, one, number)
            file = self._routes.choose(sought, of.reader.opening, attempt=attempt)
        self._routes.note(of.job, one, number, file)
        if one.is_opened and file.route.way is not RouteWay.STAGE:
            write_url(url_file(path), file.route, file.beside)
            return None
        return WantedFile(file.route.url, None, of.roots, path, adler32=file.adler32, owner=of.reader.owner)

    def settle(self, path: Path) -> None:
        """A copy has come: payloads read that from now on."""
        if path.exists():
            url_file(path).unlink(missing_ok=True)

    def pass_over(self, wanted: WantedFile, error: SiteError) -> None:
        """Read another copy than one that is missing or damaged, where a catalogue says what the file is. Raises
        MovesPendingError then; when no copy is left, the next choice fails with the reason."""
        is_wrong = isinstance(error, TransferError) and error.failure is FailureClass.STAGE_IN
        if wanted.adler32 and is_wrong and not error.transient and not isinstance(error, NotPermittedError):
            self._routes.distrust(wanted.url, error.message)
            raise MovesPendingError([]) from error

    def _has_size(self, file: FoundFile, of: OpenedJob, awaits: list[str]) -> bool:
        """Whether the origin says the size that the catalogue says; False = it is being asked, or another copy is to be
        chosen. An origin that has another file under the name is not read."""
        if file.size_bytes is None:
            return True
        origin = origin_of(file.route.url)
        wanted = WantedFile(origin, None, of.roots, Path("-"), adler32=file.adler32, owner=of.reader.owner)
        try:
            content = self._contents.inspect(wanted, of.job, awaits)
        except SiteError as error:
            self.pass_over(wanted, error)
            raise
        if content is not None and content.size_bytes != file.size_bytes:
            self._routes.distrust(
                origin, f"it has {content.size_bytes} bytes, and the catalogue says {file.size_bytes}"
            )
            raise MovesPendingError([])
        return content is not None


def names_file(line: str) -> bool:
    """Whether an event's line is a file to fetch. A row of columns, as of `--each t.csv` and `--sweep`, is passed on
    as it stands, whatever its first column looks like."""
    return "\t" not in line and (is_location(line) or is_far(line))
