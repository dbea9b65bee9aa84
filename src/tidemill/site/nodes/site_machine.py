"""What the site knows of its machine: what its nodes are like, the last snapshot, the pools cut from it.

The embedded batch system is one pool without others, for which no snapshot is needed. Everything decided on here is in
`planning` and `harvest`; this keeps what they need between two polls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.harvest.account.ledger import STOP_AT, Bounds, Ledger, balance
from tidemill.harvest.plan.headroom import Headrooms
from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.patience import Patience
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Limits
from tidemill.harvest.snapshot.counting import count_nodes, for_gpus, held_nodes
from tidemill.harvest.snapshot.foresight import foreseen
from tidemill.harvest.snapshot.neighbours import also_waiting
from tidemill.harvest.snapshot.placement import layout_of
from tidemill.harvest.snapshot.pools import Pool, Terms, cut, decide_each
from tidemill.harvest.snapshot.windows import partitions
from tidemill.log import Log
from tidemill.model.devices import GPU
from tidemill.model.figures.awaited import NodeCounts
from tidemill.model.machine import Node, NodeState, Running, Snapshot
from tidemill.model.quantities import duration_text
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site import constants
from tidemill.site.applications.gpus import slot_devices
from tidemill.site.applications.launching import Launching, find_launcher
from tidemill.site.applications.programs import NodeShape
from tidemill.site.fleet.wide import WideBounds, WideRequest, as_regular, room_for
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes import planning
from tidemill.site.nodes.allocations import AllocationRequest
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.planning import Starts
from tidemill.site.nodes.quarantine import NodeQuarantine
from tidemill.site.nodes.selection import Named, PlacedDecision, Shape, with_names
from tidemill.site.state.site_state import Allocation, SiteState
from tidemill.wire.node import Record, Started

_log = Log("machine")
WALLTIME_MIN_S = 60.0
"""A shorter limit than a minute there is not: Slurm, PBS and Grid Engine plan in minutes, or round up to them."""


class SiteMachine:
    """The machine of one site. Reads the batch system once, when it is made. Raises SiteError."""

    def __init__(self, config: SiteConfig, site_dir: Path, batch: BatchSystem, costs: Costs) -> None:
        self.site_dir = site_dir
        self.is_local = config.batch == "local"
        self.reads_snapshots = not self.is_local or planning.policy_of(config) is not Policy.DEMAND
        self._config = config
        self._policy = planning.policy_of(config)
        self.look_s = planning.poll_s_of(config)  #: usual pause between two polls of the machine
        self.measured_death_s = 0.0  #: as the batch system has it measured; 0 = not yet
        self.costs = costs
        self.quarantine = NodeQuarantine(site_dir / "quarantine.json", config, costs)
        self.ledger = balance(config.accounts, {}, [], now_s=0.0, bounds=Bounds())
        self.snapshot: Snapshot | None = None
        self._ended: dict[str, tuple[str, ...]] = {}  #: since the snapshot before
        self.patience = Patience()
        self.headrooms = Headrooms()
        self.headroom = 0  #: nodes left idle by the last plans, at most
        self._yielded: frozenset[str] = frozenset()
        self.size: planning.WorkSize | None = None  #: of the work, at the last decision on a snapshot
        self._met_limit = (
            -planning.HOUR_US,
            "",
        )  #: when allocations met a limit that was not known, and its name
        self._usable: Sequence[Node] = ()
        self._largest: Node | None = None  #: of them; None = the batch system sums up its nodes
        self._given_mb = 0  #: memory that it gives an allocation on that node, as it says
        self._found_mb: int | None = None  #: ... and as pilots have found on such a node
        self.has_gpus = False  #: whether the batch system shows GPUs on some of them
        self.nodes = 0  #: that we could ever use
        self.idle = 0  #: of them, free now
        self.away = 0  #: nodes that we could use, and that are down or drained
        if self.reads_snapshots:
            self.shape = self._read(batch.snapshot())
        else:
            machine = batch.machine()
            self.nodes = self.idle = machine.nodes
            self._given_mb = machine.memory_mb_per_node
            self.shape = NodeShape(
                machine.cores_per_node,
                self._memory_mb(),
                slot_devices(config, machine.devices_per_node),
            )
        self.launcher = find_launcher(config)  #: of payloads that span nodes; empty = there is none

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Take a new snapshot."""
        self.shape = self._read(snapshot)

    def on_records(self, records: Iterable[Record]) -> None:
        """Take what pilots say of the memory that their allocations have: `shape` follows."""
        started = [each for each in records if type(each) is Started and each.memory_mb > 0]
        if not started:
            return
        kinds = {node.name: (node.cores, node.memory_mb) for node in self._usable}
        largest = self._largest
        for each in started:
            if largest is None or kinds.get(each.node) == (largest.cores, largest.memory_mb):
                self._found_mb = each.memory_mb
        self.shape = msgspec.structs.replace(self.shape, memory_mb=self._memory_mb())

    def _memory_mb(self) -> int:
        """Memory that pilots have for slots on the largest node: what an allocation gets there. Checks, hints and the
        defaults of slots all start from this."""
        expected_mb = self._config.node.memory_mb or self._given_mb
        return expected_mb if self._found_mb is None else min(expected_mb, self._found_mb)

    @property
    def cores(self) -> int:
        """Cores of the nodes that we may hold; where others run, too, of those that are held or idle now."""
        nodes = self.nodes if self.is_local else max(1, self.idle)
        return min(self._config.nodes_max, nodes) * self.shape.cores

    def _read(self, snapshot: Snapshot) -> NodeShape:
        self._ended, self.snapshot = planning.just_ended(self.snapshot, snapshot), snapshot
        cluster = self._config.cluster
        ours = {each.name for each in partitions(snapshot, cluster.partition)}
        usable = [
            node
            for node in snapshot.nodes
            if (not ours or not ours.isdisjoint(node.partitions))
            and set(cluster.features) <= set(node.features)
            and node.name not in cluster.exclude
        ]
        if not usable:
            raise SiteError(
                f"the batch system shows no node that this site may use among {len(snapshot.nodes)}",
                hint="check `cluster.partition`, `cluster.features` and `cluster.exclude` in site.toml",
            )
        held = {name for job in snapshot.running if job.ours for name in job.nodes}
        self._usable = usable
        self.has_gpus = any(kind == GPU and number for node in usable for kind, number in node.devices)
        self.nodes = len(usable)
        self.away = sum(node.state is NodeState.AWAY for node in usable)
        self.idle = sum(node.state is NodeState.IDLE or node.name in held for node in usable)
        largest = max(usable, key=lambda node: (node.cores, node.memory_mb))
        if self._largest is None or (self._largest.cores, self._largest.memory_mb) != (
            largest.cores,
            largest.memory_mb,
        ):
            self._found_mb = None
        self._largest = largest
        given_mb = [
            each.given_mb(largest)
            for each in partitions(snapshot, cluster.partition)
            if each.name in largest.partitions
        ]
        self._given_mb = min(given_mb, default=largest.memory_mb)
        return NodeShape(
            self._config.node.cores or largest.cores,
            self._memory_mb(),
            slot_devices(self._config, dict(largest.devices)),
        )

    # ---- plans ----

    @property
    def death_s(self) -> float:
        """How long after we cancel an allocation its nodes are free."""
        return planning.death_s_of(self.measured_death_s)

    def plans(self, state: SiteState, demand: Demand, starts: Starts, policy: Policy) -> list[Named]:
        """What to do now, pool by pool."""
        living = [a for a in state.allocations.values() if a.state not in ALLOCATION_FINAL]
        wide = [a for a in living if _is_wide(state, a)]
        dying, stuck = planning.on_their_way(living, clock.now_us(), death_s=self.death_s)
        others = [a for a in living if not _is_wide(state, a) and a.name not in dying | stuck]
        apart = {a.name for a in wide} | stuck
        taken = sum(a.nodes for a in living if a.name in apart)
        wait = starts.why
        if not self.reads_snapshots:
            nodes = max(0, self.nodes - taken)
            plan = self._local_plan(others, demand, nodes=nodes, starts=starts, wait=wait)
            used = sum(a.nodes for a in living if a.state is AllocationState.ACTIVE)
            waiting = [a for a in wide if a.state is not AllocationState.ACTIVE]
            room = room_for(waiting, others, self.nodes - used)
            return [msgspec.structs.replace(plan, cancel=list(dict.fromkeys([*plan.cancel, *room])))]
        assert self.snapshot is not None
        held = self._held(living, demand)
        self.ledger = self._balance(state, held)
        limits = self._limits(starts, policy)
        observes = self._config.mode == "observe"
        work = planning.anything(limits) if observes else self._work(demand, limits)
        limits = msgspec.structs.replace(limits, nodes_max=max(0, limits.nodes_max - taken))
        harvested = {a.name for a in others}
        held = [each for each in held if each.name in harvested]
        snapshot, ending = planning.without_dying(as_regular(self.snapshot, apart), dying, self._ended)
        terms = self._terms(policy, ending)
        pools = cut(snapshot, held, terms, backlog=work, limits=limits)
        plans = []
        ready: list[str] = []
        gpu_nodes = max((pool.gpu_nodes for pool in pools), default=0)
        layouts = [layout_of(snapshot, pool) for pool in pools]
        pools = [foreseen(*both, snapshot.queued) for both in zip(pools, layouts, strict=True)]
        if policy is Policy.YIELD:
            pools = [self._with_headroom(pool) for pool in pools]
            self.headroom = sum(pool.situation.headroom for pool in pools)
        decided = decide_each(pools, lambda situation: decide(situation, policy))
        also = also_waiting(decided, snapshot.queued, lambda situation: decide(situation, policy))
        self.size = planning.size_of(work, limits, [decision for _, decision in decided])
        if policy is Policy.YIELD:
            running = {job.id: job for job in snapshot.running if not job.ours}
            self.headrooms.retain([pool.name for pool in pools])
            for pool, decision in decided:
                self.headrooms.learn(pool.name, pool.situation, decision, present=present(pool, running))
        by_name, ours = {node.name: node for node in self.snapshot.nodes}, held_nodes(self.snapshot)
        for layout, (pool, decision) in zip(layouts, decided, strict=True):
            ready += decision.ready
            shape = self._shape_of(pool, gpu_nodes=gpu_nodes, single=len(pools) == 1)
            choice = PlacedDecision(decision=decision, layout=layout)
            plan = self._named(pool, shape, choice, starts_wait=wait)
            if pool.has_gpus:
                asked = sum(nodes * count for nodes, count, _ in plan.submit)
                if limits.starts_left > 0 and not pool.situation.limits.closed_by:
                    plan = displaced(plan, pool, gpu_nodes - asked - pool.situation.ending)
                gpu_nodes = max(0, gpu_nodes - asked)
            told = plan.decision
            told = msgspec.structs.replace(told, yields_to=[*told.yields_to, *also.get(pool.name, ())])
            decision = planning.for_others(told, self.snapshot)
            mine = (by_name[name] for name in pool.nodes if name in by_name)
            counts = count_nodes(mine, ours, idle_max=pool.situation.idle)
            counts = for_gpus(counts) if work.on_gpus is not None and pool.has_gpus else counts
            plans.append(msgspec.structs.replace(plan, decision=decision, nodes=counts))
        seen = self.snapshot
        for job in self.patience.on_poll(
            seen.at_s, ready, cycle_s=limits.cycle_s, iteration_s=seen.iteration_s
        ):
            _log.info("job.left_out", job=job, reason="its nodes are idle, and it does not start")
        return plans

    def _named(self, pool: Pool, shape: Shape, choice: PlacedDecision, *, starts_wait: str) -> Named:
        """A decision with names for its counts."""
        plan = with_names(shape, pool.situation, choice=choice, starts_wait=starts_wait)
        return self._with_limit(plan)

    def has_grown(self, demand: Demand, *, held: int) -> bool:
        """Whether idle nodes should be asked for before the next regular poll. `held`: nodes that are held."""
        size = self.size
        return size is not None and planning.has_grown(size, self._work(demand, size.limits), held=held)

    def _work(self, demand: Demand, limits: Limits) -> Backlog:
        """The backlog, by what it needs where the batch system shows which nodes have that."""
        if not self.has_gpus:
            return planning.backlog_of(demand, limits)
        return planning.work_of(demand, limits)

    def _with_headroom(self, pool: Pool) -> Pool:
        kept = self.headrooms.nodes(pool.name, pool.situation, look_s=self.look_s)
        if not kept:
            return pool
        return msgspec.structs.replace(pool, situation=msgspec.structs.replace(pool.situation, headroom=kept))

    def newly_yielded(self, plans: Sequence[Named]) -> int:
        """How many regular jobs need nodes of Tidemill that did not at the last plan."""
        before = self._yielded
        self._yielded = frozenset(name for plan in plans for name in plan.decision.yields_to)
        return len(self._yielded - before)

    def asks(self, plan: Named, fleet: str) -> list[AllocationRequest]:
        """What a plan submits: see `planning.submissions_of`."""
        shape = plan.shape
        asks: list[AllocationRequest] = []
        avoid, avoid_by = self._elsewhere(shape) if plan.submit else ((), ())
        for nodes, count, walltime_s, gpus in planning.by_gpus(plan.submit, shape):
            ask = AllocationRequest(
                fleet=fleet,
                nodes=nodes,
                cores=shape.cores,
                memory_mb=shape.memory_mb,
                walltime_s=walltime_s,
                count=count,
                pool=shape.pool,
                partition=shape.partition,
                features=shape.features,
                account=self.ledger.account or "",
                exclude=tuple(sorted(self._excluded())),
                gpus=gpus,
                avoid=avoid,
                avoid_by=avoid_by,
            )
            parts = planning.submissions_of(
                count,
                self._config,
                policy=self._policy,
                made=len(asks),
                elements_max=planning.elements_max_of(self._config, self.snapshot),
            )
            asks += [msgspec.structs.replace(ask, count=part) for part in parts]
        return asks

    def _elsewhere(self, shape: Shape) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The nodes outside of a pool where its allocations might be placed all the same, and features that all nodes
        of the pool have and none of those."""
        if not shape.nodes:
            return (), ()
        wanted, excluded = set(shape.features), self._excluded()
        outside = [
            node
            for node in self._usable
            if node.name not in shape.nodes and node.name not in excluded and wanted <= set(node.features)
        ]
        inside = [node for node in self._usable if node.name in shape.nodes]
        return tuple(sorted(node.name for node in outside)), planning.features_apart(inside, outside)

    def wide_bounds(self, starts: Starts) -> WideBounds:
        """What allocations for payloads that span nodes may be."""
        return WideBounds(
            nodes_max=self.wide_nodes_max,
            walltime_max_s=min(self._config.walltime_s, self._longest_s),
            starts=planning.starts_left(starts, self._config, nodes=self.nodes, policy=Policy.DEMAND),
            node_s_left=self.ledger.node_s_left,
        )

    def wide_ask(self, fleet: str, wanted: WideRequest) -> AllocationRequest:
        """How to ask for one allocation of exact width."""
        cluster = self._config.cluster
        return AllocationRequest(
            fleet=fleet,
            nodes=wanted.nodes,
            cores=self.shape.cores,
            memory_mb=self.shape.memory_mb if self.is_local else self._config.node.memory_mb or 0,
            walltime_s=wanted.walltime_s,
            features=tuple(cluster.features),
            account=self.ledger.account or "",
            exclude=tuple(sorted(self._excluded())),
            wide=True,
        )

    @property
    def launching(self) -> Launching:
        """How payloads that span nodes are started here now."""
        return Launching(self.launcher, self.wide_nodes_max)

    @property
    def wide_nodes_max(self) -> int:
        """Nodes that we may hold at once."""
        return min(self._config.nodes_max, self.nodes)

    def _local_plan(
        self, living: Sequence[Allocation], demand: Demand, *, nodes: int, starts: Starts, wait: str
    ) -> Named:
        shape = Shape(pool="local", cores=self.shape.cores, memory_mb=self.shape.memory_mb)
        holdings = planning.group_by_start(living)
        situation = planning.local_situation(
            self._config, demand, nodes=nodes, holdings=holdings, starts=starts
        )
        decision = decide(situation, Policy.DEMAND)
        plan = with_names(shape, situation, choice=PlacedDecision(decision=decision), starts_wait=wait)
        ours = min(nodes, sum(a.nodes for a in living if a.state is AllocationState.ACTIVE))
        return msgspec.structs.replace(plan, nodes=NodeCounts(nodes=nodes, idle=nodes - ours, ours=ours))

    def _balance(self, state: SiteState, held: Sequence[Held]) -> Ledger:
        """The grants now, with what is in flight and committed."""
        return balance(
            self._config.accounts,
            state.used_node_s,
            held,
            now_s=clock.now_us() / 1e6,
            bounds=Bounds(
                node_hours_max=self._config.harvest.node_hours_max,
                least_node_s=WALLTIME_MIN_S * (self._config.harvest.width or 1),
            ),
        )

    def leaving(self, state: SiteState) -> list[str]:
        """Allocations whose pilots are to drain and go: those that run on a grant that is used up, by any user."""
        over = {
            account.name
            for account, line in zip(self._config.accounts, self.ledger.lines, strict=True)
            if line.used_s >= STOP_AT * line.granted_s
        }
        if not over:
            return []
        return [
            a.name
            for a in state.allocations.values()
            if a.state is AllocationState.ACTIVE and a.account in over and not a.leaves
        ]

    def _excluded(self) -> set[str]:
        return {*self._config.cluster.exclude, *self.quarantine.verdict.exclude}

    def _limits(self, starts: Starts, policy: Policy) -> Limits:
        config, harvest = self._config, self._config.harvest
        width = harvest.width or 1
        is_one_by_one = not self.is_local and planning.elements_max_of(config, self.snapshot) == 1
        return Limits(
            nodes_max=min(config.nodes_max, self.nodes),
            allocations_max=planning.ALLOCATIONS_MAX,
            width_min=width,
            width_max=width,
            walltime_max_s=min(config.walltime_s, self._own_limit_s),
            startup_s=self.costs.startup_s,
            starts_per_node_hour=constants.STARTS_PER_NODE_HOUR,
            starts_left=planning.starts_left(starts, config, nodes=self.nodes, policy=policy),
            poll_s=planning.poll_s_of(config),
            cycle_s=constants.CYCLE_S,
            death_s=self.death_s,
            submits_max=planning.SINGLES_MAX if is_one_by_one else planning.NO_BOUND,
            walltime_min_s=WALLTIME_MIN_S,
            node_s_left=self.ledger.node_s_left,
        )

    @property
    def _own_limit_s(self) -> float:
        known = None if self.snapshot is None else self.snapshot.walltime_max_s
        return math.inf if known is None else known

    def met_limit(self, reason: str) -> None:
        """Note that allocations met a limit that was not known: plans say so for an hour."""
        self._met_limit = clock.now_us(), reason

    def _with_limit(self, plan: Named) -> Named:
        at_us, reason = self._met_limit
        if clock.now_us() - at_us > planning.HOUR_US:
            return plan
        longest = duration_text(plan.situation.limits.walltime_max_s)
        why = f"{plan.decision.why}; asked for at most {longest} each, since a limit has changed ({reason})"
        return msgspec.structs.replace(plan, decision=msgspec.structs.replace(plan.decision, why=why))

    @property
    def _longest_s(self) -> float:
        """The longest walltime that the batch system allows by now, in one of the site's partitions at least."""
        limits = [] if self.snapshot is None else partitions(self.snapshot, self._config.cluster.partition)
        longest_s = max(
            (math.inf if p.walltime_max_s is None else p.walltime_max_s for p in limits), default=math.inf
        )
        return min(self._own_limit_s, longest_s)

    def is_over_limit(self, allocation: Allocation) -> bool:
        """Whether it asked for more time, or for fewer nodes, than the batch system allows by now: what is asked for
        next differs, since each plan keeps these limits. It could not keep a lower limit of nodes."""
        if self.snapshot is None:
            return False
        chosen = partitions(self.snapshot, self._config.cluster.partition)
        narrowest = min((each.width_min for each in chosen), default=1)
        is_wide = not allocation.pool  # its payload needs exactly these nodes
        return allocation.walltime_s > self._longest_s or (allocation.nodes < narrowest and not is_wide)

    def _held(self, living: Sequence[Allocation], demand: Demand) -> list[Held]:
        now_us = clock.now_us()
        return [
            Held(
                name=a.name,
                width=a.nodes,
                is_waiting=a.state is not AllocationState.ACTIVE,
                started_s=a.started_us / 1e6,
                ends_s=planning.end_us_of(a, batch=self._config.batch) / 1e6,
                walltime_s=a.walltime_s,
                loss_s=self.costs.loss_s(a, now_us, demand.range_s),
                pool=a.pool,
                account=a.account,
                without_gpus=a.without_gpus,
            )
            for a in living
        ]

    def _terms(self, policy: Policy, ending: frozenset[str]) -> Terms:
        cluster = self._config.cluster
        return Terms(
            partition=cluster.partition,
            reservation=cluster.reservation,
            features=tuple(cluster.features),
            exclude=frozenset(self._excluded()),
            wake_nodes=constants.WAKE_NODES,
            windows_only=policy is Policy.WINDOWS,
            end_slack_s=constants.SLACK_S,
            left_out=self.patience.left_out(self.snapshot.at_s) if self.snapshot else frozenset(),
            ending=ending,
        )

    def _shape_of(self, pool: Pool, *, gpu_nodes: int, single: bool) -> Shape:
        """How to ask for a pool's nodes: by its features where there are several pools."""
        cluster, node = self._config.cluster, self._config.node
        features = [*cluster.features] if single else list(dict.fromkeys([*cluster.features, *pool.features]))
        return Shape(
            pool=pool.name,
            cores=min(pool.cores, node.cores or pool.cores),
            memory_mb=node.memory_mb or 0,
            features=tuple(features),
            nodes=frozenset() if single else pool.nodes,
            has_gpus=pool.has_gpus if self.has_gpus else None,
            gpu_nodes=gpu_nodes if pool.has_gpus else 0,
        )


