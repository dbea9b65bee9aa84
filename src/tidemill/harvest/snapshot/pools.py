"""Cuts a machine into pools of nodes that are alike, and gives the broker one situation for each. Pure.

Nodes differ only where it matters: to Tidemill (cores, devices) or to a job in the queue (partitions, features, memory
that some job asks for). A regular job is charged to every pool where it could run. Nodes that Tidemill may not use
(excluded or sleeping nodes, other partitions) are grouped, too: a regular job may start on such nodes together with
some that Tidemill holds. Nodes that jobs name one by one are a pool together, in which each of them has its own job.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.situation import Backlog, Busy, Decision, Limits, Outage, Situation, Waiting
from tidemill.harvest.plan.waves import Binding, nodes_for, work_s
from tidemill.harvest.snapshot.charges import NodeKind, charge
from tidemill.harvest.snapshot.holdings import gather, matched
from tidemill.harvest.snapshot.named import HOST, NamedHosts
from tidemill.harvest.snapshot.occupancy import FAR_S, Occupancy, occupancy
from tidemill.harvest.snapshot.windows import GUARD_S, Request, free_until, partitions, stairs
from tidemill.model.devices import GPU
from tidemill.model.machine import Node, NodeState, Snapshot


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes we may use, and how the machine's figures are read."""

    partition: str = ""  #: several with commas between; empty = the default one, else all nodes
    reservation: str = ""  #: we run in this one only
    features: tuple[str, ...] = ()
    exclude: frozenset[str] = frozenset()  #: by configuration or quarantine
    wake_nodes: bool = False
    windows_only: bool = False  #: do not trust a plan of our own
    end_slack_s: float = 30.0  #: until a job over time has gone: Slurm's KillWait (slurm.conf(5)), epilog
    guard_s: float = GUARD_S
    left_out: frozenset[str] = (
        frozenset()
    )  #: ids of regular jobs that do not take the nodes that they are given
    ending: frozenset[str] = frozenset()  #: idle nodes that canceled allocations still hold


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes alike, and what the broker decides on there."""

    name: str
    cores: int  #: of each node
    memory_mb: int  #: of each node, at least
    devices: tuple[tuple[str, int], ...]
    partitions: tuple[str, ...]
    features: tuple[str, ...]  #: those that some job asks for
    situation: Situation
    nodes: frozenset[str]
    bare: dict[
        str, int
    ] = {}  #: allocations there that leave the GPUs of their nodes to others, and their nodes
    gpu_nodes: int = 0  #: nodes that work with GPUs is for, and that are not held yet, in all pools with GPUs

    @property
    def has_gpus(self) -> bool:
        """Whether its nodes have GPUs: then they are the last that work without GPUs is placed on."""
        return any(kind == GPU and number for kind, number in self.devices)


def cut(
    snapshot: Snapshot,
    held: Sequence[Held],
    terms: Terms,
    *,
    backlog: Backlog,
    limits: Limits,
) -> list[Pool]:
    """The pools that we can use, in the order in which they are decided on: nodes with GPUs last, and among pools alike
    in that the one with most idle nodes first.

    Limits and backlog are those of the whole site; each pool gets what the holdings of the other pools leave. Work with
    GPUs (`backlog.on_gpus`) is for nodes with GPUs, and all other for any node. Raises ConfigError for a partition that
    does not exist. Linear in nodes and jobs.
    """
    on_gpus, backlog = backlog.on_gpus, msgspec.structs.replace(backlog, on_gpus=None)
    placed = matched(snapshot, held)
    taken = occupancy(snapshot, placed, reservation=terms.reservation, slack_s=terms.end_slack_s)
    groups = _with_named(_group(snapshot, terms, taken), snapshot, terms, taken, placed)
    usable = [group for group in groups if group.is_usable]
    _name(usable, {each.name for each in partitions(snapshot, terms.partition)})
    _place(placed, usable)
    for group in groups:
        group.count(taken, terms.ending)
    _lend_unknown(groups, taken)
    queues = charge(snapshot, groups, reservation=terms.reservation, left_out=terms.left_out)
    stairways = _windows(snapshot, usable, terms, taken)
    blind = terms.windows_only or bool(snapshot.hidden)
    here = [
        _pool(
            group,
            [*group.named, *queues[id(group)]],
            snapshot=snapshot,
            stairway=(blind, stairways.get(id(group))),
            backlog=backlog,
        )
        for group in usable
    ]
    bounded = _bounded(here, snapshot, terms, limits, on_gpus)
    return sorted(bounded, key=lambda pool: (pool.has_gpus, -pool.situation.idle, pool.name))


def decide_each(
    pools: Sequence[Pool], decide: Callable[[Situation], Decision]
) -> list[tuple[Pool, Decision]]:
    """Decide for one pool after the other; what one asks for is taken off the limits and the backlog of the next."""
    decided: list[tuple[Pool, Decision]] = []
    nodes = allocations = 0
    node_s = 0.0  # of the grant
    for pool in pools:
        situation = _less(pool.situation, nodes=nodes, allocations=allocations, node_s=node_s)
        decision = decide(situation)
        decided.append((pool, decision))
        for each in decision.submit:
            allocations += each.count
            nodes += each.count * each.width
            node_s += each.count * each.width * each.walltime_s
    return decided


def _less(situation: Situation, *, nodes: int, allocations: int, node_s: float) -> Situation:
    if not allocations:
        return situation
    limits, backlog = situation.limits, situation.backlog
    replace = msgspec.structs.replace
    return replace(
        situation,
        limits=replace(
            limits,
            nodes_max=max(0, limits.nodes_max - nodes),
            allocations_max=max(0, limits.allocations_max - allocations),
            starts_left=max(0, limits.starts_left - allocations),
            submits_max=max(0, limits.submits_max - allocations),
            node_s_left=max(0.0, limits.node_s_left - node_s),
        ),
        backlog=replace(backlog, nodes_max=max(0, backlog.nodes_max - nodes)),
    )


# ---- groups of nodes that are alike --------------------------------------------------------------


class _Group:
    """Nodes that are alike, and what is on them. `idle` of those that are not usable: free for regular jobs. `named`: a
    job for each of the nodes, where these are the nodes that jobs name."""

    def __init__(self, first: Node, kind: NodeKind, *, is_usable: bool) -> None:
        self.kind = kind
        self.is_usable = is_usable
        self.name = ""
        self.cores = first.cores
        self.devices = first.devices
        self.nodes: list[Node] = []
        self.ours: list[Held] = []
        self.named: list[Waiting] = []
        self.idle = self.ending = 0
        self.unknown = 0  #: in use, with no known end
        self.busy: Counter[float] = Counter()
        self.outages: Counter[tuple[float, float]] = Counter()

    @property
    def memory_mb(self) -> int:
        """Memory of each node, at least."""
        return min(node.memory_mb for node in self.nodes)

    @property
    def held(self) -> int:
        """Nodes that we hold."""
        return sum(each.width for each in self.ours if not each.is_waiting)

    @property
    def size(self) -> int:
        """Nodes that are not unavailable."""
        return self.idle + self.ending + self.held + self.unknown + self.busy.total()

    @property
    def free(self) -> int:
        """Nodes that a regular job could have now were we not here."""
        return self.idle + self.ending + self.held

    def count(self, occupancy: Occupancy, ending: frozenset[str]) -> None:
        """Sort each node into idle, `ending` or busy, and count what closes it later. A reservation that is open keeps
        a node busy until its end."""
        for node in self.nodes:
            name, end_s = node.name, occupancy.ends_s.get(node.name, 0.0)
            outages = occupancy.outages.get(name, ())
            if outages and outages[0][0] <= occupancy.now_s:
                end_s = max(end_s, outages[0][1])
            if name in occupancy.ours:
                pass
            elif end_s:
                self.busy[end_s] += 1
            elif node.state in (NodeState.ENDING, NodeState.WAKING):
                self.busy[occupancy.now_s + occupancy.slack_s] += 1
            elif _takes_jobs(node, occupancy):
                self.ending += name in ending
                self.idle += name not in ending
            else:
                self.unknown += 1
            for since, until in outages:
                if end_s < until and not self.named:  # whose jobs end before that
                    self.outages[(max(since, end_s), until)] += 1


def _takes_jobs(node: Node, occupancy: Occupancy) -> bool:
    """Whether a node takes a job now, if none holds it."""
    if node.state in (NodeState.ENDING, NodeState.WAKING):
        return False
    return node.state in (NodeState.IDLE, NodeState.SLEEPING) or node.name in occupancy.opened


def _group(snapshot: Snapshot, terms: Terms, occupancy: Occupancy) -> list[_Group]:
    ours = {each.name for each in partitions(snapshot, terms.partition)}
    wishes = [job for job in snapshot.queued if job.eligible and not job.ours]
    told_partitions = ours.union(*{job.partitions for job in wishes})
    asked = set().union(*{job.features for job in wishes if job.is_feature_list_exact})
    told_features = {word for word in asked if snapshot.is_order_known or not word.startswith(HOST)}.union(
        terms.features
    )
    steps = sorted({job.memory_mb_per_node for job in wishes} | {0})
    wanted = set(terms.features)
    groups: dict[tuple[object, ...], _Group] = {}
    kinds: dict[tuple[object, ...], tuple[NodeKind, bool]] = {}
    for node in snapshot.nodes:
        if node.state is NodeState.AWAY:
            continue
        raw = (node.partitions, node.features, node.amounts, node.cores, node.memory_mb)
        if raw not in kinds:
            memory = steps[bisect_right(steps, node.memory_mb) - 1] if node.memory_mb else steps[-1]
            kind = NodeKind(
                partitions=tuple(sorted(told_partitions.intersection(node.partitions))),
                features=tuple(sorted(told_features.intersection([*node.features, *node.amounts]))),
                cores=node.cores,
                memory_mb=memory,
            )
            fits = wanted <= set(node.features) and (not ours or not ours.isdisjoint(node.partitions))
            kinds[raw] = (kind, fits)
        kind, fits = kinds[raw]
        is_usable = node.name in occupancy.ours or (
            fits
            and node.name not in terms.exclude
            and (node.state is not NodeState.SLEEPING or terms.wake_nodes)
            and (not terms.reservation or node.name in occupancy.opened)
        )
        key = (kind, node.devices, is_usable)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(node, kind, is_usable=is_usable)
        group.nodes.append(node)
    return list(groups.values())


def _with_named(
    groups: Sequence[_Group],
    snapshot: Snapshot,
    terms: Terms,
    occupancy: Occupancy,
    placed: Sequence[Held],
) -> list[_Group]:
    """The groups, each parted into the nodes that jobs name and could have now without Tidemill, and the others.

    A number of nodes does not say which of them a job needs. Of the named ones all are kept for jobs or released to
    jobs, so there a number is enough. Each has one job: others that name it wait for that one. A job that could not
    have its host now counts nowhere, as no other node helps it.
    """
    hosts = NamedHosts(snapshot, occupancy, reservation=terms.reservation, left_out=terms.left_out)
    if not hosts:
        return list(groups)
    widths = {name: each.width for each in placed for name in each.nodes}
    places = {job.id: place for place, job in enumerate(snapshot.queued)}
    later = widths.keys() | terms.ending
    result = []
    for group in groups:
        named: dict[str, Waiting] = {}
        for node in group.nodes if group.is_usable else ():
            is_free = node.name in widths or (
                node.name not in occupancy.ends_s and _takes_jobs(node, occupancy)
            )
            job = hosts.first_start(node, group.kind) if is_free else None
            if job is not None:
                named[node.name] = msgspec.structs.replace(job, width=widths.get(node.name, 1))
        if named:
            part = _Group(group.nodes[0], group.kind, is_usable=True)
            part.nodes = [node for node in group.nodes if node.name in named]
            group.nodes = [node for node in group.nodes if node.name not in named]
            # Those on idle nodes first, so that idle nodes count for the jobs that name these.
            order = sorted(named.items(), key=lambda item: (item[0] in later, places[item[1].id]))
            part.named = [job for _, job in order]
            result.append(part)
        if group.nodes:
            result.append(group)
    return result


_MEMORY_COLUMN = 4
_WORD_MAX = 48


def _short(word: str) -> str:
    """A word of a pool's name, which goes into the site's log with each allocation. Users' jobs make it as long as they
    like, so the end of a long one is a checksum."""
    if len(word) <= _WORD_MAX:
        return word
    return f"{word[: _WORD_MAX - 9]}~{zlib.crc32(word.encode(errors='replace')):08x}"


def _name(groups: Sequence[_Group], ours: set[str]) -> None:
    """Short names, stable while the machine is: Tidemill's partitions, cores, and what else distinguishes the pools."""
    columns = []
    for group in groups:
        kind = group.kind
        columns.append(
            [
                "+".join(name for name in kind.partitions if name in ours) or "nodes",
                f"{group.cores}c",
                ",".join(f"{name}*{count}" for name, count in group.devices),
                ",".join(kind.features),
                f"{group.memory_mb}MB",
                "+".join(name for name in kind.partitions if name not in ours),
                "named" if group.named else "",
            ]
        )
    same_memory = len({group.kind.memory_mb for group in groups}) < 2
    telling = [k for k in range(7) if k < 2 or len({row[k] for row in columns}) > 1]
    if same_memory:
        telling = [k for k in telling if k != _MEMORY_COLUMN]
    for group, row in zip(groups, columns, strict=True):
        group.name = "/".join(_short(row[k]) for k in telling if row[k])


