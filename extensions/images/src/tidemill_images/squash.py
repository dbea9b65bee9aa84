"""Writes a squashfs: entries become a tar stream into `mksquashfs -tar`, so no copy of the data is staged.

Equal entries give equal bytes: the order is that of the entries, owner is root, times are those of the sources, none is
of today. mksquashfs reads tar since 4.5; its options are those of its man page (its twin `sqfstar` refuses every level
of compression in 4.5.1). Two that matter: no fragments, so that a file's compressed blocks depend on its bytes alone;
an uncompressed inode table, so that `chunks` can read where they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from tidemill.errors import SiteError
from tidemill_images.disk import Content, status_of
from tidemill_images.workingset import DIRECTORY, FILE, ImageEntry

PROGRAM = "mksquashfs"
VERSION_MIN = (4, 5)
PACKAGE_HINT = (
    "install squashfs-tools 4.5 or later (Debian 12, Ubuntu 22.04, Fedora 35, conda-forge: `squashfs-tools`), "
    "or build on a machine that has it and sees the same files"
)
BLOCK_BYTES = 128 << 10
BLOCKS = (BLOCK_BYTES, 1 << 20)
LEVEL = 6
"""Of zstd: docs/images.md of this extension has what others take and save."""

PAGE_BYTES = 4096
ENTRY_BYTES = 1024
"""What a name takes in the kernel's memory beside its pages, in a tmpfs: an inode and a directory entry."""

TIME_MAX = 2**32 - 1
CLOSE_S = 3600.0
"""It has read everything: what it still compresses and writes."""


class PackedName(msgspec.Struct, frozen=True):
    """One name of an image, as it was packed."""

    path: str
    kind: str
    source: str | None
    target: str | None
    stub: bool
    size: int
    mtime_ns: int
    sha256: str | None  #: of a file; None for a further name of the same file
    same_as: str | None  #: the first name of a file with several


class Squashed(msgspec.Struct, frozen=True):
    """An image that was written: its names, and its size unpacked."""

    listed: list[PackedName]
    unpacked_bytes: int
    tool: str


def find_tool() -> tuple[str, str]:
    """The program that writes squashfs, and its version. Raises SiteError."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise SiteError(f"there is no program `{PROGRAM}` on PATH", hint=PACKAGE_HINT, transient=False)
    try:
        reply = subprocess.run([path, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(f"failed to ask `{path}` for its version: {error}", hint=PACKAGE_HINT) from error
    match = re.search(r"version (\d+)\.(\d+)\S*", reply.stdout)
    if match is None or (int(match[1]), int(match[2])) < VERSION_MIN:
        said = reply.stdout.partition("\n")[0]
        raise SiteError(
            f"`{path}` cannot read tar: it says `{said}`, version 4.5 or later is needed",
            hint=PACKAGE_HINT,
            transient=False,
        )
    return path, f"{PROGRAM} {match[0].removeprefix('version ')}"


def squash(entries: Sequence[ImageEntry], image: Path, *, block_bytes: int, level: int) -> Squashed:
    """Write a squashfs of these entries to a new file. Raises Changed where a source changed, SiteError."""
    path, tool = find_tool()
    words = [
        path,
        "-",
        str(image),
        "-tar",
        "-noappend",
        "-comp",
        "zstd",
        "-Xcompression-level",
        str(level),
        "-b",
        str(block_bytes),
    ]
    words += ["-no-fragments", "-no-xattrs", "-noI", "-mkfs-time", "0", "-root-mode", "755", "-all-root"]
    words += ["-quiet", "-no-progress", "-exit-on-error"]
    environ = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**environ, "LC_ALL": "C"},
            start_new_session=True,
        )
        assert process.stdin is not None
        writer = _Writer(process.stdin)
        try:
            with suppress(BrokenPipeError):  # it has exited: its exit status and last output show why
                writer.write(entries)
                process.stdin.close()
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired as error:
            raise SiteError(f"`{PROGRAM}` did not end within {CLOSE_S:g} s of its input's end") from error
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            _close(process.stdin)
        if process.returncode != 0:
            errors.seek(0)
            said = errors.read(4096).decode(errors="replace").strip().splitlines()
            raise SiteError(
                f"`{PROGRAM}` failed to write `{image}` (exit status {process.returncode}): "
                f"{said[-1] if said else 'it said nothing'}",
                hint="check free space and quota of the store",
            )
    return Squashed(writer.listed, writer.unpacked_bytes, tool)


def _close(stream: IO[bytes]) -> None:
    """Close a pipe whose reader may have left: what is still buffered is lost then, as it has to be."""
    try:
        stream.close()
    except BrokenPipeError:
        return


class _Writer:
    """Writes entries as a tar stream (GNU format: names and link texts of any bytes and length)."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._first: dict[tuple[int, int], PackedName] = {}
        self.listed: list[PackedName] = []
        self.unpacked_bytes = 0

    def write(self, entries: Iterable[ImageEntry]) -> None:
        for entry in entries:
            self.listed.append(self._entry(entry))
            self.unpacked_bytes += ENTRY_BYTES
        self._stream.write(bytes(2 * tarfile.BLOCKSIZE))

    def _entry(self, entry: ImageEntry) -> PackedName:
        if entry.source is None:
            kind = tarfile.DIRTYPE if entry.kind == DIRECTORY else tarfile.SYMTYPE
            self._head(entry, kind, 0, mode=0o755, size=0)
            return PackedName(entry.path, entry.kind, None, entry.target, entry.stub, 0, 0, None, None)
        status = status_of(entry.source, entry.kind)
        time_s = min(max(0, status.st_mtime_ns // 10**9), TIME_MAX)
        mode = shared_mode(status.st_mode)
        listed = PackedName(
            entry.path, entry.kind, entry.source, entry.target, False, 0, status.st_mtime_ns, None, None
        )
        if entry.kind != FILE:
            kind = tarfile.DIRTYPE if entry.kind == DIRECTORY else tarfile.SYMTYPE
            self._head(entry, kind, time_s, mode=mode, size=0)
            return listed
        size = status.st_size
        listed = msgspec.structs.replace(listed, size=size)
        mark = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and mark in self._first:
            first = self._first[mark].path
            self._head(
                msgspec.structs.replace(entry, target=first[1:]), tarfile.LNKTYPE, time_s, mode=mode, size=0
            )
            return msgspec.structs.replace(listed, same_as=first)
        self._head(entry, tarfile.REGTYPE, time_s, mode=mode, size=size)
        content = Content(entry.source, status)
        for piece in content.pieces():
            self._stream.write(piece)
        self._stream.write(bytes(-size % tarfile.BLOCKSIZE))
        self.unpacked_bytes += -(-size // PAGE_BYTES) * PAGE_BYTES
        listed = msgspec.structs.replace(listed, sha256=content.sha256())
        if status.st_nlink > 1:
            self._first[mark] = listed
        return listed

    def _head(self, entry: ImageEntry, kind: bytes, time_s: int, *, mode: int, size: int) -> None:
        head = tarfile.TarInfo(entry.path[1:])
        head.type, head.mtime, head.mode, head.size = kind, time_s, mode, size
        head.linkname = entry.target or ""
        self._stream.write(head.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))


def shared_mode(mode: int) -> int:
    """Permission bits in an image, where root owns all files. Payloads do not run as root, so all users may read and
    execute what the owner may; only root may write. Set-user-id bits have no effect in a user's mounts."""
    owners = mode >> 6 & 0o5
    return (mode & 0o200) | owners << 6 | owners << 3 | owners
