"""The daemon of the local batch system: `python -m tidemill.batch.local_daemon DIR`.

First in, first out; whole nodes; TERM, then KILL after the grace, to an allocation's whole session and what descends
from it. Its table is durable before anything is started, so a killed daemon's successor finds running allocations
again by process number and start time. See `batch/local.py` for the files.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from tidemill import clock, log
from tidemill.batch import processes
from tidemill.batch.contract import BatchSubmission, Ending
from tidemill.batch.local import (
    Emulated,
    LocalAllocation,
    Table,
    elements,
    make_directories,
    node_name,
    read_file,
    read_table,
)
from tidemill.batch.run import start
from tidemill.errors import SiteError, TidemillError
from tidemill.files import write_durable
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

IDLE_S = 60.0
"""The daemon ends after this time without an allocation."""

LOCK_TRIES_MAX = 10
KEPT_S = 3600.0
KEPT_MAX = 1000
PAUSE_BUSY_S = 0.02
PAUSE_IDLE_S = 0.1
STEADY_S = 2.0
"""The daemon checks less often when nothing has changed for this time."""

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_log = log.Log("local_batch")

# The shell keeps the exit status of its command in a file, whether or not a parent waits for it.
_SHELL = """trap : TERM USR1 INT HUP
exit_file=$1
shift
"$@"
status=$?
umask g-w,o-w
echo $status > "$exit_file.tmp"
mv "$exit_file.tmp" "$exit_file"
exit $status
"""


class Daemon:
    """The table and what is done about it, step by step."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        machine = read_file(directory / "machine.json", Emulated)
        if machine is None:
            raise SiteError(
                f"`{directory}` has no machine.json: it was not made by `tidemill`", transient=False
            )
        self._machine = machine
        table = read_table(directory)
        self._table = table or Table(boot=processes.boot())
        self._deadlines: dict[str, float] = {}
        self._signaled: set[str] = set()
        self._kill_at: dict[str, float] = {}
        self._adopt()
        self._save()

    def step(self) -> bool:
        """Do what is due; whether anything changed."""
        changed = self._take_queue()
        changed |= self._take_cancels()
        changed |= self._take_shorter()
        changed |= self._end_finished()
        changed |= self._enforce()
        changed |= self._start_next()
        if changed:
            self._prune()
            self._save()
        return changed

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or runs."""
        return any(entry.state not in ALLOCATION_FINAL for entry in self._table.entries.values())

    # ---- what others want ----

    def _take_queue(self) -> bool:
        taken: list[Path] = []
        for path in self._waiting("queue"):
            submission = read_file(path, BatchSubmission)
            if submission is None:
                continue
            for each in elements(submission):
                if each.name in self._table.entries:
                    continue
                self._table.entries[each.name] = LocalAllocation(
                    number=self._table.next_number,
                    submission=each,
                    state=AllocationState.QUEUED,
                    submitted_us=clock.now_us(),
                )
                self._table.next_number += 1
            taken.append(path)
        if taken:
            self._save()
            for path in taken:
                path.unlink(missing_ok=True)
        return bool(taken)

    def _waiting(self, kind: str) -> list[Path]:
        """The whole files of a directory, in order."""
        directory = self._directory / kind
        names = os.listdir(directory)  # noqa: PTH208 -- names only, many times a second
        return [directory / name for name in sorted(names) if not name.startswith(".")]

    def _take_cancels(self) -> bool:
        changed = False
        for path in self._waiting("cancel"):
            entry = self._table.entries.get(path.name)
            if entry is None and self._waits_in_queue(path.name):
                continue  # submitted since we looked: it is canceled at the next step
            if entry is not None and entry.state is AllocationState.QUEUED:
                self._end(entry, AllocationState.CANCELED, "canceled before it ran", Ending.CANCELED)
                changed = True
            elif entry is not None and entry.state is AllocationState.ACTIVE and not entry.ending:
                self._terminate(entry, "cancel")
                changed = True
            path.unlink(missing_ok=True)
        return changed

    def _waits_in_queue(self, name: str) -> bool:
        base, _, index = name.rpartition(".")
        names = [name, base] if index.isdecimal() else [name]
        return any(any((self._directory / "queue").glob(f"[0-9]*-{each}@*.json")) for each in names)

    def _take_shorter(self) -> bool:
        files = self._waiting("shorten")
        for path in files:
            entry = self._table.entries.get(path.name)
            text = path.read_text(encoding="ascii").strip()
            if entry is not None and entry.state is AllocationState.ACTIVE and text.isdecimal():
                entry.ends_us = min(entry.ends_us, int(text))
                self._deadlines[path.name] = clock.monotonic_s() + (entry.ends_us - clock.now_us()) / 1e6
        if files:
            self._save()
            for path in files:
                path.unlink(missing_ok=True)
        return bool(files)

    # ---- what runs ----

    def _start_next(self) -> bool:
        changed = blocked = False
        now = clock.now_us()
        busy = {n for e in self._table.entries.values() if e.state is AllocationState.ACTIVE for n in e.nodes}
        free = [node for node in range(self._machine.nodes) if node not in busy]
        for entry in self._table.entries.values():
            if entry.state is not AllocationState.QUEUED:
                continue
            wanted = entry.submission
            if wanted.start_by_s is not None and now > wanted.start_by_s * 1e6:
                self._end(entry, AllocationState.CANCELED, "it could not start in time", Ending.DEADLINE)
                changed = True
                continue
            if blocked:
                continue
            usable = [node for node in free if node_name(node) not in wanted.exclude]
            if len(usable) < (wanted.nodes_min or wanted.nodes):
                blocked = True  # first in, first out
                continue
            entry.nodes = usable[: wanted.nodes]
            free = [node for node in free if node not in entry.nodes]
            self._start(entry)
            changed = True
        return changed

    def _start(self, entry: LocalAllocation) -> None:
        entry.state, entry.started_us = AllocationState.ACTIVE, clock.now_us()
        entry.ends_us = entry.started_us + int(entry.submission.walltime_s * 1e6)
        name = entry.submission.name
        self._deadlines[name] = clock.monotonic_s() + entry.submission.walltime_s
        self._save()  # that it may run is durable before it runs
        for rank, node in enumerate(entry.nodes[: _ranks(entry)]):
            try:
                pid = self._start_rank(entry, rank, node)
            except SiteError as error:
                entry.reason = error.message
                _log.error("allocation.failed", allocation=name, reason=error.message)
                continue
            entry.processes.append((pid, processes.start_of(pid) or 0))
        _log.info("allocation.started", allocation=name, nodes=entry.nodes)

    def _start_rank(self, entry: LocalAllocation, rank: int, node: int) -> int:
        submission = entry.submission
        environ = {
            **os.environ,
            **submission.environment,
            "TIDEMILL_ALLOCATION": submission.name,
            "TIDEMILL_RANK": str(rank),
            "TIDEMILL_NODE_NAME": node_name(node),
        }
        key = f"{submission.name}.{rank}"
        (self._directory / "exit" / key).unlink(missing_ok=True)
        command = ["/bin/sh", "-c", _SHELL, "sh", str(self._directory / "exit" / key), *submission.command]
        before = os.sched_getaffinity(0)
        if self._machine.pin:
            width = self._machine.cores_per_node
            os.sched_setaffinity(0, self._machine.processors[node * width : (node + 1) * width])
        try:
            return start(command, output=self._directory / "output" / key, environ=environ).pid
        finally:
            os.sched_setaffinity(0, before)

    def _end_finished(self) -> bool:
        processes.reap()
        changed = False
        for entry in self._table.entries.values():
            if entry.state is not AllocationState.ACTIVE:
                continue
            if any(processes.is_alive(pid, started) for pid, started in entry.processes):
                continue
            if self._kill_rest(entry):
                continue  # checked again at the next step
            self._finish(entry)
            changed = True
        return changed

    def _finish(self, entry: LocalAllocation) -> None:
        name = entry.submission.name
        statuses = [self._exit_status(f"{name}.{rank}") for rank in range(_ranks(entry))]
        failed, completed = AllocationState.FAILED, AllocationState.COMPLETED
        if entry.ending == "cancel":
            self._end(entry, AllocationState.CANCELED, "canceled", Ending.CANCELED)
        elif entry.ending == "walltime":
            self._end(entry, completed, "walltime is over", Ending.WALLTIME)
        elif any(status is None for status in statuses):
            why = Ending.LAUNCH if entry.reason else Ending.FAILED
            self._end(entry, failed, entry.reason or "its processes were killed", why)
        elif any(statuses):
            worst = max(status or 0 for status in statuses)
            self._end(entry, failed, f"exit status {worst}", Ending.FAILED)
        else:
            self._end(entry, completed, "", Ending.DONE)

    def _exit_status(self, key: str) -> int | None:
        try:
            text = (self._directory / "exit" / key).read_text(encoding="ascii").strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def _enforce(self) -> bool:
        """End what is over its walltime; kill what did not end within the grace."""
        now = clock.monotonic_s()
        changed = False
        for entry in self._table.entries.values():
            if entry.state is not AllocationState.ACTIVE:
                continue
            name = entry.submission.name
            deadline, warn_s = self._deadlines.get(name, now), entry.submission.signal_before_s
            if not entry.ending and now >= deadline:
                self._terminate(entry, "walltime")
                changed = True
            elif warn_s is not None and now >= deadline - warn_s and name not in self._signaled:
                self._signaled.add(name)
                _signal_commands(entry)
            elif entry.ending and now >= self._kill_at.get(name, now):
                self._kill_rest(entry)
        return changed

    def _terminate(self, entry: LocalAllocation, why: str) -> None:
        entry.ending = why
        self._kill_at[entry.submission.name] = clock.monotonic_s() + self._machine.grace_s
        for pid, started in entry.processes:
            processes.signal_session(pid, started, signal.SIGTERM)
        _log.info("allocation.terminated", allocation=entry.submission.name, why=why)

    def _kill_rest(self, entry: LocalAllocation) -> bool:
        """Kill all that is left of the allocation; whether there was anything."""
        return processes.kill_family(
            [pid for pid, _ in entry.processes], f"TIDEMILL_ALLOCATION={entry.submission.name}"
        )

    def _end(self, entry: LocalAllocation, state: AllocationState, reason: str, outcome: Ending) -> None:
        entry.state, entry.reason, entry.ended_us = state, reason or entry.reason, clock.now_us()
        entry.outcome = outcome
        self._signaled.discard(entry.submission.name)
        self._deadlines.pop(entry.submission.name, None)
        self._kill_at.pop(entry.submission.name, None)
        _log.info("allocation.ended", allocation=entry.submission.name, state=state.value, reason=reason)

    # ---- the table ----

    def _adopt(self) -> None:
        """Find again what a predecessor started; after a reboot nothing of it lives."""
        same_boot = self._table.boot == processes.boot()
        self._table.boot = processes.boot()
        for entry in self._table.entries.values():
            if entry.state is not AllocationState.ACTIVE:
                continue
            if not same_boot:
                self._end(entry, AllocationState.FAILED, "the machine was started again", Ending.NODE)
                continue
            if len(entry.processes) < _ranks(entry):  # killed between the start and its note
                found = processes.find_marked(f"TIDEMILL_ALLOCATION={entry.submission.name}")
                entry.processes = found or entry.processes
            entry.ends_us = entry.ends_us or entry.started_us + int(entry.submission.walltime_s * 1e6)
            left_s = (entry.ends_us - clock.now_us()) / 1e6
            self._deadlines[entry.submission.name] = clock.monotonic_s() + max(0.0, left_s)

    def _save(self) -> None:
        write_durable(self._directory / "state.json", msgspec.json.encode(self._table))

    def _prune(self) -> None:
        ended = [entry for entry in self._table.entries.values() if entry.state in ALLOCATION_FINAL]
        old = clock.now_us() - int(KEPT_S * 1e6)
        for index, entry in enumerate(ended):
            if entry.ended_us < old or index < len(ended) - KEPT_MAX:
                name = entry.submission.name
                del self._table.entries[name]
                for rank in range(max(1, len(entry.nodes))):
                    (self._directory / "output" / f"{name}.{rank}").unlink(missing_ok=True)
                    (self._directory / "exit" / f"{name}.{rank}").unlink(missing_ok=True)


def _ranks(entry: LocalAllocation) -> int:
    """Nodes on which the command runs."""
    return len(entry.nodes) if entry.submission.ranks else 1


def _signal_commands(entry: LocalAllocation) -> None:
    """USR1 to the command of each node, not to what it has started."""
    shells = {pid for pid, started in entry.processes if processes.is_alive(pid, started)}
    for each in processes.processes().values():
        if each.parent in shells and not each.is_dead:
            with suppress(ProcessLookupError, PermissionError):  # it ended first
                os.kill(each.pid, signal.SIGUSR1)


def serve(directory: Path) -> int:
    """Run until idle or ordered to stop; 0, also when another daemon serves the directory already."""
    make_directories(directory)
    if not _lock(directory):
        return 0
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    daemon = Daemon(directory)
    busy_s = changed_s = clock.monotonic_s()
    while True:
        try:
            changed = daemon.step()
        except TidemillError as error:
            _log.error("step.failed", reason=error.message)
            clock.sleep_s(PAUSE_IDLE_S)
            changed = True
        now = clock.monotonic_s()
        changed_s = now if changed else changed_s
        busy_s = now if daemon.is_busy else busy_s
        if not daemon.is_busy and (now - busy_s > IDLE_S or (directory / "stop").exists()):
            (directory / "stop").unlink(missing_ok=True)
            return 0
        clock.sleep_s(PAUSE_BUSY_S if now - changed_s < STEADY_S else PAUSE_IDLE_S)


def _lock(directory: Path) -> bool:
    """Hold the lock until we end. Those who look whether we live hold it for a moment: try more than once."""
    lock = os.open(directory / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES_MAX):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            clock.sleep_s(PAUSE_BUSY_S)
        else:
            return True
    os.close(lock)
    return False


if __name__ == "__main__":
    log.to_stderr()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(serve(Path(sys.argv[1])))
