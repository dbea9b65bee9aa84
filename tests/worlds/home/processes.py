"""Finds the processes of one Tidemill home by what /proc says, so that a fault test can kill exactly those."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A living process: `start` is its start time in clock ticks, which tells a reused pid from the old one; `name`
    is what it calls itself."""

    pid: int
    parent: int
    start: int
    argv: tuple[str, ...]
    name: str = ""


def snapshot() -> dict[int, Process]:
    """All processes that can be read now; zombies are left out."""
    found: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
            argv = tuple((entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        if fields[0] not in "ZX":
            pid = int(entry.name)
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            found[pid] = Process(pid, int(fields[1]), int(fields[19]), argv, name)
    return found


def role(process: Process, everything: dict[int, Process], home: Path) -> str | None:
    """`server`, `agent`, `lead`, `pilot`, `slot`, `writer`, `sampler` (a pilot's), `payload`, `batch` or `up` when the
    process belongs to the home."""
    words = process.argv
    if any(str(home) in word for word in words):
        for verb, name in ROLES:
            if all(part in words for part in verb):
                parent = everything.get(process.parent)
                if parent is None or parent.argv != words:
                    return name
                # the parts of a pilot; of the others, a child that has not become its own program yet (vfork(2))
                return ASIDE.get(process.name, "slot") if name == "pilot" else None
    parent = everything.get(process.parent)
    if parent is not None and role(parent, everything, home) in ("slot", "payload"):
        return "payload"
    return None


ASIDE = {"tidemill-files": "writer", "tidemill-sample": "sampler"}
ROLES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("server", "run"), "server"),
    (("site", "run"), "agent"),
    (("lead",), "lead"),
    (("run", "--allocation"), "pilot"),
    (("tidemill.batch.local_daemon",), "batch"),
    (("up",), "up"),
)


def said_of(pid: int, name: str) -> str:
    """What `/proc/PID/NAME` says; empty once the process has ended, be it between `open` and `read`."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and not waited for yet."""
    return [int(child) for child in said_of(pid, f"task/{pid}/children").split()]


def tree(pid: int) -> list[int]:
    """A process and those below it, a parent before its children."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


def by_role(home: Path) -> dict[str, list[Process]]:
    """The home's living processes by role."""
    everything = snapshot()
    result: dict[str, list[Process]] = {}
    for process in everything.values():
        name = role(process, everything, home)
        if name is not None:
            result.setdefault(name, []).append(process)
    return result


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it has ended meanwhile (a reused pid is left alone)."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        stat = said_of(process.pid, "stat")
        if not stat or int(stat[stat.rindex(")") + 2 :].split()[19]) != process.start:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
