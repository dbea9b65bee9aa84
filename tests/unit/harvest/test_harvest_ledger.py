"""Grants of a centre: sums computed by hand."""

from __future__ import annotations

import pytest

from tidemill.config.site import Account
from tidemill.harvest.account.ledger import UNBOUNDED_S, Bounds, Standing, balance
from tidemill.harvest.plan.ours import Held

NOW = 100_000.0
FREE = Bounds()
FIRST = Account(name="phy123", node_hours=60)
SECOND = Account(name="hep7", node_hours=10)


def held(account: str, nodes: int, walltime_s: float, *, started_s: float = 0.0, ends_s: float = 0.0) -> Held:
    return Held(
        name="", width=nodes, is_waiting=not started_s, account=account, walltime_s=walltime_s, started_s=started_s,
        ends_s=ends_s,
    )  # fmt: skip


def test_a_grant_is_settled_in_flight_and_committed() -> None:
    living = [
        held("phy123", 4, 7200, started_s=NOW - 1800, ends_s=NOW + 5400),
        held("phy123", 2, 3600),
        held("hep7", 1, 3600, started_s=NOW - 600, ends_s=NOW + 600),
    ]
    ledger = balance([FIRST, SECOND], {"phy123": 20 * 3600.0}, living, now_s=NOW, bounds=FREE)

    # 20 settled, 4 x 0.5 h in flight, 4 x 1.5 h + 2 x 1 h committed: 28.8 below the stop line at 58.8
    line = ledger.lines[0]
    assert line.settled_s == 20 * 3600
    assert (line.in_flight_s, line.committed_s) == (2 * 3600, 8 * 3600)
    assert line.left_s == pytest.approx(28.8 * 3600)
    assert line.used_s == 22 * 3600
    assert line.standing is Standing.OPEN
    assert (ledger.account, ledger.notes) == ("phy123", [])
    assert ledger.node_s_left == pytest.approx(28.8 * 3600)
    assert ledger.lines[1].in_flight_s == 600


def test_the_next_account_follows_at_the_stop_line() -> None:
    ledger = balance([FIRST, SECOND], {"phy123": 58.8 * 3600.0}, [], now_s=NOW, bounds=FREE)
    assert ledger.account == "hep7"
    assert ledger.node_s_left == pytest.approx(9.8 * 3600)
    assert ledger.notes == [
        "account `phy123`: 58.8 of 60.0 node-hours are used, 0.0 committed: nothing more is asked for there"
    ]


def test_what_is_committed_and_not_used_comes_back() -> None:
    waiting = [held("hep7", 10, 3600)]
    assert balance([SECOND], {}, waiting, now_s=NOW, bounds=FREE).account is None
    early = balance([SECOND], {"hep7": 360.0}, [], now_s=NOW, bounds=FREE)
    assert early.account == "hep7"
    assert early.node_s_left == pytest.approx(9.8 * 3600 - 360)


def test_the_warning_line_is_told_before_the_stop_line() -> None:
    ledger = balance([SECOND], {"hep7": 9 * 3600.0}, [], now_s=NOW, bounds=FREE)
    assert ledger.lines[0].standing is Standing.WARN
    assert ledger.account == "hep7"
    assert ledger.notes == ["account `hep7`: 9.0 of 10.0 node-hours are used"]


def test_without_an_account_left_the_site_drains() -> None:
    ledger = balance([SECOND], {"hep7": 9.8 * 3600}, [], now_s=NOW, bounds=FREE)
    assert (ledger.account, ledger.node_s_left) == (None, 0.0)
    assert ledger.notes[-1] == "no account is left: what runs may finish, nothing new is asked for"


def test_a_bound_of_our_own_counts_all_accounts_and_what_none_pays() -> None:
    bounds = Bounds(node_hours_max=100)
    ledger = balance([], {"": 50 * 3600.0, "old": 20 * 3600.0}, [], now_s=NOW, bounds=bounds)
    assert (ledger.account, ledger.node_s_left) == ("", 30 * 3600)

    spent = balance([FIRST], {"": 100 * 3600.0}, [], now_s=NOW, bounds=bounds)
    assert spent.account is None
    assert spent.notes == ["`harvest.node_hours_max` = 100 is reached"]


def test_without_accounts_and_bounds_nothing_is_counted() -> None:
    ledger = balance([], {"": 1e9}, [], now_s=NOW, bounds=FREE)
    assert (ledger.account, ledger.node_s_left, ledger.lines) == ("", UNBOUNDED_S, [])


def test_an_allocation_past_its_limit_commits_nothing_more() -> None:
    late = held("hep7", 2, 60, started_s=NOW - 90, ends_s=NOW - 30)
    line = balance([SECOND], {}, [late], now_s=NOW, bounds=FREE).lines[0]
    assert (line.in_flight_s, line.committed_s) == (180, 0)
