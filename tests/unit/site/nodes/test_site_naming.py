"""Which of our allocations go, and which are shortened: names for counts."""

from __future__ import annotations

import msgspec
from tests.effort import lines_run

from tidemill.harvest.plan.ours import EndOrder, Holding
from tidemill.harvest.plan.situation import Backlog, Busy, Decision, Limits, Situation, Waiting
from tidemill.harvest.snapshot.backfill import NodesRelease
from tidemill.harvest.snapshot.placement import Layout
from tidemill.site.nodes.selection import (
    Orders,
    PlacedDecision,
    Shape,
    ends_of,
    given_back,
    orders,
    with_names,
)


def test_of_allocations_that_cost_alike_the_favored_ones_go() -> None:
    def group(key: int, loss_s: float, *names: str) -> Holding:
        return Holding(
            key=key, width=1, count=len(names), waiting=False, started_s=0.0, ends_s=900.0, loss_s=loss_s, names=names
        )  # fmt: skip

    groups = [group(0, 0.0, "a", "b"), group(1, 5.0, "c"), group(2, 500.0, "d")]
    decision = Decision(cancel=[EndOrder(0, 2)])

    def going(*names: str, needed: tuple[str, ...] = ()) -> list[str]:
        return given_back(decision, groups, names, needed=needed, event_s=10.0)

    assert going() == ["a", "b"]
    assert going("d", "c") == ["c", "a"]
    assert going("b", "c") == ["b", "c"]
    assert going("d", needed=("d",)) == ["d", "a"]  # whatever it costs: no other helps
    assert going("b", "c", "d", needed=("b", "c", "d")) == ["b", "c", "d"]
    decision = Decision()
    assert (going("d"), going("d", needed=("d",))) == ([], ["d"])


def test_who_goes_instead_of_being_shortened_leaves_as_many_the_less_to_be_shortened() -> None:
    def group(key: int, names: str, ends_s: float) -> Holding:
        return Holding(
            key=key, width=1, count=len(names), waiting=False, started_s=0, ends_s=ends_s, names=tuple(names)
        )

    groups = [group(0, "ab", 400.0), group(1, "xy", 900.0)]
    decision = Decision(
        cancel=[EndOrder(0, 1)], shorten=[EndOrder(1, 1, 500.0)]
    )  # one of two may outlast 500

    assert ends_of(decision, groups, ["a"]) == {"y": 500.0}
    assert ends_of(decision, groups, ["x"]) == {}  # y is the one that may
    assert ends_of(decision, groups, ["x", "y"]) == {}
    late = [group(0, "ab", 600.0), group(1, "xy", 900.0)]
    assert ends_of(decision, late, ["x"]) == {"a": 500.0}  # what stays for it is in the way as well


def between(*, outlasts: int, losses: dict[str, float] | None = None) -> tuple[PlacedDecision, Situation]:
    """As recorded on a real Slurm: a job of 14 nodes waits for the end of three others at 301, one of one node could
    start beside it. Ours are on 3, 12, 13, 14 and 15; of these the one on `outlasts` ends after 301."""
    ours = {
        f"p{place}": NodesRelease(3593.0 if place == outlasts else 300.0, frozenset({place}))
        for place in (3, 12, 13, 14, 15)
    }
    queue = [Waiting("wide", 14, 180.0), Waiting("one", 1, 360.0)]
    layout = Layout(
        now_s=0.0,
        places={},
        idle=frozenset(),
        ours=ours,
        others=[
            NodesRelease(225.0, frozenset({0, 1, 2})),
            NodesRelease(292.0, frozenset({9, 10, 11})),
            NodesRelease(301.0, frozenset(range(4, 9))),
        ],
        queue=queue,
    )
    holdings = [
        Holding(
            key=key,
            width=1,
            count=1,
            waiting=False,
            started_s=-9.0,
            ends_s=each.ends_s,
            loss_s=(losses or {}).get(name, 0.0),
            names=(name,),
        )
        for key, (name, each) in enumerate(
            sorted(ours.items(), key=lambda item: (losses or {}).get(item[0], 0.0))
        )
    ]
    situation = Situation(
        now_s=0.0,
        nodes=16,
        idle=0,
        busy=[Busy(11, 301.0)],
        queue=queue,
        outages=[],
        holdings=holdings,
        backlog=Backlog(node_s=1e6, nodes_max=16, event_s=1.0),
        limits=Limits(nodes_max=16, allocations_max=16, death_s=0.5),
    )
    return PlacedDecision(
        decision=Decision(cancel=[EndOrder(0, 1)], yields_to=["one"]), layout=layout
    ), situation


def test_a_job_beside_a_planned_one_gets_the_node_that_it_would_have_without_us() -> None:
    assert orders(*between(outlasts=15)) == Orders(["p14"], {}, [])


def test_the_planned_job_keeps_its_nodes_so_that_it_does_not_take_the_free_one() -> None:
    choice, situation = between(outlasts=12)
    found = orders(choice, situation)
    assert found == Orders(
        ["p14"], {"p12": 300.5}, ["one"]
    )  # else the wide job were planned on 14 instead of 12
    assert choice.layout is not None
    assert choice.layout.late({"one"}, ["p14"], {}) == ["one"]
    assert choice.layout.late({"one"}, found.cancel, found.ends_s) == []


def test_no_node_helps_but_one_then_that_one_goes_whatever_it_costs() -> None:
    choice, situation = between(outlasts=15, losses={"p14": 500.0})
    assert given_back(choice.decision, situation.holdings, ["p14"], event_s=1.0) != ["p14"]
    assert orders(choice, situation) == Orders(["p14"], {}, ["one"])
    plan = with_names(Shape(pool="p", cores=1, memory_mb=1), situation, choice=choice, starts_wait="")
    assert (plan.cancel, plan.decision.yields_to) == (["p14"], ["one"])


def test_where_everything_goes_nothing_is_chosen_from() -> None:
    """Thousands of jobs of one node that wait for thousands of nodes of ours: where each would start took seconds."""
    names = [f"a{place}" for place in range(2000)]
    queue = [Waiting(str(k), 1, 600.0) for k in range(5000)]
    places = {f"n{place}": place for place in range(2000)}
    ours = {name: NodesRelease(900.0, frozenset({place})) for place, name in enumerate(names)}
    layout = Layout(now_s=0.0, places=places, idle=frozenset(), ours=ours, others=[], queue=queue)
    holding = Holding(
        key=0, width=1, count=2000, waiting=False, started_s=0.0, ends_s=900.0, names=tuple(names)
    )
    situation = msgspec.structs.replace(between(outlasts=12)[1], holdings=[holding])
    decision = Decision(cancel=[EndOrder(0, 2000)], yields_to=[job.id for job in queue[:2000]])
    choice = PlacedDecision(decision=decision, layout=layout)
    found: list[Orders] = []
    assert lines_run(lambda: found.append(orders(choice, situation))) < 100_000
    assert found == [Orders(names, {}, [])]


def test_what_would_not_help_is_not_done() -> None:
    choice, situation = between(outlasts=15)
    assert choice.layout is not None
    longer = choice.layout._replace(
        queue=[Waiting("wide", 16, 180.0), Waiting("one", 1, 360.0)]
    )  # needs all nodes
    found = orders(PlacedDecision(decision=choice.decision, layout=longer), situation)
    assert (len(found.cancel), found.ends_s, found.jobs) == (1, {}, [])
