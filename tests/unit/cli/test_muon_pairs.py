"""The Z peak of the first campaign as its report draws it without mplhep; integrations/tests has the figure with it."""

from __future__ import annotations

import sys

import pytest

from tidemill.cli.start.muon_pairs import MassHistogram, part

EDGES = [2.0 * k for k in range(101)]
PEAK = [100.0 if low == 90 else 1.0 if 60 <= low < 120 else 7.0 for low in EDGES[:-1]]


@pytest.fixture(autouse=True)
def _no_mplhep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mplhep", None)  # as where it is not installed


def test_the_peak_is_drawn_where_mplhep_is_missing() -> None:
    text = part(MassHistogram(EDGES, PEAK, [each**0.5 for each in PEAK]), events=2_000)
    for said in (
        "highest at 91.0 GeV",
        "2,000 collisions, 129 pairs shown",
        "pairs / 2 GeV",
        "statistical errors",
    ):
        assert said in text
    assert text.count("<svg") == 1


def test_without_pairs_near_the_peak_there_is_no_figure() -> None:
    away = [1.0 if low < 40 else 0.0 for low in EDGES[:-1]]
    assert part(MassHistogram(EDGES, away, away), events=10) == ""
    assert part(MassHistogram([0.0, 50.0], [3.0], [1.0]), events=10) == ""
