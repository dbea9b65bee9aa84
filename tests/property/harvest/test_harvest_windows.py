"""Windows keep their promise whatever the machine looks like."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.property.machines import NOW, features, queued, snapshots

from tidemill.harvest.snapshot.windows import Request, free_until, windows
from tidemill.model.machine import Queued, Snapshot

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
