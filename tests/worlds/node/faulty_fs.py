"""A file system that passes everything through to a directory, and fails or hangs on command for chosen paths.

`faulty_fs(backing, mount)` mounts it in a process of its own, by FUSE; the process reads its rules before each call.
What hangs, hangs as a network file system does whose server is away: in the kernel, whatever signals come, until it is
healed.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
HANGS = 0
"""In place of an error number."""

Rules = list[tuple[str, int]]


class FaultyFs:
    """A mounted one. Globs are of paths below the mount, such as `*/bundle/*`; the rule made last counts first."""

    def __init__(self, path: Path, backing: Path, rules: Path) -> None:
        self.path = path
        self.backing = backing
        self._file = rules
        self._rules: Rules = []
        self.heal()

    def fail(self, glob: str, number: int) -> None:
        """Every call on a path that fits fails with this error number, of open files as well."""
        self._add(glob, number)

    def hang(self, glob: str) -> None:
        """Every call on a path that fits is answered when it is healed, and not before."""
        self._add(glob, HANGS)

    def heal(self) -> None:
        """Nothing fails any more; what hung is answered."""
        self._rules = []
        self._write()

    def _add(self, glob: str, number: int) -> None:
        self._rules.insert(0, (glob, number))
        self._write()

    def _write(self) -> None:
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._rules))
        temporary.rename(self._file)


def why_not() -> str | None:
    """Why no such file system can be mounted here; None where it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if shutil.which("fusermount3") is None:
        return "`fusermount3` is missing: install fuse3"
    try:
        import mfusepy  # noqa: F401  # it looks for the library, which may be missing
    except (ImportError, OSError) as error:
        return f"mfusepy cannot be used: {error}"
    return None


@contextlib.contextmanager
def faulty_fs(backing: Path, mount: Path) -> Iterator[FaultyFs]:
    """Mount it; `backing` is made if it is missing, and stays. Skips the test where FUSE is missing."""
    why = why_not()
    if why is not None:
        pytest.skip(why)
    for directory in (backing, mount):
        directory.mkdir(parents=True, exist_ok=True)
    rules = backing.with_name(f"{backing.name}.rules")
    it = FaultyFs(mount, backing, rules)
    command = [sys.executable, "-m", "tests.worlds.node.faulty_fs", str(backing), str(mount), str(rules)]
    with backing.with_name(f"{backing.name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end_s = time.monotonic() + 30
        while not os.path.ismount(mount):
            assert process.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < end_s, "the file system is not mounted within 30 s"
            time.sleep(0.02)
        yield it
    finally:
        it.heal()
        subprocess.run(["fusermount3", "-uz", str(mount)], check=False, capture_output=True)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Rules:
    """What the process of the file system follows."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read: tuple[int, Rules] = (0, [])

    def obey(self, path: str) -> None:
        """Return where no rule fits the path, or any longer. Raises OSError."""
        while (number := self._rule(path)) is not None:
            if number != HANGS:
                raise OSError(number, os.strerror(number))
            time.sleep(0.02)

    def _rule(self, path: str) -> int | None:
        changed_ns = self._file.stat().st_mtime_ns
        if self._read[0] != changed_ns:
            self._read = (changed_ns, json.loads(self._file.read_text()))
        fitting = (number for glob, number in self._read[1] if fnmatch.fnmatchcase(path, glob))
        return next(fitting, None)


def _obedient(call: Callable[..., Any], obey: Callable[[str], None]) -> Callable[..., Any]:
    """The call, made after the rules for its paths were followed."""

    @functools.wraps(call)
    def obeying(operations: object, path: str, *args: Any) -> Any:
        obey(path)
        if call.__name__ in ("rename", "link"):
            obey(args[0])
        return call(operations, path, *args)

    return obeying


class _PassThrough:
    """Every call by its path, so that rules are followed by open files as well."""

    use_ns = True

    def __init__(self, backing: Path) -> None:
        self._backing = backing

    def _there(self, path: str) -> Path:
        return self._backing / path.lstrip("/")

    def access(self, path: str, mode: int) -> int:
        if not os.access(self._there(path), mode):
            raise OSError(errno.EACCES, "")
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self._there(path).chmod(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._there(path), uid, gid, follow_symlinks=False)
        return 0

    def create(self, path: str, mode: int, info: Any = None) -> int:
        return os.open(self._there(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._there(path), flags & ~(os.O_APPEND | os.O_NOFOLLOW))

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data, offset)

    def flush(self, path: str, handle: int) -> int:
        return 0

    def fsync(self, path: str, datasync: int, handle: int) -> int:
        (os.fdatasync if datasync else os.fsync)(handle)
        return 0

    def fsyncdir(self, path: str, datasync: int, handle: int) -> int:
        return 0

    def release(self, path: str, handle: int) -> int:
        os.close(handle)
        return 0

    def truncate(self, path: str, length: int, handle: int | None = None) -> int:
        os.truncate(self._there(path) if handle is None else handle, length)
        return 0

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        status = self._there(path).lstat()
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_blocks")
        times = {name: getattr(status, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        return {name: getattr(status, name) for name in names} | times

    def readdir(self, path: str, handle: int) -> list[str]:
        return [".", "..", *(each.name for each in self._there(path).iterdir())]

    def mkdir(self, path: str, mode: int) -> int:
        self._there(path).mkdir(mode)
        return 0

    def rmdir(self, path: str) -> int:
        self._there(path).rmdir()
        return 0

    def unlink(self, path: str) -> int:
        self._there(path).unlink()
        return 0

    def rename(self, old: str, new: str, flags: int = 0) -> int:
        self._there(old).rename(self._there(new))
        return 0

    def link(self, target: str, source: str) -> int:
        self._there(target).hardlink_to(self._there(source))
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._there(target).symlink_to(source)
        return 0

    def readlink(self, path: str) -> str:
        return str(self._there(path).readlink())

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._there(path))
        return {
            name: getattr(status, name) for name in dir(status) if name.startswith("f_") and name != "f_fsid"
        }

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._there(path), ns=times or (time.time_ns(), time.time_ns()))
        return 0


def serve(backing: Path, mount: Path, rules: Path) -> None:
    """Serve until it is unmounted."""
    import mfusepy  # see `why_not`

    obey = _Rules(rules).obey
    calls = {
        name: _obedient(call, obey)
        for name, call in vars(_PassThrough).items()
        if not name.startswith("_") and callable(call)
    }
    operations = type("Operations", (_PassThrough, mfusepy.Operations), calls)
    others = {"allow_other": True} if os.geteuid() == 0 else {}
    mfusepy.FUSE(
        operations(backing), str(mount), foreground=True, nothreads=False, max_threads=200,
        attr_timeout=0, entry_timeout=0, negative_timeout=0, fsname="faulty", **others,
    )  # fmt: skip


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:4]))
