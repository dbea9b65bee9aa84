"""What Slurm's commands print as text, read row by row. Pure.

`squeue -o` prints what stands between its fields as it is, and names and comments as well: Slurm takes any character in
them (22.05.8, tried), so a user can write whole records there. All users' jobs are therefore asked for with a mark
before each record that differs from query to query (`all_format`), and name and comment are the last fields. A row that
does not fit is counted and passed over, and a reply in which many do not fit is an error.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from tidemill.batch.contract import FAR_FUTURE_S
from tidemill.batch.slurm.hostlist import expand, expand_elements
from tidemill.batch.slurm.times import parse_span, parse_time
from tidemill.batch.slurm.words import is_eligible, node_state, node_words
from tidemill.errors import ProtocolError
from tidemill.model.machine import JobCounts, Node, NodeState, Partition, Queued, Reservation, Running
from tidemill.model.number import whole

RECORD, FIELD = "\x1e", "\x1f"
ELEMENTS_MAX = 1_000_000
UNREADABLE_SHARE_MAX = 0.02

OWN_FORMAT = RECORD + FIELD.join(f"%{letter}" for letter in "iTurNSeVCDhbljk")
"""squeue(1): id, state, user, reason, nodes, start, end, submission, CPUs, node count, sharing, resources of each node
that were asked for, limit, name, comment."""

ALL_FIELDS = FIELD.join(f"%{letter}" for letter in "ituDNSelVPfrQYvCmhjk")
"""Besides: node count, limit, partitions, features, priority, planned nodes, reservation, CPUs, memory, sharing."""


class OwnJob(NamedTuple):
    """A row of our user's. `element`: its index in its array; `folded`: those of an array that waits, in one row."""

    number: str  #: of the job, or of the whole array
    element: int | None
    folded: tuple[range, ...]
    word: str
    user: str
    reason: str
    nodes: str
    started_s: float | None
    ends_s: float | None
    submitted_s: float | None
    name: str
    comment: str
    cores: int = 0  #: CPUs of all its nodes, as `AllocCPUS` of sacct
    gpus: int | None = None  #: of all its nodes; None = those of its nodes, which it has for itself
    limit_s: float | None = None
    is_cut: bool = (
        False  #: `folded` lacks elements: squeue shows 64 bytes of a list (squeue(1), SLURM_BITSTR_LEN)
    )

    @property
    def id(self) -> str:
        """As squeue shows it, an array's row as the whole array."""
        return self.number if self.element is None else f"{self.number}_{self.element}"


class Everybody(NamedTuple):
    """Rows of `all_format`, and how many could not be read."""

    running: list[Running]
    queued: list[Queued]
    unreadable: int


def all_format(record: str) -> str:
    """The format of squeue for all users' jobs, each of which begins with `record`."""
    return record + ALL_FIELDS


def rows(output: bytes, fields: int, record: str = RECORD) -> Iterator[list[str] | None]:
    """The fields of each record, None for one that has another number of them; the last may hold anything. `record`:
    what each begins with."""
    pieces = output.decode(errors="replace").split(record)
    if pieces[0].strip():
        raise ProtocolError(f"squeue printed `{pieces[0].strip()[:200]}` before the first job")
    for piece in pieces[1:]:
        parts = piece.removesuffix("\n").split(FIELD, fields - 1)
        yield parts if len(parts) == fields else None


def own_jobs(output: bytes) -> list[OwnJob]:
    """Our user's jobs. Raises ProtocolError."""
    result = []
    for row in rows(output, 15):
        if row is None:
            continue  # a name with our separators: of our user, but none that we made
        number, index, elements = _numbers(row[0])
        result.append(
            OwnJob(
                number, index, elements, row[1], row[2], row[3], row[4],
                parse_time(row[5]), parse_time(row[6]), parse_time(row[7]), row[13], row[14], _count_or_0(row[8]),
                held_gpus(row[11], _count_or_0(row[9]), whole=row[10] in _WHOLE), parse_span(row[12]), "..." in row[0],
            )
        )  # fmt: skip
    return result


def held_gpus(each_node: str, nodes: int, *, whole: bool) -> int | None:
    """GPUs of a job, by what it asked for on each node: `gres/gpu:a100:2`, `gres:gpu:2`, `N/A`. A job that has its
    nodes for itself and did not ask for any holds those of its nodes all the same (None)."""
    asked = dict(devices(each_node.replace("gres/", "").replace("gres:", ""))).get("gpu", 0)
    return asked * nodes if asked or not whole else None


def _count_or_0(text: str) -> int:
    try:
        return count(text)
    except ValueError:
        return 0


