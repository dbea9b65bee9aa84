"""Processes of this machine as /proc shows them: alive, descended from whom, marked by what (proc(5)).

In a PID namespace whose /proc is still the outer one (`unshare --pid` without `--mount-proc`, some containers), the
numbers in /proc belong to the outer namespace. They are translated by `NSpid` and `NSsid` of `/proc/N/status`, and only
the processes in our namespace or below it count: other numbers mean nothing to us.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

ENVIRON_BYTES_MAX = 1 << 20
_NUMBER = re.compile(r"-?[0-9]{1,20}")


class ChildProcess(Protocol):
    """A process that we started."""

    pid: int

    def poll(self) -> int | None:
        """The child's exit status, None while it runs."""


class Process(NamedTuple):
    """A process; numbers as we would use them, `listed` as /proc lists it, `started` in ticks after boot."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    listed: int

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only waits to be waited for."""
        return self.state in "ZX"


def boot() -> str:
    """The kernel's boot id and our PID namespace: whether a process number means the same to us and its writer."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{kernel} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def start_of(pid: int) -> int | None:
    """When the process started, in ticks after boot; None = it is not there, or is dead and not yet waited for."""
    process = find(pid)
    return None if process is None or process.is_dead else process.started


def find(pid: int) -> Process | None:
    """The process of this number; None where there is none. Reads one file, or all of an outer /proc."""
    return _read(pid) if _proc_is_ours() else processes().get(pid)


def exists(pid: int) -> bool:
    """Whether the kernel knows a process of this number in our namespace, whatever /proc shows."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(pid: int, started: int) -> bool:
    """Whether this very process lives; a later one of the same number does not count."""
    return start_of(pid) == started


