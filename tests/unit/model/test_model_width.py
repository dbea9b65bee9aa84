"""What is legal for payloads that span nodes."""

from __future__ import annotations

import pytest

from tidemill.model.job import Resources, Width
from tidemill.model.width import check_allowed, check_asked, check_place, text


def test_a_job_is_wide_when_it_asks_for_nodes_or_ranks() -> None:
    assert Resources(cores=4).width is None
    assert Resources(nodes=3).width == Width(3, 3)
    assert Resources(ranks=4).width == Width(1, 4)
    assert Resources(nodes=2, ranks=8).width == Width(2, 8)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Resources(), None),
        (Resources(nodes=2, ranks=8), None),
        (Resources(nodes=0), "`resources.nodes` is 0, legal is 1 to 100,000"),
        (Resources(nodes=-1, ranks=4), "`resources.nodes` is -1, legal is 1 to 100,000"),
        (Resources(ranks=0), "`resources.ranks` is 0, legal is 1 to 10,000,000"),
        (Resources(nodes=4, ranks=2), "2 ranks on 4 nodes: every node needs at least one rank"),
        (Resources(nodes=4, ranks=10), "10 ranks cannot be spread evenly over 4 nodes; 8 or 12 can"),
    ],
)
def test_figures_that_do_not_go_together_are_named(asked: Resources, message: str | None) -> None:
    assert check_asked(asked) == message


def test_an_application_says_how_wide_it_may_be() -> None:
    wide = Width(4, 64)
    assert check_allowed(wide, app="a", nodes_max=4, ranks_max=64) is None
    assert "not approved for an MPI launcher" in str(check_allowed(wide, app="a", nodes_max=1, ranks_max=0))
    assert "may span 1 node, the job asks for 4" in str(
        check_allowed(wide, app="a", nodes_max=1, ranks_max=64)
    )
    assert "may have 8 ranks, the job asks for 64" in str(
        check_allowed(wide, app="a", nodes_max=4, ranks_max=8)
    )


def test_a_site_needs_launcher_nodes_and_cores() -> None:
    wide = Width(2, 8)
    assert check_place(wide, cores=2, nodes=2, cores_per_node=8, launcher="srun") is None
    assert "no MPI launcher" in str(check_place(wide, cores=2, nodes=2, cores_per_node=8, launcher=""))
    assert "spans 2 nodes" in str(check_place(wide, cores=2, nodes=1, cores_per_node=8, launcher="srun"))
    assert "4 ranks of 2 cores on each node" in str(
        check_place(wide, cores=2, nodes=2, cores_per_node=7, launcher="srun")
    )


def test_a_width_in_words() -> None:
    assert text(Width(1, 1)) == "1 node, 1 rank"
    assert text(Width(4, 64)) == "4 nodes, 64 ranks"
