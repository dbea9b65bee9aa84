"""Sites that lose, repeat and reorder messages, fall silent and come back: every event is counted exactly once."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Output
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.core.sync import sync
from tidemill.server.database.parsed_sets import ParsedSets
from tidemill.server.database.rows import ACTIVE
from tidemill.server.database.store import Store
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import ConflictError, RequestError
from tidemill.wire.api import (
    ActionRequest,
    AppOffer,
    CancelEventsOrder,
    CancelOrder,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    DiscardOrder,
    DoneReport,
    FailureReport,
    ForgetOrder,
    LeaseOrder,
    OutputRow,
    PayloadUsage,
    ReleaseReport,
    Report,
    SubmitRequest,
    SyncRequest,
)

LOST_S = 600.0
EVENTS = 12
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None  # hundreds of databases, which nobody needs to keep


class Site:
    """An agent as the contract wants it: its log of reports is durable, messages are not."""

    def __init__(self, name: str, server: Server) -> None:
        self.name, self.server = name, server
        self.have = self.numbered = 0
        self.reports: list[Report] = []
        self.leases: dict[int, tuple[int, IntervalSet]] = {}
        self.done: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self.kept: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self.failed: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self.has_outputs: dict[int, bool] = {}
        self.sent: list[SyncRequest] = []

    def request(self, want: float) -> SyncRequest:
        capacity = Capacity(
            want_core_s=want, want_ranges_max=4, slot_cores_max=1, slot_memory_mb_max=4000, devices={}, event_s={},
            nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        offers = [
            AppOffer(
                name=name, version="1", digest="", mode="command", parameters={}, outputs=[], cores=1, memory_mb=100,
                event_s=1.0,
            )
            for name in ("plain", "files")
        ]  # fmt: skip
        return SyncRequest(
            site=self.name, epoch=1, host="h", version="1", reports=list(self.reports), have=self.have, offers=offers,
            capacity=capacity,
        )  # fmt: skip

    def sync(self, want: float, *, reply_lost: bool) -> bool:
        request = self.request(want)
        self.sent.append(request)
        reply = self.server.dispatcher.handle_sync(request)
        if reply_lost:
            return True
        busy = bool(reply.orders) or bool(self.reports)
        self.reports = [report for report in self.reports if report.n > reply.acked]
        for order in reply.orders:
            assert order.n > self.have
            self.have = order.n
            self.obey(order)
        return busy

    def obey(self, order: object) -> None:
        match order:
            case LeaseOrder():
                self.leases[order.lease] = (
                    order.job,
                    IntervalSet([(order.first, order.first + order.count)]),
                )
                if order.spec is not None:
                    self.has_outputs[order.job] = bool(order.spec.outputs)
                assert order.job in self.has_outputs, "leased without a spec"
                self.forgive(order)
            case CancelEventsOrder():
                self.drop(order.job, IntervalSet.parse(order.events))
            case CancelOrder() | ForgetOrder():
                self.leases = {each: of for each, of in self.leases.items() if of[0] != order.job}
                for memory in (self.done, self.kept, self.failed, self.has_outputs):
                    memory.pop(order.job, None)
            case DiscardOrder():
                end = order.first + order.count
                self.kept[order.job].remove(order.first, end)
                self.done[order.job].remove(order.first, end)
                self.drop(order.job, IntervalSet([(order.first, end)]))
            case DeliverOrder():
                assert str(self.kept[order.job]) == order.done
                self.server.delivered[order.job].append(order.done)
                output = OutputRow(name="o", url=f"file:///{order.job}", size_bytes=1, sha256="")
                self.report(DeliveredReport, job=order.job, outputs=[output], evidence=None)

    def forgive(self, order: LeaseOrder) -> None:
        """What failed here and is leased again is retried by its owner."""
        for span in self.failed[order.job].within(order.first, order.first + order.count):
            self.done[order.job].remove(*span)
            self.failed[order.job].remove(*span)

    def drop(self, job: int, events: IntervalSet) -> None:
        """Run these events no more."""
        for of, todo in self.leases.values():
            if of == job:
                todo.remove_all(events)

    def report(self, kind: type, **fields: object) -> None:
        self.numbered += 1
        self.reports.append(kind(n=self.numbered, **fields))

    def pick(self, which: int, size: int) -> tuple[int, int, int, int] | None:
        """Lease, job and a piece of what is to be done."""
        pieces = [
            (lease, job, first, end)
            for lease, (job, todo) in sorted(self.leases.items())
            for first, end in todo
        ]
        if not pieces:
            return None
        lease, job, first, end = pieces[which % len(pieces)]
        return lease, job, first, min(end, first + 1 + size)

    def work(self, which: int, size: int) -> None:
        picked = self.pick(which, size)
        if picked is None:
            return
        lease, job, first, end = picked
        for a, b in self.done[job].missing(first, end):
            self.done[job].add(a, b)
            if self.has_outputs[job]:
                self.kept[job].add(a, b)
            self.report(
                DoneReport, lease=lease, job=job, first=a, count=b - a, outputs=self.has_outputs[job],
                usage=PayloadUsage(payloads=b - a, wall_us=1_000_000),
            )  # fmt: skip
        self.leases[lease][1].remove(first, end)

    def fail(self, which: int) -> None:
        picked = self.pick(which, 0)
        if picked is None:
            return
        lease, job, first, end = picked
        if not self.done[job].touches(first, end):
            self.done[job].add(first, end)
            self.failed[job].add(first, end)
            evidence = Evidence(failure=FailureClass.PAYLOAD, message="no")
            self.report(
                FailureReport,
                lease=lease,
                job=job,
                first=first,
                count=1,
                event=first,
                final=True,
                evidence=evidence,
            )
        self.leases[lease][1].remove(first, end)

    def release(self, which: int, size: int) -> None:
        picked = self.pick(which, size)
        if picked is None:
            return
        lease, job, first, end = picked
        self.leases[lease][1].remove(first, end)
        for a, b in self.done[job].missing(first, end):
            self.report(
                ReleaseReport, lease=lease, job=job, first=a, count=b - a, reason="idle", evidence=None
            )


class Server:
    def __init__(self, folder: Path, name: str = "t") -> None:
        self.now_s = 0.0
        store = Store(path=folder / f"{name}.db")
        store.init()
        self.dispatcher = Dispatcher(
            store, DispatchRules(site_lost_s=LOST_S), server_clock=ServerClock(monotonic_s=lambda: self.now_s)
        )
        self.delivered: dict[int, list[str]] = defaultdict(list)
        files = [Output(name="o", path="o")]
        plain = JobSpec(app="plain", events=EVENTS, failed_max=EVENTS)
        self.dispatcher.handle_submit(
            SubmitRequest(
                key="1",
                campaign="c",
                jobs=[plain, msgspec.structs.replace(plain, app="files", outputs=files)],
            )
        )
        single = JobSpec(app="plain", failed_max=1)
        self.dispatcher.handle_submit(SubmitRequest(key="2", campaign="d", jobs=[single], repeat=[4]))
        self.jobs = 6

    def undo(self, request: SyncRequest) -> None:
        """Do all that a request asks for, and undo it."""

        def act(work: UnitOfWork) -> None:
            sync(work, request, rules=self.dispatcher._lease_rules)
            raise RequestError("as another part of it is refused")

        with pytest.raises(RequestError):
            self.dispatcher.writer.write(act)

    def stored(self) -> list[list[tuple[object, ...]]]:
        """Of jobs and leases, without times."""
        session = self.dispatcher.writer.session
        ids = list(range(1, self.jobs + 1))
        jobs = session.rows("jobs_by_id", ids=ids)
        leases = session.rows("leases_of_jobs", ids=ids)
        return [
            [(each.id, each.state, each.ready, each.done, each.failed, each.leased) for each in jobs],
            [(each.lease, each.site, each.first, each.count, each.state, each.part) for each in leases],
        ]


VERBS = [*["sync", "work"] * 3, "reply_lost", "repeat", "fail", "release", "silence"]
OWNERS = ["cancel", "cancel", "retry"]


def steps_of(verbs: list[str]) -> st.SearchStrategy[list[tuple[str, int, int, int]]]:
    one = st.tuples(st.sampled_from(verbs), st.integers(0, 1), st.integers(0, 5), st.integers(0, 7))
    return st.lists(one, max_size=60)


STEPS = steps_of(VERBS)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_every_event_is_counted_once_whatever_happens_to_messages_and_sites(
    steps: list[tuple[str, int, int, int]],
) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        server = Server(Path(folder))
        sites = [Site("a", server), Site("b", server)]
        for verb, which, one, two in steps:
            step(server, sites[which], sites[1 - which], verb=verb, one=one, two=two)
            check_leases(server)
        drain(server, sites)
        check(server, sites)
        server.dispatcher.close()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps_of(VERBS + OWNERS))
def test_no_event_is_lost_or_counted_twice_however_its_owner_cancels_and_retries_some(
    steps: list[tuple[str, int, int, int]],
) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        server = Server(Path(folder))
        sites = [Site("a", server), Site("b", server)]
        for verb, which, one, two in steps:
            if verb in OWNERS:
                act(server, verb, job=one + 1, first=two)
            else:
                step(server, sites[which], sites[1 - which], verb=verb, one=one, two=two)
            check_leases(server)
        drain(server, sites)
        check(server, sites)
        server.dispatcher.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_sets_that_the_writer_remembers_change_nothing(steps: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        stored = []
        for name, large_text in (("remembers", 1), ("parses", 1_000)):
            server = Server(Path(folder), name)
            server.dispatcher.writer.memory.parsed = ParsedSets(large_text=large_text)
            sites = [Site("a", server), Site("b", server)]
            for verb, which, one, two in steps:
                if one == 5:
                    server.undo(sites[which].request(float(two)))
                step(server, sites[which], sites[1 - which], verb=verb, one=one, two=two)
            assert (server.dispatcher.writer.memory.parsed.bytes > 0) <= (large_text == 1)
            stored.append(server.stored())
            server.dispatcher.close()
        assert stored[0] == stored[1]


def act(server: Server, verb: str, *, job: int, first: int) -> None:
    """Cancel or retry some events of a job, or hear why not; what was to be canceled is not open any more."""
    events = f"{first}-{first + 4}" if job <= 2 else "0"
    handle = server.dispatcher.handle_cancel if verb == "cancel" else server.dispatcher.handle_retry
    try:
        handle(ActionRequest(jobs=[job], events=events))
    except ConflictError:
        return
    found = server.dispatcher.writer.session.rows("jobs_by_id", ids=[job])[0]
    sets = server.dispatcher.writer.memory.parsed.sets_of(found)
    for span in IntervalSet.parse(events):
        if verb == "cancel":
            assert not sets.undone(*span)
        else:
            assert not sets.canceled.touches(*span)
            assert not sets.failed.touches(*span)


def step(server: Server, site: Site, other: Site, *, verb: str, one: int, two: int) -> None:
    match verb:
        case "sync" | "reply_lost":
            site.sync(float(two), reply_lost=verb == "reply_lost")
        case "repeat":
            if site.sent:  # an old message comes again: its answer is not read
                server.dispatcher.handle_sync(site.sent[one % len(site.sent)])
        case "work":
            site.work(one, two)
        case "fail":
            site.fail(one)
        case "release":
            site.release(one, two)
        case "silence":
            server.now_s += LOST_S * 0.9
            other.sync(float(two), reply_lost=False)
            server.now_s += LOST_S * 0.9
            server.dispatcher.check_sites()


def check_leases(server: Server) -> None:
    """Each event that is leased is held by one active lease, as the database has it."""
    session = server.dispatcher.writer.session
    ids = list(range(1, server.jobs + 1))
    held: dict[int, list[int]] = defaultdict(list)
    jobs = {job.id: job for job in session.rows("jobs_by_id", ids=ids)}
    for lease in session.rows("leases_of_jobs", ids=ids):
        if lease.state == ACTIVE:
            returned = IntervalSet.parse(lease.part)
            for piece in IntervalSet.parse(jobs[lease.job].leased).within(lease.first, lease.end):
                held[lease.job] += [each for own in returned.missing(*piece) for each in range(*own)]
    for job in jobs.values():
        leased = [each for span in IntervalSet.parse(job.leased) for each in range(*span)]
        assert sorted(held[job.id]) == leased


def drain(server: Server, sites: list[Site]) -> None:
    for _ in range(200):
        busy = False
        for site in sites:
            busy = site.sync(1000.0, reply_lost=False) or busy
            while site.pick(0, EVENTS) is not None:
                site.work(0, EVENTS)
                busy = True
        if not busy:
            return
    raise AssertionError("the server never comes to rest")


def check(server: Server, sites: list[Site]) -> None:
    session = server.dispatcher.writer._session
    rows = session.rows("jobs_by_id", ids=list(range(1, server.jobs + 1)))
    done = failed = canceled = 0
    for row in rows:
        job = msgspec.structs.asdict(row)
        assert job["state"] in ((5,) if job["n_canceled"] == job["events"] else (2, 3)), job
        done_set, failed_set = IntervalSet.parse(job["done"]), IntervalSet.parse(job["failed"])
        canceled_set = IntervalSet.parse(job["canceled"])
        assert (len(done_set), len(failed_set)) == (job["n_done"], job["n_failed"])
        assert len(canceled_set) == job["n_canceled"]
        assert len(IntervalSet.union((done_set, failed_set, canceled_set))) == job["events"]
        assert job["n_done"] + job["n_failed"] + job["n_canceled"] == job["events"]
        assert (job["n_leased"], job["leased"], job["ready"]) == (0, "", 0)
        done += job["n_done"]
        failed += job["n_failed"]
        canceled += job["n_canceled"]
        if job["outputs"]:
            delivered = IntervalSet.union(map(IntervalSet.parse, server.delivered[job["id"]]))
            assert all(delivered.covers(*span) for span in done_set)
    whole = [session.rows("campaign_whole", id=number)[0] for number in (1, 2)]
    assert [done, failed, canceled] == [sum(row[at] for row in whole) for at in (7, 8, 19)]
    counters = [
        row for state in range(6) for row in session.rows("counters_of_state", state=state, limit=1000)
    ]
    assert sum(row[3] for row in counters) == server.jobs
    assert all(row[1] > 1 for row in counters), "a counter of open jobs when all have ended"
    totals: dict[str, int] = dict(session.rows("totals"))
    kept = [totals.get(name, 0) for name in ("jobs", "events_done", "events_failed", "events_canceled")]
    assert kept == [server.jobs, done, failed, canceled]
    for state in range(6):
        assert totals.get(f"state/{state}", 0) == sum(row[3] for row in counters if row[1] == state)
    owned = {name: number for name, number in session.rows("totals_of_owner", owner="") if number}
    assert owned == {name: number for name, number in totals.items() if number and name in owned}
    leases = session.rows("leases_of_jobs", ids=[row.id for row in rows])
    assert all(lease.state != ACTIVE for lease in leases), "an active lease of an ended job"
    used = session.rows("campaign_shares", ids=[1, 2])
    assert all(row[3] >= 0 for row in used)
