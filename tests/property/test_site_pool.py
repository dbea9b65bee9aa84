"""The pool under random pilots, deaths, late records, take-overs: every event kept once or failed for good."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.site.state import site_state
from tidemill.site.state.pool import WorkPool
from tidemill.wire import api, node

POISON_RETRIES = 2


class Site:
    """A pool with its log, a server that counts, and pilots that do what chance wants."""

    def __init__(self, seed: int, *, outputs: bool) -> None:
        self.random = random.Random(seed)
        self.outputs = outputs
        self.entries: list[bytes] = []
        self.pool = WorkPool(site_state.SiteState(site="here"))
        self.order = 0
        self.acked = 0
        self.epoch = 0
        self.fleet = ""
        self.events = 0
        self.kept = IntervalSet()
        self.failed = IntervalSet()
        self.released = IntervalSet()
        self.canceled = IntervalSet()
        self.counted: dict[int, int] = {}
        self.poison: set[int] = set()
        self.numbers: dict[str, int] = {}
        self.late: list[node.Record] = []
        self.dead_grants: set[int] = set()
        self.open_epoch()

    def apply(self, entry: site_state.Entry) -> None:
        self.entries.append(msgspec.json.encode(entry, enc_hook=site_state.encode_hook))
        self.pool.apply(entry)

    def open_epoch(self) -> None:
        """A new agent: it replays what is durable, and goes on with a fleet of its own."""
        self.epoch += 1
        old = self.fleet
        replayed = WorkPool(site_state.SiteState(site="here"))
        decoder = msgspec.json.Decoder(site_state.Entry, dec_hook=site_state.decode_hook)
        for line in self.entries:
            replayed.apply(decoder.decode(line))
        assert encode(replayed.state) == encode(self.pool.state)
        snapshot = msgspec.json.Decoder(site_state.SiteState, dec_hook=site_state.decode_hook).decode(
            encode(replayed.state)
        )
        self.pool = WorkPool(snapshot)
        assert self.pool.settlement.backlog.keys() == replayed.settlement.backlog.keys()
        load = {key: n for key, n in self.pool.settlement.load.items() if n}
        assert load == {key: n for key, n in replayed.settlement.load.items() if n}
        self.apply(site_state.Opened(epoch=self.epoch, host="h", pid=1, at_us=0, read={}))
        self.fleet = f"e{self.epoch}-1"
        self.apply(site_state.FleetOpened(fleet=self.fleet, at_us=0))
        if old:
            self.finish(old)

    def finish(self, fleet: str) -> None:
        """An old fleet is over: what its pilots did not tell is taken back, though it may be told later."""
        for job in self.pool.state.jobs.values():
            self.dead_grants |= {n for n, held in job.grants.items() if held.fleet == fleet}
        for job in self.pool.state.jobs.values():
            for number, held in job.grants.items():
                if held.fleet == fleet and self.random.random() < 0.5:
                    self.late.append(self.record(job, number, fleet))
        self.apply(site_state.FleetFinished(fleet=fleet, at_us=0))

    def lease(self, job: int, first: int, count: int) -> None:
        self.order += 1
        spec = JobSpec(app="a", events=first + count, retries=POISON_RETRIES)
        order = api.LeaseOrder(
            n=self.order,
            lease=self.order,
            job=job,
            first=first,
            count=count,
            campaign="c",
            seed_base=0,
            spec=spec,
        )
        self.reply([order])

    def reply(self, orders: list[api.Order]) -> None:
        self.settle()
        self.apply(site_state.Replied(acked=self.acked, orders=orders, at_us=0))

    def settle(self) -> None:
        """The server takes reports: none may come twice."""
        for report in self.pool.state.reports:
            if report.n <= self.acked:
                continue
            assert report.n == self.acked + 1
            self.acked = report.n
            if isinstance(report, api.DoneReport):
                end = report.first + report.count
                assert not self.kept.touches(report.first, end), "an event is reported as kept twice"
                assert not self.failed.touches(report.first, end), "a failed event is reported as kept"
                assert not self.canceled.touches(report.first, end), "a canceled event is reported as kept"
                self.kept.add(report.first, end)
            elif isinstance(report, api.FailureReport) and report.final:
                assert report.count == 1
                assert not self.failed.touches(report.first, report.first + 1)
                assert not self.kept.touches(report.first, report.first + 1)
                assert not self.canceled.touches(report.first, report.first + 1)
                self.failed.add(report.first, report.first + 1)
            elif isinstance(report, api.ReleaseReport):
                self.released.add(report.first, report.first + report.count)

    def cancel(self, job: int, events: IntervalSet) -> None:
        """The owner cancels what the server has not heard to be over."""
        self.settle()
        known = self.pool.state.jobs.get(job)
        if known is None:
            return
        open_ = IntervalSet(piece for span in events for piece in known.open.within(*span))
        if open_:
            self.order += 1
            self.reply([api.CancelEventsOrder(n=self.order, job=job, events=str(open_))])
            self.canceled.add_all(open_)

    def grant(self) -> None:
        grants: list[node.Grant] = []
        number = self.pool.state.next_grant
        for job_id in self.pool.settlement.backlog:
            for piece in self.pool.state.jobs[job_id].ready:
                count = piece.count
                grants.append(
                    node.Grant(
                        grant=number, job=job_id, first=piece.first, count=count, chunk_max=piece.chunk_max
                    )
                )
                number += 1
        if grants:
            cancels = self.pool.state.fleets[self.fleet].cancels.copy()
            self.apply(
                site_state.Granted(fleet=self.fleet, grants=grants, cancels=cancels, ended=[], close=False)
            )

    def work(self) -> None:
        """Some grants make progress; some records come twice (the merge drops those), some of dead pilots come late."""
        records: list[node.Record] = []
        for job in self.pool.state.jobs.values():
            for number, held in job.grants.items():
                if self.random.random() < 0.7:
                    records.append(self.record(job, number, held.fleet))
        self.random.shuffle(self.late)
        while self.late and self.random.random() < 0.5:
            records.append(self.late.pop())
        if records:
            self.random.shuffle(records)
            self.apply(site_state.Read(fleet=self.fleet, offsets={}, records=records))

    def record(self, job: site_state.SiteJob, grant: int, fleet: str) -> node.Record:
        """What a pilot tells of the first open events of a grant."""
        held = job.grants[grant]
        first, end = next(iter(held.open))
        count = self.random.randint(1, end - first)
        bad = [event for event in range(first, first + count) if event in self.poison]
        pilot = f"{fleet}.r0.i1"
        self.numbers[pilot] = number = self.numbers.get(pilot, 0) + 1
        if bad or self.random.random() < 0.05:
            failure = "payload" if bad else "node"
            if count == 1 and bad:
                self.counted[first] = self.counted.get(first, 0) + (grant not in self.dead_grants)
            return failed(pilot, number, grant=grant, job=job.id, first=first, count=count, failure=failure)
        return done(pilot, number, grant=grant, job=job.id, first=first, count=count, outputs=self.outputs)


def done(p: str, n: int, *, grant: int, job: int, first: int, count: int, outputs: bool) -> node.Done:
    refs = [node.OutputRef(name="o", bundle="b.tar", offset=0, length=1, sha256="")] if outputs else []
    return node.Done(
        p=p, s=n, grant=grant, job=job, first=first, count=count, payloads=1, slot=0, started_us=0, ended_us=1,
        wall_us=1, setup_us=0, user_us=1, system_us=1, rss_kb=1, read_bytes=None, write_bytes=None, outputs=refs,
    )  # fmt: skip


def failed(p: str, n: int, *, grant: int, job: int, first: int, count: int, failure: str) -> node.Failed:
    return node.Failed(
        p=p, s=n, grant=grant, job=job, first=first, count=count, event=None, failure=failure, message="m",
        exit_status=1, signal=None, stderr_tail="", slot=0, at_us=0, wall_us=1, user_us=1, system_us=1,
    )  # fmt: skip


def encode(state: site_state.SiteState) -> bytes:
    return msgspec.json.encode(state, enc_hook=site_state.encode_hook)


@pytest.mark.parametrize("outputs", [False, True])
@given(seed=st.integers(0, 2**32))
def test_every_event_is_kept_once_or_failed_whatever_dies(outputs: bool, seed: int) -> None:
    site = Site(seed, outputs=outputs)
    site.poison = {site.random.randrange(60) for _ in range(site.random.randint(0, 4))}
    leases = [(0, 25), (25, 10), (35, 25)]
    for _ in range(400):
        if leases and site.random.random() < 0.3:
            site.lease(1, *leases.pop(0))
        site.grant()
        site.work()
        if site.random.random() < 0.1:
            site.settle()
            site.reply([])
        if site.random.random() < 0.05:
            site.open_epoch()
        if not leases and not site.pool.state.leases_open:
            break
    site.settle()
    wanted = IntervalSet([(0, 60)])
    for first, end in [*site.kept, *site.failed]:
        wanted.remove(first, end)
    assert not wanted, f"events {wanted} are neither kept nor failed"
    assert not site.released
    assert {event for event in range(60) if event in site.failed} == site.poison
    assert site.pool.state.leases_open == 0
    assert not any(site.pool.settlement.load.values())
    parts = [(part.first, part.first + part.count) for part in site.pool.state.jobs[1].parts]
    assert sorted(parts) == sorted(set(parts))
    assert IntervalSet(parts) == (site.kept if outputs else IntervalSet())
    assert sum(end - first for first, end in parts) == (len(site.kept) if outputs else 0)


@pytest.mark.parametrize("outputs", [False, True])
@given(seed=st.integers(0, 2**32))
def test_canceled_events_are_never_reported_and_all_others_are_kept_once(outputs: bool, seed: int) -> None:
    site = Site(seed, outputs=outputs)
    site.lease(1, 0, 60)
    for _ in range(400):
        site.grant()
        site.work()
        if site.random.random() < 0.2:
            first = site.random.randrange(60)
            site.cancel(1, IntervalSet([(first, first + site.random.randint(1, 9))]))
        if site.random.random() < 0.05:
            site.open_epoch()
        if not site.pool.state.leases_open:
            break
    site.settle()
    assert str(IntervalSet.union((site.kept, site.canceled))) == "0-59"
    assert len(site.kept) + len(site.canceled) == 60
    assert not any(site.pool.settlement.load.values())
    state = site.pool.state
    assert not any(job.open or job.grants or job.ready for job in state.jobs.values())
    assert all(fleet.open == 0 for fleet in state.fleets.values())


@given(seed=st.integers(0, 2**32))
def test_poison_event_fails_after_one_try_and_its_retries(seed: int) -> None:
    site = Site(seed, outputs=False)
    site.poison = {7}
    site.lease(1, 0, 20)
    while site.pool.state.leases_open:
        site.grant()
        site.work()
    site.settle()
    assert str(site.failed) == "7"
    assert site.counted[7] == 1 + POISON_RETRIES
