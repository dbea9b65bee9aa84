"""A machine under PBS as a snapshot, and what a newcomer needs to know of it.

Nodes are hosts; vnodes are grouped by `resources_available.host`. PBS plans starts for its `backfill_depth` top jobs
only, and only with `strict_ordering`; stale plans stay with jobs that are not top any more: a plan in the past counts
as none. PBS does not show users which jobs the scheduler considers first: `order` guesses, and the snapshot says that
it is a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from tidemill import clock
from tidemill.batch.contract import FAR_FUTURE_S, Facts, PartitionFacts
from tidemill.batch.launch import describe
from tidemill.batch.pbs import order, replies, reservations
from tidemill.batch.pbs.command import NAME
from tidemill.batch.pbs.comments import OwnLimits, may_start
from tidemill.batch.pbs.nodes import read_nodes, read_partitions
from tidemill.batch.pbs.own import name_in
from tidemill.batch.pbs.places import read_vnodes
from tidemill.batch.pbs.replies import (
    Record,
    copy_of,
    read_duration,
    read_number,
    read_time,
    text_of,
    variables,
)
from tidemill.batch.pbs.requests import Hosts, read_request
from tidemill.batch.polite import Budget
from tidemill.errors import ProtocolError, SiteError
from tidemill.model.machine import Node, NodeState, Queued, Running, Snapshot

HIDDEN_JOBS = "other users' jobs (query_other_jobs is False)"
NO_SCHEDULER = "PBS's scheduler does not run (`qmgr -c 'list sched'`: state = down)"
NO_SCHEDULING = "PBS's scheduling is switched off (`scheduling = False`)"
SILENT_S = 30.0
"""A job that has waited longer than this without a comment was in no cycle: each cycle comments on jobs that it does
not start."""

_ELEMENT = re.compile(r"\[(\d+)\]")
_WAITING = ("Q", "H", "W", "T")
_SCHEDULER = re.compile(r"(?m)^\s*state = (\w+)")


def ask_server(budget: Budget) -> Record:
    """The server's settings, with its version as `pbs_version`. Raises SiteError, ProtocolError."""
    servers = _ask(budget, ["qstat", "-B", "-f", "-F", "json"], "Server", "Server: ", kind="")
    return next(iter(servers.values()), {})


def ask_scheduler(budget: Budget) -> bool:
    """Whether the scheduler runs, as far as the server shows. Only `qmgr` shows that it is down: jobs then wait
    without a comment. Where `qmgr` cannot be run, as on a login node that does not have it, the scheduler counts as
    running: everything else works without it."""
    try:
        reply = budget.query(["qmgr", "-c", "list sched default state"], kind="")
    except SiteError:
        return True
    match = _SCHEDULER.search(reply.output.decode(errors="replace")) if reply.status == 0 else None
    return match is None or match[1] != "down"


def is_silent(jobs: Mapping[str, Record], now_s: float) -> bool:
    """Whether a job waits that no cycle has considered: the scheduler may be down."""
    return any(
        text_of(job, "job_state") == "Q"
        and "[" not in number  # elements have no comments of their own
        and not text_of(job, "comment")
        and now_s - (read_time(text_of(job, "qtime"), now_s) or now_s) > SILENT_S
        for number, job in jobs.items()
    )


class MachineReplies(msgspec.Struct, frozen=True, kw_only=True):
    """What PBS shows of a machine."""

    server: Record
    vnodes: Mapping[str, Record]
    jobs: dict[str, Record]
    queues: dict[str, Record]
    reservations: bytes  #: of `pbs_rstat -f`


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What is found out with all jobs at hand.

    `settle`: all records -> those of the machine's jobs, of which only Tidemill's say that they are its own;
    `is_scheduled`: all jobs -> whether a scheduler runs.
    """

    settle: Callable[[dict[str, Record]], dict[str, Record]] = lambda jobs: jobs
    is_scheduled: Callable[[Mapping[str, Record]], bool] = lambda _: True


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides where a waiting job could run, and whether it could start."""

    hosts: Hosts
    queues: Mapping[str, Record]
    reservations: Mapping[str, str]  #: names of reservations by their queues
    own: OwnLimits