def _place(placed: Sequence[Held], usable: Sequence[_Group]) -> None:
    """Assign each of Tidemill's allocations to the group of its first node, of the first that a job names if there is
    one, or to the group that it was requested for."""
    by_node = {node.name: group for group in usable for node in group.nodes}
    by_name = {group.name: group for group in usable}
    others = [group for group in usable if not group.named] or usable
    for each in placed:
        homes = [by_node.get(name) for name in each.nodes]
        home = next((group for group in homes if group and group.named), homes[0] if homes else None)
        if home is None and not each.nodes and usable:
            # A pool's name gets longer when others like it appear: the one with the most alike name.
            words = set(each.pool.split("/"))
            home = by_name.get(each.pool) or max(
                others, key=lambda group: (len(words.intersection(group.name.split("/"))), len(group.nodes))
            )
        if home is not None:
            home.ours.append(each)


def _lend_unknown(groups: Iterable[_Group], occupancy: Occupancy) -> None:
    """Give ends to busy nodes of jobs whose nodes are hidden, the earliest ends first: the doubt is for others."""
    groups = list(groups)
    for end_s, width, partition in sorted(occupancy.elsewhere):
        left = width
        for group in groups:
            if partition and partition not in group.kind.partitions:
                continue
            part = min(left, group.unknown)
            if part:
                group.unknown -= part
                group.busy[end_s] += part
                left -= part
    for group in groups:
        if group.unknown:
            group.busy[FAR_S] += group.unknown
            group.unknown = 0


