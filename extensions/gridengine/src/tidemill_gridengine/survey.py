"""A machine under Grid Engine as a snapshot, and what a newcomer needs to know of it.

Nodes are hosts; their cores are the slots of the largest queue there. A job without a limit of its own has its queue's;
planned starts are not shown to users (they are in the scheduler's `schedule` file), so `hidden` says so.
"""

from __future__ import annotations

from tidemill import clock
from tidemill.batch.contract import FAR_FUTURE_S, Facts, PartitionFacts
from tidemill.batch.launch import describe
from tidemill.batch.polite import Budget
from tidemill.model.machine import Node, NodeState, Partition, Queued, Reservation, Running, Snapshot
from tidemill.model.number import whole
from tidemill_gridengine.defaults import query_words
from tidemill_gridengine.replies import (
    Instance,
    Row,
    merge,
    read_duration,
    read_instances,
    read_priority,
    read_reservations,
    read_size_mb,
    read_time,
)

HIDDEN = "planned starts (Grid Engine writes them to its schedule file only)"
ARRAY_MAX = 75_000  #: tasks of an array by default (sge_conf(5), `max_aj_tasks`; 0 = no bound)
ENVIRONMENTS = "parallel environments: "  #: a note of the facts begins so
_RESOURCES = "num_proc,mem_total,arch,h_rt,seq_no"


def ask_instances(budget: Budget) -> tuple[list[Instance], list[Row]]:
    """Everything about queues, hosts and jobs by one query; `-g t`: else a job of several hosts is shown on its first
    one only. Raises SiteError, ProtocolError."""
    words = query_words("qstat", "-f", "-F", _RESOURCES, "-r", "-g", "t", "-u", "*", "-xml")
    return read_instances(budget.check(budget.query(words, kind="snapshot")))


def ask_reservations(budget: Budget, user: str) -> list[Reservation]:
    """Advance reservations by one query, a second where there are any. Raises SiteError, ProtocolError."""
    listed = read_reservations(
        budget.check(budget.query(query_words("qrstat", "-u", "*", "-xml"), kind="snapshot"))
    )
    if not listed:
        return []
    ids = ",".join(each["id"] for each in listed if "id" in each)
    reply = budget.query(query_words("qrstat", "-ar", ids, "-xml"), kind="snapshot")
    found: list[Reservation] = []
    for each in read_reservations(budget.check(reply)):
        start_s, end_s = read_time(each.get("start_time", "")), read_time(each.get("end_time", ""))
        if start_s is not None and end_s is not None:
            found.append(
                Reservation(
                    name=each.get("name") or each.get("id", ""),
                    start_s=start_s,
                    end_s=end_s,
                    nodes=tuple(each["hosts"].split()),
                    usable=each.get("owner") == user,
                )
            )
    return found


def compose(
    instances: list[Instance], waiting: list[Row], reservations: list[Reservation], *, mine: set[str]
) -> Snapshot:
    """Compose the snapshot. `mine`: numbers of Tidemill's jobs."""
    nodes = _nodes(instances, reservations)
    cores = max((node.cores for node in nodes), default=1) or 1
    limits = {(each.queue, each.host): read_duration(each.resources.get("h_rt", "")) for each in instances}
    rows = [row for each in instances for row in each.rows]
    total = {node.name: node.cores for node in nodes}
    running = [_running(row, limits, whole=_is_whole(row, total), ours=row.id in mine) for row in merge(rows)]
    queued = [_queued(row, cores, ours=row.id in mine) for row in merge(waiting)]
    return Snapshot(
        at_s=clock.now_s(),
        nodes=nodes,
        running=running,
        queued=sorted(queued, key=lambda each: -each.priority),
        reservations=reservations,
        partitions=_partitions(instances),
        hidden=[HIDDEN],
    )


def ask_facts(budget: Budget, snapshot: Snapshot) -> Facts:
    """Gather the facts about the machine by a handful of queries."""
    version = budget.query(["qstat", "-help"]).output.decode(errors="replace").splitlines()
    settings = _settings(budget, ["qconf", "-sconf"])
    schedule = _settings(budget, ["qconf", "-ssconf"])
    environments = _lines(budget, ["qconf", "-spl"])
    notes = [f"{ENVIRONMENTS}{', '.join(environments) or 'none'}"]
    notes.append("limits of running jobs cannot be lowered: pilots end themselves")
    jobs_max = whole(settings.get("max_u_jobs", "")) or 0
    partitions = [
        PartitionFacts(
            name=each.name,
            is_default=each.is_default,
            nodes=len(each.nodes),
            cores_per_node=min((n.cores for n in snapshot.nodes if n.name in each.nodes), default=0),
            memory_mb_per_node=min((n.memory_mb for n in snapshot.nodes if n.name in each.nodes), default=0),
            walltime_max_s=each.walltime_max_s,
            is_shared=True,
            usable=each.is_up,
            why_not="" if each.is_up else "no host of it takes jobs",
        )
        for each in snapshot.partitions
    ]
    return Facts(
        system=f"Grid Engine ({version[0].strip()})" if version else "Grid Engine",
        partitions=partitions,
        nodes=snapshot.nodes,
        accounts=_lines(budget, ["qconf", "-sprjl"]),
        array_max=whole(settings.get("max_aj_tasks", "")) or ARRAY_MAX,
        submits_max=jobs_max or None,
        architectures=sorted({feature for node in snapshot.nodes for feature in node.features}),
        launchers=describe(),
        scheduler={
            name: schedule[name]
            for name in ("schedule_interval", "max_reservation", "default_duration", "maxujobs")
            if name in schedule
        },
        notes=[*notes, *(f"not shown: {each}" for each in snapshot.hidden)],
    )


