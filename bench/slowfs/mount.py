"""A slow shared file system for benches and tests: compiles `slowfs.c`, mounts it, reads its counters.

    with slowfs(Path("/tmp/x/source"), Path("/tmp/x/shared")) as shared:
        before = shared.reading()
        ...
        bin_s, bins = shared.bins()
        print((shared.reading() - before).ops, worst_per_s(bins, bin_s=bin_s, window_s=10.0))

A program that mounts starts with `private()`: it goes on in a mount and PID namespace of its own, where `/dev/fuse` is
open to all users, as distributions have it, and where nothing outlives it. Ordinary users get a user namespace too.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

SOURCE = Path(__file__).with_name("slowfs.c")
KINDS = ("stat", "absent", "open", "list", "readlink", "change")  #: as in slowfs.c
HEAD = struct.Struct(f"<8Q{len(KINDS)}Q")
BINS_AT = 64 * 8
START_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """A metadata request takes `delay_us` in a server that works on `concurrency` at a time (0 = any number), so it
    serves concurrency * 1e6 / delay_us requests per second at most. Clients remember names for `entry_s`, and that a
    name does not exist for `negative_s` (0 = not; NFS and Lustre ask again). `others`: other users may use it."""

    delay_us: int = 1000
    concurrency: int = 0
    entry_s: float = 60.0
    negative_s: float = 0.0
    others: bool = True


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Requests since the mount, or between two readings."""

    stat: int
    absent: int  #: look-ups of names that do not exist
    open: int
    list: int
    readlink: int
    change: int  #: whatever creates, removes, renames or changes attributes
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int

    @property
    def ops(self) -> int:
        """Metadata requests."""
        return sum(getattr(self, kind) for kind in KINDS)

    def __sub__(self, other: Reading) -> Reading:
        names = [field.name for field in fields(self)]
        return Reading(**{name: getattr(self, name) - getattr(other, name) for name in names})


class SlowFs:
    """A mounted slow file system."""

    def __init__(self, mount: Path, counters: Path, process: subprocess.Popen[bytes]) -> None:
        self.mount = mount
        self._process = process
        with counters.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def reading(self) -> Reading:
        """The counters now."""
        _, _, _, _, reads, read_bytes, writes, write_bytes, *kinds = HEAD.unpack_from(self._map)
        return Reading(
            **dict(zip(KINDS, kinds, strict=True)),
            reads=reads, read_bytes=read_bytes, writes=writes, write_bytes=write_bytes,
        )  # fmt: skip

    def bins(self) -> tuple[float, list[int]]:
        """The length of a bin in seconds, and the metadata requests that arrived in each since the mount until now."""
        start_us, bin_us, bins = struct.unpack_from("<3Q", self._map, 8)
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        count = min((now_us - start_us) // bin_us + 1, bins)
        return bin_us / 1e6, list(struct.unpack_from(f"<{count}Q", self._map, BINS_AT))

    def ready(self) -> bool:
        """Whether it serves; its end before that is an error."""
        if self._process.poll() is not None:
            message = f"slowfs ended with {self._process.returncode} before it was mounted on {self.mount}"
            raise RuntimeError(f"{message} (is /dev/fuse readable and writable? see `private`)")
        return bool(struct.unpack_from("<Q", self._map)[0]) and os.path.ismount(self.mount)


def worst_per_s(bins: Sequence[int], *, bin_s: float, window_s: float) -> float:
    """The highest rate over any window of whole bins; a series shorter than the window counts as one window."""
    width = max(1, round(window_s / bin_s))
    total = worst = sum(bins[:width])
    for at in range(width, len(bins)):
        total += bins[at] - bins[at - width]
        worst = max(worst, total)
    return worst / (width * bin_s)


def compiled(directory: Path) -> Path:
    """The program, compiled there."""
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True
    ).stdout.split()
    program = directory / "slowfs"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", program, SOURCE, *flags], check=True)
    return program


def missing() -> str | None:
    """Why this machine cannot have a slow file system, if so."""
    for program, package in (("gcc", "gcc"), ("pkg-config", "pkg-config"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"`{program}` is missing: install {package}"
    if subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode != 0:
        return "libfuse3's headers are missing: install libfuse3-dev"
    if not Path("/dev/fuse").exists():
        return "/dev/fuse is missing: the kernel has no FUSE"
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not open to this user"
    return None


@contextlib.contextmanager
def slowfs(source: Path, mount: Path, options: Options | None = None) -> Iterator[SlowFs]:
    """Show `source` at `mount` (an existing directory, which may be `source` itself) through a slow file system."""
    options = options or Options()
    work = Path(tempfile.mkdtemp(prefix="tm-slowfs-"))
    try:
        counters = work / "counters"
        command = [
            compiled(work), source, mount, counters, options.delay_us, options.concurrency, options.entry_s,
            options.negative_s, "-o", "default_permissions" + (",allow_other" if options.others else ""),
        ]  # fmt: skip
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
        try:
            yield _mounted(mount, counters, process)
        finally:
            unmount = subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
            if unmount.returncode != 0:
                process.terminate()
            process.wait(timeout=START_S)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _mounted(mount: Path, counters: Path, process: subprocess.Popen[bytes]) -> SlowFs:
    deadline = time.monotonic() + START_S
    while not (counters.exists() and counters.stat().st_size > BINS_AT):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"slowfs for {mount} has not started (status {process.poll()})")
        time.sleep(0.01)
    shown = SlowFs(mount, counters, process)
    while not shown.ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"slowfs is not mounted on {mount} after {START_S:g} s")
        time.sleep(0.01)
    return shown


def private() -> None:
    """Start this program again in namespaces of its own, unless that has been done; returns in the new one."""
    if os.getpid() == 1:  # the first of its PID namespace
        _open_fuse()
        return
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    command = ["unshare", *own, "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "--"]
    os.execvp("unshare", [*command, sys.executable, *sys.orig_argv[1:]])


def _open_fuse() -> None:
    """As root: a private `/dev/fuse` for all users; the machine's own stays as it is."""
    if os.geteuid() != 0 or Path("/dev/fuse").stat().st_mode & 0o006 == 0o006:
        return
    with tempfile.TemporaryDirectory(prefix="tm-fuse-") as directory:
        node = Path(directory) / "fuse"
        os.mknod(node, 0o020666, os.makedev(10, 229))  # its number: the kernel's admin-guide/devices.txt
        node.chmod(0o666)
        subprocess.run(["mount", "--bind", node, "/dev/fuse"], check=True)