# ---- situations ----------------------------------------------------------------------------------


def _windows(
    snapshot: Snapshot, groups: Iterable[_Group], terms: Terms, occupancy: Occupancy
) -> dict[int, list[tuple[int, float]]]:
    """The staircase of each group by the scheduler's plan, empty if that is not known; without a guard if it only
    corrects Tidemill's own plan."""
    blind = terms.windows_only or bool(snapshot.hidden)
    if not blind and not snapshot.tells_plan:
        return {}
    guard_s = terms.guard_s if blind else 0.0
    request = Request(
        partition=terms.partition,
        reservation=terms.reservation,
        features=terms.features,
        exclude=terms.exclude | terms.ending,
        wake_nodes=terms.wake_nodes,
        guard_s=guard_s,
        planned_only=not blind,
    )
    free = free_until(snapshot, request)
    result = {}
    for group in groups:
        names = [node.name for node in group.nodes if node.name in free]
        mine = [free[name] for name in names if not terms.reservation or name in occupancy.opened]
        steps = stairs(mine, at_s=snapshot.at_s, guard_s=guard_s)
        result[id(group)] = [(step.nodes, step.seconds) for step in steps]
    return result


def _pool(
    group: _Group,
    queue: list[Waiting],
    *,
    snapshot: Snapshot,
    stairway: tuple[bool, list[tuple[int, float]] | None],
    backlog: Backlog,
) -> Pool:
    """The pool of a group, with the limits still open. `stairway`: whether it is all that is known of the plan."""
    blind, steps = stairway
    return Pool(
        name=group.name,
        cores=group.cores,
        memory_mb=group.memory_mb,
        devices=group.devices,
        partitions=group.kind.partitions,
        features=tuple(sorted(set(group.kind.features).difference(group.nodes[0].amounts))),
        situation=Situation(
            now_s=snapshot.at_s,
            nodes=group.size,
            idle=group.idle,
            ending=group.ending,
            busy=[Busy(width, end_s) for end_s, width in sorted(group.busy.items())],
            queue=queue,
            outages=[Outage(width, since, until) for (since, until), width in sorted(group.outages.items())],
            holdings=gather(group.ours, event_s=backlog.event_s),
            backlog=backlog,
            limits=Limits(nodes_max=0, allocations_max=0),
            is_order_known=snapshot.is_order_known,
            knows_plan=not blind,
            are_others_hidden=snapshot.are_jobs_hidden,
            windows=(steps or []) if blind else [],
            planned_gaps=None if blind else steps,
        ),
        nodes=frozenset(node.name for node in group.nodes),
        bare={each.name: each.width for each in group.ours if each.without_gpus},
    )


