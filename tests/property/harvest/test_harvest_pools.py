"""Whatever the machine looks like, the pools' figures add up and nobody is forgotten or counted twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.property.machines import NOW, PARTITIONS, features, snapshots

from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.situation import Backlog, Limits
from tidemill.harvest.snapshot.pools import Terms, cut
from tidemill.model.machine import NodeState, Snapshot

BACKLOG = Backlog(node_s=1e6, nodes_max=100, event_s=300)
LIMITS = Limits(nodes_max=50, allocations_max=40, width_max=8)

terms = st.builds(
    Terms,
    partition=st.sampled_from(["batch", "batch,debug"]),
    features=features,
    exclude=st.sets(st.sampled_from(["n00", "n01"])).map(frozenset),
    wake_nodes=st.booleans(),
    windows_only=st.booleans(),
)
waiting = st.integers(0, 3).map(
    lambda count: [Held(name=f"w{k}", width=1, is_waiting=True, walltime_s=60) for k in range(count)]
)


@given(snapshots(), waiting, terms)
def test_every_node_counts_once(snapshot: Snapshot, held: list[Held], terms: Terms) -> None:
    alive = {node.name: node for node in snapshot.nodes if node.state is not NodeState.AWAY}
    pools = cut(snapshot, held, terms, backlog=BACKLOG, limits=LIMITS)
    regular = {name for job in snapshot.running if not job.ours for name in job.nodes}

    for pool in pools:
        s = pool.situation
        running = sum(each.width * each.count for each in s.holdings if not each.waiting)
        assert s.nodes == s.idle + sum(each.width for each in s.busy) + running
        assert all(each.ends_s > NOW for each in s.busy)
        assert all(NOW <= each.start_s < each.end_s for each in s.outages)
        assert all(1 <= each.width <= s.nodes for each in s.queue)
        assert max([count for count, _ in s.windows], default=0) <= s.idle
    takes = (NodeState.IDLE, NodeState.SLEEPING)
    free = [name for name, node in alive.items() if node.state in takes and name not in regular]
    assert sum(pool.situation.idle for pool in pools) <= len(free)


@given(snapshots(), waiting, terms)
def test_every_allocation_of_ours_stands_behind_one_holding(
    snapshot: Snapshot, held: list[Held], terms: Terms
) -> None:
    gone = (NodeState.AWAY, NodeState.ENDING)
    away = {node.name for node in snapshot.nodes if node.state in gone}
    pools = cut(snapshot, held, terms, backlog=BACKLOG, limits=LIMITS)
    named = Counter(name for pool in pools for each in pool.situation.holdings for name in each.names)
    assert not named or max(named.values()) == 1
    for job in snapshot.running:
        if job.ours and job.nodes and away.isdisjoint(job.nodes):
            assert named[job.name] == 1
        if not job.ours:
            assert named[job.name] == 0
    if pools:
        assert all(named[each.name] == 1 for each in held)
    for pool in pools:
        assert all(each.count == len(each.names) for each in pool.situation.holdings)


@given(snapshots(), terms)
def test_only_eligible_jobs_of_others_count_and_in_their_order(snapshot: Snapshot, terms: Terms) -> None:
    order = {job.id: index for index, job in enumerate(snapshot.queued)}
    for pool in cut(snapshot, [], terms, backlog=BACKLOG, limits=LIMITS):
        told = [order[each.id] for each in pool.situation.queue]
        assert told == sorted(set(told))
        for each in pool.situation.queue:
            job = snapshot.queued[order[each.id]]
            assert job.eligible
            assert not job.ours
            assert each.width <= job.width
            assert set(job.partitions) <= set(PARTITIONS)