def _nodes(instances: list[Instance], reservations: list[Reservation]) -> list[Node]:
    now_s = clock.now_s()
    kept = {
        host
        for each in reservations
        if each.start_s <= now_s < each.end_s and not each.usable
        for host in each.nodes
    }
    hosts: dict[str, list[Instance]] = {}
    for each in instances:
        hosts.setdefault(each.host, []).append(each)
    found: list[Node] = []
    for host, here in hosts.items():
        usable = [each for each in here if each.takes_jobs]
        cores = max(each.slots for each in here)
        used = sum(each.used for each in here)
        state = _state(cores, used, is_up=bool(usable), is_kept=host in kept)
        resources = here[0].resources
        found.append(
            Node(
                name=host,
                state=state,
                cores=cores,
                memory_mb=read_size_mb(resources.get("mem_total", "")),
                cores_free=max(0, cores - used) if state in (NodeState.IDLE, NodeState.SHARED) else 0,
                partitions=tuple(dict.fromkeys(each.queue for each in usable)),
                features=tuple(filter(None, [resources.get("arch", "")])),
                word=",".join(dict.fromkeys(each.state for each in here if each.state)),
            )
        )
    return found


def _state(cores: int, used: int, *, is_up: bool, is_kept: bool) -> NodeState:
    if not is_up:
        return NodeState.AWAY
    if used == 0:
        return NodeState.RESERVED if is_kept else NodeState.IDLE
    return NodeState.BUSY if used >= cores else NodeState.SHARED


def _is_whole(row: Row, total: dict[str, int]) -> bool:
    return row.slots >= sum(total.get(host, 0) for host in row.hosts)


def _running(row: Row, limits: dict[tuple[str, str], float | None], *, whole: bool, ours: bool) -> Running:
    started_s = row.started_s or clock.now_s()
    limit = row.walltime_s or next((limits.get((row.queue, host)) for host in row.hosts), None)
    return Running(
        id=_id(row),
        name=row.allocation if ours else row.name,
        user=row.owner,
        nodes=row.hosts,
        width=max(1, len(row.hosts)),
        started_s=started_s,
        ends_s=FAR_FUTURE_S if limit is None else started_s + limit,
        submitted_s=row.submitted_s,
        partition=row.queue,
        cores=row.slots,
        whole=whole,
        ours=ours,
    )


def _queued(row: Row, cores: int, *, ours: bool) -> Queued:
    return Queued(
        id=_id(row),
        name=row.allocation if ours else row.name,
        user=row.owner,
        width=max(1, -(-row.slots // cores)),
        walltime_s=row.walltime_s or FAR_FUTURE_S,
        cores=row.slots,
        submitted_s=row.submitted_s,
        priority=row.priority,
        partitions=tuple(name.partition("@")[0] for name in row.wanted_queues),
        eligible=not (row.is_held or row.is_error or row.is_deleted),
        whole=row.slots >= cores,
        reason=row.state,
        ours=ours,
    )


def _id(row: Row) -> str:
    return f"{row.id}.{row.tasks[0]}" if row.tasks else row.id


def _partitions(instances: list[Instance]) -> list[Partition]:
    """Queues. Grid Engine has no default queue: without `-q` it looks by sequence number."""
    queues: dict[str, list[Instance]] = {}
    for each in instances:
        queues.setdefault(each.queue, []).append(each)
    order = sorted(
        queues, key=lambda name: (read_priority(queues[name][0].resources.get("seq_no", "")), name)
    )
    return [
        Partition(
            name=name,
            nodes=tuple(each.host for each in queues[name]),
            walltime_max_s=read_duration(queues[name][0].resources.get("h_rt", "")),
            is_up=any(each.takes_jobs for each in queues[name]),
            is_default=index == 0,
            is_shared=True,
        )
        for index, name in enumerate(order)
    ]


def _settings(budget: Budget, words: list[str]) -> dict[str, str]:
    pairs = (line.split(maxsplit=1) for line in _lines(budget, words))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _lines(budget: Budget, words: list[str]) -> list[str]:
    reply = budget.query(words)
    if reply.status != 0:
        return []  # a list that is empty ends with status 1
    return [line for line in reply.output.decode(errors="replace").splitlines() if line.strip()]
