"""Inputs of jobs, copied into `SITE/stage` before their events are granted.

    SITE/stage/files/KEY      one copy of each version of a file, whoever needs it
    SITE/stage/files/.KEY.sha256  the digest of a large one, by which nodes exchange it
    SITE/stage/JOB/NAME       a shared input (hard link to a copy)
    SITE/stage/JOB/.NAME.sha256  its copy's digest (hard link)
    SITE/stage/JOB/NAME.d/E   an `each` input: the file of event E (hard link)
    SITE/stage/JOB/NAME.lines the text of an `each` input: line k belongs to event k

Works in the agent's helper threads; everything it does can be repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
from pathlib import Path

from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.node.bundle import copy_member
from tidemill.node.files import sync_directory, write_durable
from tidemill.site.state import Part
from tidemill.transfer.file import FileTransfer, is_location
from tidemill.wire.node import InputDef

LINES_BYTES_MAX = 1 << 30
STAGED_BYTES_MIN = 1 << 20
"""Smaller inputs are read by each slot (crates/pilot/src/staging.rs): nobody needs their digest."""


class Stage:
    """The stage of one site. Thread-safe."""

    def __init__(self, directory: Path, config: SiteConfig, roots: list[Path]) -> None:
        self._directory = directory
        self._files = directory / "files"
        self._files.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._transfer = FileTransfer(roots, size_max=config.stage_file_bytes_max)
        self._bytes_max = config.stage_bytes_max
        self._bytes = sum(
            path.stat().st_size for path in self._files.iterdir() if not path.name.startswith(".")
        )
        self._lock = threading.Lock()
        self._is_swept = False

    def stage(self, job: int, spec: JobSpec, events: list[tuple[int, int]]) -> list[InputDef]:
        """Have the inputs of these events in place. Raises SiteError, which becomes the job's `stage_in` failure."""
        directory = self._directory / str(job)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            return [
                self._shared(directory, each)
                if each.kind is InputKind.SHARED
                else self._each(directory, each, events)
                for each in spec.inputs
            ]
        except OSError as error:
            raise SiteError(
                f"failed to stage inputs of job {job} in `{directory}`: {error.strerror}"
            ) from error

    def stage_parts(self, job: int, parts: list[Part], output: str, fleets: Path) -> list[InputDef]:
        """The kept parts of an output as inputs `part-000000`, ... of a merge step, in event order, verified."""
        directory = self._directory / str(job)
        directory.mkdir(mode=0o700, exist_ok=True)
        inputs: list[InputDef] = []
        for part in parts:
            for ref in part.outputs:
                if ref.name != output:
                    continue
                name = f"part-{len(inputs):06}"
                path = directory / name
                temporary = directory / f".{name}.tmp"
                with temporary.open("wb") as file:
                    copy_member(fleets / part.fleet / "bundle", ref, file)
                temporary.rename(path)
                inputs.append(_definition(name, "shared", path=path, content=(ref.sha256, ref.length)))
        sync_directory(directory)
        return inputs

    def clean(self, job: int) -> None:
        """Remove a job's inputs; `sweep` removes copies that nobody needs any more. Raises SiteError."""
        try:
            shutil.rmtree(self._directory / str(job))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SiteError(f"failed to clean `{self._directory / str(job)}`: {error.strerror}") from error
        self._is_swept = False

    def sweep(self) -> None:
        """Remove copies that no job needs, once for all jobs that were cleaned. While one is being made it is left for
        the next call: nobody waits for a large file. Raises SiteError."""
        if self._is_swept or not self._lock.acquire(blocking=False):
            return
        try:
            for path in [each for each in self._files.iterdir() if not each.name.startswith(".")]:
                status = path.stat()
                if status.st_nlink == 1:
                    path.unlink()
                    _digest_file(path).unlink(missing_ok=True)
                    self._bytes -= status.st_size
            self._is_swept = True
        except OSError as error:
            raise SiteError(f"failed to clean `{self._files}`: {error.strerror}") from error
        finally:
            self._lock.release()

    def _shared(self, directory: Path, one: Input) -> InputDef:
        path = directory / one.name
        self._fetch(one.url, path, one.sha256, is_shared=True)
        size = path.stat().st_size
        sha256 = one.sha256
        if sha256 is None and size >= STAGED_BYTES_MIN:
            sha256 = _digest(path)
        return _definition(one.name, "shared", path=path, content=(sha256, size))

    def _each(self, directory: Path, one: Input, events: list[tuple[int, int]]) -> InputDef:
        lines_path = directory / f"{one.name}.lines"
        self._fetch(one.url, lines_path, one.sha256)
        if lines_path.stat().st_size > LINES_BYTES_MAX:
            raise SiteError(f"`{one.url}` is larger than {LINES_BYTES_MAX} bytes", transient=False)
        lines = lines_path.read_text(encoding="utf-8", errors="replace").splitlines()
        folder = directory / f"{one.name}.d"
        has_files = any(is_location(line.strip()) for line in lines[:1000])
        if has_files:
            folder.mkdir(mode=0o700, exist_ok=True)
        for first, end in events:
            if end > len(lines):
                raise SiteError(
                    f"`{one.url}` has {len(lines)} lines, event {max(first, len(lines))} has none",
                    hint="an `each` input needs one line for each event, empty ones included",
                    transient=False,
                )
            for event in range(first, end) if has_files else ():
                line = lines[event].strip()
                if is_location(line):
                    self._fetch(line, folder / str(event), None)
        return _definition(one.name, "each", path=folder if has_files else None, lines=lines_path)

    def _fetch(self, url: str, path: Path, sha256: str | None, *, is_shared: bool = False) -> None:
        if path.exists():
            return
        source = self._transfer.look(url)
        key = hashlib.sha256(f"{source.path}\0{source.version}\0{sha256}".encode()).hexdigest()
        copy = self._files / key
        with self._lock:
            if not copy.exists():
                self._room(source.size_bytes, url)
                temporary = self._files / f".{key}.tmp"
                temporary.unlink(missing_ok=True)
                fetched = self._transfer.fetch(source, temporary, sha256=sha256)
                temporary.chmod(0o400)
                temporary.rename(copy)
                self._bytes += fetched.size_bytes
                if is_shared and fetched.sha256 is not None and fetched.size_bytes >= STAGED_BYTES_MIN:
                    write_durable(_digest_file(copy), fetched.sha256.encode())
            if is_shared and sha256 is None and source.size_bytes >= STAGED_BYTES_MIN:
                _digest(copy)  # made above, unless the file system shares the copy's blocks
                _link(_digest_file(copy), _digest_file(path))
            _link(copy, path)

    def _room(self, size: int, url: str) -> None:
        if self._bytes + size > self._bytes_max:
            raise SiteError(
                f"failed to stage `{url}`: {size} bytes more than the {self._bytes} that are staged exceed this "
                f"site's {self._bytes_max}",
                hint="wait until other jobs end, or raise `stage_bytes_max`",
            )


def _definition(
    name: str,
    kind: str,
    *,
    path: Path | None,
    lines: Path | None = None,
    content: tuple[str | None, int | None] = (None, None),
) -> InputDef:
    """`content`: digest and size of the file at `path`."""
    sha256, size = content
    return InputDef(
        name=name,
        kind=kind,
        path=None if path is None else str(path),
        lines=None if lines is None else str(lines),
        first=0,
        sha256=None if sha256 is None else sha256.removeprefix("sha256:").lower(),
        bytes=size,
    )


def _link(source: Path, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.link")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.rename(path)


def _digest_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _digest(path: Path) -> str:
    """The file's SHA-256, worked out once and kept beside it."""
    with contextlib.suppress(FileNotFoundError):
        known = _digest_file(path).read_text(encoding="ascii", errors="replace")
        if re.fullmatch(r"[0-9a-f]{64}", known):
            return known
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    write_durable(_digest_file(path), sha256.encode())
    return sha256
