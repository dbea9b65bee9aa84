"""Whatever polls see and in whatever order: no part of a wait that is laid to Tidemill is more than the wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.harvest.account.broker_log import AnyRecord, PlanMade, RegularStarted
from tidemill.harvest.account.harm import Tracker, Yielded, part_of, wait_of
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Situation, Waiting
from tidemill.model.machine import Queued, Running, Snapshot

BEGIN_S = 20_000 * 86400.0
TOLERANCE_S = 1e-3


class Life:
    """A regular job: when it was submitted, started and ended, by the batch system; None = it was canceled."""

    def __init__(self, submitted: int, wait: int, run: int, *, starts: bool) -> None:
        self.submitted_s = BEGIN_S + submitted
        self.started_s = self.submitted_s + wait
        self.ended_s = self.started_s + (run if starts else 0)


lives = st.lists(
    st.builds(Life, st.integers(-300, 900), st.integers(0, 400), st.integers(1, 400), starts=st.booleans()),
    min_size=1,
    max_size=8,
)
polls = st.lists(st.integers(1, 120), min_size=1, max_size=40)


def snapshot_of(jobs: dict[str, Life], at_s: float) -> Snapshot:
    """What a poll sees."""
    waiting = [name for name, job in jobs.items() if job.submitted_s <= at_s < job.started_s]
    runs = [name for name, job in jobs.items() if job.started_s <= at_s < job.ended_s]
    return Snapshot(
        at_s=at_s,
        nodes=[],
        queued=[
            Queued(id=name, name="x", user="ann", width=1, walltime_s=600, submitted_s=jobs[name].submitted_s)
            for name in waiting
        ],
        running=[
            Running(
                id=name,
                name="x",
                user="ann",
                nodes=(),
                width=1,
                started_s=jobs[name].started_s,
                ends_s=jobs[name].started_s + 600,
                submitted_s=jobs[name].submitted_s,
            )
            for name in runs
        ],
    )


def yields(snapshot: Snapshot, names: list[str], idle: int) -> Yielded:
    """A decision that yields to these jobs, with so many idle nodes."""
    situation = Situation(
        now_s=snapshot.at_s,
        nodes=16,
        idle=idle,
        busy=[],
        queue=[Waiting(job.id, job.width, job.walltime_s) for job in snapshot.queued],
        outages=[],
        holdings=[],
        backlog=Backlog(node_s=0, nodes_max=0, event_s=1),
        limits=Limits(nodes_max=0, allocations_max=0),
    )
    return Yielded("e1-1" if names else "", situation, Decision(yields_to=names))


@given(lives, polls, st.randoms(use_true_random=False), st.integers(0, 40))
def test_no_part_is_more_than_its_wait_and_no_sum_more_than_the_sum(
    found: list[Life], pauses: list[int], chance: object, restart: int
) -> None:
    jobs = {str(number): life for number, life in enumerate(found)}
    tracker = Tracker(30.0)
    written: list[AnyRecord] = []
    at_s = BEGIN_S
    for number, pause in enumerate(pauses):
        if number == restart:
            tracker = Tracker(30.0)
            tracker.restore(written)
        at_s += pause
        snapshot = snapshot_of(jobs, at_s)
        names = [job.id for job in snapshot.queued if chance.random() < 0.6]  # type: ignore[attr-defined]
        if names:
            written.append(
                PlanMade(
                    at_s=at_s,
                    plan="e1-1",
                    pool="p",
                    snapshot_s=at_s,
                    nodes=16,
                    idle=0,
                    busy=0,
                    held=1,
                    waiting=0,
                    queue=len(snapshot.queued),
                    yields_to=names,
                )
            )
        written += tracker.on_poll(snapshot, [yields(snapshot, names, chance.choice((0, 0, 1)))])  # type: ignore[attr-defined]
    records = [each for each in written if isinstance(each, RegularStarted)]
    for record in records:
        job, part = jobs[record.id], part_of(record)
        assert 0 <= part.low <= part.likely <= part.high
        assert part.likely <= job.started_s - job.submitted_s + TOLERANCE_S
        assert part.likely <= wait_of(record) <= job.started_s - job.submitted_s + TOLERANCE_S
        if record.started_s is not None:
            assert part.high <= job.started_s - job.submitted_s + TOLERANCE_S
    waits = sum(jobs[each.id].started_s - jobs[each.id].submitted_s for each in records)
    assert sum(each.share_s for each in records) <= waits + TOLERANCE_S
    totals = [tracker.day(BEGIN_S), tracker.day(BEGIN_S + 86400)]
    assert sum(each.share_s for each in totals) <= sum(each.wait_s for each in totals) + TOLERANCE_S
