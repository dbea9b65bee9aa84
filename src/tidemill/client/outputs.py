"""Delivered outputs, read where they lie: members of plain tar bundles, files of a directory, or whole files. Knows no
server.

A bundle of an `each` output is a plain tar archive: one member per range, whose name ends in the events it holds.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import msgspec

from tidemill.client.event_states import listed_events
from tidemill.errors import UNDECODABLE, ConfigError, SiteError
from tidemill.files import replaced
from tidemill.wire.api import JobOutput, OutputRow

CHUNK_BYTES = 1 << 20
_ARRIVED = 0  #: `delivery` of a file that came while its job went on, in a manifest
_EVENTS = re.compile(r"-(\d{9,})(?:-(\d{9,}))?(?=\.|$)")  # as the site names members: at least nine digits


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one range's output, or of a whole file (then `first` and `count` are None)."""

    job: int
    output: str
    name: str
    first: int | None
    count: int | None
    data: bytes


def local_path(output: OutputRow) -> Path:
    """Where an output lies on this machine. Raises ConfigError if its URL is not a local one."""
    parts = urlsplit(output.url)
    if parts.scheme == "":
        return Path(output.url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise ConfigError(
        f"output `{output.name}` lies at `{output.url}`, which cannot be read from here",
        hint="copy it with a client of that protocol; its checksum is in the manifest beside it",
    )


def members(job: int, output: OutputRow) -> Iterator[Member]:
    """The members of a delivered output, one in memory at a time. Raises SiteError if it cannot be read."""
    path = local_path(output)
    try:
        if is_directory(output):
            for each in files_of(job, output):
                yield Member(
                    job=job, output=output.name, name=each.name, first=each.first, count=each.count,
                    data=(path / each.name).read_bytes(),
                )  # fmt: skip
            return
        if not _is_bundle(path):
            data = path.read_bytes()
            yield Member(job=job, output=output.name, name=path.name, first=None, count=None, data=data)
            return
        with tarfile.open(path, "r:") as bundle:
            for info in bundle:
                file = bundle.extractfile(info)
                if file is not None:
                    first, count = events_of(info.name)
                    data = file.read()
                    yield Member(
                        job=job, output=output.name, name=info.name, first=first, count=count, data=data
                    )
    except (OSError, tarfile.TarError) as error:
        raise _unreadable(job, output, path, error) from error


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a delivered output, not read: of a bundle one of many, else the only one."""

    job: int
    output: str
    name: str
    first: int | None
    count: int | None
    size_bytes: int


def listing(job: int, output: OutputRow) -> Iterator[Listed]:
    """The files of a delivered output; reads headers only. Raises SiteError if it cannot be read."""
    path = local_path(output)
    try:
        if is_directory(output):
            for each in files_of(job, output):
                yield Listed(
                    job=job, output=output.name, name=each.name, first=each.first, count=each.count,
                    size_bytes=each.size_bytes,
                )  # fmt: skip
            return
        if not _is_bundle(path):
            size = path.stat().st_size
            yield Listed(job=job, output=output.name, name=path.name, first=None, count=None, size_bytes=size)
            return
        with tarfile.open(path, "r:") as bundle:
            for info in bundle:
                first, count = events_of(info.name)
                yield Listed(
                    job=job,
                    output=output.name,
                    name=info.name,
                    first=first,
                    count=count,
                    size_bytes=info.size,
                )
    except (OSError, tarfile.TarError) as error:
        raise _unreadable(job, output, path, error) from error


def copy_members(
    chosen: Sequence[JobOutput], target: Path, *, name: str | None = None, event: int | None = None
) -> list[Path]:
    """Copy one file out of each bundle, by its name or an event that it holds, into a directory; the copies' paths.

    `JOB-` stands before their names where the outputs are of several jobs, `OUTPUT-` where two of a job would have the
    same. They are not compared with a checksum. Raises SiteError.
    """
    several = len({each.job for each in chosen}) > 1
    copies: list[Path] = []
    for each in chosen:
        path = local_path(each.output)
        try:
            if is_directory(each.output):
                for listed in files_of(each.job, each.output):
                    if listed.name == name or (event is not None and listed.holds(event)):
                        final = _free(target, listed.name, each, copies, several=several)
                        with (path / listed.name).open("rb") as content:
                            mode = os.fstat(content.fileno()).st_mode
                            _copy(content, final, source=path / listed.name, mode=mode)
                        copies.append(final)
                continue
            if not _is_bundle(path):
                continue
            with tarfile.open(path, "r:") as bundle:
                info = next((info for info in bundle if _is_meant(info, name, event)), None)
                file = None if info is None else bundle.extractfile(info)
                if info is None or file is None:
                    continue
                final = _free(target, Path(info.name).name, each, copies, several=several)
                _copy(file, final, source=path, mode=info.mode)
                copies.append(final)
        except (OSError, tarfile.TarError) as error:
            raise _unreadable(each.job, each.output, path, error) from error
    return copies


def _free(target: Path, name: str, of: JobOutput, copies: Sequence[Path], *, several: bool) -> Path:
    """Where a copy goes, `several`: of outputs of several jobs."""
    prefix = f"{of.job}-" if several else ""
    plain = target / f"{prefix}{name}"
    return target / f"{prefix}{of.output.name}-{name}" if plain in copies else plain


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a delivered output, not read yet: a file of its own, or a member of a bundle.

    `first`, `count`: the events that it is of; None = of the whole job.
    """

    job: int
    output: str
    name: str
    first: int | None
    count: int | None
    size_bytes: int
    place: Path  #: the file, or the bundle that it is in
    offset: int | None = None  #: where it begins in the bundle; None = it is a file of its own
    mode: int = 0o644  #: permissions of a member

    @property
    def path(self) -> Path:
        """The path of the file. Raises ConfigError for a member of a bundle, which has no path: use `open` or
        `copy`."""
        if self.offset is not None:
            raise ConfigError(
                f"`{self.name}` is a member of the bundle `{self.place}`, not a file",
                hint="`open()` or `copy(DIRECTORY)`",
            )
        return self.place

    def open(self) -> IO[bytes]:
        """A binary file object of its content, seekable; the caller closes it. Raises SiteError."""
        try:
            file = self.place.open("rb")
        except OSError as error:
            raise SiteError(
                f"failed to open `{self.name}` of job {self.job} at `{self.place}`: {error.strerror}",
                hint="check that its file system is mounted here, and that it was not moved",
            ) from error
        if self.offset is None:
            return file
        return io.BufferedReader(_Stretch(file, self.offset, self.size_bytes))

    def copy(self, directory: Path) -> Path:
        """Copy it into a directory; the copy's path. Raises SiteError."""
        final = directory / Path(self.name).name
        with self.open() as file:
            mode = self.place.stat().st_mode if self.offset is None else self.mode
            _copy(file, final, source=self.place, mode=mode)
        return final


class _Stretch(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: IO[bytes], offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._offset + self._at)
        content = self._file.read(size)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def output_files(job: int, output: OutputRow) -> Iterator[OutputFile]:
    """The files of a delivered output; reads headers only. Raises SiteError if it cannot be read."""
    path = local_path(output)
    try:
        if is_directory(output):
            for each in files_of(job, output):
                yield OutputFile(
                    job=job, output=output.name, name=each.name, first=each.first, count=each.count,
                    size_bytes=each.size_bytes, place=path / each.name,
                )  # fmt: skip
            return
        if not _is_bundle(path):
            yield OutputFile(
                job=job, output=output.name, name=path.name, first=None, count=None,
                size_bytes=path.stat().st_size, place=path,
            )  # fmt: skip
            return
        with tarfile.open(path, "r:") as bundle:
            for info in bundle:
                first, count = events_of(info.name)
                yield OutputFile(
                    job=job, output=output.name, name=info.name, first=first, count=count,
                    size_bytes=info.size, place=path, offset=info.offset_data, mode=info.mode & 0o777,
                )  # fmt: skip
    except (OSError, tarfile.TarError) as error:
        raise _unreadable(job, output, path, error) from error


def _is_meant(info: tarfile.TarInfo, name: str | None, event: int | None) -> bool:
    first, count = events_of(info.name)
    holds = event is not None and first is not None and first <= event < first + (count or 1)
    return info.isfile() and (holds or info.name == name)


def _copy(file: IO[bytes], final: Path, *, source: Path, mode: int) -> None:
    """Write a file, which gets its name only when it is whole; of `mode`, keep execute bits only. Raises
    SiteError."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        # not durable: the output itself stays where it is
        with replaced(final, mode=0o666 | mode & 0o111, durable=False) as write:
            shutil.copyfileobj(file, write)
    except OSError as error:
        raise _not_copied(source, final.parent, error) from error


def _not_copied(source: Path, target: Path, error: OSError) -> SiteError:
    return SiteError(f"failed to copy `{source}` to `{target}`: {error.strerror}")


def _unreadable(job: int, output: OutputRow, path: Path, error: Exception) -> SiteError:
    return SiteError(
        f"failed to read output `{output.name}` of job {job} at `{path}`: {error}",
        hint="check that its file system is mounted here, and that it was not moved",
    )


def _is_bundle(path: Path) -> bool:
    """Whether a file is one of our bundles, and not a tar archive that a payload has made."""
    if path.suffix != ".tar" or not tarfile.is_tarfile(path):
        return False
    with tarfile.open(path, "r:") as bundle:
        first = bundle.next()
        return first is not None and events_of(first.name) != (None, None)


def events_of(name: str) -> tuple[int | None, int | None]:
    """First event and number of events, from a member's name: `hits-000000020-000000029.root` -> (20, 10)."""
    found = list(_EVENTS.finditer(name))
    if not found:
        return None, None
    first = int(found[-1][1])
    last = int(found[-1][2] or first)
    return (first, last - first + 1) if last >= first else (None, None)


class DirectoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an output that was delivered as a directory, as the manifest lists it."""

    name: str
    size_bytes: int
    sha256: str
    first: int
    count: int

    def holds(self, event: int) -> bool:
        """Whether it is of this event."""
        return self.first <= event < self.first + self.count


class _ManifestMember(msgspec.Struct, frozen=True):
    first: int
    count: int


class _ManifestFile(msgspec.Struct, frozen=True):
    output: str
    file: str
    size_bytes: int
    sha256: str
    members: list[_ManifestMember]
    delivery: int = 1


class _Manifest(msgspec.Struct, frozen=True):
    files: list[_ManifestFile]


def is_directory(output: OutputRow) -> bool:
    """Whether an output is a directory of files."""
    return output.url.endswith("/")


def is_arriving(output: OutputRow) -> bool:
    """Whether a directory gets further files, because its job goes on."""
    return is_directory(output) and not output.sha256


def files_of(job: int, output: OutputRow) -> list[DirectoryFile]:
    """The files of an output that is a directory, in event order, as its manifest lists them; of one whose job goes on,
    those that are there. Raises SiteError, also for a manifest that is not the one of this delivery, ProtocolError."""
    folder = local_path(output)
    path = folder / f"manifest-{job}.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (OSError, *UNDECODABLE) as error:
        raise SiteError(
            f"failed to read the manifest of output `{output.name}` of job {job} at `{path}`: {error}",
            hint="check that its file system is mounted here, and that it was not moved",
            transient=False,
        ) from error
    events = listed_events(output.events) if output.events else None
    result = [
        DirectoryFile(
            name=each.file, size_bytes=each.size_bytes, sha256=each.sha256,
            first=each.members[0].first, count=each.members[0].count,
        )
        for each in manifest.files
        if each.output == output.name and each.members
    ]  # fmt: skip
    # a name is part of a path here and where it is copied to, and others may write into the directory
    is_plain = all(each.name not in ("", ".", "..") and "/" not in each.name for each in result)
    if (
        is_arriving(output) and is_plain
    ):  # the manifest lists files before they appear, and more of them by now
        early = {each.file for each in manifest.files if each.delivery == _ARRIVED}
        result = [
            each
            for each in result
            if (
                each.name in early
                or (events is not None and events.touches(each.first, each.first + each.count))
            )
            and (folder / each.name).is_file()
        ]
        return sorted(result, key=lambda each: each.first)
    result = [
        each for each in result if events is None or events.touches(each.first, each.first + each.count)
    ]
    result.sort(key=lambda each: each.first)
    listed = "".join(f"{each.sha256}  {each.name}\n" for each in result)
    digest = hashlib.sha256(listed.encode()).hexdigest()
    if digest != output.sha256 or not is_plain:
        raise SiteError(
            f"the manifest `{path}` lists other files of output `{output.name}` than were delivered",
            hint="the file was changed or damaged after its delivery",
            transient=False,
        )
    return result


def copy_output(output: OutputRow, target: Path) -> Path:
    """Copy an output that is one file into a directory and verify its checksum; the copy's path.

    The copy is seen under its name only when it is whole. Raises SiteError.
    """
    source = local_path(output)
    return _copy_verified(source, target / source.name, output.sha256)


def copy_outputs(job: int, output: OutputRow, target: Path) -> list[Path]:
    """Copy an output, all its files if it is a directory of files, as `copy_output` does; the copies' paths."""
    if not is_directory(output):
        return [copy_output(output, target)]
    source = local_path(output)
    return [
        _copy_verified(source / each.name, target / each.name, each.sha256) for each in files_of(job, output)
    ]


def _copy_verified(source: Path, final: Path, sha256: str) -> Path:
    digest = hashlib.sha256()
    target = final.parent
    try:
        target.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as read, replaced(final, durable=False) as write:  # `source` stays where it is
            while piece := read.read(CHUNK_BYTES):
                digest.update(piece)
                write.write(piece)
            if digest.hexdigest() != sha256:
                raise SiteError(
                    f"output `{source}` has checksum {digest.hexdigest()}, it was delivered with {sha256}",
                    hint="it was changed or damaged after delivery",
                    transient=False,
                )
            write.flush()
            shutil.copystat(source, write.name)
    except OSError as error:
        raise _not_copied(source, target, error) from error
    return final