def ask_snapshot(
    budget: Budget,
    server: Record,
    *,
    is_ours: Callable[[Record], bool],
    user: str,
    checks: Checks | None = None,
) -> Snapshot:
    """Four queries: jobs, nodes, queues, reservations. `is_ours`: whether a record says so. Raises SiteError,
    ProtocolError."""
    checks = Checks() if checks is None else checks
    # as text: JSON makes numbers of variables that look like one, and our key may
    jobs = replies.read_text(budget.check(budget.query(["qstat", "-t", "-f"], kind="snapshot")), "Job Id:")
    jobs = checks.settle(jobs)  # before the nodes, which are to show all that run (`_on_used`)
    shown = MachineReplies(
        server=server,
        vnodes=_ask(budget, ["pbsnodes", "-a", "-F", "json"], "nodes", "", kind="snapshot"),
        jobs=jobs,
        queues=_ask(budget, ["qstat", "-Q", "-f", "-F", "json"], "Queue", "Queue: ", kind="snapshot"),
        reservations=budget.check(budget.query(["pbs_rstat", "-f"], kind="snapshot")),
    )
    stops = "" if checks.is_scheduled(shown.jobs) else NO_SCHEDULER
    if not stops and text_of(server, "scheduling") == "False":
        stops = NO_SCHEDULING
    return compose_snapshot(shown, is_ours=is_ours, user=user, stops=stops)


def compose_snapshot(
    shown: MachineReplies, *, is_ours: Callable[[Record], bool], user: str, stops: str = ""
) -> Snapshot:
    """Compose a snapshot of what PBS shows now. `stops`: why no job is started at all."""
    server, jobs, queues = shown.server, shown.jobs, shown.queues
    hosts = Hosts(shown.vnodes)
    is_hidden = text_of(server, "query_other_jobs") == "False"
    now_s = float(clock.now_s())
    nodes = read_nodes(shown.vnodes, queues)
    running = [
        _running(number, job, hosts.of_vnode, ours=is_ours(job))
        for number, job in jobs.items()
        if text_of(job, "job_state") in ("R", "E", "S", "U") and "[]" not in number
    ]
    reserved = replies.read_reservations(shown.reservations)
    formula = order.read_formula(text_of(server, "job_sort_formula"))
    around = Surroundings(
        hosts=hosts,
        queues=queues,
        reservations=reservations.queues(reserved, vnodes=shown.vnodes),
        own=OwnLimits(user=user, projects={text_of(job, "project") for job in jobs.values() if is_ours(job)}),
    )
    queued = [
        _queued(
            number,
            job,
            around,
            ours=is_ours(job),
            priority=order.priority(job, queues.get(text_of(job, "queue"), {}), formula),
        )
        for number, job in waiting(jobs)
    ]
    nodes = hosts.with_asked(nodes)  # after all jobs were read
    return Snapshot(
        at_s=now_s,
        nodes=nodes,
        running=_on_used(running, nodes),
        queued=sorted(queued, key=_likely_order),
        reservations=reservations.read(
            reserved, user=user, now_s=now_s, vnodes=shown.vnodes, hosts=hosts.of_vnode
        ),
        partitions=read_partitions(queues, nodes, text_of(server, "default_queue")),
        starts_nothing=stops,
        iteration_s=read_duration(text_of(server, "scheduler_iteration")) or 0.0,
        array_max=read_number(text_of(server, "max_array_size") or "10000"),
        is_order_known=False,
        are_others_hidden=is_hidden,
        are_jobs_hidden=is_hidden,
        hidden=[HIDDEN_JOBS] if is_hidden else [],
    )


