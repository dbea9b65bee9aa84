"""Charts: well formed whatever their words are, within their frame, as long as their values are."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tidemill.charts.bars import SHARES_WIDTH, Bar, bars, shares
from tidemill.charts.svg import Frame, stepped
from tidemill.charts.time import Layer, area, clock_text, layers, nice_ceiling

EVIL = "<script>&'\"]]>"


@pytest.mark.parametrize("values", [[], [0.0], [1.0, 3.0]])
def test_a_chart_of_any_words_is_well_formed_and_named(values: list[float]) -> None:
    drawn = [
        area(values, start_us=0, bin_s=60, title=EVIL, text=lambda _: EVIL),
        layers([Layer(EVIL, "#123", values)], top=3.0, title=EVIL, across=[EVIL] * 5),
        bars([Bar(EVIL, value, EVIL, EVIL) for value in values], title=EVIL),
        shares([Bar(EVIL, value, EVIL, EVIL) for value in values], title=EVIL),
    ]
    for each in drawn:
        root = ElementTree.fromstring(each)
        assert (root.attrib["role"], root.attrib["aria-label"]) == ("img", EVIL)
        assert "style=" not in each


def test_what_is_higher_than_the_top_ends_at_the_frame() -> None:
    assert stepped([0.0], [9.0], place=Frame(0, 10, 100, 50), top=3.0) == "M0.0 60.0V10.0H100.0V60.0H0.0Z"


def test_shares_fill_the_bar_up_to_the_whole() -> None:
    parts = [Bar("a", 1, "1"), Bar("b", 0, "0"), Bar("c", 3, "3")]
    widths = [float(each) for each in re.findall(r'class="main".*? width="([\d.]+)"', shares(parts, whole=8))]
    assert widths == [SHARES_WIDTH / 8, 3 * SHARES_WIDTH / 8]
    assert (
        sum(float(each) for each in re.findall(r'class="main".*? width="([\d.]+)"', shares(parts)))
        == SHARES_WIDTH
    )


def test_layers_stand_upon_each_other() -> None:
    drawn = layers(
        [Layer("low", "#111", [1.0]), Layer("high", "#222", [2.0])], top=4.0, title="t", across=["0"] * 5
    )
    highest = {
        colour: float(y) for colour, y in re.findall(r'fill="(#\d+)" d="M[\d.]+ [\d.]+V([\d.]+)', drawn)
    }
    assert highest == {"#111": 44 + 242 * 3 / 4, "#222": 44 + 242 / 4}


@pytest.mark.parametrize(("span_s", "words"), [(60, "00:01:40"), (7_200, "00:01"), (90_000, "01 Jan 00:01")])
def test_times_of_an_axis_are_as_exact_as_its_length_asks_for(span_s: float, words: str) -> None:
    assert clock_text(100.0, span_s) == words


def test_axes_of_counts_have_whole_numbers() -> None:
    for top in (1, 2, 3, 5, 7, 12, 45, 99, 130):
        ticks = re.findall(
            r'text-anchor="end"[^>]*>([^<]+)<',
            area([top], start_us=1_800_000_000_000_000, bin_s=1, title="t", text=str),
        )
        assert all(float(each) == int(float(each)) for each in ticks if ":" not in each), ticks


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (0.07, 0.08), (1, 1), (3, 3), (183, 200), (999, 1000), (1001, 1200), (1.086, 1.2)],
)
def test_axes_end_at_short_numbers(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)
