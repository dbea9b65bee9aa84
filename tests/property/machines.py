"""Machines that hypothesis makes up: all states, overlapping partitions, plans, reservations, ours among them."""

from __future__ import annotations

from hypothesis import strategies as st

from tidemill.model.machine import Node, NodeState, Partition, Queued, Reservation, Running, Snapshot

NOW = 1_000_000.0
NAMES = [f"n{k:02}" for k in range(6)]
PARTITIONS = ("batch", "debug")

node_names = st.lists(st.sampled_from(NAMES), unique=True, max_size=6).map(tuple)
soon = st.integers(-500, 5000).map(lambda seconds: NOW + seconds)
features = st.sets(st.sampled_from(["big", "gpu"])).map(lambda found: tuple(sorted(found)))
places = st.sets(st.sampled_from(PARTITIONS), min_size=1).map(lambda found: tuple(sorted(found)))


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    made = []
    for name in NAMES:
        cores = draw(st.sampled_from([32, 64]))
        state = draw(st.sampled_from([*NodeState, NodeState.IDLE, NodeState.IDLE]))
        made.append(
            Node(
                name=name,
                state=state,
                cores=cores,
                memory_mb=draw(st.sampled_from([1000, 2000])),
                cores_free=cores if state is NodeState.IDLE else cores // 2,
                partitions=draw(places),
                features=draw(features),
            )
        )
    return made


@st.composite
def queued(draw: st.DrawFn, number: int) -> Queued:
    planned = draw(st.none() | soon)
    return Queued(
        id=str(number),
        name="x",
        user="other",
        width=draw(st.integers(1, 7)),
        walltime_s=draw(st.integers(60, 9000)),
        partitions=draw(places),
        features=draw(features),
        is_feature_list_exact=draw(st.booleans()),
        memory_mb_per_node=draw(st.sampled_from([0, 1500])),
        planned_s=planned,
        planned_nodes=() if planned is None else draw(node_names),
        eligible=draw(st.booleans()),
        ours=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    running = [
        Running(
            id=f"r{k}",
            name=f"a{k}",
            user="other",
            nodes=held,
            width=len(held),
            started_s=NOW - 100,
            ends_s=draw(soon),
            whole=draw(st.booleans()),
            ours=draw(st.booleans()),
        )
        for k, held in enumerate(draw(st.lists(node_names, max_size=3)))
    ]
    reservations = [
        Reservation(
            name=f"v{k}", start_s=start, end_s=start + draw(st.integers(1, 3000)), nodes=draw(node_names)
        )
        for k, start in enumerate(draw(st.lists(soon, max_size=3)))
    ]
    return Snapshot(
        at_s=NOW,
        nodes=draw(nodes()),
        running=running,
        queued=[draw(queued(k)) for k in range(draw(st.integers(0, 6)))],
        reservations=reservations,
        partitions=[
            Partition(name=name, nodes=(), walltime_max_s=draw(st.none() | st.integers(100, 9000)))
            for name in PARTITIONS
        ],
    )
