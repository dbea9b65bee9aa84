"""The embedded batch system: nodes of this machine, emulated by a daemon that is started when it is needed.

Everything goes through files of one directory (0700); there is no socket that another user could reach.

    DIR/machine.json        Emulated: what the daemon emulates; written by us, read when the daemon starts
    DIR/queue/N-NAME@COUNT.json  a submission that the daemon has not taken over; N orders them
    DIR/cancel/NAME         the allocation is to end
    DIR/shorten/NAME        when it is to end, in microseconds since 1970
    DIR/state.json          Table: every allocation the daemon has taken over
    DIR/output/NAME.RANK    what an allocation prints
    DIR/exit/NAME.RANK      exit status, written by its own shell
    DIR/daemon.lock         held by the daemon that lives
    DIR/stop                the daemon ends when nothing runs
"""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from tidemill import clock
from tidemill.batch import constants, processes
from tidemill.batch.contract import (
    ELEMENT,
    PLAIN_MAX,
    Answer,
    BatchSubmission,
    CommandCounts,
    Ending,
    Facts,
    MachineTotals,
    PartitionFacts,
    PlainReply,
    Status,
    element_name,
)
from tidemill.batch.names import check_name
from tidemill.batch.run import start
from tidemill.config.site import LocalBatch, NodeUse
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill.files import make_private, write_durable
from tidemill.model.machine import JobCounts, Node, NodeState, Partition, Queued, Running, Snapshot
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

START_TIMEOUT_S = 20.0
SHORTEN_TIMEOUT_S = 5.0
ARRAY_MAX = 10_000
PARTITION = "local"
TAIL_BYTES_MAX = 2000
OUTPUT_QUOTED_CHARS_MAX = 500
_T = TypeVar("_T")


