"""Where finished events, retries, deliveries and the archive meet: nothing is lost, doubled or left over."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, leases, refused, release_of
from tests.contract.test_store_archive import Kept, Killed
from tests.contract.test_store_delivery import delivered, one, release, started

from tidemill.errors import JobError, SiteError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Deliver, Input, JobSpec
from tidemill.server.archive.archiver import Archiver
from tidemill.server.errors import ConflictError, MissingError, RequestError
from tidemill.wire.api import (
    ActionRequest,
    AllocationReport,
    CancelOrder,
    DeliveredReport,
    DeliverOrder,
    DiscardOrder,
    ForgetOrder,
    LeaseOrder,
    Order,
    OutputRow,
)

pytest.importorskip("pyarrow")
STEPS = 150
FILE = OutputRow(name="hits", url="file:///x", size_bytes=3, sha256="a" * 64)


@pytest.fixture
def kept(world: World, tmp_path: Path) -> Kept:
    return Kept(world, tmp_path / "archive")


def later(kept: Kept, keep_s: float) -> Archiver:
    made = Archiver(kept.world.store, kept.world.dispatcher.writer.write, kept.archive, keep_s=keep_s)
    made.rests, made.piece = False, 2
    return made


def long_ended(kept: Kept, campaign: str) -> None:
    """Its last job ended two hours ago."""
    column = "UPDATE campaigns SET last_ended_us = last_ended_us - 7200000000 WHERE name = '" + campaign + "'"
    kept.world.dispatcher.writer.write(lambda work: work.session._execute(column))  # type: ignore[attr-defined]


def closed(kept: Kept) -> None:
    """The next batch is chosen, and nothing of it has left."""
    assert kept.archiver().step(kept.world.reader)


def source_of(kept: Kept, campaign: str = "source") -> int:
    """A job that has delivered `hits`."""
    (job,) = kept.world.submit(JobSpec(app="reco"), campaign=campaign)
    kept.site.sync(done(leases(kept.site.sync())[0], outputs=True), want=0)
    kept.site.sync(DeliveredReport(n=0, job=job, outputs=[FILE], evidence=None), want=0)
    return job


def test_nothing_of_a_campaign_that_is_chosen_can_be_accepted(kept: Kept) -> None:
    (job,) = kept.world.submit(JobSpec(app="sim", events=2), campaign="a")
    (lease,) = leases(kept.site.sync())
    kept.site.sync(done(lease, 0, 1), failed(lease, 1), want=0)
    assert kept.world.state(job) == "FAILED"
    closed(kept)
    with pytest.raises(RequestError, match="is in the archive"):
        kept.world.dispatcher.handle_accept(ActionRequest(jobs=[job]))
    kept.run()
    assert kept.job(job).row.state == "FAILED"


def test_a_failed_job_can_be_retried_for_as_long_as_it_is_kept_itself(kept: Kept) -> None:
    source = source_of(kept)
    (job,) = kept.world.submit(
        JobSpec(app="sim", inputs=[Input(name="in", url=f"job:{source}/hits")]), campaign="needing"
    )
    kept.site.sync(failed(leases(kept.site.sync())[0], 0), want=0)
    assert kept.world.state(job) == "FAILED"
    long_ended(kept, "source")
    kept.run(later(kept, 3600))
    assert set(kept.live()) == {source, job}
    assert kept.world.dispatcher.handle_retry(ActionRequest(jobs=[job])).changed == 1
    (lease,) = leases(kept.site.sync())
    assert lease.spec is not None
    assert lease.spec.inputs[0].url == "file:///x"


def test_one_job_that_cannot_be_retried_does_not_hold_up_its_campaign(kept: Kept) -> None:
    old = kept.finish("old")
    stuck, fine, still_open = kept.world.submit(
        JobSpec(app="sim", after=[old[0]]), SIM, JobSpec(app="far"), campaign="b"
    )
    kept.site.sync(*[failed(each, 0) for each in leases(kept.site.sync())], want=0)
    kept.run()
    assert kept.live() == [stuck, fine, still_open]
    retry = kept.world.dispatcher.handle_retry
    assert retry(ActionRequest(campaign="b")).changed == 1
    assert [kept.world.state(each) for each in (stuck, fine)] == ["FAILED", "WAITING"]
    with pytest.raises(RequestError, match=f"job {stuck} comes after job {old[0]}, which is in the archive"):
        retry(ActionRequest(jobs=[stuck]))


def test_a_job_that_was_canceled_while_it_waited_for_another_is_retried(world: World) -> None:
    site = Site(world)
    first = world.submit(JobSpec(app="sim"))[0]
    second = world.submit(JobSpec(app="sim", after=[first]))[0]
    world.dispatcher.handle_cancel(ActionRequest(jobs=[second]))
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[second])).changed == 1
    (lease,) = leases(site.sync())
    assert lease.job == first
    site.sync(done(lease))
    assert [each.job for each in leases(site.sync())] == [second]


def test_after_any_end_an_archived_one_will_do(kept: Kept) -> None:
    ids = kept.finish("old")
    kept.run()
    (job,) = kept.world.submit(JobSpec(app="sim", after=[ids[-1]], after_any=True), campaign="next")
    assert kept.world.state(job) == "WAITING"


def test_files_of_a_campaign_that_is_chosen_are_no_inputs(kept: Kept) -> None:
    source = source_of(kept)
    closed(kept)
    with pytest.raises(RequestError, match="in the archive"):
        kept.world.submit(JobSpec(app="sim", inputs=[Input(name="in", url=f"job:{source}/hits")]))


def test_files_that_are_gone_before_their_rows_leave_are_written_again(kept: Kept, tmp_path: Path) -> None:
    every = kept.finish("a", jobs=5)
    made = kept.archiver()
    assert made.step(kept.world.reader)  # chosen
    assert made.step(kept.world.reader)  # written
    (tmp_path / "archive").rename(tmp_path / "lost")
    assert made.step(kept.world.reader)
    assert kept.live() == every
    kept.run()
    assert (kept.live(), kept.archived()) == ([], every)


def test_rows_stay_while_the_archive_is_away_and_the_rest_leaves_when_it_is_back(
    kept: Kept, tmp_path: Path
) -> None:
    every = kept.finish("a", jobs=5)
    calls = 0

    def write(act: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # chosen, still of this server, written, two jobs have left
            raise Killed
        return kept.world.dispatcher.writer.write(act)

    with pytest.raises(Killed):
        kept.run(kept.archiver(write))
    assert kept.live() == every[2:]
    (tmp_path / "archive").rename(tmp_path / "not mounted")
    with pytest.raises(SiteError, match="of the archive cannot be read"):
        kept.run()
    assert kept.live() == every[2:]
    (tmp_path / "not mounted").rename(tmp_path / "archive")
    kept.run()
    assert (kept.live(), kept.archived()) == ([], every)


def test_a_new_month_survives_a_power_cut(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    kept.finish("a", jobs=1)
    monkeypatch.setattr(os, "fsync", fsync)
    kept.run()
    (month,) = (tmp_path / "archive").iterdir()
    assert {month, tmp_path / "archive", tmp_path} <= set(synced)


def test_a_delivery_counts_that_ended_while_its_job_was_canceled_twice_and_retried(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job])).changed == 1
    orders = site.sync(delivered(order))  # it was on its way
    assert [each.events for each in world.job(lease.job).outputs] == ["0-3"]
    (rest,) = leases(orders)
    assert (rest.first, rest.count) == (4, 6)
    last = one(site.sync(done(rest, outputs=True)), DeliverOrder)
    assert (last.done, last.delivery) == ("4-9", 2)


def test_a_log_of_an_archived_job_is_refused_with_a_sentence(kept: Kept) -> None:
    (job,) = kept.finish("a", jobs=1)
    kept.run()
    with pytest.raises(RequestError, match="archive"):
        kept.world.dispatcher.ask_log(job, None)


def test_jobs_of_one_campaign_that_come_after_each_other_are_retried_together(world: World) -> None:
    site = Site(world)
    (first,) = world.submit(SIM, campaign="c")
    (second,) = world.submit(JobSpec(app="sim", after=[first]), campaign="c")
    site.sync(failed(leases(site.sync())[0], 0), want=0)
    assert [world.state(each) for each in (first, second)] == ["FAILED", "FAILED"]
    assert world.dispatcher.handle_retry(ActionRequest(campaign="c")).changed == 2
    (lease,) = leases(site.sync())
    assert lease.job == first
    site.sync(done(lease))
    assert [each.job for each in leases(site.sync())] == [second]


def test_a_job_that_the_site_does_not_know_is_told_again(world: World) -> None:
    site = Site(world)
    world.submit(JobSpec(app="sim", events=4), campaign="c")
    (lease,) = leases(site.sync(want=2))
    assert lease.spec is not None
    (more,) = leases(site.sync(want=1))
    assert more.spec is None
    report = refused(more)
    assert report.evidence is not None
    report.evidence = msgspec.structs.replace(report.evidence, fault="site")
    site.sync(report, want=0)
    world.now_s += 60
    again = leases(site.sync())
    assert again
    assert again[0].spec is not None


def test_a_name_that_no_index_can_hold_is_the_fault_of_its_sender_only(world: World) -> None:
    """PostgreSQL refuses it as it refuses to work without memory. 1,000 characters are 4,000 bytes here."""
    random = Random(1)
    name = "".join(chr(random.randrange(0x20000, 0x2A000)) for _ in range(1_000))
    site = Site(world)
    report = AllocationReport(
        n=0,
        name=name,
        batch_id="1",
        state="ACTIVE",
        nodes=1,
        cores=1,
        at_us=1,
        reason="",
        busy_us=0,
        slot_us=0,
    )
    with suppress(JobError):
        site.sync(report)
    assert not world.dispatcher.writer.full


def test_a_job_of_which_something_is_done_waits_for_what_it_comes_after_and_goes_on(world: World) -> None:
    site = Site(world)
    (first,) = world.submit(SIM)
    (second,) = world.submit(JobSpec(app="sim", events=2, after=[first], after_any=True))
    site.sync(failed(leases(site.sync())[0], 0))
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 1), failed(lease, 1), want=0)
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[first, second])).changed == 2
    assert world.state(second) == "RUNNING"
    (lease,) = leases(site.sync())
    assert lease.job == first
    site.sync(done(lease), want=0)
    (rest,) = leases(site.sync())
    assert (rest.job, rest.first, rest.count) == (second, 1, 1)
    site.sync(done(rest))
    assert world.state(second) == "COMPLETED"


def test_owners_with_the_same_jobs_have_nothing_stored_once_all_are_archived(kept: Kept) -> None:
    def stored(owner: str) -> int:
        return sum(row[0] for row in kept.world.reader.rows("stored_of", owner=owner))

    spec = JobSpec(app="sim", params={"text": "x" * 5_000})
    for owner in ("ada", "bob"):
        kept.world.submit(spec, spec, campaign=owner, owner=owner)
    assert stored("ada") == stored("bob") > 5_000
    for _ in ("ada", "bob"):
        kept.site.sync(*map(done, leases(kept.site.sync(ranges=2))), want=0)
        kept.run()
    assert kept.live() == []
    assert (stored("ada"), stored("bob")) == (0, 0)


def test_a_job_that_was_canceled_and_retried_while_its_site_was_away_runs_again(world: World) -> None:
    site = Site(world)
    (job,) = world.submit(SIM)
    (old,) = leases(site.sync())
    world.now_s += 700
    assert world.dispatcher.check_sites() == ["s"]
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    world.dispatcher.handle_retry(ActionRequest(jobs=[job]))
    orders = site.sync()  # it is told to stop, and must not be taken to run it still
    assert job in [each.job for each in orders if isinstance(each, CancelOrder)]
    (lease,) = leases(orders)
    assert lease.lease != old.lease
    assert lease.spec is not None
    site.sync(done(lease))
    assert world.state(job) == "COMPLETED"


def test_outputs_that_a_lost_site_was_told_to_drop_are_not_taken_back(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.now_s += 700
    assert world.dispatcher.check_sites() == ["s"]
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    orders = site.sync()
    assert [each.keep for each in orders if isinstance(each, CancelOrder)] == [False]
    (again,) = leases(orders)
    assert (again.first, again.count) == (0, 10)


# ---- in any order ----------------------------------------------------------------------------------------------


class Worker(Site):
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
                    table.pop(order.job, None)
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
            after: list[int | str] = [random.choice(jobs)] if jobs and random.random() < 0.3 else []
            specs = [
                JobSpec(
                    app=random.choice(["sim", "reco"]), events=random.choice([1, 1, 4]), after=after,
                    failed_max=random.choice([0, 1]), after_any=random.random() < 0.5,
                    deliver=Deliver.COMPLETE if random.random() < 0.2 else Deliver.DONE,
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
    rows = session.rows("jobs_by_id", ids=kept.live())
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
    totals: dict[str, int] = dict(session.rows("totals"))
    for column, name in enumerate(("jobs", "events", "events_done", "events_failed"), 1):
        assert totals.get(name, 0) == sum(each[column] for each in live + archived), (where, name)
        for owner in {each[5] for each in live + archived}:
            own: dict[str, int] = dict(session.rows("totals_of_owner", owner=owner))
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
    stuck = [each for each in world.reader.rows("jobs_by_id", ids=kept.live()) if each.state <= 1]
    assert not states["RUNNING"], [
        (j, [(s.name, s.open.get(j.id), s.due.get(j.id)) for s in sites]) for j in stuck
    ]
