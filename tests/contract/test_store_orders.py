"""Everything that people and sites can do, in any order, with the archive at work: sums agree with rows, always."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.contract.server_world import World, done, failed, release_of
from tests.contract.test_store_archive import Kept
from tests.contract.test_store_delivery import KeepingSite, delivered

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Deliver, JobSpec
from tidemill.server.database.rows import StoredJob
from tidemill.server.errors import ConflictError, MissingError, RequestError
from tidemill.wire.api import (
    ActionRequest,
    CancelOrder,
    DeliverOrder,
    DiscardOrder,
    ForgetOrder,
    LeaseOrder,
    Order,
)

pytest.importorskip("pyarrow")
STEPS = 150
STATES = 6


class Worker(KeepingSite):
    """A site that does things whenever it likes, and answers every order in the end."""

    def __init__(self, world: World, name: str, random: Random) -> None:
        super().__init__(world, name)
        self.random = random
        self.held: dict[int, dict[int, LeaseOrder]] = {}
        self.open: dict[int, IntervalSet] = {}
        self.due: dict[int, DeliverOrder] = {}
        self.ready: list[Any] = []

    def turn(self, *, want: float) -> None:
        reports, self.ready = self.ready, []
        self.take(self.sync(*reports, want=want))
        if self.random.random() < 0.8:
            self.work()

    def take(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, LeaseOrder):
                self.held.setdefault(order.job, {})[order.lease] = order
                self.open.setdefault(order.job, IntervalSet()).add(order.first, order.first + order.count)
            elif isinstance(order, CancelOrder) and order.keep:
                self.due.pop(order.job, None)
                self.give_back(order.job)
            elif isinstance(order, CancelOrder | ForgetOrder):
                for table in (self.held, self.open, self.due):
                    table.pop(order.job, None)  # type: ignore[attr-defined]
            elif isinstance(order, DiscardOrder):
                pass
            elif isinstance(order, DeliverOrder):
                self.due[order.job] = order

    def give_back(self, job: int) -> None:
        for first, end in list(self.open.get(job, IntervalSet())):
            self.ready += self.pieces(job, first, end, lambda lease, at, count: release_of(lease, at, count))

    def pieces(self, job: int, first: int, end: int, make: Any) -> list[Any]:
        found = []
        for event in range(first, end):
            lease = max(
                (each for each in self.held[job].values() if each.first <= event < each.first + each.count),
                key=lambda each: each.lease, default=None,
            )  # fmt: skip
            if lease is not None and self.open[job].remove(event, event + 1):
                found.append(make(lease, event, 1))
        return found

    def work(self) -> None:
        for job in list(self.open):
            for first, end in list(self.open[job]):
                for event in range(first, end):
                    dice = self.random.random()
                    if dice < 0.5:
                        outputs = job % 2 == 0
                        self.ready += self.pieces(
                            job,
                            event,
                            event + 1,
                            lambda lease, at, count, o=outputs: done(lease, at, count, outputs=o),
                        )
                    elif dice < 0.65:
                        self.ready += self.pieces(
                            job, event, event + 1, lambda lease, at, count: failed(lease, at)
                        )
                    elif dice < 0.7:
                        self.ready += self.pieces(job, event, event + 1, release_of)
        for job in list(self.due):
            if self.random.random() < 0.6:
                order = self.due.pop(job)
                self.ready.append(delivered(order))


def act(kept: Kept, random: Random, campaigns: list[str], jobs: list[int]) -> None:
    world = kept.world
    dispatcher = world.dispatcher
    dice = random.random()
    try:
        if dice < 0.25 or not jobs:
            campaign = random.choice(campaigns)
            after = [random.choice(jobs)] if jobs and random.random() < 0.3 else []
            specs = [
                JobSpec(
                    app=random.choice(["sim", "reco"]), events=random.choice([1, 1, 4]), after=after,
                    failed_max=random.choice([0, 1]), after_any=random.random() < 0.5,
                    **({"deliver": Deliver.COMPLETE} if random.random() < 0.2 else {}),
                )
                for _ in range(random.randint(1, 3))
            ]  # fmt: skip
            jobs += world.submit(*specs, campaign=campaign, owner=campaign[0])
        elif dice < 0.8:
            handle = random.choice(
                [dispatcher.handle_cancel, dispatcher.handle_retry, dispatcher.handle_retry,
                 dispatcher.handle_accept, dispatcher.handle_discard]
            )  # fmt: skip
            if random.random() < 0.6:
                handle(ActionRequest(jobs=[random.choice(jobs)]))
            else:
                handle(ActionRequest(campaign=random.choice(campaigns)))
        elif dice < 0.9:
            kept.run()
        elif dice < 0.95:
            archiver = kept.archiver()
            for _ in range(random.randint(1, 3)):
                archiver.step(world.reader)
        else:
            world.now_s += random.choice([1, 700])
            dispatcher.check_sites()
    except (RequestError, MissingError, ConflictError):
        pass


def query(session: Any, text: str) -> list[tuple[Any, ...]]:
    run = session._ready().execute if hasattr(session, "_ready") else session._connection.execute
    return [tuple(each) for each in run(text).fetchall()]


def check(kept: Kept, where: str) -> None:
    session = kept.world.reader
    rows = [StoredJob(*each) for each in session.rows("jobs_by_id", ids=kept.live())]
    counts = {
        (k, s, w): n for k, s, w, n in query(session, "SELECT kind, state, site, jobs FROM counts") if n
    }
    assert counts == Counter((job.kind, job.state, job.site) for job in rows), where
    for job in rows:
        sets = [IntervalSet.parse(text) for text in (job.done, job.failed, job.leased)]
        assert [len(each) for each in sets] == [job.n_done, job.n_failed, job.n_leased], (where, job)
        assert sum(map(len, sets)) <= job.events, (where, job)
        if job.state > 1:
            assert (job.n_leased, job.delivering, job.ends, job.ready) == (0, 0, 0, 0), (where, job)
        if job.kept:
            assert job.home, (where, job)
            assert job.place, (where, job)
    live = query(session, "SELECT id, jobs, events, events_done, events_failed, owner FROM campaigns")
    kinds = dict(query(session, "SELECT id, campaign FROM kinds"))
    whole = {each[0] for each in query(session, "SELECT id FROM campaigns WHERE batch = 0")}
    for number, n_jobs, events, n_done, n_failed, _ in live:
        mine = [job for job in rows if kinds[job.kind] == number]
        if number in whole:
            assert n_jobs == len(mine), where
            assert events == sum(job.events for job in mine), where
            assert (n_done, n_failed) == (sum(j.n_done for j in mine), sum(j.n_failed for j in mine)), where
    archived = query(
        session, "SELECT id, jobs, events, events_done, events_failed, owner FROM archived_campaigns"
    )
    totals = dict(session.rows("totals"))
    for column, name in enumerate(("jobs", "events", "events_done", "events_failed"), 1):
        assert totals.get(name, 0) == sum(each[column] for each in live + archived), (where, name)
        for owner in {each[5] for each in live + archived}:
            own = dict(session.rows("totals_of_owner", owner=owner))
            assert own.get(name, 0) == sum(e[column] for e in live + archived if e[5] == owner), (where, name)
    assert totals.get("campaigns", 0) == len(live) + len(archived), where
    if kept.world.dispatcher.writer.memory.is_loaded:
        opened = Counter((j.kind, j.state, j.site) for j in rows if j.state <= 1)
        memory = kept.world.dispatcher.writer.memory.open.of_kind
        assert {(k, *leg): n for k, legs in memory.items() for leg, n in legs.items()} == opened, where
    waits = Counter(each for (each,) in query(session, "SELECT job FROM deps"))
    assert all(job.blocked == waits[job.id] for job in rows if job.state <= 1), where
    for table in ("leases", "failures", "outputs", "deps", "needs", "lost_results"):
        orphans = query(session, f"SELECT job FROM {table} WHERE job NOT IN (SELECT id FROM jobs)")
        assert not orphans, (where, table)


@pytest.mark.parametrize("seed", range(6))
def test_sums_agree_with_rows_whatever_is_done_in_whatever_order(
    world: World, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    kept = Kept(world, tmp_path / "archive")
    sites = [Worker(world, name, random) for name in ("s", "t")]
    campaigns = [f"{owner}-{number}" for owner in "ab" for number in range(4)]
    jobs: list[int] = []
    for step in range(STEPS):
        if random.random() < 0.5:
            act(kept, random, campaigns, jobs)
        else:
            random.choice(sites).turn(want=random.choice([0.0, 5.0, 1e6]))
        if step % 5 == 0:
            check(kept, f"seed {seed}, step {step}")
    for _ in range(30):
        for site in sites:
            site.turn(want=1e6)
    check(kept, f"seed {seed}, at the end")
    states = Counter(world.state(each) for each in kept.live())
    stuck = [StoredJob(*each) for each in world.reader.rows("jobs_by_id", ids=kept.live()) if each[3] <= 1]
    assert not states["RUNNING"], [
        (j, [(s.name, s.open.get(j.id), s.due.get(j.id)) for s in sites]) for j in stuck
    ]
