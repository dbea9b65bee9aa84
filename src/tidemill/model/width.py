"""What is valid for payloads that span nodes, in words that fit every place that checks a job. Pure."""

from __future__ import annotations

from tidemill.model.job import Resources, Width
from tidemill.model.quantities import counted_text

NODES_MAX = 100_000
RANKS_MAX = 10_000_000


def check_asked(resources: Resources) -> str | None:
    """What is wrong with the figures themselves, at any site; None = nothing."""
    width = resources.width
    if width is None:
        return None
    for key, number, limit in (("nodes", width.nodes, NODES_MAX), ("ranks", width.ranks, RANKS_MAX)):
        if not 1 <= number <= limit:
            return f"`resources.{key}` is {number}, legal is 1 to {limit:,}"
    if width.ranks < width.nodes:
        return f"{width.ranks} ranks on {width.nodes} nodes: every node needs at least one rank"
    if width.ranks % width.nodes:
        fitting = width.ranks // width.nodes * width.nodes
        return (
            f"{width.ranks} ranks cannot be spread evenly over {width.nodes} nodes; "
            f"{fitting} or {fitting + width.nodes} can"
        )
    return None


def check_allowed(width: Width, *, app: str, nodes_max: int, ranks_max: int) -> str | None:
    """Why an application may not be started so; None = it may."""
    if ranks_max < 1:
        return f"application `{app}` is not approved for an MPI launcher: ask for no `nodes` and no `ranks`"
    if width.nodes > nodes_max:
        return f"application `{app}` may span {_nodes(nodes_max)}, the job asks for {width.nodes}"
    if width.ranks > ranks_max:
        return f"application `{app}` may have {ranks_max} ranks, the job asks for {width.ranks}"
    return None


def check_place(width: Width, *, cores: int, nodes: int, cores_per_node: int, launcher: str) -> str | None:
    """Why a site with `nodes` nodes cannot start it; None = it can. `cores`: of one rank; `launcher` empty = none."""
    if not launcher:
        return "this site has no MPI launcher"
    if width.nodes > nodes:
        return f"the job spans {_nodes(width.nodes)}, this site gives it at most {nodes}"
    here = width.ranks // max(1, width.nodes)
    if here * cores > cores_per_node:
        asked = f"{here} ranks of {counted_text(cores, 'core')}"
        return f"{asked} on each node are asked for, a node of this site has {cores_per_node}"
    return None


def text(width: Width) -> str:
    """Such as `4 nodes, 64 ranks`."""
    return f"{_nodes(width.nodes)}, {width.ranks} rank{'s' * (width.ranks != 1)}"


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