def words_of(pid: int) -> list[bytes]:
    """The command line of a process; empty where there is none."""
    process = find(pid)
    if process is None:
        return []
    try:
        return Path(f"/proc/{process.listed}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


class Terminated(NamedTuple):
    """Whether TERM was sent. `process`: a descriptor that is readable once the process has ended; None = the kernel is
    older than Linux 5.3."""

    was_sent: bool
    process: int | None = None


def terminate(pid: int, is_meant: Callable[[], bool]) -> Terminated:
    """Send TERM to the process of this number, which comes from a file, if `is_meant` confirms it.

    Asks `is_meant` only after it has opened the process, so that no later process of the same number gets the signal.
    """
    process = None
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return Terminated(was_sent=False)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    if not is_meant():
        if process is not None:
            os.close(process)
        return Terminated(was_sent=False)
    if process is None:
        _quietly(partial(os.kill, pid, signal.SIGTERM))
    else:
        _quietly(partial(signal.pidfd_send_signal, process, signal.SIGTERM))
    return Terminated(was_sent=True, process=process)


def holds(pid: int, path: Path) -> bool:
    """Whether a process in this PID namespace has this file open; False for a process of another user."""
    process = find(pid)
    if process is None:
        return False
    try:
        meant = path.stat()
        for name in os.listdir(f"/proc/{process.listed}/fd"):  # noqa: PTH208
            with suppress(OSError):  # the process has just closed it
                if os.path.samestat(os.stat(f"/proc/{process.listed}/fd/{name}"), meant):  # noqa: PTH116
                    return True
    except OSError:
        return False  # the process is another user's, or has ended
    return False


def signal_session(pid: int, started: int, number: signal.Signals) -> None:
    """Send a signal to the process group that the process leads."""
    if is_alive(pid, started):
        _quietly(partial(os.killpg, pid, number))


def kill_family(leaders: Collection[int], mark: str) -> bool:
    """Kill what lives of these sessions, of their descendants, and what carries `mark` in its environment.

    Returns whether anything lived; call again until not. One pass over /proc.
    """
    table = processes()
    sessions = set(leaders)
    doomed = {each.pid for each in table.values() if each.session in sessions or each.pid in sessions}
    doomed |= {each.pid for each in _marked(table.values(), mark)}
    children: dict[int, list[int]] = {}
    for each in table.values():
        children.setdefault(each.parent, []).append(each.pid)
    stack = list(doomed)
    while stack:
        for child in children.get(stack.pop(), []):
            if child not in doomed:
                doomed.add(child)
                stack.append(child)
    living = [
        pid for pid in doomed if pid in table and not table[pid].is_dead and pid not in (0, 1, os.getpid())
    ]
    for pid in living:
        _quietly(partial(os.kill, pid, signal.SIGKILL))
    return bool(living)


def find_marked(mark: str) -> list[tuple[int, int]]:
    """Session leaders that carry `mark` in their environment, as (pid, start)."""
    marked = _marked(processes().values(), mark)
    return [(each.pid, each.started) for each in marked if each.session == each.pid]


def reap() -> None:
    """Wait for all dead children, including those that we inherited when their parents died."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def processes() -> dict[int, Process]:
    """All processes that have a number in our PID namespace, by that number."""
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    listed = {each.listed: each for each in found if each is not None}
    return listed if _proc_is_ours() else _translate(listed)


def _translate(listed: dict[int, Process]) -> dict[int, Process]:
    """The processes in our namespace, or in one below it, by their numbers in our namespace."""
    level = len(_numbers(int(Path("/proc/self").readlink().name), "NSpid")) - 1
    ours = _namespace("self")
    children: dict[int, list[int]] = {}
    for each in listed.values():
        children.setdefault(each.parent, []).append(each.listed)
    inside: dict[int, int] = {}  # as listed -> our number
    stack = [number for number in listed if _namespace(str(number)) == ours]
    while stack:
        number = stack.pop()
        numbers = _numbers(number, "NSpid")
        if number not in inside and len(numbers) > level:
            inside[number] = numbers[level]
            stack += children.get(number, [])
    translated: dict[int, Process] = {}
    for number, pid in inside.items():
        if number in listed:
            sessions = _numbers(number, "NSsid")
            session = sessions[level] if len(sessions) > level else 0
            parent = inside.get(listed[number].parent, 0)
            translated[pid] = listed[number]._replace(pid=pid, parent=parent, session=session)
    return translated


def _namespace(listed: str) -> str | None:
    try:
        return os.readlink(f"/proc/{listed}/ns/pid")  # noqa: PTH115 -- for every process there is
    except OSError:
        return None  # another user's, or gone


def _numbers(listed: int, key: str) -> list[int]:
    """A line of /proc/N/status that gives the process's number in each nested namespace, outermost first."""
    try:
        with open(f"/proc/{listed}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(key):
                    return [int(number) for number in line.split()[1:]]
    except OSError:
        return []
    return []


def _proc_is_ours() -> bool:
    try:
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return True


def _marked(table: Iterable[Process], mark: str) -> list[Process]:
    wanted = mark.encode()
    found: list[Process] = []
    for each in table:
        if each.pid == os.getpid() or each.is_dead:
            continue
        try:
            with open(f"/proc/{each.listed}/environ", "rb") as file:  # noqa: PTH123
                environ = file.read(ENVIRON_BYTES_MAX)
        except OSError:
            continue  # another user's, or gone
        if wanted in environ.split(b"\0"):
            found.append(each)
    return found


def _read(listed: int) -> Process | None:
    try:
        with open(f"/proc/{listed}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    return parse_stat(listed, text)


def parse_stat(listed: int, text: str) -> Process | None:
    """Parse /proc/N/stat (proc_pid_stat(5)); None for malformed text. The name, in parentheses, may hold anything
    that a process calls itself: parentheses, blanks, line breaks."""
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or not all(_NUMBER.fullmatch(fields[k]) for k in (1, 3, 19)):
        return None
    return Process(listed, fields[0], int(fields[1]), int(fields[3]), int(fields[19]), listed)


def _quietly(action: Callable[[], object]) -> None:
    with suppress(
        ProcessLookupError, ChildProcessError, PermissionError
    ):  # it ended first, or is another user's
        action()
