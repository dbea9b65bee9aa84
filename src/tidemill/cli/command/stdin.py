"""What of stdin a command gets: all of it if there is one event, nothing otherwise; never silently less."""

from __future__ import annotations

import os
import select
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from tidemill.errors import ConfigError, SiteError

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
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
            return file.tell()
    except OSError as error:
        raise SiteError(f"failed to write stdin to `{path}`: {error.strerror}", transient=False) from error