def _bounded(
    pools: Sequence[Pool], snapshot: Snapshot, terms: Terms, limits: Limits, on_gpus: Backlog | None
) -> list[Pool]:
    """The pools, each with its part of the site's limits and backlog: what the holdings elsewhere leave."""
    chosen = partitions(snapshot, terms.partition)
    used = [_used(pool) for pool in pools]
    nodes, allocations = sum(each.nodes for each in used), sum(each.allocations for each in used)
    shares = _Shares.of(pools, used, limits, on_gpus)
    replace = msgspec.structs.replace
    result = []
    for pool, own in zip(pools, used, strict=True):
        mine = [each for each in chosen if each.name in pool.partitions]
        is_up = not mine or any(each.is_up for each in mine)
        walltimes = [each.walltime_max_s for each in mine if each.walltime_max_s is not None]
        widths = [each.width_max for each in mine if each.width_max is not None]
        kept = 0 if pool.has_gpus else shares.kept_for_gpus
        bounds = replace(
            limits,
            nodes_max=max(0, limits.nodes_max - (nodes - own.nodes) - kept),
            allocations_max=max(0, limits.allocations_max - (allocations - own.allocations)),
            walltime_max_s=min([limits.walltime_max_s, *walltimes]),
            width_max=min([limits.width_max, *widths]),
            width_min=max([limits.width_min, *(each.width_min for each in mine)]),
            closed_by=Binding.SCHEDULER if snapshot.starts_nothing else "" if is_up else Binding.CLOSED,
        )
        holds_all = bool(mine) and all(each.gives_all for each in mine)
        left = shares.backlog(pool, own, limits, holds_all=holds_all)
        situation = replace(pool.situation, limits=bounds, backlog=left)
        missing = shares.equipped_missing if pool.has_gpus else 0
        result.append(replace(pool, situation=situation, gpu_nodes=missing))
    return result


