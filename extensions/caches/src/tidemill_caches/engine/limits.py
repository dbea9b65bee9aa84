"""File descriptors of a cache: how many it needs, the system allows, and its process has."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill_caches.settings import FILES_OPEN_MIN

PER_FILE = 3
"""Of a file that a client has open: the data, its `.cinfo`, and the client's connection (measured with 5.5.3: two
descriptors for a file whatever the number of its readers, one for each client)."""
BESIDES = 200
"""Log, sockets, event loops and connections to origins (measured: 21 at rest)."""
RAISE = (
    "have the limit of descriptors raised (`ulimit -Hn`, LimitNOFILE= of the unit, /etc/security/limits.conf)"
)
_OPEN_FILES = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)


def needed(files_open_max: int) -> int:
    """The descriptors that a cache needs for up to `files_open_max` open files."""
    return PER_FILE * files_open_max + BESIDES


def files_possible(descriptors: int) -> int:
    """The number of open files for which `descriptors` suffice."""
    return max(0, (descriptors - BESIDES) // PER_FILE)


def hard_limit() -> int:
    """The number of open files to which this process may raise its limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 30 if hard == resource.RLIM_INFINITY else hard


def raise_limit(files_open_max: int) -> int:
    """Raise the limit of this process and its children to what `files_open_max` needs, or to what the system allows;
    return the limit.

    Raises ConfigError where that does not suffice for FILES_OPEN_MIN files.
    """
    hard = hard_limit()
    least, wanted = needed(FILES_OPEN_MIN), min(needed(files_open_max), hard)
    if hard < least:
        raise ConfigError(
            f"a cache needs {least} descriptors at least, and this system allows {hard}",
            hint=RAISE,
        )
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return wanted
    return hard if soft == resource.RLIM_INFINITY else soft


def limit_of(pid: int) -> int | None:
    """The limit that a process really has; None where the process is gone."""
    try:
        return parse_limits(Path(f"/proc/{pid}/limits").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def parse_limits(text: str) -> int | None:
    """The soft limit of open files from the text of /proc/PID/limits; None if it is not listed."""
    match = _OPEN_FILES.search(text)
    if match is None:
        return None
    return 1 << 30 if match[1] == "unlimited" else int(match[1][:18])


def used_by(pid: int) -> int | None:
    """The number of descriptors that a process has open; None if /proc does not show it."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 -- names only
    except OSError:
        return None


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None if /proc does not show it."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE") if pages.isdecimal() else None