def compose_facts(server: Record, snapshot: Snapshot) -> Facts:
    """Compose the facts about the machine from its server's settings and a snapshot."""
    nodes = {node.name: node for node in snapshot.nodes}
    partitions = [
        PartitionFacts(
            name=each.name,
            is_default=each.is_default,
            nodes=len(each.nodes),
            cores_per_node=min((nodes[name].cores for name in each.nodes), default=0),
            memory_mb_per_node=min((nodes[name].memory_mb for name in each.nodes), default=0),
            walltime_max_s=each.walltime_max_s,
            width_max=each.width_max,
            is_shared=each.is_shared,
            sharing=each.sharing,
            usable=each.is_up,
            why_not="" if each.is_up else "not enabled, or not started",
        )
        for each in snapshot.partitions
    ]
    names = (
        "scheduler_iteration",
        "backfill_depth",
        "job_sort_formula",
        "job_history_enable",
        "node_fail_requeue",
        "max_queued",
        "max_run",
    )
    return Facts(
        system=f"PBS {text_of(server, 'pbs_version')}".strip(),
        partitions=partitions,
        nodes=snapshot.nodes,
        array_max=snapshot.array_max or 0,
        jobs_max=_generic(text_of(server, "max_run")),
        submits_max=_generic(text_of(server, "max_queued")),
        others_hidden=snapshot.are_others_hidden,
        starts_nothing=snapshot.starts_nothing,
        architectures=sorted(
            {
                each.partition("=")[2]
                for node in snapshot.nodes
                for each in node.features
                if each.startswith("arch=")
            }
        ),
        launchers=describe(),
        scheduler={name: text_of(server, name) for name in names if text_of(server, name)},
        notes=[f"not shown: {each}" for each in snapshot.hidden],
    )


def _ask(budget: Budget, words: list[str], part: str, head: str, *, kind: str) -> dict[str, Record]:
    """JSON, or else text. Raises SiteError, ProtocolError."""
    text = budget.check(budget.query(words, kind=kind))
    result = replies.read_json(text, part)
    if result is None and head:
        plain = [word for word in words if word not in ("-F", "json")]
        result = replies.read_text(budget.check(budget.query(plain, kind=kind)), head)
    if result is None:
        raise ProtocolError(
            f"`{' '.join(words)}` printed invalid JSON: `{text[:200].decode(errors='replace')}`"
        )
    return result


def _running(number: str, job: Record, hosts: Mapping[str, str], *, ours: bool) -> Running:
    now_s = clock.now_s()
    started_s = read_time(text_of(job, "stime"), now_s) or float(now_s)
    limit_s = read_duration(text_of(job, "Resource_List", "walltime"))
    placed = text_of(job, "exec_vnode")
    names = tuple(dict.fromkeys(hosts.get(name, name) for name, _ in read_vnodes(placed)))
    chunks = read_number(text_of(job, "Resource_List", "nodect"))
    return Running(
        id=number,
        name=name_of(number, job, ours=ours),
        user=text_of(job, "Job_Owner").partition("@")[0],
        nodes=names,
        width=len(names) if names and "truncated" not in placed else max(1, len(names), chunks),
        started_s=started_s,
        ends_s=FAR_FUTURE_S if limit_s is None else started_s + limit_s,
        submitted_s=read_time(text_of(job, "qtime"), now_s),
        partition=text_of(job, "queue"),
        cores=read_number(text_of(job, "Resource_List", "ncpus")),
        whole="excl" in text_of(job, "Resource_List", "place"),
        ours=ours,
    )


def _on_used(running: list[Running], nodes: list[Node]) -> list[Running]:
    """These without regular jobs on nodes that PBS shows without any, which it did later: such a job has just ended, or
    a user has forged its record so that idle nodes seem to be in use."""
    unused = {each.name for each in nodes if each.state is NodeState.IDLE and each.cores_free == each.cores}
    result = []
    for job in running:
        used = job.nodes if job.ours else tuple(name for name in job.nodes if name not in unused)
        if used or not job.nodes:
            result.append(job if used == job.nodes else msgspec.structs.replace(job, nodes=used))
    return result


