"""How the time of nodes was used: wholly idle, partly used, full. From the jobs that ran on them, with their nodes.

`history` counts nodes by the widths of jobs; on nodes that several jobs share, widths do not add up, so this reads the
names of nodes as well. `sacct` prints names for slurmdbd alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.batch.log_times import LogClock
from tidemill.batch.run import CommandResult, LongReplyError, ask
from tidemill.batch.slurm.hostlist import expand
from tidemill.batch.slurm.text import FIELD, count
from tidemill.errors import ProtocolError, SiteError

WINDOWS_S = (86_400, 21_600, 3_600)
"""A shorter one is tried where a reply is too large: a day of 8,000 nodes with a million short jobs has 100 MB."""
TIMEOUT_S = 20.0
"""For all windows together: someone waits for the answer, and slurmdbd has other work."""
REPLY_BYTES_MAX = 32_000_000
SHARES_MAX = 2_000_000
"""Nodes of jobs, summed over jobs, that are held: some 200 MB."""
UNREADABLE_SHARE_MAX = 0.1
COLUMNS = "Start,End,AllocCPUS,NodeList"

Ask = Callable[[list[str], float], CommandResult]


class NodeTime(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the time of `nodes` nodes between two times (seconds since 1970): `idle`: no job was on the node;
    `part`: a job was, and cores were free."""

    since_s: int
    until_s: int
    nodes: int
    idle: float
    part: float


class HeldNode(NamedTuple):
    """A node that a job held: cores, start and end; None = it runs."""

    node: str
    cores: int
    start_s: int
    end_s: int | None


def ask_sacct(command: list[str], timeout_s: float) -> CommandResult:
    """Run sacct in UTC. Raises SiteError, and LongReplyError for more than REPLY_BYTES_MAX."""
    return ask(command, timeout_s=timeout_s, bytes_max=REPLY_BYTES_MAX)


def recent(
    cores: Mapping[str, int], *, idle: Collection[str], busy: Collection[str], asked: Ask = ask_sacct
) -> NodeTime:
    """The last day of these nodes (name -> cores), or the last hours where a day is too long to read.

    `idle`, `busy`: those on which no job is now, and those on which one is. Raises SiteError, also where sacct does not
    show the jobs of the nodes that are busy now: it hides those of other users.
    """
    until_s, deadline_s = clock.now_s(), clock.monotonic_s() + TIMEOUT_S
    for number, window_s in enumerate(WINDOWS_S):
        command = ["sacct", "-a", "-D", "-X", "-n", "-P", f"--delimiter={FIELD}", "-o", COLUMNS, "-s", "R"]
        command += ["-S", _text(until_s - window_s), "-E", _text(until_s)]
        try:
            reply = asked(command, max(1.0, deadline_s - clock.monotonic_s()))
            if reply.status != 0:
                raise reply.error(hint="`sacct` has to answer on this host")
            held = list(_bounded(read(reply.output.decode(errors="replace"), cores)))
        except (LongReplyError, OverflowError) as error:
            if number + 1 < len(WINDOWS_S):
                continue
            raise SiteError(f"sacct prints too much even for {window_s // 3600} h: {error}") from error
        _check_complete(held, busy)
        return shares(held, cores, idle, (until_s - window_s, until_s))
    raise AssertionError("there is a last window")


def read(text: str, cores: Mapping[str, int]) -> Iterator[HeldNode]:
    """The nodes of `cores` that jobs held, by sacct's rows of COLUMNS. Raises ProtocolError where rows do not fit."""
    times, rows, unreadable = LogClock(UTC), 0, 0
    for line in text.split("\n"):
        if not line:
            continue
        rows += 1
        try:
            start, end, cpus, names = line.split(FIELD)
            start_s, end_s, many = times.seconds(start), times.seconds(end), count(cpus)
            nodes = expand(names) if names != "None assigned" else ()
        except (ValueError, OverflowError, ProtocolError):  # a date beyond the calendar overflows
            unreadable += 1
            continue
        if start_s is None or not nodes:
            continue
        each = max(1, many // len(nodes))
        for name in nodes:
            if name in cores:
                yield HeldNode(name, each, start_s, end_s)
    if unreadable > max(3, rows * UNREADABLE_SHARE_MAX):
        raise ProtocolError(f"{unreadable} of {rows} rows of sacct cannot be read")


def shares(
    nodes: Iterable[HeldNode], cores: Mapping[str, int], idle: Collection[str], span: tuple[int, int]
) -> NodeTime:
    """How the nodes' time between the two times was used. A job without an end on a node that is idle now has ended
    unseen by slurmdbd (sacctmgr(1), "RunAwayJobs"), and is left out."""
    since_s, until_s = span
    changes: dict[str, list[tuple[int, int, int]]] = {}
    for each in nodes:
        if each.end_s is None and each.node in idle:
            continue
        start_s, end_s = max(each.start_s, since_s), min(each.end_s or until_s, until_s)
        if end_s > start_s:
            changes.setdefault(each.node, []).extend(((start_s, 1, each.cores), (end_s, -1, -each.cores)))
    used_s = part_s = 0
    for name, found in changes.items():
        used, part = _used(sorted(found), cores[name])
        used_s, part_s = used_s + used, part_s + part
    whole_s = len(cores) * (until_s - since_s)
    return NodeTime(
        since_s=since_s,
        until_s=until_s,
        nodes=len(cores),
        idle=(whole_s - used_s) / whole_s if whole_s else 0.0,
        part=part_s / whole_s if whole_s else 0.0,
    )


def _used(changes: Sequence[tuple[int, int, int]], cores: int) -> tuple[int, int]:
    """Seconds in which jobs were on a node, and those of them in which cores were free."""
    used_s = part_s = jobs = taken = last_s = 0
    for at_s, job, many in changes:
        if jobs > 0:
            used_s += at_s - last_s
            part_s += at_s - last_s if taken < cores else 0
        jobs, taken, last_s = jobs + job, taken + many, at_s
    return used_s, part_s


def _bounded(nodes: Iterable[HeldNode]) -> Iterator[HeldNode]:
    for number, each in enumerate(nodes):
        if number >= SHARES_MAX:
            raise OverflowError(f"jobs held more than {SHARES_MAX} nodes")
        yield each


def _check_complete(nodes: Sequence[HeldNode], busy: Collection[str]) -> None:
    """Raises SiteError where most of the nodes that are busy now have no running job."""
    running = {each.node for each in nodes if each.end_s is None}
    seen = sum(name in running for name in busy)
    if 2 * seen < len(busy):
        raise SiteError(
            f"sacct shows running jobs on {seen} of {len(busy)} busy nodes: it hides other users' jobs, or is behind",
            hint="PrivateData in slurmdbd.conf hides them",
            transient=False,
        )


def _text(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
