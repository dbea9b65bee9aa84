"""The charts of an allocation's nodes: of what there is, with a scale that fits, and small."""

from __future__ import annotations

import re

from tests.worlds.services import node_series

from tidemill.charts.lines import HEIGHT, WIDTH, TimeLine, lines
from tidemill.model.metrics.nodes import PLACES, QUANTITIES
from tidemill.server.monitoring.window import SampleWindow
from tidemill.server.web.allocation import STEPS_MAX, _span, charts, cores, uncounted
from tidemill.wire.monitoring import AllocationSamples, NodePoint, NodeSeries, SampleReply


def held(*sent: AllocationSamples) -> SampleReply:
    window = SampleWindow()
    window.add("s", sent)
    return window.reply("s", "a")


def test_a_chart_has_a_line_for_each_node_and_one_for_the_mean() -> None:
    found = held(node_series.samples("a", ["n1", "n2", "n3"], until_us=10**15, slow="n3"))
    drawn = {each.panel.title: each for each in charts(found, _span(found))}
    assert {"CPU in programs", "I/O wait", "Memory in use", "NFS round trip", "Lustre"} <= drawn.keys()
    assert "GPUs" not in drawn  # nobody told of them
    assert "Swapped pages" not in drawn  # nobody swapped
    chart = drawn["CPU in programs"]
    assert (chart.drawing.count('class="member"'), chart.drawing.count('class="mean"')) == (3, 1)
    assert (chart.top, chart.now[-1]) == ("100 %", "%")
    assert 'aria-label="CPU in programs: 3 nodes' in chart.drawing


def one_node(**values: float) -> SampleReply:
    """Two samples of one node of an allocation of four."""
    row = [values.get(each.name) for each in QUANTITIES]
    points = [NodePoint(10**15 + k * 10**6, 10**6, row) for k in range(2)]
    series = [NodeSeries(node="n1", points=points), NodeSeries(node="n2", points=points)]
    return held(AllocationSamples(allocation="a", nodes_total=4, nodes=series, mean=points))


def test_opens_and_closes_are_charts_of_each_file_system_with_the_sum_over_nodes() -> None:
    found = one_node(
        cpu_user=0.5, nfs_ops=90, nfs_opens=12, nfs_closes=9, lustre_ops=7, lustre_opens=3, lustre_closes=2
    )
    drawn = {each.panel.title: each for each in charts(found, _span(found))}
    assert [(drawn[name].now, drawn[name].total) for name in ("NFS opens", "NFS closes")] == [
        ("12/s", "48/s"), ("9/s", "36/s"),
    ]  # fmt: skip
    assert [(drawn[name].now, drawn[name].total) for name in ("Lustre opens", "Lustre closes")] == [
        ("3/s", "12/s"), ("2/s", "8/s"),
    ]  # fmt: skip
    assert drawn["CPU in programs"].total == ""  # a sum of shares says nothing
    assert uncounted(found) == []


def test_opens_that_are_not_known_are_told_apart_from_none() -> None:
    none = one_node(nfs_ops=90, nfs_opens=0, nfs_closes=0, lustre_ops=0, lustre_opens=0, lustre_closes=0)
    drawn = {each.panel.title: each.now for each in charts(none, _span(none))}
    assert (drawn["NFS opens"], drawn["NFS closes"]) == ("0/s", "0/s")
    assert not any(title.startswith("Lustre") for title in drawn)  # nobody uses it
    assert uncounted(none) == []

    local = one_node(cpu_user=0.5, nfs_ops=0, lustre_ops=0)
    assert [text.split(" (")[0] for text in uncounted(local)] == [
        "opens of files: the nodes used no NFS or Lustre"
    ]

    unknown = one_node(nfs_ops=90, lustre_ops=7, lustre_closes=2)
    titles = {each.panel.title for each in charts(unknown, _span(unknown))}
    assert titles == {"NFS requests", "Lustre requests", "Lustre closes"}
    assert [text.split(" (")[0] for text in uncounted(unknown)] == [
        "opens of files on NFS", "opens of files on Lustre",
    ]  # fmt: skip


def test_a_line_has_few_points_however_many_samples_there_are() -> None:
    found = held(node_series.samples("a", ["n1"], until_us=10**15, points=240))
    (chart,) = [each for each in charts(found, _span(found)) if each.panel.title == "Load"]
    (path,) = re.findall(r'class="member" d="([^"]+)"', chart.drawing)
    assert 20 < path.count("L") <= STEPS_MAX + 1


def test_one_sample_alone_and_values_of_zero_are_drawn() -> None:
    values: list[float | None] = [None] * len(QUANTITIES)
    values[PLACES["cpu_user"]] = 0.0
    series = NodeSeries(node="n", points=[NodePoint(10**15, 10**6, values)])
    found = held(AllocationSamples(allocation="a", nodes_total=1, nodes=[series]))
    (chart,) = charts(found, _span(found))
    assert (chart.panel.title, chart.top, chart.now) == ("CPU in programs", "1 %", "0 %")
    assert 'd="M0 200h1"' in chart.drawing
    nothing = held()
    assert (_span(nothing), charts(nothing, None)) == (None, [])


def test_a_line_breaks_where_samples_are_missing_and_stays_inside() -> None:
    points = [(0.0, 1.0), (1.0, 9.0), (2.0, -1.0), (8.0, 1.0), (9.0, 1.0)]
    text = lines([TimeLine("<n>", points)], None, span=(0.0, 10.0), top=2.0, title="t")
    (path,) = re.findall(r'class="member" d="([^"]*)"', text)
    assert path == "M0 100h1L60 0L120 200M480 100h1L540 100"
    assert "&lt;n&gt;" in text
    assert (WIDTH, HEIGHT) == (600, 200)


def test_cores_are_a_row_of_cells_with_words() -> None:
    drawn = cores([("b9", "x"), ("b0", "x")])
    assert 'aria-label="2 cores or groups of cores, 1 of them busy for 90 % of the time or more"' in drawn
    assert drawn.count("<rect") == 2
    assert cores([]) == "-"