def _numbers(text: str) -> tuple[str, int | None, tuple[range, ...]]:
    """`12`, `12_3`, `12_[3-5,9%2]`, `12+1` (a part of a heterogeneous job)."""
    number, _, element = text.partition("_")
    if not element:
        return number, None, ()
    if element.startswith("["):
        return number, None, expand_elements(element.strip("[]"), ELEMENTS_MAX)
    index = whole(element)
    if index is None:
        raise ProtocolError(f"squeue calls a job `{text[:100]}`")
    return number, index, ()


def everybody(
    output: bytes, is_ours: Callable[[str, str, str], bool], *, nodes: int, record: str = RECORD
) -> Everybody:
    """All users' jobs, the waiting ones by falling priority; at most `nodes` elements of an array that waits.

    `is_ours`: of user, name and comment; `record`: what each record begins with.
    Raises ProtocolError when too many rows cannot be read.
    """
    running: list[Running] = []
    queued: list[Queued] = []
    unreadable = total = 0
    for row in rows(output, 20, record):
        total += 1
        if row is None:
            unreadable += 1
            continue
        try:
            if row[1] in ("PD", "RQ", "RF", "RH", "SE", "RD"):
                queued += _queued(row, is_ours, nodes)
            elif row[1] not in _ENDED:
                running.append(_running(row, is_ours))
        except (ValueError, ProtocolError):
            unreadable += 1
    if unreadable > max(3, total * UNREADABLE_SHARE_MAX):
        raise ProtocolError(f"{unreadable} of {total} rows of squeue cannot be read")
    queued.sort(key=lambda each: -each.priority)
    return Everybody(running, queued, unreadable)


_WHOLE = ("NO", "EXCLUSIVE")  #: words of squeue for a job that has its nodes for itself
_ENDED = frozenset({"CD", "CA", "F", "TO", "NF", "PR", "BF", "DL", "OOM", "RV"})


def _running(row: list[str], is_ours: Callable[[str, str, str], bool]) -> Running:
    (number, _, user, width, nodes, start, end, _, submitted, partition) = row[:10]
    name, comment = row[18:]
    number, index, _ = _numbers(number)
    element = number if index is None else f"{number}_{index}"
    return Running(
        id=element,
        name=name if index is None else f"{name}.{index}",
        user=sys.intern(user),
        nodes=expand(nodes),
        width=count(width),
        started_s=parse_time(start) or 0.0,
        ends_s=parse_time(end) or FAR_FUTURE_S,
        submitted_s=parse_time(submitted),
        partition=sys.intern(partition),
        cores=count(row[15]),
        whole=row[17] in _WHOLE,
        ours=is_ours(user, name, comment),
    )


