"""What of stdin a command gets: all of it if there is one event, nothing otherwise; never silently less."""

from __future__ import annotations

import os
import select
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import ConfigError, SiteError
from tidemill.files import open_private

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"})
_WITH_VALUE = ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
KEPT_FROM = 10
PATIENCE_S = 2.0
"""Time after which a message names a pipe that stays open and silent: it may not be input, as below ssh or cron."""


def has_stdin() -> bool:
    """Whether stdin is a file, a pipe or a socket: something that a command could read to its end."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def has_waiting_data() -> bool:
    """Whether stdin holds data that would be lost."""
    if not has_stdin():
        return False
    found = os.fstat(0)
    if stat.S_ISREG(found.st_mode):
        return os.lseek(0, 0, os.SEEK_CUR) < found.st_size
    import fcntl
    import struct
    import termios

    try:
        (waiting,) = struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))
    except OSError:
        return False
    return bool(waiting)


def refuse_rest(hint: str) -> None:
    """Raises ConfigError if stdin is a file that was read in part: the rest belongs to the loop that reads it."""
    found = os.fstat(0)
    if stat.S_ISREG(found.st_mode) and 0 < os.lseek(0, 0, os.SEEK_CUR) < found.st_size:
        raise ConfigError("stdin is a file that was read in part before, such as by `while read`", hint=hint)


def is_shared() -> bool:
    """Whether stdin is a pipe that is also the stdin of the parent process, such as the shell of a loop."""
    try:
        is_file = stat.S_ISREG(os.fstat(0).st_mode)
    except OSError:
        return False
    return not is_file and _is_same(_stdin_of(os.getpid()), _stdin_of(os.getppid()))


def is_script() -> bool:
    """Whether a shell above reads its commands from stdin, as with `ssh HOST << END`, `bash < SCRIPT` and `%%bash` of a
    notebook: then the rest of stdin belongs to that shell.

    False within `{ ...; } < FILE`, where the shell keeps its own stdin as another descriptor, and in a subshell whose
    stdin differs from its shell's. Programs between, such as `timeout`, and their stdin count as well.
    """
    ours, pid = _stdin_of(os.getpid()), os.getppid()
    while pid and _is_same(ours, _stdin_of(pid)):
        if _reads_commands(_words_of(pid)):
            return _is_own_stdin(ours, pid)
        pid = _parent_of(pid)
    return False


def _is_own_stdin(ours: os.stat_result | None, pid: int) -> bool:
    """Whether a shell, and what it was forked from if it is a subshell, reads commands from this stdin."""
    image = _image_of(pid)
    while True:
        if not _is_same(ours, _stdin_of(pid)) or _keeps_another(pid):
            return False
        above = _parent_of(pid)
        if not above or _image_of(above) != image:
            return True
        pid = above


def _reads_commands(words: list[str]) -> bool:
    """Whether this is the command line of a shell that reads its commands from stdin."""
    if not words or Path(words[0]).name.removeprefix("-") not in SHELLS:
        return False
    rest = iter(words[1:])
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith(("-", "+")):
            return False  # a script
        elif not word.startswith("--") and "c" in word:
            return False
        elif not word.startswith("--") and "s" in word:
            return True
    return True


def _keeps_another(pid: int) -> bool:
    """Whether a shell has put its own stdin aside, to redirect it for a compound command, a function or `exec`.

    Shells keep it as a descriptor of 10 or more that their programs do not get: it is closed on exec, or, in zsh,
    before. So what the shell itself has inherited (of flock(1), cron, an IDE) differs from it.
    """
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208
        return any(_is_kept(pid, number) for number in numbers if number >= KEPT_FROM)
    except OSError:
        return True


def _is_kept(pid: int, number: int) -> bool:
    kept, now = _opened(pid, number), _opened(pid, 0)
    if kept is None or kept.flags & os.O_ACCMODE == os.O_WRONLY or kept.file == (now and now.file):
        return False
    if not any(is_kind(kept.mode) for is_kind in (stat.S_ISREG, stat.S_ISFIFO, stat.S_ISSOCK)):
        return False
    if kept.flags & os.O_CLOEXEC:
        return True
    mine = _opened(os.getpid(), number)
    return Path(_words_of(pid)[0]).name == "zsh" and (mine is None or mine.file != kept.file)


class _Opened(NamedTuple):
    """An open file of a process. `file`: device, inode and position, which differ between most open files."""

    file: tuple[int, int, int]
    mode: int
    flags: int


def _opened(pid: int, number: int) -> _Opened | None:
    """None if it is closed, or a link that nothing stands for."""
    try:
        stat = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116  a link of /proc, perhaps to a pipe
        lines = Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines()
        facts = dict(line.split(":\t", 1) for line in lines[:2])
        return _Opened((stat.st_dev, stat.st_ino, int(facts["pos"])), stat.st_mode, int(facts["flags"], 8))
    except (OSError, LookupError, ValueError):
        return None


def _image_of(pid: int) -> tuple[list[str], bytes]:
    """What a process has in common with its forks, and with no other program that runs: the random addresses that
    exec gave it."""
    try:
        return _words_of(pid), Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:
        return _words_of(pid), b""


def _words_of(pid: int) -> list[str]:
    """The command line of a process; empty where it cannot be read."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []


def _stdin_of(pid: int) -> os.stat_result | None:
    try:
        return os.stat(f"/proc/{pid}/fd/0")  # noqa: PTH116  a link of /proc to a pipe
    except OSError:
        return None


def _is_same(ours: os.stat_result | None, theirs: os.stat_result | None) -> bool:
    return ours is not None and theirs is not None and os.path.samestat(ours, theirs)


def _parent_of(pid: int) -> int:
    """The id of the parent process; 0 if it cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, LookupError, ValueError):
        return 0


def refuse_stdin(events: int) -> None:
    """Raises ConfigError where data wait at stdin that several events cannot share."""
    if has_waiting_data():
        raise ConfigError(
            f"stdin holds data, and {events:,} events cannot read one stdin",
            hint="`--each -` makes each of its lines an event; `--input NAME=FILE` gives a file to all; `< /dev/null` "
            "if CMD is to read nothing",
        )


def save_stdin(path: Path, remark: Callable[[str], None]) -> int:
    """Write stdin to a file, to its end; the number of bytes. Raises SiteError."""
    try:
        if not stat.S_ISREG(os.fstat(0).st_mode) and not select.select([0], [], [], PATIENCE_S)[0]:
            remark("reading stdin to its end, for CMD; `--no-stdin` or `< /dev/null` gives it none")
        with open_private(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
            return file.tell()
    except OSError as error:
        raise SiteError(f"failed to write stdin to `{path}`: {error.strerror}", transient=False) from error
