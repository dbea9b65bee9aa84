"""How many nodes to ask for, and how much work: pure decisions."""

from __future__ import annotations

import msgspec

from tidemill.harvest.demand import Demand, Held, Limits, plan
from tidemill.model.failure import FailureClass
from tidemill.site.capacity import Ahead, wanted
from tidemill.site.retry import decide
from tidemill.site.state import Piece

LIMITS = Limits(
    nodes_max=10,
    machine_nodes=8,
    cores_per_node=4,
    starts_failed=0,
    last_failed_s=0,
    backoff_s=2,
    backoff_max_s=60,
)
NONE = Held(active=0, waiting=[])


def demand(events: int, core_s: float) -> Demand:
    return Demand(events=events, core_s=core_s, slot_cores=1)


def test_nodes_are_asked_for_as_the_backlog_fills_them() -> None:
    assert plan(demand(0, 0), NONE, LIMITS, now_s=0).submit == 0
    assert plan(demand(1, 1), NONE, LIMITS, now_s=0).submit == 1
    assert plan(demand(100_000, 20), NONE, LIMITS, now_s=0).submit == 1  # many short events fit on one node
    assert plan(demand(12, 12 * 3600), NONE, LIMITS, now_s=0).submit == 3
    assert plan(demand(1000, 1e6), NONE, LIMITS, now_s=0).submit == 8
    assert plan(demand(1000, 1e6), Held(active=5, waiting=["a"]), LIMITS, now_s=0).submit == 2


def test_waiting_allocations_that_nothing_would_fill_are_given_up() -> None:
    held = Held(active=1, waiting=["new", "old"])
    assert plan(demand(0, 0), held, LIMITS, now_s=0).cancel == ["new", "old"]
    assert plan(demand(8, 8 * 3600), held, LIMITS, now_s=0).cancel == ["new"]


def test_failed_starts_slow_it_down_with_a_reason() -> None:
    limits = msgspec.structs.replace(LIMITS, starts_failed=3, last_failed_s=100.0)
    waiting = plan(demand(1000, 1e6), NONE, limits, now_s=105.0)
    assert waiting.submit == 0
    assert "3 allocations in a row" in (waiting.waits_for or "")
    assert plan(demand(1000, 1e6), NONE, limits, now_s=108.5).submit == 1


AHEAD = Ahead(
    cores=4,
    open_core_s=0,
    open_ranges=0,
    rate_core_s=0,
    sync_s=10,
    lease_ahead_s=60,
    core_s_max=1e6,
    ranges_max=100,
)


def test_work_for_a_minute_is_kept_ahead() -> None:
    assert wanted(AHEAD) == (240, 100)
    assert wanted(msgspec.structs.replace(AHEAD, open_core_s=230)) == (0, 0)
    assert wanted(msgspec.structs.replace(AHEAD, open_core_s=100, open_ranges=60)) == (140, 40)
    assert wanted(msgspec.structs.replace(AHEAD, open_ranges=100)) == (0, 0)


def test_what_three_syncs_eat_is_kept_ahead_where_that_is_more() -> None:
    assert wanted(msgspec.structs.replace(AHEAD, rate_core_s=100))[0] == 3000


def test_named_culprit_takes_the_blame_alone() -> None:
    verdict = decide(FailureClass.PAYLOAD, [(0, 10)], culprit=4, failures={}, retries=1)
    assert verdict.again == [Piece(0, 4), Piece(5, 5), Piece(4, 1, 1)]
    assert (verdict.counted, verdict.failed) == ([4], [])
    assert decide(FailureClass.PAYLOAD, [(4, 5)], culprit=4, failures={4: 1}, retries=1).failed == [4]


def test_range_is_halved_and_uncounted_failures_are_not() -> None:
    halves = decide(FailureClass.MEMORY, [(0, 5)], culprit=None, failures={}, retries=0)
    assert halves.again == [Piece(0, 3, 3), Piece(3, 2, 2)]
    whole = decide(FailureClass.NODE, [(0, 5)], culprit=None, failures={}, retries=0)
    assert (whole.again, whole.counted) == ([Piece(0, 5)], [])
