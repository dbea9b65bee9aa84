"""What a site shows people: the tide by minutes until it was told, and nothing secret of its transfers."""

from __future__ import annotations

from tidemill.model.machine import Node, NodeState, Running, Snapshot
from tidemill.site.watch.views import TideSamples, node_counts, place
from tidemill.wire.monitoring import GrantView, TidePoint
from tidemill.wire.views import GRANTS, TIDE_POINTS_MAX, packed, types


def test_a_minute_is_the_mean_of_its_looks_and_is_told_until_the_next_has_begun() -> None:
    tide = TideSamples()
    tide.note(60.0, (4, 0, 2, 0))
    tide.note(90.0, (2, 1, 3, 0))
    first = TidePoint(minute=1, regular=3.0, ours=0.5, idle=2.5, away=0.0)
    assert tide.points() == [first]
    tide.received(tide.points())
    tide.note(119.0, (3, 2, 1, 0))
    tide.note(121.0, (6, 0, 0, 0))
    assert tide.points() == [
        TidePoint(minute=1, regular=3.0, ours=1.0, idle=2.0, away=0.0),
        TidePoint(minute=2, regular=6.0, ours=0.0, idle=0.0, away=0.0),
    ]
    tide.received(tide.points())
    assert [point.minute for point in tide.points()] == [2]


def test_a_server_that_is_away_for_days_finds_the_last_one() -> None:
    tide = TideSamples()
    for minute in range(3 * TIDE_POINTS_MAX):
        tide.note(60.0 * minute, (1, 0, 0, 0))
    points = tide.points()
    assert (len(points), points[-1].minute) == (TIDE_POINTS_MAX, 3 * TIDE_POINTS_MAX - 1)


def test_a_place_is_scheme_and_host_only() -> None:
    assert place("https://ada:secret@store.example.org:8443/x?token=abc") == "https://store.example.org"
    assert place("s3://bucket/key?X-Amz-Signature=abc") == "s3://bucket"
    assert place("file:///data/in.root") == place("/data/in.root") == "the site's file systems"
    assert place("job:17/hits") == "another job's output"
    assert place("") == "the site's output directory"
    assert place("http://[bad") == "unreadable URL"


def test_nodes_are_counted_once_whoever_has_them() -> None:
    def node(name: str, state: NodeState) -> Node:
        return Node(name=name, state=state, cores=8, memory_mb=1000, cores_free=0)

    ours = Running(id="1", name="t", user="u", nodes=("a",), width=1, started_s=0.0, ends_s=1.0, ours=True)
    nodes = [
        node("a", NodeState.BUSY), node("b", NodeState.BUSY), node("c", NodeState.IDLE), node("d", NodeState.AWAY),
        node("e", NodeState.ENDING),
    ]  # fmt: skip
    counts = node_counts(Snapshot(at_s=0.0, nodes=nodes, running=[ours], queued=[]))
    assert counts == {"ours": 1, "regular": 2, "idle": 1, "other": 1}


def test_views_that_say_the_same_are_equal_and_come_back_as_they_were_sent() -> None:
    """By that a site knows that it has nothing new to show."""
    grant = GrantView(account="sci", granted=2.0, used=1.0, open=0.0, left=1.0)
    sent = packed(grants=[grant], mode="run")
    assert sent == packed(grants=[grant], mode="run") != packed(grants=[], mode="run")
    assert GRANTS.decode(sent) == [grant]
    assert GRANTS.decode({}) == GRANTS.decode(packed(grants={"no": "list"})) == []
    assert all(each.name == name for name, each in types().items())