class _Used(NamedTuple):
    """What the holdings of a pool take of the site's limits and backlog."""

    nodes: int
    allocations: int
    with_gpus: int  #: of the nodes


def _used(pool: Pool) -> _Used:
    holdings = pool.situation.holdings
    nodes = sum(each.width * each.count for each in holdings)
    return _Used(
        nodes=nodes,
        allocations=sum(each.count for each in holdings),
        with_gpus=max(0, nodes - sum(pool.bare.values())) if pool.has_gpus else 0,
    )


class _Shares(NamedTuple):
    """How the site's work is shared among its pools, in nodes.

    A node that is held takes one of the nodes that the work is for, for as long as there is that much work: an hour of
    walltime that is left does not stand for an hour of the work. Work with GPUs has the nodes with GPUs first; work
    for any node has the others, and what they leave of these.
    """

    plain_missing: int  #: nodes that work for any node is for, and that are not held yet
    equipped_missing: int  #: the same of work with GPUs
    wanted: int  #: nodes that all the work is for
    has_plain: bool  #: whether there are nodes without GPUs
    kept_for_gpus: (
        int  #: of the nodes that the site may hold: idle nodes with GPUs that work with GPUs waits for
    )
    on_gpus: Backlog | None

    @classmethod
    def of(
        cls, pools: Sequence[Pool], used: Sequence[_Used], limits: Limits, on_gpus: Backlog | None
    ) -> _Shares:
        plain = nodes_for(pools[0].situation.backlog, limits) if pools else 0
        equipped = 0 if on_gpus is None else nodes_for(on_gpus, limits)
        with_gpus = sum(own.with_gpus for own in used)
        others = sum(own.nodes for own in used) - with_gpus
        lent = max(0, with_gpus - equipped)  # nodes with GPUs that do other work
        missing = max(0, equipped - with_gpus)
        idle = sum(pool.situation.idle for pool in pools if pool.has_gpus)
        return cls(
            plain_missing=max(0, plain - others - lent),
            equipped_missing=missing,
            wanted=plain + equipped,
            has_plain=not all(pool.has_gpus for pool in pools),
            kept_for_gpus=min(idle, missing),
            on_gpus=on_gpus,
        )

    def backlog(self, pool: Pool, own: _Used, limits: Limits, *, holds_all: bool) -> Backlog:
        """What is left for this pool, with what it holds itself. `holds_all`: allocations there hold GPUs whether they
        want them or not; then work for any node goes there only if there are no other nodes at all."""
        plain, on_gpus, replace = pool.situation.backlog, self.on_gpus, msgspec.structs.replace
        more = 0 if pool.has_gpus and holds_all and self.has_plain else self.plain_missing
        more += self.equipped_missing if pool.has_gpus else 0
        nodes = min(own.nodes + more, self.wanted)
        if on_gpus is None or not pool.has_gpus:
            return replace(plain, nodes_max=nodes)
        base = plain if plain.nodes_max else on_gpus
        both = replace(base, event_s=max(plain.event_s, on_gpus.event_s), nodes_max=nodes)
        # so much that the length of the longer kind of event does not bound it once more
        return replace(both, node_s=max(plain.node_s + on_gpus.node_s, nodes * work_s(both, limits)))
