"""What stops a site, in which order it leaves, and how people let it work again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.batch.contract import Ending
from tidemill.errors import ConfigError
from tidemill.model.job import JobSpec
from tidemill.model.state import AllocationState
from tidemill.site import constants
from tidemill.site.staff import drain
from tidemill.site.staff.stopping import (
    PAUSE_MAX_S,
    PAUSE_S,
    Signs,
    pause_after,
    retreat,
    sign_of_stop,
    warning_of,
)
from tidemill.site.state import site_state
from tidemill.site.state.pool import WorkPool
from tidemill.wire import api, node

MINUTE_US = 60_000_000


def stop_of(signs: Signs, now_us: int = 0) -> site_state.Stop | None:
    return sign_of_stop(signs, now_us=now_us)


def test_a_stop_file_stops_with_its_text() -> None:
    stop = stop_of(Signs(stop_files=[("/centre/STOP", "call us")]))
    assert stop is not None
    assert (stop.cause, stop.reason) == ("stop_file", "`/centre/STOP` exists: call us")


def test_three_foreign_cancels_within_ten_minutes_stop_and_two_do_not() -> None:
    assert stop_of(Signs(foreign_us=[0, MINUTE_US]), now_us=MINUTE_US) is None
    stop = stop_of(Signs(foreign_us=[0, MINUTE_US, 9 * MINUTE_US]), now_us=9 * MINUTE_US)
    assert stop is not None
    assert stop.cause == "cancels"
    assert stop_of(Signs(foreign_us=[0, MINUTE_US, 11 * MINUTE_US]), now_us=11 * MINUTE_US) is None


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("ada ada ada", "3 allocations were canceled within 600 s by you (user `ada`), outside Tidemill"),
        ("root root root", "3 allocations were canceled within 600 s by `root`: staff of the centre"),
        ("ada root root", "3 allocations were canceled within 600 s by `ada`, `root`, outside Tidemill"),
        (
            "ada ada",
            "3 allocations were canceled within 600 s, and not by Tidemill: by staff of the centre, or by you (user "
            "`ada`)",
        ),
    ],
)
def test_who_canceled_allocations_is_said_as_far_as_it_is_known(by: str, said: str) -> None:
    stop = stop_of(Signs(foreign_us=[0, 0, 0], foreign_by=by.split(), user="ada"))
    assert stop is not None
    assert stop.reason == said


def test_the_first_cancel_of_others_says_what_three_do() -> None:
    first = Signs(foreign_us=[0], foreign_by=["ada"], user="ada")
    assert warning_of(first, now_us=MINUTE_US) == (
        "1 allocation was canceled by you (user `ada`), outside Tidemill; 3 such cancels within 600 s stop the site"
    )
    assert not warning_of(first, now_us=11 * MINUTE_US)
    assert not warning_of(Signs(foreign_us=[0, 0, 0], user="ada"), now_us=0), "they have stopped it"
    assert not warning_of(Signs(user="ada"), now_us=0)


def test_what_others_canceled_while_it_waited_is_not_asked_for_again_for_a_while_that_grows() -> None:
    assert pause_after([], MINUTE_US) == 0
    assert pause_after([0, 0], 0) == PAUSE_S, "two elements of one array are one occasion"
    assert pause_after([0], 4 * MINUTE_US) == 60
    assert pause_after([0], 5 * MINUTE_US) == 0
    again = [0, 6 * MINUTE_US]
    assert pause_after(again, 6 * MINUTE_US) == 2 * PAUSE_S
    often = [k * 10 * MINUTE_US for k in range(50)]
    assert pause_after(often, often[-1]) == PAUSE_MAX_S
    assert pause_after(again, 25 * 60 * MINUTE_US) == 0


def test_doubt_that_lasts_stops_with_its_reason() -> None:
    stop = stop_of(Signs(doubt="replies are not believed"))
    assert stop is not None
    assert (stop.cause, stop.reason) == ("doubt", "replies are not believed")


def test_a_held_allocation_stops_with_the_batch_systems_word() -> None:
    stop = stop_of(Signs(held=[("tm-s-e1-1", "JobHeldAdmin")]))
    assert stop is not None
    assert "JobHeldAdmin" in stop.reason


def allocation(name: str, state: AllocationState, canceled_us: int = 0) -> site_state.Allocation:
    return site_state.Allocation(
        name=name, fleet="f", nodes=1, cores=1, state=state, intended_us=0, canceled_us=canceled_us
    )


def test_what_waits_goes_at_once_and_what_runs_after_its_time_to_drain() -> None:
    stop = site_state.Stop(cause="stop_file", reason="r", at_us=MINUTE_US)
    all_of_ours = [
        allocation("waits", AllocationState.QUEUED),
        allocation("runs", AllocationState.ACTIVE),
        allocation("over", AllocationState.COMPLETED),
    ]

    def ended(now_us: int) -> list[str]:
        return retreat(stop, all_of_ours, now_us=now_us, again_s=10).cancel

    assert ended(MINUTE_US) == ["waits"]
    assert ended(MINUTE_US + int(constants.STOP_S * 1e6)) == ["waits", "runs"]
    all_of_ours[0].canceled_us = all_of_ours[1].canceled_us = 2 * MINUTE_US
    assert ended(2 * MINUTE_US + 1) == []
    assert ended(2 * MINUTE_US + 11_000_000) == ["waits", "runs"]  # told again


def pool_with(*names: str) -> WorkPool:
    pool = WorkPool(site_state.SiteState(site="s"))
    pool.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
    pool.apply(site_state.FleetOpened(fleet="f", at_us=0))
    pool.apply(
        site_state.Intended(
            allocation="tm-s-e1-1", fleet="f", nodes=2, cores=1, at_us=0, count=len(names), account="a"
        )
    )
    assert list(pool.state.allocations) == list(names)
    return pool


def observed(name: str, state: AllocationState, ending: Ending, at_us: int = 5) -> site_state.Observed:
    return site_state.Observed(
        allocation=name,
        state=state,
        batch_id="7",
        reason="",
        at_us=at_us,
        ending="" if ending is Ending.NONE else ending.value,
        started_us=1_000_000,
    )


NAMES = ("tm-s-e1-1.0", "tm-s-e1-1.1", "tm-s-e1-1.2")


def test_only_cancellations_that_we_did_not_order_are_foreign() -> None:
    pool = pool_with(*NAMES)
    pool.apply(site_state.Ordered(at_us=1, cancel=[NAMES[0]]))
    pool.apply(observed(NAMES[0], AllocationState.CANCELED, Ending.CANCELED))
    assert pool.state.foreign_us == []
    pool.apply(observed(NAMES[1], AllocationState.CANCELED, Ending.PREEMPTED))
    pool.apply(observed(NAMES[1], AllocationState.CANCELED, Ending.DEADLINE))
    assert pool.state.foreign_us == []
    pool.apply(observed(NAMES[2], AllocationState.CANCELED, Ending.CANCELED))
    assert (pool.state.foreign_us, pool.state.foreign_by) == ([5], [""])


def test_cancels_of_others_count_apart_where_the_allocation_waited_and_own_ones_never() -> None:
    names = tuple(f"tm-s-e1-1.{k}" for k in range(4))
    waited, ran, mine, late = names
    pool = pool_with(*names)
    pool.apply(observed(ran, AllocationState.ACTIVE, Ending.NONE))
    pool.apply(site_state.Ordered(at_us=5, cancel=[mine]))
    for name in (waited, ran, mine):
        pool.apply(observed(name, AllocationState.CANCELED, Ending.CANCELED, 7))
    pool.apply(observed(late, AllocationState.CANCELED, Ending.DEADLINE, 7))
    assert (pool.state.foreign_us, pool.state.withdrawn_us) == ([7, 7], [7])
    pool.apply(site_state.Resumed(reason="r", at_us=9))
    assert (pool.state.foreign_us, pool.state.foreign_by, pool.state.withdrawn_us) == ([], [], [])


def test_a_resume_forgets_the_cancellations_that_led_to_the_stop() -> None:
    pool = pool_with(*NAMES)
    for name in NAMES:
        pool.apply(observed(name, AllocationState.CANCELED, Ending.CANCELED))
    pool.apply(site_state.Stopped(cause="cancels", reason="r", at_us=9))
    assert pool.state.stop
    pool.apply(site_state.Resumed(reason="agreed", at_us=10))
    assert not pool.state.stop
    assert not pool.state.foreign_us


def test_what_an_allocation_used_is_booked_once_and_again_when_it_was_only_lost() -> None:
    pool = pool_with(*NAMES)
    pool.apply(observed(NAMES[0], AllocationState.ACTIVE, Ending.NONE))
    pool.apply(observed(NAMES[0], AllocationState.LOST, Ending.UNKNOWN, at_us=11_000_000))
    assert pool.state.used_node_s == {"a": 20.0}
    pool.apply(observed(NAMES[0], AllocationState.ACTIVE, Ending.NONE, at_us=12_000_000))
    assert pool.state.used_node_s == {"a": 0.0}
    assert pool.state.allocations[NAMES[0]].ended_us == 0
    pool.apply(observed(NAMES[0], AllocationState.COMPLETED, Ending.DONE, at_us=31_000_000))
    assert pool.state.used_node_s == {"a": 60.0}


def test_a_stopped_site_gives_back_what_no_fleet_has_without_blame() -> None:
    pool = pool_with(*NAMES)
    order = api.LeaseOrder(
        n=1, lease=1, job=7, first=0, count=10, campaign="c", seed_base=0, spec=JobSpec(app="a", events=10)
    )
    pool.apply(site_state.Replied(acked=0, orders=[order], at_us=0))
    grant = node.Grant(grant=pool.state.next_grant, job=7, first=0, count=4, chunk_max=None)
    pool.apply(site_state.Granted(fleet="f", grants=[grant], cancels=[], ended=[], close=False))
    pool.apply(site_state.GaveBack(jobs=[7, 8], reason="stopped"))
    released = [each for each in pool.state.reports if isinstance(each, api.ReleaseReport)]
    assert [(each.first, each.count, each.reason, each.evidence) for each in released] == [
        (4, 6, "stopped", None)
    ]
    assert not pool.settlement.backlog
    pool.apply(site_state.FleetFinished(fleet="f", at_us=1))
    pool.apply(site_state.GaveBack(jobs=list(pool.settlement.backlog), reason="stopped"))
    released = [each for each in pool.state.reports if isinstance(each, api.ReleaseReport)]
    assert [(each.first, each.count) for each in released] == [(4, 6), (0, 4)]
    assert pool.state.leases_open == 0


def test_a_stop_and_a_resume_go_through_files(tmp_path: Path) -> None:
    assert drain.drained(tmp_path) is None
    drain.request_drain(tmp_path, "maintenance\non Monday")
    assert drain.drained(tmp_path) == "maintenance on Monday"
    assert drain.stop_files(tmp_path, tmp_path / "absent") == [
        (str(tmp_path / "STOP"), "maintenance on Monday")
    ]
    stop = site_state.Stop(cause="stop_file", reason="it exists", at_us=1)
    drain.show_stop(tmp_path, stop)
    drain.request_resume(tmp_path, "it is over")
    assert drain.drained(tmp_path) is None
    (request,) = drain.take_requests(tmp_path)
    assert request.reason == "it is over"
    drain.forget_requests(tmp_path)
    assert drain.drained(tmp_path) == "it exists"  # until the agent has taken it up
    drain.show_stop(tmp_path, None)
    assert drain.drained(tmp_path) is None
    assert "maintenance on Monday" in (tmp_path / "resumed.log").read_text()


def test_a_site_is_not_resumed_without_a_reason_or_while_staff_say_no(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reason"):
        drain.request_resume(tmp_path, " ")
    (tmp_path / "staff").touch()
    with pytest.raises(ConfigError, match="staff"):
        drain.request_resume(tmp_path, "please", stop_file=tmp_path / "staff")
    assert drain.take_requests(tmp_path) == []


def test_whatever_stands_at_the_stop_files_path_stops(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\0\n")
    assert drain.stop_text(tmp_path / "directory") == ""
    assert drain.stop_text(tmp_path / "binary") is not None
    assert drain.stop_text(tmp_path / "absent") is None


def test_entries_of_this_kind_come_back_from_the_log_as_they_were() -> None:
    entries: list[site_state.Entry] = [
        site_state.Ordered(at_us=1, cancel=["a"], ends_us={"b": 2}, leave=["c"], why="w"),
        site_state.Stopped(cause="held", reason="r", at_us=1),
        site_state.Resumed(reason="r", at_us=2),
    ]
    decode = msgspec.json.Decoder(site_state.Entry, dec_hook=site_state.decode_hook).decode
    assert [decode(msgspec.json.encode(each, enc_hook=site_state.encode_hook)) for each in entries] == entries
