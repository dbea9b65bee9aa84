"""On a real Slurm: from its snapshots to counts, to a decision, to names, until the regular job runs; what it cost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.worlds.batch.batch_slurm import TIMING, SlurmWorld, world
from tests.worlds.batch.slurm_cluster import CORES, NODES, OTHER_USER

from tidemill import clock
from tidemill.batch.contract import BatchSubmission, element_name
from tidemill.harvest.account.broker_log import RegularStarted
from tidemill.harvest.account.harm import Tracker, Yielded
from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Limits, Situation
from tidemill.harvest.snapshot.pools import Terms, cut
from tidemill.model.machine import Snapshot
from tidemill.model.state import AllocationState
from tidemill.site.nodes.planning import just_ended, without_dying

pytestmark = pytest.mark.timing(**TIMING)

PILOTS = "tm-a-e1-1"
BACKLOG = Backlog(node_s=1e6, nodes_max=NODES, event_s=1)
LIMITS = Limits(nodes_max=NODES, allocations_max=NODES, poll_s=1, cycle_s=1, death_s=1)
TERMS = Terms(partition="batch", end_slack_s=5)


class Broker:
    """Looks, decides, cancels; submits nothing more."""

    def __init__(self, slurm: SlurmWorld) -> None:
        self._batch = slurm.open()
        self._tracker = Tracker(1.0)
        self._before: Snapshot | None = None
        self.canceled: list[str] = []
        self.yielded_to: set[str] = set()
        self.started: list[RegularStarted] = []

    def submit(self) -> None:
        self._batch.submit(
            BatchSubmission(
                name=PILOTS,
                command=["sleep", "600"],
                nodes=1,
                cores=CORES,
                memory_mb=0,
                walltime_s=600,
                count=NODES,
                partition="batch",
            )
        )

    def active(self) -> int:
        answers = self._batch.status([element_name(PILOTS, k, NODES) for k in range(NODES)])
        return sum(each.state is AllocationState.ACTIVE for each in answers.values())

    def snapshot(self) -> Snapshot:
        return self._batch.snapshot()

    def look(self) -> Situation:
        snapshot = self.snapshot()
        left, ending = without_dying(snapshot, self.canceled, just_ended(self._before, snapshot))
        self._before = snapshot
        held = [Held(name=job.name, width=1, is_waiting=False) for job in left.running if job.ours]
        terms = msgspec.structs.replace(TERMS, ending=ending)
        (pool,) = cut(left, held, terms, backlog=BACKLOG, limits=LIMITS)
        decision = decide(pool.situation, Policy.YIELD)
        names = [
            name for each in decision.cancel for name in pool.situation.holdings[each.key].names[: each.count]
        ]
        self.started += self._tracker.on_poll(snapshot, [Yielded("e1-1", pool.situation, decision)])
        self.yielded_to |= set(decision.yields_to)
        new = [name for name in names if name not in self.canceled]
        if new:
            self._batch.cancel(new)
            self.canceled += new
        return pool.situation


@pytest.fixture
def slurm(request: pytest.FixtureRequest, tmp_path: Path) -> SlurmWorld:
    with world(request, tmp_path) as found:
        assert isinstance(found, SlurmWorld)
        return found


def test_a_regular_job_gets_the_nodes_that_it_could_have_and_no_more_go(slurm: SlurmWorld) -> None:
    cluster, broker = slurm.cluster, Broker(slurm)
    broker.submit()
    cluster.wait(lambda: broker.active() == NODES, "a pilot runs on every node")
    situation = broker.look()
    assert (situation.nodes, situation.idle, situation.busy, situation.queue) == (NODES, 0, [], [])
    assert sum(each.count for each in situation.holdings) == NODES

    words = ("sbatch", "--parsable", "-p", "batch", "-N2", "-t10", "-o", "/dev/null", "--chdir=/")
    submitted_s = clock.now_us() / 1e6
    job = cluster.run_as_user(*words, "--wrap", "sleep 600", user=OTHER_USER).strip()

    def runs() -> bool:
        broker.look()
        return any(each.id == job for each in broker.started)

    cluster.wait(runs, "the regular job runs")
    situation = broker.look()
    assert broker.yielded_to == {job}
    assert len(broker.canceled) == 2
    assert sum(each.count for each in situation.holdings if not each.waiting) == NODES - 2
    assert sum(each.width for each in situation.busy) == 2

    (record,) = broker.started
    assert (record.user, record.width, record.plans) == (OTHER_USER, 2, ["e1-1"])
    assert record.could_start_s is not None
    assert record.started_s is not None
    assert submitted_s - 1 <= record.could_start_s <= record.started_s  # Slurm tells whole seconds
    assert 0 <= record.share_s <= record.started_s - record.could_start_s
