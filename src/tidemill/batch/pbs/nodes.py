"""Nodes and queues of PBS, from `pbsnodes -a -F json` and `qstat -Q -f -F json`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemill.batch.pbs.replies import Record, read_bytes, read_duration, read_number, table_of, text_of
from tidemill.batch.pbs.requests import hosts_of
from tidemill.model.machine import Node, NodeState, Partition

AWAY = {"offline", "down", "stale", "state-unknown", "unresolvable", "maintenance", "Stale", "down-maint"}
WAKING = {"provisioning", "wait-provisioning", "initializing", "provision"}
SLEEPING = {"sleep", "sleeping"}
FULL = {"job-busy", "job-exclusive", "busy"}
_WHOLE = ("default_excl", "default_exclhost", "force_excl", "force_exclhost")
"""Words of `sharing` for vnodes that a job gets as a whole (pbs_node_attributes(7B))."""

_PLAIN = {"ncpus", "mem", "vmem", "host", "vnode", "mpiprocs"}


def read_nodes(vnodes: Mapping[str, Record], queues: dict[str, Record]) -> list[Node]:
    """Hosts, each made of its vnodes."""
    hosts: dict[str, list[Record]] = {}
    for name, host in hosts_of(vnodes).items():
        hosts.setdefault(host, []).append(vnodes[name])
    return [_node(host, parts, queues) for host, parts in hosts.items()]


def read_partitions(queues: dict[str, Record], nodes: list[Node], default: str) -> list[Partition]:
    """Execution queues. Where the default queue only routes, the first of its destinations is the default."""
    route = text_of(queues.get(default, {}), "route_destinations")
    first = route.split(",")[0].partition("@")[0] if route else default
    found: list[Partition] = []
    for name, each in queues.items():
        if text_of(each, "queue_type").startswith("R") and "route_destinations" in each:
            continue
        width_max = text_of(each, "resources_max", "nodect")
        inside = [node for node in nodes if name in node.partitions]
        words = {word for node in inside for word in node.sharing.split(",") if word}
        partition = Partition(
            name=name,
            nodes=tuple(node.name for node in inside),
            walltime_max_s=read_duration(text_of(each, "resources_max", "walltime")),
            width_max=read_number(width_max) if width_max else None,
            width_min=max(1, read_number(text_of(each, "resources_min", "nodect"))),
            is_up=text_of(each, "enabled") == "True" and text_of(each, "started") == "True",
            is_default=name == first,
            is_shared=not words or not all(word.endswith(_WHOLE) for word in words),
            sharing=f"sharing={','.join(sorted(words))}" if words else "",
            tier=read_number(text_of(each, "Priority")) or 1,
        )
        found.append(partition)
    return found


def _node(host: str, parts: list[Record], queues: dict[str, Record]) -> Node:
    states = {word.strip() for each in parts for word in text_of(each, "state").split(",")}
    cores = sum(read_number(text_of(each, "resources_available", "ncpus")) for each in parts)
    used = sum(read_number(text_of(each, "resources_assigned", "ncpus")) for each in parts)
    is_used = any(each.get("jobs") for each in parts)
    sharing = {text_of(each, "sharing") for each in parts}
    state = _state(states, cores - used, is_used=is_used, is_whole=any("excl" in each for each in sharing))
    if cores <= 0:  # no chunk fits there, as on hosts that only offer a licence
        state = NodeState.AWAY
    resources = {
        name: value
        for each in parts
        for name, value in table_of(each, "resources_available").items()
        if isinstance(value, str)
    }
    memory = sum(read_bytes(text_of(each, "resources_available", "mem")) for each in parts)
    memory_used = sum(read_bytes(text_of(each, "resources_assigned", "mem")) for each in parts)
    takes_jobs = state in (NodeState.IDLE, NodeState.SHARED)
    gpus = sum(read_number(text_of(each, "resources_available", "ngpus")) for each in parts)
    return Node(
        name=host,
        state=state,
        cores=cores,
        memory_mb=memory // 1_000_000,
        cores_free=max(0, cores - used) if takes_jobs else 0,
        memory_free_mb=max(0, memory - memory_used) // 1_000_000 if takes_jobs else 0,
        partitions=tuple(
            name for name, each in queues.items() if _serves(parts[0], resources, name, each, queues)
        ),
        features=tuple(sorted(_features(resources))),
        devices=(("gpu", gpus),) if gpus else (),
        sharing=",".join(sorted(sharing - {""})),
        word=",".join(sorted(states)),
    )


def _state(states: set[str], cores_free: int, *, is_used: bool, is_whole: bool) -> NodeState:
    """Words of all vnodes; the worst one counts. Words that we do not know take no job."""
    if states & AWAY or not states:
        return NodeState.AWAY
    if states & WAKING:
        return NodeState.WAKING
    if states & SLEEPING:
        return NodeState.SLEEPING
    if "resv-exclusive" in states and not is_used:
        return NodeState.RESERVED
    if states - FULL - {"free", "resv-exclusive"}:
        return NodeState.AWAY
    if not is_used and not states & FULL:
        return NodeState.IDLE
    if "free" not in states or cores_free <= 0 or is_whole:
        return NodeState.BUSY
    return NodeState.SHARED


def _serves(  # a node's own queue, else what the queue's default chunk asks for
    vnode: Record, resources: dict[str, str], name: str, queue: Record, queues: dict[str, Record]
) -> bool:
    own = text_of(vnode, "queue")
    if own:
        return own == name
    wanted = queue.get("default_chunk")
    for key, value in wanted.items() if isinstance(wanted, dict) else ():
        if key in _PLAIN or not isinstance(value, str) or value.isdecimal():
            continue
        has = resources.get(key)
        if has is None and value.lower() != "false" and len(queues) > 1:
            return False
        if has is not None and value.lower() not in [each.lower() for each in has.split(",")]:
            return False
    return True


def _features(resources: Mapping[str, str]) -> Iterator[str]:
    """`gpu_type=A100`; a boolean that is set also by its name alone, as `cluster.features` may name it."""
    for name, value in resources.items():
        if name not in _PLAIN:
            yield f"{name}={value}"
            if value == "True":
                yield name
