"""The closing lines of pytest and cargo, as `make test` adds them up."""

from __future__ import annotations

import pytest
from run_stages import counted, lanes_of


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


def test_a_step_runs_its_lanes_without_the_targets_that_are_left_out() -> None:
    assert lanes_of("test-a,test-b+test-c", set()) == [["test-a", "test-b"], ["test-c"]]
    assert lanes_of("test-a,test-b+test-c", {"test-a", "test-c"}) == [["test-b"]]
    assert lanes_of("test-c", {"test-c"}) == []