def _queued(row: list[str], is_ours: Callable[[str, str, str], bool], most: int) -> list[Queued]:
    (number, _, user, width_text, _, start, _, limit, submitted, partitions) = row[:10]
    features, reason, priority, planned, reservation, cpus, memory, sharing, name, comment = row[10:]
    base, index, elements = _numbers(number)
    width = count(width_text)
    asked, exact = read_features(features)
    planned_nodes = expand(planned)
    begins_s = parse_time(start)
    first = Queued(
        id=base,
        name=name,
        user=sys.intern(user),
        width=width,
        walltime_s=parse_span(limit) or FAR_FUTURE_S,
        cores=count(cpus),
        memory_mb_per_node=megabytes(memory),
        submitted_s=parse_time(submitted),
        priority=_finite(priority),
        partitions=tuple(map(sys.intern, partitions.split(","))),
        features=asked,
        is_feature_list_exact=exact,
        planned_s=begins_s if planned_nodes else None,  # `--begin` sets a start, too
        planned_nodes=planned_nodes,
        reservation="" if reservation in ("(null)", "") else reservation,
        eligible=is_eligible(reason, _finite(priority)),
        whole=sharing in _WHOLE,
        reason=sys.intern(reason),
        ours=is_ours(user, name, comment),
    )
    if index is not None:
        return [_element(first, index)]
    if not elements:
        return [first]
    useful = max(1, -(-most // max(1, width)))  # more could not start at once
    at_once = whole(number.partition("%")[2].rstrip("]"))
    if at_once is not None:
        useful = min(useful, at_once)
    found: list[Queued] = []
    for numbers in elements:
        found += [_element(first, each) for each in numbers[: useful - len(found)]]
    return found


def _element(queued: Queued, index: int) -> Queued:
    return msgspec.structs.replace(queued, id=f"{queued.id}_{index}", name=f"{queued.name}.{index}")


COUNT_MAX = 10**15
"""More of anything there is on no machine."""

_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}


def count(text: str) -> int:
    """`12`, `1K` (1024), `4-8` (at least 4). Raises ValueError."""
    text = text.partition("-")[0]
    number = whole(text)
    if number is None and text[-1:] in _UNITS:
        number = int(_finite(text[:-1]) * _UNITS[text[-1]])
    if number is None or not 0 <= number <= COUNT_MAX:
        raise ValueError(text)
    return number


def _finite(text: str) -> float:
    """Raises ValueError also for `nan`, `inf` and `1e999`."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def megabytes(text: str) -> int:
    """`4000M`, `1.50G`, `0`; with a `c` or `n` behind it, for cores or nodes. 0 where there is no number."""
    text = text.rstrip("cn")
    try:
        number = _finite(text[:-1]) * _UNITS[text[-1]] / 1024**2 if text[-1:] in _UNITS else _finite(text)
    except ValueError:
        return 0
    return int(min(max(number, 0.0), COUNT_MAX))


_FEATURE = re.compile(r"[A-Za-z0-9_.:=-]+(?:&[A-Za-z0-9_.:=-]+)*", re.ASCII)


def read_features(text: str) -> tuple[tuple[str, ...], bool]:
    """Those of which all are wanted, and whether that is all that the expression says."""
    if text in ("(null)", ""):
        return (), True
    if not _FEATURE.fullmatch(text):
        return (), False
    return tuple(map(sys.intern, text.split("&"))), True


def records(output: bytes, first: str) -> Iterator[str]:
    """The lines of `scontrol -o show`, each beginning with this key."""
    for line in output.decode(errors="replace").split(
        "\n"
    ):  # str.splitlines knows more line breaks than Slurm
        if line.startswith(first):
            yield line


def value(line: str, key: str) -> str:
    """What stands behind ` KEY=` up to the next blank; empty where the key is missing."""
    start = line.find(f" {key}=")
    if start < 0:
        return ""
    start += len(key) + 2
    end = line.find(" ", start)
    return line[start:] if end < 0 else line[start:end]


def nodes(output: bytes) -> list[Node]:
    """The nodes of `scontrol -o show nodes`, each once. Raises ProtocolError."""
    found: dict[str, Node] = {}
    for line in records(output, "NodeName="):
        name = line[9:].partition(" ")[0]
        try:
            total, taken = count(value(line, "CPUTot")), count(value(line, "CPUAlloc"))
            memory = count(value(line, "RealMemory"))
            usable = value(line, "CPUEfctv")
            total = min(total, count(usable)) if usable else total
        except ValueError:
            raise ProtocolError(f"scontrol says of a node: `{line[:200]}`") from None
        words = value(line, "State")
        features = value(line, "ActiveFeatures") or value(line, "AvailableFeatures")
        found[name] = make_node(
            sys.intern(name),
            node_state(node_words(words)),
            cores=(total, taken),
            memory_mb=memory,
            rest=(_list(value(line, "Partitions")), _list(features), devices(value(line, "Gres")), words),
        )
    return list(found.values())


def make_node(
    name: str,
    state: NodeState,
    *,
    cores: tuple[int, int],
    memory_mb: int,
    rest: tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, int], ...], str],
) -> Node:
    """A node with these cores in total and in use; `rest`: partitions, features, devices, state in Slurm's word."""
    total, taken = cores
    free = total - taken if state in (NodeState.IDLE, NodeState.SHARED) else 0
    partitions, features, found, word = rest
    return Node(
        name=name,
        state=state,
        cores=total,
        memory_mb=memory_mb,
        cores_free=max(0, free),
        partitions=partitions,
        features=features,
        devices=found,
        word=word,
    )


_LISTS: dict[str, tuple[str, ...]] = {}
LISTS_MAX = 10_000


def _list(text: str) -> tuple[str, ...]:
    """Words between commas, shared by the many nodes that are alike."""
    result = _LISTS.get(text)
    if result is None:
        result = () if text in ("", "(null)") else tuple(map(sys.intern, filter(None, text.split(","))))
        if len(_LISTS) < LISTS_MAX:
            _LISTS[text] = result
    return result


def devices(text: str) -> tuple[tuple[str, int], ...]:
    """`gpu:a100:4(S:0-1),shard:8` as (("gpu", 4), ("shard", 8))."""
    if text in ("", "(null)"):
        return ()
    counts: dict[str, int] = {}
    for part in re.sub(r"\([^)]{0,1000}\)", "", text).split(","):
        words = part.split(":")
        try:
            counts[words[0]] = counts.get(words[0], 0) + (count(words[-1]) if len(words) > 1 else 1)
        except ValueError:
            counts[words[0]] = counts.get(words[0], 0) + 1  # `gpu:a100`
    return tuple(sorted(counts.items()))


def partitions(output: bytes, *, preempts: bool) -> list[Partition]:
    """The partitions of `scontrol -o show partition`; `preempts`: whether the scheduler preempts by partition."""
    result = []
    for line in records(output, "PartitionName="):
        mode = value(line, "PreemptMode").lower().split(",")[-1]
        grace = value(line, "GraceTime")
        seconds, tier = whole(grace), whole(value(line, "PriorityTier"))
        result.append(
            Partition(
                name=sys.intern(line[14:].partition(" ")[0]),
                nodes=expand(value(line, "Nodes")),
                walltime_max_s=parse_span(value(line, "MaxTime")),
                width_max=whole(value(line, "MaxNodes")),
                width_min=max(1, whole(value(line, "MinNodes")) or 1),
                is_up=value(line, "State") == "UP",
                is_default=value(line, "Default") == "YES",
                is_shared=not value(line, "OverSubscribe").startswith("EXCLUSIVE"),
                gives_all=value(line, "OverSubscribe").startswith("EXCLUSIVE"),
                sharing=f"OverSubscribe={value(line, 'OverSubscribe')}"
                if value(line, "OverSubscribe")
                else "",
                accounts=() if value(line, "AllowAccounts") == "ALL" else _list(value(line, "AllowAccounts")),
                tier=1 if tier is None else tier,
                preempted=mode if preempts and mode in ("cancel", "requeue", "suspend") else "",
                grace_s=float(seconds) if seconds is not None else parse_span(grace) or 0.0,
                memory_per_node_mb=whole(value(line, "DefMemPerNode")) or 0,
                memory_per_core_mb=whole(value(line, "DefMemPerCPU")) or 0,
            )
        )
    return result


def with_default_memory(found: list[Partition], settings: Mapping[str, str]) -> list[Partition]:
    """The partitions with the cluster's default of memory where a partition has none of its own (slurm.conf(5),
    DefMemPerCPU); with none at all where Slurm does not give out memory."""
    counts_memory = "MEMORY" in settings.get("SelectTypeParameters", "").upper()
    per_node = whole(settings.get("DefMemPerNode", "")) or 0
    per_core = whole(settings.get("DefMemPerCPU", "")) or 0
    replace = msgspec.structs.replace
    if not counts_memory:
        return [replace(each, memory_per_node_mb=0, memory_per_core_mb=0) for each in found]
    return [
        each
        if each.memory_per_node_mb or each.memory_per_core_mb
        else replace(each, memory_per_node_mb=per_node, memory_per_core_mb=per_core)
        for each in found
    ]


def reservations(output: bytes, own: str) -> list[Reservation]:
    """The reservations of `scontrol -o show reservation`; `own`: the one that we may run in."""
    result = []
    for line in records(output, "ReservationName="):
        start_s, end_s = parse_time(value(line, "StartTime")), parse_time(value(line, "EndTime"))
        name = line[16:].partition(" ")[0]
        if start_s is None:
            continue
        result.append(
            Reservation(
                name=name,
                start_s=start_s,
                end_s=end_s or FAR_FUTURE_S,
                nodes=expand(value(line, "Nodes")),
                maintenance="MAINT" in value(line, "Flags").split(","),
                usable=bool(own) and name == own,
            )
        )
    return result


_CYCLE = re.compile(r"Last cycle when:[^\n]*?\((\d{1,18})\)")


def plan_time(output: bytes) -> float | None:
    """When the scheduler last planned, of sdiag; None before the first time, or where it does not backfill."""
    match = _CYCLE.search(output.decode(errors="replace"))
    return float(match.group(1)) or None if match else None


_COUNTERS = re.compile(r"^Jobs (submitted|completed|canceled|failed):\s*(\d{1,18})\s*$", re.MULTILINE)


def counts(output: bytes) -> JobCounts | None:
    """The jobs that slurmctld has counted since its last reset (midnight UTC, or a restart), of sdiag; None where it
    does not print them."""
    found = {name: int(value) for name, value in _COUNTERS.findall(output.decode(errors="replace"))}
    if not {"submitted", "completed"} <= found.keys():
        return None
    submitted = found.pop("submitted")
    return JobCounts(submitted=submitted, ended=sum(found.values()))


def settings(output: bytes) -> dict[str, str]:
    """`scontrol show config`."""
    result = {}
    for line in output.decode(errors="replace").split("\n"):
        key, equals, rest = line.partition("=")
        if equals:
            result[key.strip()] = rest.strip()
    return result
