"""The last day of a partition's nodes, where Slurm's accounting shows it."""

from __future__ import annotations

from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.batch.slurm.node_time import NodeTime, recent
from tidemill.errors import TidemillError
from tidemill.model.machine import NodeState
from tidemill.site.setup.fit import members


def last_day(facts: Facts, partition: PartitionFacts, *, batch: str) -> tuple[NodeTime | None, str]:
    """How its nodes were used, or why that is not known. Takes 20 s at most."""
    if batch != "slurm":
        return None, "Tidemill reads the accounting of Slurm only"
    if not facts.is_accounted:
        return None, "no accounting can be asked (sacct with slurmdbd)"
    if facts.others_hidden:
        return None, "other users' jobs are hidden"
    nodes = members(facts.nodes, partition.name)
    busy = [node.name for node in nodes if node.state in (NodeState.BUSY, NodeState.SHARED)]
    idle = {node.name for node in nodes if node.state is NodeState.IDLE}
    try:
        return recent({node.name: node.cores for node in nodes}, idle=idle, busy=busy), ""
    except TidemillError as error:
        return None, error.message
