"""Members of the pilots' bundles, read and verified; and plain tar archives of them for their owners."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

import msgspec

from tidemill.errors import ProtocolError, SiteError
from tidemill.files import names_in, open_new, sync, why_not_opened
from tidemill.node.framed import FramedTail
from tidemill.wire.node import FORM_BASE, IndexEntry, OutputRef, job_of

CHUNK_BYTES = 1 << 20
BUNDLE_BYTES_MAX = 1 << 62  #: what pread(2) takes, and more than any file system
HOLE_BYTES = 1 << 16
"""So many zeros at least become a hole: fewer are written faster than they are left out."""

MEMBER_MODE = 0o644
"""Mode of a member of an archive if the file's own mode is not known."""

_ZEROS = bytes(HOLE_BYTES)
_decode = msgspec.json.Decoder(IndexEntry).decode


def _decode_entry(content: bytes) -> IndexEntry:
    """The entry under its job's own number. Raises ValueError."""
    entry = _decode(content)
    if entry.job < FORM_BASE:
        return entry
    return msgspec.structs.replace(entry, job=job_of(entry.job))


class IndexTail(FramedTail[IndexEntry]):
    """Reads what is new in the index of one bundle (`BUNDLE.idx` beside `BUNDLE.tar`)."""

    def __init__(self, bundle: Path, *, offset: int = 0) -> None:
        super().__init__(bundle.with_suffix(".idx"), _decode_entry, offset=offset)
        self.damage_s = 0.0  # logs and profiles only: one that comes late is not waited for


def member_of(bundle: str, entry: IndexEntry) -> OutputRef:
    """The place of an index entry of FLEET/bundle/`bundle`, in the words of a Done record."""
    return OutputRef(
        name=entry.name, bundle=bundle, offset=entry.offset, length=entry.length, sha256=entry.sha256
    )


def bundles(directory: Path) -> list[Path]:
    """The bundle files of FLEET/bundle, by name."""
    return [directory / name for name in names_in(directory) or [] if name.endswith(".tar")]


def read_chunks(directory: Path, ref: OutputRef) -> Iterator[bytes]:
    """The member's bytes in pieces of at most 1 MiB; the checksum is verified after the last piece.

    Raises SiteError where it cannot be read or is cut, ProtocolError where its checksum differs, its offset or length
    is out of range, or its bundle is not a plain file name. On an error, the caller must discard the pieces that it
    has written.
    """
    if Path(ref.bundle).name != ref.bundle or not ref.bundle.endswith(".tar") or "\0" in ref.bundle:
        raise ProtocolError(f"`{ref.bundle}` is not a valid name of a bundle (output `{ref.name}`)")
    if ref.offset < 0 or ref.length < 0 or ref.offset + ref.length > BUNDLE_BYTES_MAX:
        raise ProtocolError(f"output `{ref.name}` of `{ref.bundle}` has an offset or a length out of range")
    path = directory / ref.bundle
    digest = hashlib.sha256()
    at, end = ref.offset, ref.offset + ref.length
    try:  # a FIFO of that name would block without O_NONBLOCK; a file does not know it
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise SiteError(f"failed to open bundle `{path}`: {why_not_opened(error)}") from error
    try:
        while at < end:
            try:
                piece = os.pread(descriptor, min(CHUNK_BYTES, end - at), at)
            except OSError as error:
                raise SiteError(f"failed to read bundle `{path}` at {at}: {error.strerror}") from error
            if not piece:
                raise SiteError(
                    f"bundle `{path}` ends at {at}, output `{ref.name}` should reach to {end}",
                    hint="the file system may show it later; if not, the node lost it",
                )
            digest.update(piece)
            at += len(piece)
            yield piece
    finally:
        os.close(descriptor)
    if digest.hexdigest() != ref.sha256:
        raise ProtocolError(
            f"output `{ref.name}` at {ref.offset} of bundle `{path}` has checksum {digest.hexdigest()}, "
            f"its record says {ref.sha256}",
            hint="the file system damaged it: the events have to run again",
        )


def read_member(directory: Path, ref: OutputRef) -> bytes:
    """The member's bytes, verified. Memory as large as the member; errors as `read_chunks`."""
    return b"".join(read_chunks(directory, ref))


def copy_member(directory: Path, ref: OutputRef, target: BinaryIO) -> None:
    """Append the member's bytes to `target`, verified; errors as `read_chunks`, the target is garbage then."""
    sparse = SparseFile(target)
    for piece in read_chunks(directory, ref):
        sparse.write(piece)
    sparse.end()


