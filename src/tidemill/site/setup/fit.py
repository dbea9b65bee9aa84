"""Whether Tidemill fits a partition: from what its nodes do now and did in the last day, to what to expect. Pure.

This version uses whole nodes. On clusters whose nodes are shared, a node with one small job on it is of no use to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.batch.slurm.node_time import NodeTime
from tidemill.model.machine import Node, NodeState
from tidemill.model.quantities import counted_text, percent_text
from tidemill.site.setup.finding import Finding

CHECK = "fit"
SEE = "page `Will it work` of the documentation: docs/will-it-work.md of the source"
IDLE_SHARE_MIN = 0.05
"""Below that, work waits longer than it runs: of 20 nodes, one is wholly idle on average."""


class NodesNow(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a partition now. `working`: all that are not down or drained; `part`: those with jobs and free
    cores."""

    working: int
    idle: int
    part: int = 0
    free_least: int = 0  #: free cores of one of `part`
    free_most: int = 0
    cores: int = 0  #: of a node, at least
    with_gpus: int = 0
    idle_with_gpus: int = 0


def members(nodes: Sequence[Node], partition: str) -> list[Node]:
    """The working nodes of a partition; all, where the batch system does not say which are."""
    inside = [node for node in nodes if partition in node.partitions] or list(nodes)
    return [node for node in inside if node.state is not NodeState.AWAY]


def nodes_now(nodes: Sequence[Node]) -> NodesNow:
    """Counts of working nodes: idle, shared, busy."""
    part = [node.cores_free for node in nodes if node.state is NodeState.SHARED and node.cores_free > 0]
    idle = [node for node in nodes if node.state is NodeState.IDLE]
    return NodesNow(
        working=len(nodes),
        idle=len(idle),
        part=len(part),
        free_least=min(part, default=0),
        free_most=max(part, default=0),
        cores=min((node.cores for node in nodes), default=0),
        with_gpus=sum(_has_gpus(node) for node in nodes),
        idle_with_gpus=sum(_has_gpus(node) for node in idle),
    )


def _has_gpus(node: Node) -> bool:
    return any(name == "gpu" for name, _ in node.devices)


def fit_findings(
    facts: Facts, partition: PartitionFacts, past: NodeTime | None, why_no_past: str = ""
) -> list[Finding]:
    """What to expect of the partition: one finding of three lines, and one more where some of its nodes have GPUs.

    `past`: the last day; `why_no_past`: why it is not known.
    """
    now = nodes_now(members(facts.nodes, partition.name))
    if not now.working:
        return []
    lines = [_use(facts, partition), _idle(now, past, why_no_past), _rest(now, past)]
    is_fit = now.idle > 0 or (past is not None and past.idle >= IDLE_SHARE_MIN)
    return [
        Finding(CHECK, "ok" if is_fit else "warn", "\n".join(filter(None, lines)), SEE),
        *_gpus(now),
    ]


def _use(facts: Facts, partition: PartitionFacts) -> str:
    """Whole nodes, and how the partition hands out nodes."""
    settings = [facts.scheduler.get(key, "") for key in ("SelectType", "SelectTypeParameters")]
    words = ", ".join(filter(None, [partition.sharing, *settings]))
    quoted = f" ({words})" if words else ""
    if partition.sharing.startswith("OverSubscribe=FORCE"):
        return (
            f"This version of Tidemill uses whole nodes, but jobs of `{partition.name}` cannot keep others off their "
            f"nodes{quoted}."
        )
    if not partition.is_shared:
        return f"This version of Tidemill uses whole nodes, as all jobs of `{partition.name}` do{quoted}."
    return f"This version of Tidemill uses whole nodes; jobs of `{partition.name}` share nodes{quoted}."


def _idle(now: NodesNow, past: NodeTime | None, why_no_past: str) -> str:
    """Wholly idle nodes, now and before."""
    verb = "is" if now.idle == 1 else "are"
    text = f"Now {now.idle} of {counted_text(now.working, 'node')} {verb} wholly idle"
    if past is None:
        return f"{text}; only the present is known: {why_no_past or 'past jobs cannot be read here'}."
    hours = round((past.until_s - past.since_s) / 3600)
    when = "day" if hours == 24 else "hour" if hours == 1 else f"{hours} hours"
    return f"{text}; over the last {when} {_percent(past.idle)} of node time was."


def _rest(now: NodesNow, past: NodeTime | None) -> str:
    """Free cores that are of no use, and what follows."""
    parts = ""
    if now.part:
        free = (
            f"{now.free_least}" if now.free_least == now.free_most else f"{now.free_least} to {now.free_most}"
        )
        verb = "has" if now.part == 1 else "have"
        cores = f"{free} of {now.cores}" if now.cores else free
        parts = (
            f"{counted_text(now.part, 'node')} {verb} cores free that it cannot use ({cores} cores each). "
        )
    if now.idle:
        return f"{parts}Work can start now."
    if past is None:
        return f"{parts}Work waits until a node is wholly idle."
    if past.idle < IDLE_SHARE_MIN:
        return f"{parts}Expect long waits{'; a job array can use the free cores now' if parts else ''}."
    return f"{parts}Work waits until a node is wholly idle: on average {past.idle * past.nodes:.2g} of them were."


def _percent(share: float) -> str:
    return percent_text(share) if share >= 0.01 or not share else "less than 1 %"


def _gpus(now: NodesNow) -> list[Finding]:
    if not now.with_gpus or now.with_gpus == now.working:
        return []
    text = (
        f"{now.with_gpus} of {counted_text(now.working, 'node')} have GPUs, {now.idle_with_gpus} of them "
        "wholly idle"
    )
    return [Finding("GPU nodes", "ok", text)]
