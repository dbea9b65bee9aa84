"""Windows keep their promise whatever the machine looks like."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidemill.harvest.windows import Request, free_until, windows
from tidemill.model.machine import Node, NodeState, Partition, Queued, Reservation, Running, Snapshot

NOW = 1_000_000.0
NAMES = [f"n{k:02}" for k in range(8)]
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
        width=draw(st.integers(1, 8)),
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
            name="x",
            user="other",
            nodes=held,
            width=len(held),
            started_s=NOW - 100,
            ends_s=draw(soon),
            whole=draw(st.booleans()),
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


requests = st.builds(
    Request,
    partition=st.sampled_from(["batch", "batch,debug"]),
    features=features,
    cores=st.sampled_from([0, 8]),
    wake_nodes=st.booleans(),
    guard_s=st.sampled_from([0.0, 10.0]),
)


@given(snapshots(), requests)
def test_no_free_node_is_used_by_anybody_within_its_time(snapshot: Snapshot, request: Request) -> None:
    shared = request.cores > 0
    for name, until in free_until(snapshot, request).items():
        node = next(each for each in snapshot.nodes if each.name == name)
        assert set(request.features) <= set(node.features)
        assert set(request.partition.split(",")) & set(node.partitions)
        assert not any(name in job.nodes for job in snapshot.running if job.whole or not shared)
        for job in snapshot.queued:
            if name in job.planned_nodes and job.planned_s is not None and job.eligible and not job.ours:
                assert until.at_s <= max(NOW, job.planned_s)
        for each in snapshot.reservations:
            if name in each.nodes and each.end_s > NOW:
                assert until.at_s <= max(NOW, each.start_s)
        limits = [each.walltime_max_s for each in snapshot.partitions if each.name in node.partitions]
        assert any(limit is None or until.at_s <= NOW + limit for limit in limits)


@given(snapshots(), requests)
def test_the_staircase_descends_and_counts_what_is_free_so_long(snapshot: Snapshot, request: Request) -> None:
    steps = windows(snapshot, request).steps
    free = free_until(snapshot, request).values()

    assert [step.seconds for step in steps] == sorted({step.seconds for step in steps}, reverse=True)
    assert [step.nodes for step in steps] == sorted({step.nodes for step in steps})
    for step in steps:
        assert step.nodes == sum(until.at_s >= NOW + step.seconds + request.guard_s for until in free)
        assert step.seconds > 0


@given(snapshots(), requests, queued(99))
def test_one_more_job_never_makes_a_window_larger(snapshot: Snapshot, request: Request, job: Queued) -> None:
    before = free_until(snapshot, request)
    after = free_until(msgspec.structs.replace(snapshot, queued=[*snapshot.queued, job]), request)

    assert after.keys() == before.keys()
    assert all(after[name].at_s <= before[name].at_s for name in before)
