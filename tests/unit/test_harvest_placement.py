"""What is given back is what the scheduler would have taken."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.harvest.placement import Starting, chosen, kept_from, preferred
from tidemill.model.machine import Queued

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
    two, again, three = Starting("1", 2), Starting("2", 2), Starting("3", 3)
    assert preferred(NODES, ["n0"], ours, [two]) == (["c", "d"], [], [])
    assert preferred(NODES, ["n0"], ours, [two, again]).names == ["c", "d", "a"]
    assert preferred(NODES, ["n0"], ours, [three]).names == ["a", "b"]
    assert preferred(NODES, [], {"x": "gone"}, [Starting("4", 1)]).names == []


def test_beside_a_planned_job_only_the_nodes_that_are_not_planned_help() -> None:
    ours = {"a": "n1", "b": "n2", "c": "n5", "d": "n6"}
    planned = frozenset({"n0", "n1", "n2", "n3", "n4", "n5"})
    long = Starting("9", 1, planned)
    assert preferred(NODES, ["n0"], ours, [long]) == (["d"], ["d"], ["9"])
    assert preferred(NODES, ["n0", "n7"], {"a": "n1"}, [long]) == ([], [], [])
    assert preferred(NODES, [], {"a": "n1", "b": "n2"}, [long]) == (["a"], [], [])  # nothing helps it
    avoid = frozenset({"n0", "n1", "n2", "n3", "n4"})
    beside = preferred(NODES, ["n0", "n6", "n7"], {"a": "n5"}, [Starting("9", 1, avoid)])
    assert beside == (["a"], [], [])  # it would get n5, yet n6 does as well


def test_a_job_that_ends_before_the_planned_one_starts_can_have_its_nodes() -> None:
    def queued(number: str, **more: Any) -> Queued:
        return Queued(id=number, name="j", user="u", width=1, walltime_s=300.0, **more)

    wide = queued("1", planned_s=1250.0, planned_nodes=("n0", "n1"))
    assert kept_from(queued("2"), [wide], 1000.0) == {"n0", "n1"}
    assert kept_from(queued("2"), [wide], 900.0) == frozenset()
    assert kept_from(queued("2"), [queued("3", planned_nodes=("n3",))], 1000.0) == frozenset()
