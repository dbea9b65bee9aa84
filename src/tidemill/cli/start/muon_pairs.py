"""The physics of the first campaign: the mass of its muon pairs, from the ROOT files that its analysis jobs wrote.

mplhep draws it, as in the field's papers, where it is installed; else the report's own charts do.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tidemill.charts.axes import Axis
from tidemill.charts.histogram import Panel, Points, Steps, histogram
from tidemill.charts.page import figure, section
from tidemill.charts.time import nice_ceiling
from tidemill.model.quantities import count_text

Z_GEV = 91.19  #: mass of the Z boson: Particle Data Group, Review of Particle Physics (2024), 91.1880 +- 0.0020 GeV
SHOWN_GEV = (60.0, 120.0)
HEAD = "Tidemill quickstart"
PLOT_INCHES = (10.0, 5.2)
PLOT_COLOURS = {"--ink": "#010101", "--c0": "#010102", "--c1": "#010103", "--card": "#010104"}
"""Colours that stand for those of the page, which differ in the dark: no other part of a drawing has them."""

PLOT_STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "tidemill", "font.family": "DejaVu Sans", "font.size": 15,
    "axes.labelsize": 16, "axes.titlesize": 16, "xtick.labelsize": 15, "ytick.labelsize": 15, "legend.fontsize": 14,
    "lines.markersize": 6,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), PLOT_COLOURS["--ink"]
    ),
}  # fmt: skip
"""What differs from mplhep's style ROOT: the size of a page's figures, and colours. The page chooses the font; room is
measured with a broad one, which every matplotlib brings."""


class MassHistogram(NamedTuple):
    """Pairs by mass: sums of weights of bins between `edges_gev`, and their errors."""

    edges_gev: list[float]
    values: list[float]
    errors: list[float]


def read(files: Sequence[Path]) -> MassHistogram | None:
    """The sum of the histograms `mass` of ROOT files; None if there is none. Needs `uproot`."""
    import uproot

    total: Any = None
    for path in files:
        with uproot.open(path) as file:
            found = file["mass"].to_hist()
        total = found if total is None else total + found
    if total is None:
        return None
    errors = [float(each) ** 0.5 for each in total.variances()]
    return MassHistogram(
        [float(each) for each in total.axes[0].edges], [float(each) for each in total.values()], errors
    )


def part(histogram: MassHistogram, *, events: int) -> str:
    """The part of a page that shows the peak."""
    shown = _shown(histogram)
    if shown is None:
        return ""
    pairs = sum(shown.values)
    peak = max(zip(shown.values, pairwise(shown.edges_gev), strict=True))[1]
    title = f"mass of muon pairs, highest at {sum(peak) / 2:.1f} GeV"
    note = f"{count_text(events)} collisions, {count_text(round(pairs))} pairs shown"
    try:
        drawn = _by_mplhep(shown, title, note)
    except ImportError:
        drawn = _by_charts(shown, title, note)
    caption = (
        f"Mass of the muon pairs that the campaign's analysis jobs found; the Z boson's is {Z_GEV:.1f} GeV"
    )
    return section("What the campaign was for", figure(caption, drawn))


def _shown(histogram: MassHistogram) -> MassHistogram | None:
    """The bins around the peak; None if no pair is in them."""
    inside = [
        k for k, low in enumerate(histogram.edges_gev[:-1])
        if low >= SHOWN_GEV[0] and histogram.edges_gev[k + 1] <= SHOWN_GEV[1]
    ]  # fmt: skip
    values = [histogram.values[k] for k in inside]
    if not sum(values):
        return None
    edges = [histogram.edges_gev[k] for k in inside] + [histogram.edges_gev[inside[-1] + 1]]
    return MassHistogram(edges, values, [histogram.errors[k] for k in inside])


def _labels(shown: MassHistogram) -> tuple[str, str]:
    width = shown.edges_gev[1] - shown.edges_gev[0]
    return "mass of the muon pair [GeV]", f"pairs / {width:.3g} GeV"


def _by_charts(shown: MassHistogram, title: str, note: str) -> str:
    edges, values, errors = shown
    across, up = _labels(shown)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    panel = Panel(
        Axis(edges[0], edges[-1], across), Axis(0.0, _top(shown), up),
        [
            Steps("Pythia 8", 0, edges, values, kind="fill"),
            Points("statistical errors", 1, middles, list(values), errors),
        ],
    )  # fmt: skip
    return histogram([panel], head=HEAD, title=title, note=note)


def _top(shown: MassHistogram) -> float:
    return nice_ceiling(1.15 * max(value + error for value, error in zip(*shown[1:], strict=True)))


def _by_mplhep(shown: MassHistogram, title: str, note: str) -> str:
    """The figure as SVG that takes its colours and its font from the style sheet of the page."""
    import mplhep
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    edges, values, errors = shown
    style: Any = {**mplhep.style.ROOT, **PLOT_STYLE}
    with rc_context(style):
        drawing = Figure(figsize=PLOT_INCHES, layout="constrained")
        axes = drawing.subplots()
        drawn = {"H": np.asarray(values), "bins": np.asarray(edges), "w2": np.square(errors), "ax": axes}
        drawn |= {"w2method": "sqrt"}
        colour = PLOT_COLOURS["--c0"]
        mplhep.histplot(**drawn, histtype="fill", color=colour, alpha=0.4, label="Pythia 8")
        axes.stairs(values, edges, color=colour, linewidth=1.7)
        mplhep.histplot(**drawn, histtype="errorbar", color=PLOT_COLOURS["--c1"], label="statistical errors")
        across, up = _labels(shown)
        axes.set(xlabel=across, ylabel=up, xlim=(edges[0], edges[-1]), ylim=(0, _top(shown)))
        axes.set_title(HEAD, loc="left", fontweight="bold")
        axes.set_title(note, loc="right")
        axes.legend()
        text = io.StringIO()
        drawing.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _in_page(text.getvalue(), title)


def _in_page(svg: str, title: str) -> str:
    """A drawing of matplotlib as a part of a page: no prologue, no style of its own that would reach the page, colours
    of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*;?|font: [^;\"]*;", "", svg)
    for variable, colour in PLOT_COLOURS.items():
        svg = svg.replace(colour, f"var({variable})")
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height|version)="[^"]*"', "", head)
    return f'{head} class="figure plot" role="img" aria-label="{escape(title)}">{rest}'
