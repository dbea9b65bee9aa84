"""One reply holds what a site takes in one answer; the rest of the orders follows."""

from __future__ import annotations

import msgspec

from tidemill.model.job import JobSpec
from tidemill.server.core.sync import fitting
from tidemill.site import constants
from tidemill.wire.api import ORDERS_MAX, CancelEventsOrder, DeliverOrder, LeaseOrder, Order, SyncReply


def lease(number: int, spec: JobSpec | None) -> LeaseOrder:
    return LeaseOrder(
        n=number, lease=2**62, job=2**59, first=10**9, count=10**9, campaign="c" * 100, seed_base=2**31 - 1,
        spec=spec, owner="o" * 50,
    )  # fmt: skip


def told(orders: list[Order]) -> int:
    """How many orders are told, whose reply a site with the limits as they are takes."""
    number = fitting(orders)
    reply = SyncReply(acked=2**62, orders=orders[:number], more=True, now_us=2**62)
    assert len(msgspec.json.encode(reply)) < constants.SYNC_REPLY_BYTES_MAX
    return number


def test_many_small_orders_are_told_at_once() -> None:
    assert told([lease(n, None) for n in range(ORDERS_MAX + 5)]) == ORDERS_MAX
    assert told([]) == 0


def test_orders_that_are_long_together_are_told_one_part_after_the_other() -> None:
    long = JobSpec(app="sim", params={"text": "x" * 1_000_000})
    shared: list[Order] = [lease(n, long) for n in range(40)]
    apart: list[Order] = [lease(n, msgspec.structs.replace(long)) for n in range(40)]
    lists: list[Order] = [DeliverOrder(n=n, job=n, done="1," * 500_000) for n in range(40)]
    fresh: list[Order] = [DeliverOrder(n=n, job=n, done="1", fresh="1," * 500_000) for n in range(40)]
    canceled: list[Order] = [CancelEventsOrder(n=n, job=n, events="1," * 500_000) for n in range(40)]
    assert {told(each) for each in (shared, apart, lists, fresh, canceled)} == {16}


def test_the_longest_job_that_may_be_submitted_is_told() -> None:
    longest = JobSpec(app="sim", params={"text": "x" * 7_900_000})
    assert told([lease(n, msgspec.structs.replace(longest)) for n in range(5)]) == 3
