"""The physics of the first campaign: the mass of its muon pairs, from the ROOT files that its analysis jobs wrote."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tidemill.charts.axes import Axis
from tidemill.charts.histogram import Panel, Points, Steps, histogram
from tidemill.charts.time import nice_ceiling
from tidemill.model.quantities import count_text
from tidemill.report.html import figure, section

Z_GEV = 91.19  #: mass of the Z boson: Particle Data Group, Review of Particle Physics (2024), 91.1880 +- 0.0020 GeV
SHOWN_GEV = (60.0, 120.0)


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


def part(found: MassHistogram, *, events: int) -> str:
    """The part of a page that shows the peak."""
    inside = [
        k for k, low in enumerate(found.edges_gev[:-1])
        if low >= SHOWN_GEV[0] and found.edges_gev[k + 1] <= SHOWN_GEV[1]
    ]  # fmt: skip
    pairs = sum(found.values[k] for k in inside)
    if not inside or not pairs:
        return ""
    edges = [found.edges_gev[k] for k in inside] + [found.edges_gev[inside[-1] + 1]]
    values, errors = [found.values[k] for k in inside], [found.errors[k] for k in inside]
    top = nice_ceiling(1.15 * max(value + error for value, error in zip(values, errors, strict=True)))
    width = edges[1] - edges[0]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    panel = Panel(
        Axis(edges[0], edges[-1], "mass of the muon pair [GeV]"), Axis(0.0, top, f"pairs / {width:.3g} GeV"),
        [
            Steps("Pythia 8", 0, edges, values, kind="fill"),
            Points("statistical errors", 1, middles, list(values), errors),
        ],
    )  # fmt: skip
    peak = middles[values.index(max(values))]
    drawn = histogram(
        [panel], head="Tidemill quickstart", title=f"mass of muon pairs, highest at {peak:.1f} GeV",
        note=f"{count_text(events)} collisions, {count_text(round(pairs))} pairs shown",
    )  # fmt: skip
    caption = (
        f"Mass of the muon pairs that the campaign's analysis jobs found; the Z boson's is {Z_GEV:.1f} GeV"
    )
    return section("What the campaign was for", figure(caption, drawn))
