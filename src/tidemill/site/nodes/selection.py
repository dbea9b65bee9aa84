"""From a decision in counts to names: which of our allocations go, and which end earlier. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tidemill.harvest.plan.ours import Holding
from tidemill.harvest.plan.situation import Decision, Situation
from tidemill.harvest.plan.waves import SENTENCES, Binding
from tidemill.harvest.snapshot.placement import Layout
from tidemill.model.figures.awaited import NodeCounts


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool's nodes are like, and how to ask for them."""

    pool: str
    cores: int
    memory_mb: int
    partition: str = ""
    features: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()  #: of the pool; empty = it is the only one
    has_gpus: bool | None = None  #: whether its nodes have GPUs; None = not known
    gpu_nodes: int = 0  #: how many of the nodes that are asked for are for work with GPUs, which comes first


class PlacedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision in counts, and the nodes that it is about where these are known."""

    decision: Decision
    layout: Layout | None = None


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with names. `submit`: (nodes, count, walltime_s)."""

    shape: Shape
    situation: Situation
    decision: Decision
    cancel: list[str]
    ends_s: dict[str, float]
    submit: list[tuple[int, int, float]]
    waits_for: str
    nodes: NodeCounts | None = None  #: of the pool, as the poll showed them; None = there was no snapshot

    @property
    def acts(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.cancel or self.ends_s or self.submit)


def given_back(
    decision: Decision,
    holdings: Sequence[Holding],
    favored: Sequence[str],
    *,
    needed: Sequence[str] = (),
    event_s: float,
) -> list[str]:
    """Who goes: as many as decided, the cheapest, but of those that cost alike (within an event) the favored ones, and
    those that are needed in any case, also if that is more than was decided in counts.

    `favored`, `needed`: running allocations of one node.
    """
    counts = {order.key: order.count for order in decision.cancel}
    ours = {group.key: group for group in holdings}
    going = [name for key, count in counts.items() for name in ours[key].names[:count]]
    single = [group for group in holdings if not group.waiting and group.width == 1]
    ended = [group for group in single if counts.get(group.key)]
    there = {name for group in single for name in group.names}
    needed = [name for name in dict.fromkeys(needed) if name in there]
    if not ended:
        return going + needed
    dearest_s = max(group.loss_s for group in ended) + event_s
    alike = {name for group in single if group.loss_s <= dearest_s for name in group.names}
    replaced = {name for group in ended for name in group.names[: counts[group.key]]}
    better = list(dict.fromkeys([*needed, *(name for name in favored if name in alike)]))
    better = better[: max(len(replaced), len(needed))]
    chosen = {*better}
    rest = [name for name in going if name in replaced and name not in chosen]
    return (
        [name for name in going if name not in replaced]
        + better
        + rest[: max(0, len(replaced) - len(better))]
    )


def ends_of(decision: Decision, holdings: Sequence[Holding], cancel: Sequence[str]) -> dict[str, float]:
    """Who is shortened, to which end: what goes is not shortened, too.

    Others may go than were decided in counts. Those that go instead of being shortened leave as many the less to be
    shortened: one too many, and the scheduler plans again, on nodes that the job which starts now was to have. Those
    that stay for them are shortened where they would end later.
    """
    counts = {order.key: order.count for order in decision.cancel}
    gone = set(cancel)
    left = {group.key: [name for name in group.names if name not in gone] for group in holdings}
    spared = [
        (group.ends_s, name)
        for group in holdings
        for name in group.names[: counts.get(group.key, 0)]
        if name not in gone
    ]
    more = {
        group.key: sum(name in gone for name in group.names) - counts.get(group.key, 0) for group in holdings
    }
    ends_s: dict[str, float] = {}
    for each in decision.shorten:
        instead = max(0, min(each.count, more[each.key]))
        more[each.key] -= instead
        for _ in range(min(each.count - instead, len(left[each.key]))):
            ends_s[left[each.key].pop()] = each.ends_s
        for end_s, name in spared[:instead]:
            if end_s > each.ends_s:
                ends_s[name] = each.ends_s
        del spared[:instead]
    return ends_s


class Orders(NamedTuple):
    """Who goes, who ends when, and which jobs more had to go for than was decided in counts."""

    cancel: list[str]
    ends_s: dict[str, float]
    jobs: list[str]


def orders(choice: PlacedDecision, situation: Situation) -> Orders:
    """Names for counts, and what it takes beyond counts that jobs start which can.

    Where the scheduler would still not start a job, it gets the nodes that it would have without us, whatever they
    cost; and if that is not enough, those before it get theirs, when they are planned, so that they need no others.
    """
    decision, layout, event_s = choice.decision, choice.layout, situation.backlog.event_s
    holdings = situation.holdings
    if layout is None or not (decision.ready or decision.yields_to) or _is_everything(decision, holdings):
        cancel = given_back(decision, holdings, [], event_s=event_s)
        return Orders(cancel, ends_of(decision, holdings, cancel), [])
    starting = {*decision.ready, *decision.yields_to}
    homes = layout.homes(starting)
    favored = [name for names in homes.now.values() for name in names]
    cancel = given_back(decision, holdings, favored, event_s=event_s)
    best = Orders(cancel, ends_of(decision, holdings, cancel), [])
    late = layout.late(starting, best.cancel, best.ends_s)
    if not late:
        return best
    needed = [name for job in late for name in homes.now[job]]
    cancel = given_back(decision, holdings, favored, needed=needed, event_s=event_s)
    ends_s, gone = ends_of(decision, holdings, cancel), set(cancel)
    earlier_s = {
        name: at_s - situation.limits.death_s
        for name, at_s in homes.later_s.items()
        if name not in gone and ends_s.get(name, layout.ours[name].ends_s) > at_s
    }
    for more in (Orders(cancel, ends_s, late), Orders(cancel, {**ends_s, **earlier_s}, late)):
        still = layout.late(starting, more.cancel, more.ends_s)
        if len(still) < len(late):
            return more._replace(jobs=[job for job in late if job not in still])
    return best


def _is_everything(decision: Decision, holdings: Sequence[Holding]) -> bool:
    """Whether all that runs goes: then there is nothing to choose, which takes seconds for thousands of nodes."""
    counts = {order.key: order.count for order in decision.cancel}
    return all(counts.get(group.key, 0) >= group.count for group in holdings if not group.waiting)


def with_names(shape: Shape, situation: Situation, *, choice: PlacedDecision, starts_wait: str) -> Named:
    """A decision with the names of the allocations that go or end earlier."""
    found = orders(choice, situation)
    more = [job for job in found.jobs if job not in choice.decision.yields_to]
    decision = msgspec.structs.replace(choice.decision, yields_to=[*choice.decision.yields_to, *more])
    is_held_back = bool(starts_wait) and not decision.submit and decision.waits_for == Binding.STARTS
    if is_held_back:
        told = decision.why.replace(SENTENCES[Binding.STARTS], starts_wait)
        decision = msgspec.structs.replace(decision, why=told)
    return Named(
        shape=shape,
        situation=situation,
        decision=decision,
        cancel=found.cancel,
        ends_s=found.ends_s,
        submit=[(each.width, each.count, each.walltime_s) for each in decision.submit],
        waits_for=starts_wait if is_held_back else decision.waits_for,
    )
