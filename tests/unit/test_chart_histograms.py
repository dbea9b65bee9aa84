"""Figures in the field's style: ticks on all sides, stacks that end where their sum is, errors, keys, axes."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.charts.axes import Axis, axes, scale_of, ticks_of
from tidemill.charts.histogram import NARROW, Panel, Points, Steps, histogram
from tidemill.charts.svg import Frame

PLACE = Frame(100, 50, 400, 200)


def lines(path: str) -> list[tuple[float, float, str, float]]:
    """The ticks of a path: where each begins, its direction and length."""
    found = re.findall(r"M([-\d.]+) ([-\d.]+)([hv])([-\d.]+)", path)
    return [(float(x), float(y), way, float(long)) for x, y, way, long in found]


def test_ticks_point_inward_on_all_four_sides() -> None:
    path = re.search(r'd="([^"]+)"', axes(PLACE, Axis(0, 10), Axis(0, 1))[0])
    assert path is not None
    frame, *ticks = lines(path[1])
    assert frame[:2] == (100, 50)
    for x, y, way, long in ticks:
        if way == "v":
            assert (y, long > 0) in ((50.0, True), (250.0, False))
        else:
            assert (x, long > 0) in ((100.0, True), (500.0, False))
    for side in ((50.0, "v"), (250.0, "v"), (100.0, "h"), (500.0, "h")):
        assert [t for t in ticks if (t[1] if side[1] == "v" else t[0], t[2]) == side], side


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_an_axis_has_some_numbers_and_none_outside(low: float, wide: float) -> None:
    axis = Axis(low, low + wide)
    found = ticks_of(axis)
    assert 2 <= sum(1 for each in found if each.text) <= 9
    assert all(axis.low - wide * 1e-6 <= each.value <= axis.high + wide * 1e-6 for each in found)


@given(st.floats(1e-6, 1e6), st.floats(1.2, 1e9))
def test_a_logarithmic_axis_has_some_numbers(low: float, times: float) -> None:
    found = ticks_of(Axis(low, low * times, is_log=True))
    assert len([each for each in found if each.text]) <= 12
    assert times < 3 or len([each for each in found if each.text]) >= 1


def test_shares_are_told_in_percent_and_large_numbers_by_a_power() -> None:
    assert [each.text for each in ticks_of(Axis(0, 0.2, is_share=True)) if each.text] == [
        "0 %",
        "5 %",
        "10 %",
        "15 %",
        "20 %",
    ]
    assert scale_of(9_999) == (1.0, "")
    assert scale_of(14_800_000) == (1e6, "10⁶")


def test_a_stack_ends_where_its_sum_is() -> None:
    edges = [0, 1, 2]
    series = [Steps("a", 0, edges, [1, 2], kind="stack"), Steps("b", 1, edges, [3, 1], kind="stack")]
    tree = ET.fromstring(histogram([Panel(Axis(0, 2), Axis(0, 4), series, 200)], head="H", title="t"))
    tops = [
        float(y) for y in re.findall(r"V([\d.]+)", tree.findall("path[@class='step s1']")[-1].attrib["d"])
    ]
    frame = re.match(
        r"M([\d.]+) ([\d.]+)", next(p.attrib["d"] for p in tree.findall("path") if p.get("class") == "axis")
    )
    assert frame is not None
    above = float(frame[2])
    assert tops == [pytest.approx(above), pytest.approx(above + 50)]


def test_points_and_errors_are_drawn_where_they_are_known() -> None:
    points = Points("p", 2, [0.5, 1.5, 2.5], [0.1, None, 0.3], [0.01, 0.0, 0.0])
    text = histogram([Panel(Axis(0, 3), Axis(0, 1), [points])], head="H", title="t", width=NARROW)
    assert text.count('class="dot ') == 2 + 1, "two points, and one in the key"
    assert f'viewBox="0 0 {NARROW} ' in text
    assert "<title>t</title>" in text


def test_names_are_escaped_and_stand_in_the_key_once() -> None:
    step = Steps("<b> & c", 0, [0, 1], [1])
    text = histogram(
        [Panel(Axis(0, 1), Axis(0, 2), [step]), Panel(Axis(0, 1), Axis(0, 2), [step])], head="<H>", title="t"
    )
    assert text.count("&lt;b&gt; &amp; c") == 1
    assert "<H>" not in text
