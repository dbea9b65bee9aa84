"""What is given back is what the scheduler would have taken."""

from __future__ import annotations

import pytest

from tidemill.harvest.placement import chosen, preferred

NODES = [f"n{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("free", "width", "taken"),
    [
        ([0, 1, 2, 3], 2, [0, 1]),
        ([0, 1, 2, 5, 6], 2, [5, 6]),  # the smallest run that suffices
        ([0, 2, 3, 5], 3, [2, 3, 0]),  # none suffices: the largest first
        ([4], 2, [4]),
        ([], 1, []),
    ],
)
def test_the_smallest_run_that_suffices_else_the_largest(
    free: list[int], width: int, taken: list[int]
) -> None:
    assert chosen(free, width) == taken


def test_ours_on_those_nodes_go_and_the_next_job_gets_others() -> None:
    ours = {"a": "n1", "b": "n2", "c": "n5", "d": "n6"}
    assert preferred(NODES, ["n0"], ours, [2]) == ["c", "d"]
    assert preferred(NODES, ["n0"], ours, [2, 2]) == ["c", "d", "a"]
    assert preferred(NODES, ["n0"], ours, [3]) == ["a", "b"]
    assert preferred(NODES, [], {"x": "gone"}, [1]) == []