def displaced(plan: Named, pool: Pool, missing: int) -> Named:
    """The plan in which allocations that leave the GPUs of their nodes make room for work that needs these: as many
    nodes as are `missing` beside what is asked for."""
    going = set(plan.cancel)
    more: list[str] = []
    for name, nodes in pool.bare.items():
        if missing <= 0:
            break
        if name not in going:
            more.append(name)
        missing -= nodes
    if not more:
        return plan
    ends_s = {name: end_s for name, end_s in plan.ends_s.items() if name not in more}
    decision = msgspec.structs.replace(
        plan.decision, why=f"{plan.decision.why}; {len(more)} released for work with GPUs"
    )
    return msgspec.structs.replace(plan, cancel=[*plan.cancel, *more], ends_s=ends_s, decision=decision)


def present(pool: Pool, running: Mapping[str, Running]) -> dict[str, int]:
    """The regular jobs of a pool that run, by their widths."""
    return {
        name: job.width for name, job in running.items() if job.nodes and not pool.nodes.isdisjoint(job.nodes)
    }


def _is_wide(state: SiteState, allocation: Allocation) -> bool:
    """Whether it is for one payload that spans nodes: such are asked for, and given up, by other rules."""
    fleet = state.fleets.get(allocation.fleet)
    return fleet is not None and fleet.width > 0