class Emulated(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the daemon emulates. `pin`: each node has processors of its own."""

    nodes: int
    cores_per_node: int
    memory_mb_per_node: int
    processors: list[int]
    pin: bool
    grace_s: float


class LocalAllocation(msgspec.Struct, kw_only=True):
    """An allocation in the daemon's table. `processes`: (pid, start in ticks after boot) of each shell."""

    number: int
    submission: BatchSubmission
    state: AllocationState
    submitted_us: int
    nodes: list[int] = []
    processes: list[tuple[int, int]] = []
    started_us: int = 0
    ended_us: int = 0
    ends_us: int = 0  #: when its walltime is over
    ending: str = ""  #: why it is being ended: `walltime`, `cancel`
    outcome: Ending = Ending.NONE
    reason: str = ""


class Table(msgspec.Struct, kw_only=True):
    """DIR/state.json."""

    boot: str
    next_number: int = 1
    entries: dict[str, LocalAllocation] = {}


def emulate(config: LocalBatch, node: NodeUse) -> Emulated:
    """The machine that the configuration describes, cut from what this process may use of the real one."""
    processors = sorted(os.sched_getaffinity(0))
    cores = node.cores or max(1, len(processors) // config.nodes)
    memory = node.memory_mb or max(1, _memory_mb() // config.nodes)
    return Emulated(
        nodes=config.nodes,
        cores_per_node=cores,
        memory_mb_per_node=memory,
        processors=processors,
        pin=cores * config.nodes <= len(processors),
        grace_s=constants.LOCAL_GRACE_S,
    )


def allocation_mark(name: str) -> str:
    """The variable with which the daemon marks each process that it starts for this allocation."""
    return f"TIDEMILL_ALLOCATION={name}"


class LocalBatchSystem:
    """Client side of the daemon; see `batch/contract.py`."""

    def __init__(self, directory: Path, config: LocalBatch, node: NodeUse | None = None) -> None:
        self._directory = directory
        self._emulated = emulate(config, node or NodeUse())
        self._order = 0
        self._user = _user_name()
        self.calls = CommandCounts()
        make_directories(directory)
        write_durable(directory / "machine.json", msgspec.json.encode(self._emulated))

    def submit(self, submission: BatchSubmission) -> str:
        """Queue the submission for the daemon, unless its name is known already."""
        self.calls.actions += 1
        check_name(submission.name)
        self._check(submission)
        first = element_name(submission.name, 0, submission.count)
        if self._knows(first):
            return submission.name
        self._order += 1
        name = f"{clock.now_us():017}{self._order:06}-{submission.name}@{submission.count}.json"
        write_durable(self._directory / "queue" / name, msgspec.json.encode(submission))
        self._wake()
        return submission.name

    def status(self, names: Collection[str]) -> dict[str, Status]:
        """Return the status of each allocation, from the daemon's table and its queue."""
        self.calls.queries += 1
        if names:
            self._wake()
        queued = self._queued()  # before the table: the daemon writes the table before it takes a file away
        table = read_table(self._directory)
        answers: dict[str, Status] = {}
        for name in names:
            entry = table.entries.get(name) if table else None
            if entry is not None:
                answers[name] = self._status(entry)
            elif name in queued:
                answers[name] = Status(answer=Answer.FOUND, state=AllocationState.QUEUED, batch_id=name)
            else:
                answers[name] = Status(answer=Answer.GONE)
        return answers

    def plain(self, names: Collection[str]) -> PlainReply:
        """Search the processes of this machine: the daemon's table is a file, and may be lost."""
        self.calls.queries += 1
        shown = {}
        for name in sorted(names)[:PLAIN_MAX]:
            marked = processes.find_marked(allocation_mark(name))
            if marked:
                shown[name] = str(marked[0][0])
        usual = str(self._directory / "state.json")
        return PlainReply(shown=shown, command="the environments of all processes in /proc", usual=usual)

    def cancel(self, names: Collection[str]) -> None:
        """Order the daemon to end those of these allocations that are known."""
        self.calls.actions += 1
        known = self._known()
        wanted = [name for name in names if name in known]
        for name in wanted:
            write_durable(self._directory / "cancel" / name, b"")
        if wanted:
            self._wake()

    def shorten(self, ends_s: Mapping[str, float]) -> dict[str, float]:
        """Order the daemon to lower the limits, wait until it has, and return the ends that it set."""
        self.calls.actions += 1
        table = read_table(self._directory)
        done: dict[str, float] = {}
        for name, end_s in ends_s.items():
            entry = table.entries.get(name) if table else None
            if entry is None or entry.state is not AllocationState.ACTIVE or entry.ending:
                continue
            end_us = min(entry.ends_us, max(int(end_s * 1e6), clock.now_us()))
            write_durable(self._directory / "shorten" / name, str(end_us).encode())
            done[name] = end_us / 1e6
        if done:
            self._wake()
        deadline_s = clock.monotonic_s() + SHORTEN_TIMEOUT_S
        while any((self._directory / "shorten" / name).exists() for name in done):
            if clock.monotonic_s() > deadline_s:
                raise SiteError(f"the local batch daemon did not answer within {SHORTEN_TIMEOUT_S:g} s")
            clock.sleep_s(0.005)
        return done

    def machine(self) -> MachineTotals:
        """Count the emulated nodes, the free ones and the waiting jobs."""
        table = read_table(self._directory)
        living = _living(table)
        busy = sum(len(each.nodes) for each in living if each.state is AllocationState.ACTIVE)
        return MachineTotals(
            nodes=self._emulated.nodes,
            nodes_free=self._emulated.nodes - busy,
            cores_per_node=self._emulated.cores_per_node,
            memory_mb_per_node=self._emulated.memory_mb_per_node,
            queued=len(self._queued()) + sum(each.state is AllocationState.QUEUED for each in living),
        )

    def snapshot(self) -> Snapshot:
        """Show the emulated machine. All jobs are Tidemill's: other users do not reach the directory."""
        self.calls.queries += 1
        waiting = self._waiting()  # before the table, see `status`
        table = read_table(self._directory)
        living = _living(table)
        known = set(table.entries) if table else set()
        active = [each for each in living if each.state is AllocationState.ACTIVE]
        queued = [each.submission for each in living if each.state is AllocationState.QUEUED]
        queued += [each for each in waiting if each.name not in known]
        return Snapshot(
            at_s=clock.now_us() / 1e6,
            nodes=_nodes(self._emulated, active),
            running=[self._running(each) for each in active],
            queued=[_queued(each, self._user) for each in queued],
            partitions=[
                Partition(name=PARTITION, nodes=_node_names(range(self._emulated.nodes)), is_default=True)
            ],
            plan_age_s=0.0,
        )

    def glance(self) -> JobCounts | None:
        """Return None: there is no cheaper query than a snapshot."""
        return None  # its snapshot costs as little

    def facts(self) -> Facts:
        """Describe the emulated machine."""
        machine = self._emulated
        partition = PartitionFacts(
            name=PARTITION,
            is_default=True,
            nodes=machine.nodes,
            cores_per_node=machine.cores_per_node,
            memory_mb_per_node=machine.memory_mb_per_node,
        )
        return Facts(
            system=f"local (Linux {platform.release()})",
            partitions=[partition],
            array_max=ARRAY_MAX,
            architectures=[platform.machine()],
            launchers=["fork"],
            notes=["nodes are emulated on this machine"],
        )

    def output(self, name: str) -> Path:
        """Return the file that holds what the allocation printed on its first node."""
        return self._directory / "output" / f"{name}.0"

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Do nothing: the daemon deletes the files an hour after the end."""

    def stop(self) -> None:
        """Order the daemon to end once nothing runs."""
        write_durable(self._directory / "stop", b"")

    def _check(self, submission: BatchSubmission) -> None:
        """Raises SiteError for what can never run."""
        machine, wanted = self._emulated, submission
        usable = set(_node_names(range(machine.nodes))) - set(wanted.exclude)
        nodes = wanted.nodes_min or wanted.nodes
        problem = ""
        if nodes > machine.nodes or wanted.cores > machine.cores_per_node:
            problem = (
                f"wants {nodes} nodes of {wanted.cores} cores, "
                f"the local batch system has {machine.nodes} of {machine.cores_per_node}"
            )
        elif nodes > len(usable):
            problem = f"wants {nodes} nodes, and excludes all but {len(usable)}"
        elif wanted.features:
            problem = f"wants features, which nodes here do not have: {', '.join(wanted.features)}"
        elif not 1 <= wanted.count <= ARRAY_MAX:
            problem = f"is an array of {wanted.count}, 1 to {ARRAY_MAX} are allowed"
        if problem:
            raise SiteError(f"allocation `{wanted.name}` {problem}", transient=False)

    def _knows(self, name: str) -> bool:
        return name in self._known()

    def _known(self) -> set[str]:
        queued = self._queued()
        table = read_table(self._directory)
        return queued | (set(table.entries) if table else set())

    def _queue_files(self) -> list[str]:
        try:
            names = os.listdir(self._directory / "queue")  # noqa: PTH208 -- names only
        except OSError as error:
            raise SiteError(f"failed to list `{self._directory}/queue`: {error.strerror}") from error
        return sorted(name for name in names if name.endswith(".json") and not name.startswith("."))

    def _queued(self) -> set[str]:
        found: set[str] = set()
        for file in self._queue_files():
            name, _, count = file.partition("-")[2].removesuffix(".json").rpartition("@")
            found.update(element_name(name, index, int(count)) for index in range(int(count)))
        return found

    def _waiting(self) -> list[BatchSubmission]:
        """What the daemon has not taken over, each element alone."""
        found: list[BatchSubmission] = []
        for file in self._queue_files():
            submission = read_file(self._directory / "queue" / file, BatchSubmission)
            if submission is not None:
                found += elements(submission)
        return found

    def _running(self, entry: LocalAllocation) -> Running:
        return Running(
            id=entry.submission.name,
            name=entry.submission.name,
            user=self._user,
            nodes=_node_names(entry.nodes),
            width=len(entry.nodes),
            started_s=entry.started_us / 1e6,
            ends_s=entry.ends_us / 1e6,
            submitted_s=entry.submitted_us / 1e6,
            partition=PARTITION,
            ours=True,
        )

    def _status(self, entry: LocalAllocation) -> Status:
        tail = ""
        if entry.state is AllocationState.FAILED:
            tail = _tail(self.output(entry.submission.name))
        return Status(
            answer=Answer.FOUND,
            state=entry.state,
            batch_id=entry.submission.name,
            ending=entry.outcome,
            reason=entry.reason,
            nodes=_node_names(entry.nodes),
            started_s=entry.started_us / 1e6 if entry.started_us else None,
            ends_s=entry.ends_us / 1e6 if entry.ends_us else None,
            gpus=0,
            output_tail=tail,
        )

    def _wake(self) -> None:
        """Start the daemon unless one lives. A second one that is started by chance ends at once."""
        if daemon_lives(self._directory):
            return
        (self._directory / "stop").unlink(missing_ok=True)
        process = start(
            [sys.executable, "-P", "-m", "tidemill.batch.local_daemon", str(self._directory)],
            output=self._directory / "daemon.log",
            environ={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        deadline = clock.monotonic_s() + START_TIMEOUT_S
        while not daemon_lives(self._directory):
            if process.poll() and not daemon_lives(self._directory):
                raise SiteError(
                    f"the local batch daemon ended with status {process.poll()}: "
                    f"{_tail(self._directory / 'daemon.log') or 'it printed nothing'}"
                )
            if clock.monotonic_s() > deadline:
                raise SiteError(f"the local batch daemon did not start within {START_TIMEOUT_S:g} s")
            clock.sleep_s(0.005)


def elements(submission: BatchSubmission) -> list[BatchSubmission]:
    """A submission's allocations, each alone, with its name in its command."""
    found: list[BatchSubmission] = []
    for index in range(submission.count):
        name = element_name(submission.name, index, submission.count)
        command = [word.replace(ELEMENT, name) for word in submission.command]
        found.append(msgspec.structs.replace(submission, name=name, command=command, count=1))
    return found


def node_name(number: int) -> str:
    """The name of an emulated node."""
    return f"node{number:04}"


def make_directories(directory: Path) -> None:
    """The daemon's directories, readable by their owner alone. Raises SiteError."""
    try:
        make_private(directory)
        directory.chmod(0o700)
        for name in ("queue", "cancel", "shorten", "output", "exit"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SiteError(
            f"failed to make the local batch directory `{directory}`: {error.strerror}"
        ) from error


def daemon_lives(directory: Path) -> bool:
    """Whether a daemon holds the lock. (The local batch system serves one machine, where locks work.)"""
    try:
        descriptor = os.open(directory / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SiteError(f"failed to open `{directory}/daemon.lock`: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_table(directory: Path) -> Table | None:
    """The daemon's table, None before it wrote the first. Raises SiteError, ProtocolError."""
    return read_file(directory / "state.json", Table)


def read_file(path: Path, kind: type[_T]) -> _T | None:
    """A file's content as `kind`, None where there is no file. Raises SiteError, ProtocolError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SiteError(f"failed to read `{path}`: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise ProtocolError(f"failed to read `{path}` as {kind.__name__}: {error}") from error


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES_MAX))
            text = file.read().decode(errors="replace").strip()
    except OSError:
        return ""
    return text[-OUTPUT_QUOTED_CHARS_MAX:]


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user of a container has a number only
        return str(os.getuid())


def _node_names(numbers: Collection[int]) -> tuple[str, ...]:
    return tuple(node_name(number) for number in numbers)


def _living(table: Table | None) -> list[LocalAllocation]:
    entries = table.entries.values() if table else ()
    return [entry for entry in entries if entry.state not in ALLOCATION_FINAL]


def _nodes(machine: Emulated, active: list[LocalAllocation]) -> list[Node]:
    states = {
        node: NodeState.ENDING if entry.ending else NodeState.BUSY for entry in active for node in entry.nodes
    }
    found: list[Node] = []
    for number in range(machine.nodes):
        state = states.get(number, NodeState.IDLE)
        node = Node(
            name=node_name(number),
            state=state,
            cores=machine.cores_per_node,
            memory_mb=machine.memory_mb_per_node,
            cores_free=machine.cores_per_node if state is NodeState.IDLE else 0,
            partitions=(PARTITION,),
            word=state.value,
        )
        found.append(node)
    return found


def _queued(submission: BatchSubmission, user: str) -> Queued:
    return Queued(
        id=submission.name,
        name=submission.name,
        user=user,
        width=submission.nodes_min or submission.nodes,
        walltime_s=submission.walltime_s,
        cores=submission.nodes * submission.cores,
        memory_mb_per_node=submission.memory_mb,
        partitions=(PARTITION,),
        ours=True,
    )
