"""Payloads that span nodes: which allocations of exact width to ask for, and the fleets that their work goes to.

One fleet for each number of nodes: whatever its ranks and application, a job finds an allocation of its width, which
serves one payload after the other while there is time. Such an allocation queues like any user's job; it is never
yielded, and leaves when no work of its width is left. `plan_wide` is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence

import msgspec

from tidemill.model.application import DEFAULT_EVENT_S
from tidemill.model.job import rate_key
from tidemill.model.machine import Queued, Running, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site.applications.launching import Launching
from tidemill.site.fleet.fleets import Fleets, OpenFleet
from tidemill.site.fleet.granting import Granting
from tidemill.site.fleet.workload import event_s
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.site.state.settlement import WideLoad

SLACK = 1.5
"""Events may take this multiple of the expected time before an allocation is too short for them."""

WALLTIME_S_MIN = 300.0
"""Estimates of the first events are poor; a shorter limit would not bring nodes much earlier."""

START_S = 30.0
"""Of a pilot and a launcher."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What is open for one width. `work_s`: seconds on one allocation of it; `longest_s`: of one event, at most."""

    nodes: int
    events: int
    work_s: float
    longest_s: float


class HeldWide(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation. Not `is_useful`: its fleet is an earlier agent's and has nothing left."""

    name: str
    nodes: int
    is_waiting: bool
    is_useful: bool = True


class WideBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on wide allocations. `nodes_max`: nodes of all our wide allocations together; `starts`:
    allocations that may be asked for now; `node_s_left`: node-seconds that the grant still allows."""

    nodes_max: int
    walltime_max_s: float
    starts: int
    node_s_left: float = math.inf


class WideRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for `count` allocations of exactly `nodes` nodes."""

    nodes: int
    count: int
    walltime_s: float


class WidePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now; `waits_for` says in figures what holds back more."""

    cancel: list[str]
    submit: list[WideRequest]
    waits_for: str = ""


def plan_wide(needs: Sequence[Need], allocations: Sequence[HeldWide], bounds: WideBounds) -> WidePlan:
    """The wide allocations to ask for and to give up, in the order of the needs. Given up are those that wait for
    nothing and, where nodes are short, those that have no work."""
    wanted = {need.nodes: min(need.events, _filled(need, bounds)) for need in needs if need.events > 0}
    cancel: list[str] = []
    mine: dict[int, int] = {}
    used = 0
    for each in sorted(allocations, key=lambda each: each.is_waiting):  # those that run come first
        count = mine.get(each.nodes, 0)
        if each.is_waiting and (not each.is_useful or count >= wanted.get(each.nodes, 0)):
            cancel.append(each.name)
            continue
        mine[each.nodes] = count + each.is_useful
        used += each.nodes
    if _is_short(wanted, mine=mine, room=bounds.nodes_max - used):
        idle = [each for each in allocations if not each.is_waiting and not wanted.get(each.nodes)]
        cancel += [each.name for each in idle]
        used -= sum(each.nodes for each in idle)
    submit: list[WideRequest] = []
    starts, left_s, waits_for = bounds.starts, bounds.node_s_left, ""
    for need in needs:
        missing = wanted.get(need.nodes, 0) - mine.get(need.nodes, 0)
        if missing <= 0:
            continue
        room = max(0, bounds.nodes_max - used) // need.nodes
        walltime_s = _walltime_s(need, bounds)
        affordable = missing if left_s == math.inf else int(left_s // (need.nodes * walltime_s))
        count = max(0, min(missing, room, starts, affordable))
        if missing > room and not mine.get(need.nodes) and not count:
            waits_for = (
                f"{need.nodes} nodes at once: {used} of {bounds.nodes_max} that Tidemill may hold are taken"
            )
        if missing > affordable and not count:
            waits_for = f"{need.nodes} nodes for {walltime_s:.0f} s: the grant does not allow that any more"
        if count:
            submit.append(WideRequest(nodes=need.nodes, count=count, walltime_s=walltime_s))
            left_s -= count * need.nodes * walltime_s
            used += count * need.nodes
            starts -= count
    return WidePlan(cancel=cancel, submit=submit, waits_for=waits_for)


def _is_short(wanted: dict[int, int], *, mine: dict[int, int], room: int) -> bool:
    """Whether nodes are lacking: allocations without work hold theirs for a while before they leave by themselves."""
    missing = sum(max(0, count - mine.get(nodes, 0)) * nodes for nodes, count in wanted.items())
    return missing > room


def room_for(
    waiting: Sequence[site_state.Allocation], others: Sequence[site_state.Allocation], free: int
) -> list[str]:
    """On the embedded batch system, which knows no priorities: the ordinary allocations to give up so that the first
    wide one that waits can start. Those that wait stand before it; of the others the newest go."""
    if not waiting:
        return []
    cancel = [a.name for a in others if a.state is not AllocationState.ACTIVE and not a.canceled_us]
    active = [a for a in others if a.state is AllocationState.ACTIVE]
    missing = waiting[0].nodes - free - sum(a.nodes for a in active if a.canceled_us)
    for each in reversed([a for a in active if not a.canceled_us]):
        if missing <= 0:
            break
        cancel.append(each.name)
        missing -= each.nodes
    return cancel


def as_regular(snapshot: Snapshot, names: Container[str]) -> Snapshot:
    """The machine with these allocations as regular jobs: they yield no nodes, and others yield nodes to them."""

    def regular(job: Running | Queued) -> Running | Queued:
        return msgspec.structs.replace(job, ours=False) if job.ours and job.name in names else job

    return msgspec.structs.replace(
        snapshot,
        running=[regular(job) for job in snapshot.running],
        queued=[regular(job) for job in snapshot.queued],
    )


def _filled(need: Need, bounds: WideBounds) -> int:
    """Allocations that the work keeps busy until their end, at least one."""
    return max(1, math.ceil(need.work_s * SLACK / bounds.walltime_max_s))


def _walltime_s(need: Need, bounds: WideBounds) -> float:
    share_s = need.work_s / min(need.events, _filled(need, bounds))
    seconds = max(share_s * SLACK, need.longest_s, WALLTIME_S_MIN) + START_S
    return min(bounds.walltime_max_s, float(60 * math.ceil(seconds / 60)))


class Wide:
    """The wide work of one agent's epoch."""

    def __init__(
        self, log: SiteLog, fleets: Fleets, granting: Granting, *, estimate_s: Callable[[str], float | None]
    ) -> None:
        """`estimate_s`: seconds of an event by what its application says."""
        self._log = log
        self._fleets = fleets
        self._granting = granting
        self._estimate_s = estimate_s
        self._standing: dict[int, OpenFleet] = {}

    def owns(self, fleet: OpenFleet) -> bool:
        """Whether the fleet takes new work of its width."""
        return self._standing.get(fleet.record.width) is fleet

    def fleet_of(self, nodes: int) -> str:
        """Name of the fleet that takes new work of this width. There is one once anything was granted."""
        return self._standing[nodes].record.name

    def grant(self, launching: Launching, check: Callable[[], None]) -> bool:
        """Note grants of what is ready, each in its width's fleet; whether there was anything. `check` refuses where a
        newer agent serves the site."""
        changed = False
        for nodes, backlog in self._log.pool.settlement.wide.items():
            if backlog:
                changed |= self._granting.plan(self._fleet(nodes, check), launching)
        return changed

    def forget_fleets(self) -> None:
        """The site is stopped and drains its fleets: work to come gets others."""
        self._standing.clear()

    def needs(self) -> list[Need]:
        """What is open, by width, in the order in which the widths came."""
        needs: dict[int, Need] = {}
        behind = self._log.pool.settlement.behind
        for key, opened in self._log.pool.settlement.wide_load.items():
            nodes = key.width.nodes
            events = opened - sum(each.get(key, 0) for each in self._granting.waiting)
            if events <= 0 or nodes not in self._standing:
                continue
            seconds = self._event_s(key)
            need = needs.get(nodes, Need(nodes=nodes, events=0, work_s=0.0, longest_s=0.0))
            needs[nodes] = Need(
                nodes=nodes,
                events=need.events + events,
                work_s=need.work_s + (events + behind.get(key, 0)) * seconds,
                longest_s=max(need.longest_s, key.timeout_s or seconds * SLACK),
            )
        return list(needs.values())

    def wanted_core_s(self, *, nodes: int, cores: int, walltime_s: float) -> float:
        """Core-seconds still to lease to fill `nodes` nodes of `cores` cores for one allocation's time."""
        load = self._log.pool.settlement.wide_load.items()
        open_s = sum(events * self._event_s(key) * key.width.nodes for key, events in load if events > 0)
        missing_s = nodes * walltime_s - open_s
        return missing_s * cores if missing_s > nodes * walltime_s / 8 else 0.0

    def held(self, living: Sequence[site_state.Allocation]) -> list[HeldWide]:
        """Our wide allocations among those that have not ended."""
        fleets = self._log.pool.state.fleets
        return [
            HeldWide(
                name=a.name,
                nodes=a.nodes,
                is_waiting=a.state is not AllocationState.ACTIVE,
                is_useful=fleets[a.fleet].open > 0 or a.fleet in self._names(),
            )
            for a in living
            if a.fleet in fleets and fleets[a.fleet].width
        ]

    def _names(self) -> set[str]:
        return {fleet.record.name for fleet in self._standing.values()}

    def _event_s(self, key: WideLoad) -> float:
        rate = self._log.pool.state.rates.get(rate_key(key.app, key.width))
        measured = event_s(rate.wall_s, rate.events) if rate else None
        return measured or key.event_s or self._estimate_s(key.app) or DEFAULT_EVENT_S

    def _fleet(self, nodes: int, check: Callable[[], None]) -> OpenFleet:
        fleet = self._standing.get(nodes)
        if fleet is None:
            fleet = self._standing[nodes] = self._fleets.open_new(self._log, check, width=nodes)
        return fleet
