"""The Z peak of the quickstart's report, drawn by the real mplhep."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET

from tidemill.cli.start.muon_pairs import PLOT_COLOURS, MassHistogram, part

EDGES = [2.0 * k for k in range(101)]
PEAK = [100.0 if low == 90 else 1.0 if 60 <= low < 120 else 7.0 for low in EDGES[:-1]]


def test_the_peak_is_a_part_of_the_page_with_its_colours_and_its_font() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = part(MassHistogram(EDGES, PEAK, [each**0.5 for each in PEAK]), events=2_000)
    for said in ("2,000 collisions, 129 pairs shown", "pairs / 2 GeV", "Pythia 8", "statistical errors"):
        assert f">{said}<" in text, said
    drawing = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])
    assert drawing.get("aria-label") == "mass of muon pairs, highest at 91.0 GeV"
    assert drawing.get("width") is None, "it is as wide as the page"
    for variable in ("--ink", "--c0", "--c1"):
        assert f"var({variable})" in text
    assert not any(colour in text for colour in PLOT_COLOURS.values())
    assert not set(re.findall(r"#[0-9a-f]{6}\b", text)), "a colour of its own would be lost in the dark"
    assert "<style" not in text
    assert "font-family" not in text


def test_the_same_pairs_give_the_same_figure() -> None:
    found = MassHistogram(EDGES, PEAK, [each**0.5 for each in PEAK])
    assert part(found, events=7) == part(found, events=7)
