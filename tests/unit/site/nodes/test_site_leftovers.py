"""Which old files may go, and when."""

from __future__ import annotations

from tidemill.harvest.account.broker_log import Submitted
from tidemill.model.state import AllocationState
from tidemill.site.nodes.retention import BATCH, KEPT_MAX, KEPT_S, ExpiredFiles, Leftovers
from tidemill.site.state.site_state import Allocation

SECOND = 1_000_000
DAY_US = int(KEPT_S * SECOND)


def allocation(
    name: str, ended_s: int, state: AllocationState = AllocationState.COMPLETED, submission: str = ""
) -> Allocation:
    return Allocation(
        name=name, fleet="f", nodes=1, cores=1, state=state, intended_us=0, ended_us=ended_s * SECOND,
        submission=submission,
    )  # fmt: skip


def test_files_go_a_day_after_the_end_and_never_of_what_lives() -> None:
    runs = allocation("c", 0, AllocationState.ACTIVE)
    left = Leftovers([allocation("b", 20), allocation("a", 10), runs])
    assert len(left) == 2
    assert left.next_expired([runs], DAY_US + 9 * SECOND) is None
    assert left.next_expired([runs], DAY_US + 10 * SECOND) == ExpiredFiles(["a"], ["a"])
    left.ended(allocation("c", 30))
    assert left.next_expired([], DAY_US + 30 * SECOND) == ExpiredFiles(["b", "c"], ["b", "c"])
    assert left.next_expired([], 10 * DAY_US) is None


def test_a_script_stays_while_one_of_its_array_lives_and_what_came_back_stays() -> None:
    first, second = (allocation(f"s.{k}", 10, submission="s") for k in range(2))
    left = Leftovers([first, second])
    second.state = AllocationState.ACTIVE  # it was lost only
    assert left.next_expired([second], 2 * DAY_US) == ExpiredFiles(["s.0"], [])
    left.ended(allocation("s.1", 20, submission="s"))
    assert left.next_expired([], 2 * DAY_US) == ExpiredFiles(["s.1"], ["s"])


def test_at_most_so_many_are_kept_and_a_few_go_at_a_time() -> None:
    left = Leftovers([allocation(f"a{k}", k) for k in range(KEPT_MAX + BATCH + 1)])
    taken = left.next_expired([], KEPT_MAX * SECOND)
    assert taken is not None
    assert taken.names == [f"a{k}" for k in range(BATCH)]
    assert left.next_expired([], KEPT_MAX * SECOND) == ExpiredFiles([f"a{BATCH}"], [f"a{BATCH}"])
    assert left.next_expired([], KEPT_MAX * SECOND) is None


def test_what_earlier_agents_asked_for_is_found_in_their_records() -> None:
    left = Leftovers([allocation("s.1", 50, submission="s")])
    record = Submitted(at_s=0, plan="e1-1", name="s", count=3, width=1, walltime_s=100)
    runs = allocation("s.2", 0, AllocationState.ACTIVE, "s")
    left.restore([record], {"s.1", "s.2"}, now_us=40 * SECOND)
    assert left.next_expired([runs], DAY_US + 40 * SECOND) == ExpiredFiles(["s.0"], [])
    assert left.next_expired([runs], DAY_US + 50 * SECOND) == ExpiredFiles(["s.1"], [])
