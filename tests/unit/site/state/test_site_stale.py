"""Which files are to be removed: those of results that do not count, as the pool of work takes the server's orders."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.site.state.test_site_stop import Pool, stop

from tidemill.model.job import JobSpec, Output, OutputKind, Pack
from tidemill.site.state import site_state
from tidemill.site.state.settlement import STALE_PLACES_MAX
from tidemill.wire.api import CancelOrder, DeliverOrder, DiscardOrder, ForgetOrder, LeaseOrder

SPREAD = Output(name="hits", path="hits-{event}.txt", pack=Pack.FILES)
JOINED = Output(name="hits", path="hits.txt", kind=OutputKind.CONCAT)


@pytest.fixture
def it() -> Pool:
    """Events 0 to 5 granted, of which 0 to 3 are kept in two parts, and the first has arrived."""
    pool = Pool()
    lease(pool, SPREAD)
    grant = pool.grant(0, 6)
    pool.done(grant, 0, 2)
    pool.done(grant, 2, 2)
    pool.apply(site_state.OutputsArrived(job=7, events="0-1", outputs=[]))
    return pool


def lease(pool: Pool, *outputs: Output, output_dir: str | None = None, number: int = 1) -> None:
    spec = JobSpec(command=["x"], events=10, outputs=list(outputs), output_dir=output_dir)
    order = LeaseOrder(n=0, lease=number, job=7, first=0, count=10, campaign="c", seed_base=0, spec=spec)
    pool.order(order)


def stale(pool: Pool) -> list[tuple[str | None, str]]:
    return [(each.spec.output_dir, str(each.events)) for each in pool.pool.state.stale.get(7, [])]


def test_parts_that_are_discarded_are_stale_also_those_that_are_about_to_arrive(it: Pool) -> None:
    for first in (0, 3):  # a part goes with any event of it
        it.order(DiscardOrder(n=0, job=7, first=first, count=1))
    assert stale(it) == [(None, "0-3")], "one entry, of many orders"
    assert str(it.job.arrived) == ""
    it.apply(site_state.StaleRemoved(job=7, events="0-1"))
    assert stale(it) == [(None, "2-3")]
    it.apply(site_state.StaleRemoved(job=7, events="2-3"))
    it.apply(site_state.StaleRemoved(job=7, events="2-3"))
    assert not it.pool.state.stale


def test_what_a_job_has_left_is_stale_when_it_is_dropped_and_not_when_it_is_stopped(it: Pool) -> None:
    it.order(stop())
    assert stale(it) == []
    it.order(CancelOrder(n=0, job=7, reason=""))
    assert stale(it) == [(None, "0-3")]


def test_what_a_site_that_was_silent_has_left_is_stale_when_it_is_told_first_that_the_job_is_over(
    it: Pool,
) -> None:
    """The order to forget waited for the site; the one to discard its results is made when it returns."""
    it.order(ForgetOrder(n=0, job=7))
    assert stale(it) == [(None, "0-3")]
    it.order(DiscardOrder(n=0, job=7, first=0, count=4))
    it.order(CancelOrder(n=0, job=7, reason="the job has ended elsewhere"))
    assert stale(it) == [(None, "0-3")]


def deliver(it: Pool, done: str) -> None:
    it.order(DeliverOrder(n=0, job=7, done=done))
    it.apply(site_state.OutputsDelivered(job=7, outputs=[], evidence=None, done=done))


def test_nothing_is_stale_of_a_job_that_was_delivered_here_and_is_over(it: Pool) -> None:
    deliver(it, "0-3")
    it.order(ForgetOrder(n=0, job=7))
    assert stale(it) == []


def test_of_a_job_that_was_delivered_in_parts_only_what_was_not_may_be_stale(it: Pool) -> None:
    deliver(it, "0-1")
    it.order(ForgetOrder(n=0, job=7))
    assert stale(it) == [(None, "2-3")]


def test_what_arrived_is_stale_where_it_was_once_outputs_go_elsewhere(it: Pool) -> None:
    lease(it, SPREAD, output_dir="/data/new", number=2)
    assert stale(it) == [(None, "0-3")]
    it.order(DeliverOrder(n=0, job=7, done="0-3", output_dir="/data/newer"))
    assert stale(it) == [(None, "0-3"), ("/data/new", "0-3")]
    assert len(it.job.parts) == 2, "they come there"
    lease(it, SPREAD, output_dir="/data/newer", number=3)
    assert len(stale(it)) == 2, "nothing has moved"


def test_what_arrives_after_it_was_ordered_away_has_not_arrived_where_the_job_is_now(it: Pool) -> None:
    it.order(DeliverOrder(n=0, job=7, done="0-3", output_dir="/data/new"))
    it.apply(site_state.OutputsArrived(job=7, events="2-3", outputs=[]))  # a batch that was under way
    assert (stale(it), str(it.job.arrived)) == ([(None, "0-3")], "")
    it.apply(site_state.StaleRemoved(job=7, events="0-3"))
    it.apply(site_state.OutputsArrived(job=7, events="0-3", outputs=[]))
    assert str(it.job.arrived) == "0-3"


def test_a_server_that_sends_outputs_about_makes_no_state_grow_without_bound(it: Pool) -> None:
    for number in range(3 * STALE_PLACES_MAX):
        it.order(DeliverOrder(n=0, job=7, done="0-3", output_dir=f"/data/{number}"))
    assert len(stale(it)) == STALE_PLACES_MAX
    it.order(DeliverOrder(n=0, job=7, done="0-3", output_dir="/data/0"))
    it.order(DeliverOrder(n=0, job=7, done="0-3", output_dir="/data/1"))
    assert len(stale(it)) == STALE_PLACES_MAX


def test_nothing_is_stale_where_nothing_arrives() -> None:
    pool = Pool()
    lease(pool, JOINED)
    pool.done(pool.grant(0, 6), 0, 2)
    pool.order(DiscardOrder(n=0, job=7, first=0, count=1))
    assert not pool.pool.state.stale


def test_what_is_stale_survives_a_restart(it: Pool) -> None:
    it.order(CancelOrder(n=0, job=7, reason=""))
    content = msgspec.json.encode(it.pool.state, enc_hook=site_state.encode_hook)
    again = msgspec.json.decode(content, type=site_state.SiteState, dec_hook=site_state.decode_hook)
    assert again.stale == it.pool.state.stale
