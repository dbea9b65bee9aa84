"""A job that is stopped keeps what is done: how the pool takes the server's orders, and what a replay gives."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import JobSpec, Output
from tidemill.site.state import site_state
from tidemill.site.state.pool import WorkPool
from tidemill.site.state.settlement import Settlement
from tidemill.wire.api import (
    CancelOrder,
    DeliveredReport,
    DeliverOrder,
    DoneReport,
    LeaseOrder,
    Order,
    ReleaseReport,
    Report,
)
from tidemill.wire.node import Done, Failed, Grant, OutputRef

DAMAGED = Evidence(failure=FailureClass.STAGE_OUT, message="damaged")


class Pool:
    """A site's pool with the log that it follows from."""

    def __init__(self) -> None:
        self.entries: list[site_state.Entry] = []
        self.pool = WorkPool(site_state.SiteState(site="s"))
        self.orders = self.records = 0
        self.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
        self.apply(site_state.FleetOpened(fleet="e1-1", at_us=0))

    def apply(self, entry: site_state.Entry) -> None:
        self.entries.append(entry)
        self.pool.apply(entry)

    def order(self, order: Order) -> None:
        self.orders += 1
        order.n = self.orders
        self.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    def lease(self, first: int = 0, count: int = 10, lease: int = 1) -> None:
        self.order(
            LeaseOrder(
                n=0, lease=lease, job=7, first=first, count=count, campaign="c", seed_base=0,
                spec=JobSpec(app="a", events=10),
            )
        )  # fmt: skip

    def grant(self, first: int, count: int) -> int:
        number = self.pool.state.next_grant
        grant = Grant(grant=number, job=7, first=first, count=count, chunk_max=None)
        self.apply(site_state.Granted(fleet="e1-1", grants=[grant], cancels=[], ended=[], close=False))
        return number

    def done(self, grant: int, first: int, count: int) -> None:
        self.records += 1
        ref = OutputRef(name="hits", bundle="p.tar", offset=0, length=1, sha256="")
        record = Done(
            p="a1.0.i1", s=self.records, grant=grant, job=7, first=first, count=count, payloads=1, slot=0,
            started_us=0, ended_us=1, wall_us=1, setup_us=0, user_us=0, system_us=0, rss_kb=0, read_bytes=0,
            write_bytes=0, outputs=[ref],
        )  # fmt: skip
        self.apply(site_state.Read(fleet="e1-1", offsets={}, records=[record]))

    def failed(self, grant: int, first: int, count: int) -> None:
        self.records += 1
        record = Failed(
            p="a1.0.i1", s=self.records, grant=grant, job=7, first=first, count=count, event=None,
            failure="preempted", message="m", exit_status=None, signal=None, stderr_tail="", slot=0, at_us=0,
            wall_us=1, user_us=0, system_us=0,
        )  # fmt: skip
        self.apply(site_state.Read(fleet="e1-1", offsets={}, records=[record]))

    def told(self, kind: type[Report]) -> list[tuple[int, int]]:
        return [(each.first, each.count) for each in self.pool.state.reports if type(each) is kind]  # type: ignore[union-attr]

    def delivered(self) -> DeliveredReport:
        (report,) = (each for each in self.pool.state.reports if isinstance(each, DeliveredReport))
        return report

    @property
    def job(self) -> site_state.SiteJob:
        return self.pool.state.jobs[7]


def stop() -> CancelOrder:
    return CancelOrder(n=0, job=7, reason="", keep=True)


@pytest.fixture
def it() -> Pool:
    """Events 0 to 5 granted, of which 0 and 1 are kept; 6 to 9 in the backlog."""
    pool = Pool()
    pool.lease()
    pool.done(pool.grant(0, 6), 0, 2)
    return pool


def test_events_of_a_job_that_is_being_stopped_ask_for_no_nodes(it: Pool) -> None:
    load = it.pool.settlement.load
    assert sum(load.values()) == 8
    it.order(stop())
    assert not load, "pilots that had its other events have left or will: no node is needed for them"
    assert Settlement(it.pool.state).load == load
    it.lease(first=0, count=10, lease=2)
    assert sum(load.values()) == len(it.job.open) == 8, "its owner retries it before it is stopped"
    it.order(stop())
    it.apply(site_state.LetGo(jobs=[7]))
    assert not load


def test_what_no_pilot_has_goes_back_at_once_and_what_is_kept_stays(it: Pool) -> None:
    it.order(stop())
    assert it.told(ReleaseReport) == [(6, 4)]
    assert [(part.first, part.count) for part in it.job.parts] == [(0, 2)]
    assert it.pool.state.fleets["e1-1"].cancels == [7]
    assert it.pool.settlement.backlog == {}


def test_what_pilots_had_finished_counts_until_the_job_is_let_go(it: Pool) -> None:
    it.order(stop())
    grant = next(iter(it.job.grants))
    it.done(grant, 3, 1)
    it.failed(grant, 4, 1)
    assert it.told(DoneReport) == [(0, 2), (3, 1)]
    assert it.told(ReleaseReport) == [(6, 4), (4, 1)], "nothing of it is granted again"
    it.apply(site_state.LetGo(jobs=[7]))
    assert it.told(ReleaseReport) == [(6, 4), (4, 1), (2, 1), (5, 1)]
    assert (it.job.grants, it.pool.state.stopping, it.pool.state.leases_open) == ({}, [], 0)
    it.done(grant, 5, 1)
    assert it.told(DoneReport) == [(0, 2), (3, 1)], "what comes later was given back"


