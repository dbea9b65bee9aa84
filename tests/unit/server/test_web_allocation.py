"""The charts of an allocation's nodes: of what there is, with a scale that fits, and small."""

from __future__ import annotations

import re

from tests.worlds.services import node_series

from tidemill.charts.lines import HEIGHT, WIDTH, TimeLine, lines
from tidemill.model.metrics.nodes import PLACES, QUANTITIES
from tidemill.server.monitoring.window import SampleWindow
from tidemill.server.web.allocation import STEPS_MAX, _span, charts, cores
from tidemill.wire.monitoring import AllocationSamples, NodePoint, NodeSeries, SampleReply


def held(*sent: AllocationSamples) -> SampleReply:
    window = SampleWindow()
    window.take("s", sent)
    return window.reply("s", "a")


def test_a_chart_has_a_line_for_each_node_and_one_for_the_mean() -> None:
    found = held(node_series.samples("a", ["n1", "n2", "n3"], until_us=10**15, slow="n3"))
    drawn = {each.panel.title: each for each in charts(found, _span(found))}
    assert {"CPU in programs", "I/O wait", "Memory in use", "NFS round trip"} <= drawn.keys()
    assert "Lustre" not in drawn  # nobody told of it
    assert "Swapped pages" not in drawn  # nobody swapped
    chart = drawn["CPU in programs"]
    assert (chart.drawing.count('class="member"'), chart.drawing.count('class="mean"')) == (3, 1)
    assert (chart.top, chart.now[-1]) == ("100 %", "%")
    assert 'aria-label="CPU in programs: 3 nodes' in chart.drawing


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
