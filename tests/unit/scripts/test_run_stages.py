"""The closing lines of pytest and cargo, as `make test` adds them up."""

from __future__ import annotations

import threading

import pytest
from run_stages import Result, counted, next_of, run_all, shares_of


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("....\n4 passed in 0.12s\n", 0, (4, 0)),
        ("==== 2 failed, 2179 passed, 43 skipped in 1105.32s (0:18:25) ====\n", 1, (2179, 2)),
        ("1 failed, 3 passed, 2 errors in 3.00s\n", 1, (3, 3)),
        (
            "test result: ok. 7 passed; 0 failed; 0 ignored\ntest result: FAILED. 1 passed; 2 failed\n",
            101,
            (8, 2),
        ),
        ("error: could not compile `tidemill-lead`\n", 101, (0, 1)),
        ("3 passed in 0.10s\nkilled\n", 137, (3, 1)),
        ("Success: no issues found in 800 source files\n17 passed in 9.10s\n", 0, (17, 0)),
        ("", 0, (1, 0)),
    ],
)
def test_the_counts_of_a_target_are_those_of_its_closing_lines(
    text: str, status: int, expected: tuple[int, int]
) -> None:
    assert counted(text, status) == expected


def test_a_target_takes_all_of_the_room_where_nothing_is_said() -> None:
    assert shares_of(["--room=10", "test-a:4", "test-b", "test-c:99"]) == (
        10,
        {"test-a": 4, "test-b": 10, "test-c": 10},
    )
    assert shares_of(["test-a"]) == (1, {"test-a": 1})


def test_what_is_left_out_does_not_run() -> None:
    assert shares_of(["--without=test-a", "--room=2", "test-a:1", "test-b:1"]) == (2, {"test-b": 1})


def test_targets_run_in_order_as_far_as_there_is_room_and_each_once() -> None:
    shares = {"a": 6, "b": 10, "c": 3, "d": 2}
    lock, begun, free, least = threading.Lock(), list[str](), 10, 10
    beside = threading.Barrier(2)

    def do(target: str) -> Result:
        nonlocal free, least
        with lock:
            begun.append(target)
            free -= shares[target]
            least = min(least, free)
        if target in ("a", "c"):  # c has passed b, and runs beside a
            beside.wait(30)
        with lock:
            free += shares[target]
        return Result(target, 1, 0)

    results = run_all(10, shares, do)
    assert sorted(result.target for result in results) == ["a", "b", "c", "d"]
    assert begun[0] == "a"
    assert begun.index("c") < begun.index("b")
    assert least == 0
    assert free == 10


def test_the_first_target_that_fits_comes_next() -> None:
    assert next_of({"a": 5, "b": 3, "c": 1}, 4) == "b"
    assert next_of({"a": 5}, 4) is None