class Written(NamedTuple):
    """Size and checksum of a file, known from writing it."""

    size_bytes: int
    sha256: str


class SparseFile:
    """A new file that gets holes in place of written zeros, so that holes of the source stay holes. It has its length
    after `end`. `digest` is computed while it is written, so that nothing has to be read again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self._at = file.tell()
        self._is_behind_hole = False

    def write(self, piece: bytes) -> int:
        """Write the next bytes, whole blocks of zeros as holes. Raises OSError."""
        self.digest.update(piece)
        view = memoryview(piece)
        begin = 0
        for at in range(0, len(view), HOLE_BYTES):
            block = view[at : at + HOLE_BYTES]
            if piece[at] == 0 and bytes(block) == _ZEROS[: len(block)]:
                self._put(view[begin:at])
                self._at += len(block)
                self._is_behind_hole = True
                begin = at + len(block)
        self._put(view[begin:])
        return len(piece)

    def tell(self) -> int:
        """Where the next bytes go."""
        return self._at

    def end(self) -> None:
        """Give the file its length, should it end with a hole. Raises OSError."""
        self._file.flush()
        self._file.truncate(self._at)

    def _put(self, part: memoryview) -> None:
        if not part:
            return
        if self._is_behind_hole:
            self._file.seek(self._at)
            self._is_behind_hole = False
        self._file.write(part)
        self._at += len(part)


class TarWriter:
    """Writes one plain tar archive (POSIX pax, as GNU tar and every other tar read it) under a temporary name, which
    the caller changes when the archive is whole.

    The same members give the same bytes: owner and time of members are fixed.

    >>> with TarWriter(Path(".hits.tar.7.part")) as archive:  # doctest: +SKIP
    ...     archive.add_member("hits-0-99.root", directory, ref)
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None, *, mode: int = 0o666) -> None:
        """`check` is called with each piece of a member, and may raise; `mode`: of the archive, less the umask."""
        self.path = path
        self._check = check
        try:
            path.unlink(missing_ok=True)  # of an agent that died, or a link that another process left
            self._file = open_new(path, mode)
        except OSError as error:
            raise SiteError(f"failed to start archive `{path}`: {error.strerror}") from error
        self._sparse = SparseFile(self._file)
        self._tar = tarfile.TarFile(fileobj=self._sparse, mode="w", format=tarfile.PAX_FORMAT)  # type: ignore[arg-type]

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a member from memory. Raises SiteError."""
        self._add(name, len(content), io.BytesIO(content))

    def add_member(self, name: str, directory: Path, ref: OutputRef) -> None:
        """Copy a bundle's member, verified; errors as `read_chunks`, and the archive is not finished then."""
        mode = MEMBER_MODE if ref.mode is None else ref.mode & 0o777
        self._add(name, ref.length, _Pieces(read_chunks(directory, ref), self._check), mode=mode)

    @property
    def written(self) -> Written:
        """Size and checksum of the archive so far; after `close`, of all of it."""
        return Written(self._sparse.tell(), self._sparse.digest.hexdigest())

    def close(self) -> None:
        """Finish: on return the archive is whole, and its content survives a crash. Raises SiteError."""
        try:
            self._tar.close()
            self._sparse.end()
            sync(self._file)
            self._file.close()
        except OSError as error:
            self.abandon()
            raise SiteError(f"failed to finish archive `{self.path}`: {error.strerror}") from error

    def abandon(self) -> None:
        """Drop what was written."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _add(self, name: str, size: int, source: io.BytesIO | _Pieces, *, mode: int = MEMBER_MODE) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, mode
        try:
            self._tar.addfile(info, source)  # type: ignore[arg-type]  # it only calls `read`
        except OSError as error:
            raise SiteError(f"failed to write archive `{self.path}`: {error.strerror}") from error
        if isinstance(source, _Pieces):
            source.finish()


class _Pieces:
    """A stream over pieces of bytes for `tarfile`; `finish` runs what follows the last one (the checksum)."""

    def __init__(self, pieces: Iterator[bytes], check: Callable[[], None]) -> None:
        self._pieces = pieces
        self._check = check
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._check()
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def finish(self) -> None:
        for _ in self._pieces:
            raise ProtocolError("a member of a bundle is longer than its record says")