def test_a_fleet_that_is_finished_gives_the_rest_of_a_stopped_job_back(it: Pool) -> None:
    it.order(stop())
    it.apply(site_state.FleetFinished(fleet="e1-1", at_us=1))
    assert it.told(ReleaseReport) == [(6, 4), (2, 4)]
    assert it.pool.settlement.backlog == {}


def test_a_job_that_is_retried_before_it_is_stopped_starts_with_a_clean_slate(it: Pool) -> None:
    it.order(stop())
    it.lease(6, 4, lease=2)
    assert it.told(ReleaseReport) == [(6, 4), (2, 4)]
    assert (it.job.stopping, it.pool.state.stopping) == (False, [])
    assert [(piece.first, piece.count) for piece in it.job.ready] == [(6, 4)]


def test_a_delivery_in_parts_drops_only_the_parts_that_are_delivered(it: Pool) -> None:
    it.order(stop())
    it.apply(site_state.LetGo(jobs=[7]))
    it.order(DeliverOrder(n=0, job=7, done="0-1", merge=False, delivery=1))
    assert it.job.terms == site_state.DeliveryTerms(merge=False, delivery=1)
    it.lease(2, 8, lease=2)
    it.done(it.grant(2, 8), 2, 8)
    it.apply(site_state.OutputsDelivered(job=7, outputs=[], evidence=None, done="0-1"))
    assert [(part.first, part.count) for part in it.job.parts] == [(2, 8)]
    assert (it.delivered().done, it.delivered().held) == ("0-1", False)


def test_parts_that_wait_for_merge_steps_stay(it: Pool) -> None:
    it.order(stop())
    it.order(DeliverOrder(n=0, job=7, done="0-1", merge=False, delivery=1))
    it.apply(site_state.OutputsDelivered(job=7, outputs=[], evidence=None, done="0-1", held=True))
    assert [(part.first, part.count) for part in it.job.parts] == [(0, 2)]
    assert it.delivered().held


def test_parts_that_are_lost_are_not_done_any_more(it: Pool) -> None:
    it.order(stop())
    it.order(DeliverOrder(n=0, job=7, done="0-1", merge=False, delivery=1))
    it.apply(site_state.OutputsDelivered(job=7, outputs=[], evidence=DAMAGED, lost="1"))
    assert (it.job.parts, str(it.job.done), it.delivered().lost) == ([], "", "0-1")


def test_an_order_to_cancel_without_keeping_drops_the_job(it: Pool) -> None:
    it.order(stop())
    it.order(CancelOrder(n=0, job=7, reason=""))
    assert (it.pool.state.jobs, it.pool.state.stopping) == ({}, [])


def test_a_replay_of_the_log_gives_the_same_state(it: Pool) -> None:
    it.order(stop())
    it.done(next(iter(it.job.grants)), 2, 1)
    it.apply(site_state.LetGo(jobs=[7]))
    it.order(DeliverOrder(n=0, job=7, done="0-2", fresh="2", merge=False, delivery=2))
    it.apply(site_state.OutputsDelivered(job=7, outputs=[], evidence=None, done="0-2"))
    encoder = msgspec.json.Encoder(enc_hook=site_state.encode_hook)
    again = WorkPool(site_state.SiteState(site="s"))
    for entry in it.entries:
        read = msgspec.json.decode(
            encoder.encode(entry), type=site_state.Entry, dec_hook=site_state.decode_hook
        )
        again.apply(read)
    assert encoder.encode(again.state) == encoder.encode(it.pool.state)


def test_a_state_that_an_older_agent_wrote_is_read(it: Pool) -> None:
    it.order(DeliverOrder(n=0, job=7, done="0-1"))
    written = msgspec.json.decode(msgspec.json.encode(it.pool.state, enc_hook=site_state.encode_hook))
    del written["stopping"]
    for name in ("stopping", "terms"):
        del written["jobs"]["7"][name]
    read = msgspec.json.decode(
        msgspec.json.encode(written), type=site_state.SiteState, dec_hook=site_state.decode_hook
    )
    assert (read.deliveries, read.jobs[7].terms) == ({7: "0-1"}, site_state.DeliveryTerms())
    old = msgspec.json.decode(
        b'{"e":"delivered","job":7,"outputs":[],"evidence":null}',
        type=site_state.Entry,
        dec_hook=site_state.decode_hook,
    )
    pool = WorkPool(read)
    pool.apply(old)
    assert pool.state.jobs[7].parts == []


@pytest.mark.parametrize(("place", "is_cleaned"), [("https://far.example/out", True), (None, False)])
def test_a_dropped_job_whose_outputs_go_far_leaves_none_in_the_stage(
    place: str | None, is_cleaned: bool
) -> None:
    site = Pool()
    spec = JobSpec(app="a", events=10, output_dir=place, outputs=[Output(name="hits", path="hits.txt")])
    site.order(LeaseOrder(n=0, lease=1, job=7, first=0, count=10, campaign="c", seed_base=0, spec=spec))
    site.order(CancelOrder(n=0, job=7, reason="discarded"))
    assert site.pool.state.forgotten == ([7] if is_cleaned else [])