def waiting(jobs: dict[str, Record]) -> Iterator[tuple[str, Record]]:
    """Jobs that wait. Elements of an array stand for themselves; what the server says of the whole array counts for
    them: that it is held, why it does not start, and the planned start, which is that of the next element. Where there
    are two records of the array, one of them is forged, and neither counts."""
    begun: set[str] = set()
    arrays = {_array_of(number) for number in jobs if _ELEMENT.search(number)}
    for number, job in jobs.items():
        state = text_of(job, "job_state")
        if state not in _WAITING or (number in arrays):
            continue
        array = _array_of(number)
        is_certain = array != number and copy_of(array, 2) not in jobs
        parent = jobs.get(array, {}) if is_certain else {}
        if parent:
            job = {"comment": text_of(parent, "comment"), **job}
            if (held := text_of(parent, "job_state")) in _WAITING:
                job = {**job, "job_state": held}
            if "estimated" in parent and array not in begun:
                job = {**job, "estimated": parent["estimated"]}
            begun.add(array)
        yield number, job


def _array_of(number: str) -> str:
    return _ELEMENT.sub("[]", number)


def name_of(number: str, job: Record, *, ours: bool) -> str:
    """The job's name; for Tidemill's jobs the allocation's, with an element's index, as PBS may have cut the former.
    The index is that of the number `12[3]`: waiting elements show no `array_index` (OpenPBS 23.06)."""
    return name_in(number, job) if ours and variables(job).get(NAME) else text_of(job, "Job_Name")


def _likely_order(job: Queued) -> tuple[float, float, float]:
    return -job.priority, job.planned_s or FAR_FUTURE_S, job.submitted_s or FAR_FUTURE_S


def _queued(number: str, job: Record, around: Surroundings, *, ours: bool, priority: float) -> Queued:
    now_s = clock.now_s()
    planned_s = read_time(text_of(job, "estimated", "start_time"), now_s)
    if planned_s is not None and planned_s < now_s - 600:
        planned_s = None
    planned = read_vnodes(text_of(job, "estimated", "exec_vnode")) if planned_s is not None else []
    hosts = around.hosts
    request = read_request(job, hosts)
    queue = text_of(job, "queue")
    reservation = around.reservations.get(queue, "")
    return Queued(
        id=number,
        name=name_of(number, job, ours=ours),
        user=text_of(job, "Job_Owner").partition("@")[0],
        width=hosts.width(request) or max(1, read_number(text_of(job, "Resource_List", "nodect"))),
        walltime_s=read_duration(text_of(job, "Resource_List", "walltime")) or FAR_FUTURE_S,
        cores=read_number(text_of(job, "Resource_List", "ncpus")),
        memory_mb_per_node=min((chunk.memory_mb for chunk in request.chunks), default=0),
        submitted_s=read_time(text_of(job, "qtime"), now_s),
        priority=priority,
        partitions=() if reservation else tuple(filter(None, [queue])),  # it has nodes of any queue
        features=hosts.features(request),
        is_feature_list_exact=request.is_exact,
        chunks=request.chunks,
        is_scattered=request.is_scattered,
        planned_s=planned_s,
        planned_nodes=tuple(dict.fromkeys(hosts.of_vnode.get(name, name) for name, _ in planned)),
        reservation=reservation,
        eligible=text_of(job, "job_state") == "Q"
        and may_start(job, around.queues.get(queue, {}), around.own),
        whole="excl" in text_of(job, "Resource_List", "place"),
        reason=text_of(job, "comment")[:200],
        ours=ours,
    )


def _generic(limit: str) -> int | None:
    """The limit for every user of `[u:PBS_GENERIC=10]`."""
    match = re.search(r"u:PBS_GENERIC=(\d{1,18})(?!\d)", limit, re.ASCII)
    return int(match[1]) if match else None
