"""What work waits for at a site, in figures: nodes as the last poll showed them, and the words of the batch system.

Sites send these; `harvest.plan.sentences` makes the sentences that people read from them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.model.quantities import counted_text

REASON_CHARACTERS_MAX = 200
HINDRANCES_MAX = 8
REASONS_MAX = 5


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a site may use, or those of a pool, at one poll: each node counts once.

    `idle`: no job is on them; `shared`: jobs of others use a part, and `free_min` to `free_max` of at most `cores`
    cores are free on each; `full`: in use, no core is free; `ours`: Tidemill's allocations have them; `away`: down or
    drained; `other`: reserved, asleep, starting, or not free yet after a job. `equipped`: nodes with GPUs that are
    counted for work that needs these; `bare`: idle nodes without GPUs, which are of no use to it and not among `nodes`.
    """

    nodes: int = 0
    idle: int = 0
    shared: int = 0
    free_min: int = 0
    free_max: int = 0
    cores: int = 0
    full: int = 0
    ours: int = 0
    away: int = 0
    other: int = 0
    equipped: int = 0
    bare: int = 0

    @property
    def are_for_gpus(self) -> bool:
        """Whether all work that they are counted for needs GPUs."""
        return 0 < self.nodes == self.equipped


class Hindrance(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a site asks for no more nodes. `cause`: one word (`harvest.plan.waves.Binding`), or a sentence.
    `nodes`: of the pools where that holds back more; None = it concerns no particular nodes."""

    cause: str
    nodes: NodeCounts | None = None


class QueuedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why allocations of Tidemill wait in the queue, in the batch system's own words at the last poll. `meaning`: the
    same in plain words, empty where the word is not a known one."""

    reason: str
    allocations: int
    meaning: str = ""


def total(counts: Iterable[NodeCounts]) -> NodeCounts:
    """The counts of several pools together."""
    found = list(counts)
    shared = [each for each in found if each.shared]

    def sum_of(name: str) -> int:
        return sum(getattr(each, name) for each in found)

    return NodeCounts(
        nodes=sum_of("nodes"),
        idle=sum_of("idle"),
        shared=sum_of("shared"),
        free_min=min((each.free_min for each in shared), default=0),
        free_max=max((each.free_max for each in shared), default=0),
        cores=max((each.cores for each in shared), default=0),
        full=sum_of("full"),
        ours=sum_of("ours"),
        away=sum_of("away"),
        other=sum_of("other"),
        equipped=sum_of("equipped"),
        bare=sum_of("bare"),
    )


def free_text(counts: NodeCounts) -> str:
    """`6 nodes have 3 of 8 cores free`; empty where no node is in use in part."""
    if not counts.shared:
        return ""
    has = "has" if counts.shared == 1 else "have"
    free = str(counts.free_min)
    if counts.free_max > counts.free_min:
        free += f" to {counts.free_max}"
    return f"{counted_text(counts.shared, 'node')} {has} {free} of {counts.cores} cores free"


def _rest(counts: NodeCounts) -> list[str]:
    """The nodes that are neither idle nor in use in part, by what they are."""
    rows = (
        (counts.full, "fully in use"),
        (counts.ours, "in use by Tidemill"),
        (counts.away, "down or drained"),
        (counts.other, "reserved, asleep or not free yet"),
    )
    return [f"{number} {'is' if number == 1 else 'are'} {what}" for number, what in rows if number]


def states_text(counts: NodeCounts) -> str:
    """All nodes by what they are: `6 nodes: 1 is idle; 3 nodes have 3 of 8 cores free; 2 are fully in use`."""
    idle = [f"{counts.idle} {'is' if counts.idle == 1 else 'are'} idle"] if counts.idle else []
    parts = [*idle, *filter(None, [free_text(counts)]), *_rest(counts)]
    return f"{counted_text(counts.nodes, 'node')}: {'; '.join(parts)}" if parts else "no node"


def wait_for_idle_text(counts: NodeCounts) -> str:
    """The sentence for work that waits because no node is idle."""
    if counts.are_for_gpus:
        text = _wait_text(counts, "node with GPUs")
        bare = counted_text(counts.bare, "node")
        return (
            f"{text}; {bare} without GPUs {'is' if counts.bare == 1 else 'are'} idle" if counts.bare else text
        )
    return _wait_text(counts, "node")


def _wait_text(counts: NodeCounts, node: str) -> str:
    if counts.shared:
        text = f"waiting for a wholly idle {node}: {free_text(counts)}, and this version uses whole nodes"
        return "; ".join([text, *_rest(counts)])
    if counts.nodes and counts.full + counts.ours == counts.nodes:
        whole = "the only node is" if counts.nodes == 1 else f"all {counts.nodes} nodes are"
        if not counts.ours:
            return f"waiting for an idle {node}: {whole} fully in use"
        if not counts.full:
            return f"waiting for an idle {node}: {whole} in use by Tidemill"
    if counts.nodes and counts.away == counts.nodes:
        whole = "the only node is" if counts.nodes == 1 else f"all {counts.nodes} nodes are"
        return f"waiting for an idle {node}: {whole} down or drained"
    rest = "; ".join(_rest(counts))
    if not rest:
        return f"waiting for an idle {node}"
    return f"waiting for an idle {node}: of {counted_text(counts.nodes, 'node')} {rest}"


def queued_text(reasons: Iterable[QueuedReason]) -> str:
    """What the batch system says of allocations that wait: `` `Priority` (jobs of higher priority are first) ``."""
    found = list(reasons)
    texts = []
    for each in found:
        number = f"{each.allocations} of them " if len(found) > 1 else ""
        meaning = f": {each.meaning}" if each.meaning else ""
        texts.append(f"{number}`{each.reason}`{meaning}")
    return "; ".join(texts)
