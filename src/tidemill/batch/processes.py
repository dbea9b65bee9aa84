"""Processes of this machine as /proc tells them: alive, descended from whom, marked by what (proc(5))."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

ENVIRON_BYTES_MAX = 1 << 20


class Child(Protocol):
    """A process that we started."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""


class _Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    started: int


def boot() -> str:
    """The kernel's boot id: process numbers mean nothing across boots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_of(pid: int) -> int | None:
    """When the process started, in ticks after boot; None = it is not there, or is dead and not yet waited for."""
    found = _stat(pid)
    return None if found is None or found.state in "ZX" else found.started


def is_alive(pid: int, started: int) -> bool:
    """Whether this very process lives; a later one of the same number does not count."""
    return start_of(pid) == started


def signal_session(pid: int, started: int, number: signal.Signals) -> None:
    """Send a signal to the process group that the process leads."""
    if is_alive(pid, started):
        _quietly(partial(os.killpg, pid, number))


def kill_family(leaders: Collection[int], mark: str) -> bool:
    """Kill what lives of these sessions, of their descendants, and what carries `mark` in its environment.

    Returns whether anything lived; call again until not. One pass over /proc.
    """
    table = _table()
    sessions = set(leaders)
    doomed = {each.pid for each in table.values() if each.session in sessions or each.pid in sessions}
    doomed |= {pid for pid, _ in _marked(table.values(), mark)}
    children: dict[int, list[int]] = {}
    for each in table.values():
        children.setdefault(each.parent, []).append(each.pid)
    stack = list(doomed)
    while stack:
        for child in children.get(stack.pop(), []):
            if child not in doomed:
                doomed.add(child)
                stack.append(child)
    living = [pid for pid in doomed if pid in table and table[pid].state not in "ZX" and pid != os.getpid()]
    for pid in living:
        _quietly(partial(os.kill, pid, signal.SIGKILL))
    return bool(living)


def find_marked(mark: str) -> list[tuple[int, int]]:
    """Session leaders that carry `mark` in their environment, as (pid, start)."""
    table = _table()
    marked = [table[pid] for pid, _ in _marked(table.values(), mark)]
    return [(each.pid, each.started) for each in marked if each.session == each.pid]


def reap() -> None:
    """Wait for all children that are dead, also those that became ours when their parents died."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _marked(table: Iterable[_Stat], mark: str) -> list[tuple[int, int]]:
    wanted = mark.encode()
    found: list[tuple[int, int]] = []
    for each in table:
        if each.pid == os.getpid() or each.state in "ZX":
            continue
        try:
            with open(f"/proc/{each.pid}/environ", "rb") as file:  # noqa: PTH123
                environ = file.read(ENVIRON_BYTES_MAX)
        except OSError:
            continue  # another user's, or gone
        if wanted in environ.split(b"\0"):
            found.append((each.pid, each.started))
    return found


def _table() -> dict[int, _Stat]:
    found = (_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {each.pid: each for each in found if each is not None}


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return _Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _quietly(action: Callable[[], object]) -> None:
    with suppress(
        ProcessLookupError, ChildProcessError, PermissionError
    ):  # it ended first, or is another user's
        action()
