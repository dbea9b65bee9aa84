"""What the page of a campaign shows over time, against what the payloads noted themselves."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.worlds.home.world import FINAL, World, world

from tidemill.model.figures.activity import Activity, course
from tidemill.model.job import JobSpec

GAP_S = 3
PHASES = ((60, 0.1), (16, 0.4), (4, 2.0))
"""Events of a job, and how long each payload sleeps: three rates, with an idle gap after each."""
NOTE = 'date +%s.%N >> "$0.begins"; sleep $1; date +%s.%N >> "$0.ends"'


class Truth(NamedTuple):
    """What payloads noted: when they began and ended, by phase."""

    begins: list[list[float]]
    ends: list[list[float]]

    def edges(self) -> list[int]:
        """Whole seconds between which a phase ran."""
        starts = [int((max(a) + min(b)) / 2) for a, b in zip(self.ends[:-1], self.begins[1:], strict=True)]
        return [int(min(self.begins[0])) - 1, *starts, int(max(self.ends[-1])) + 2]

    def busy_s(self, phase: int) -> float:
        """Seconds of payload time: sums over begins and ends need no pairs."""
        return sum(self.ends[phase]) - sum(self.begins[phase])


def run_phases(it: World, folder: Path) -> Truth:
    """One job after the other in one campaign, with nothing to do in between."""
    for number, (events, sleep_s) in enumerate(PHASES):
        command = ["sh", "-c", NOTE, str(folder / f"phase{number}"), str(sleep_s)]
        job = JobSpec(command=command, events=events)
        (found,) = it.client.submit(job, campaign="curve").jobs
        it.wait_for(lambda found=found: it.client.job(found).row.state in FINAL, f"phase {number} ends")
        assert it.client.job(found).row.events_done == events
        quiet_s = time.monotonic() + GAP_S
        it.wait_for(lambda quiet_s=quiet_s: time.monotonic() > quiet_s, "the gap is over")
    files = [
        [sorted(map(float, (folder / f"phase{k}.{what}").read_text().split())) for k in range(len(PHASES))]
        for what in ("begins", "ends")
    ]
    return Truth(*files)


def drawn(chart: str, top: float, bins: int) -> list[float]:
    """The values of a chart of a page, read back from its line."""
    line = re.search(r'class="edge" d="M[\d.]+ ([^"]+)"', chart)
    assert line is not None
    heights = [float(each) for each in re.findall(r"(?:^|V)([\d.]+)H", line[1])]
    values = [top * (1 - each / 200) for each in heights]
    assert len(values) == bins
    return values


def page(it: World, path: str) -> str:
    with socket.socket(socket.AF_UNIX) as raw, closing(http.client.HTTPConnection("localhost")) as connection:
        raw.connect(str(it.home / "server" / "api.sock"))
        connection.sock = raw
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().read().decode()


def in_bins(values: Sequence[float], start_s: int, bin_s: int, span: tuple[int, int]) -> float:
    return sum(value for k, value in enumerate(values) if span[0] <= start_s + k * bin_s < span[1])


def test_the_page_agrees_with_what_payloads_noted_in_each_interval(tmp_path: Path) -> None:
    with world(nodes=1, cores=2) as it:
        truth = run_phases(it, tmp_path)
        edges = truth.edges()
        found = it.client.activity("curve")
        check_api(found, truth, edges)
        shown = course([found], bins_max=120)
        assert shown is not None
        text = page(it, "/campaigns/curve")
        chart = text[text.index("Events per second <small>") :]
        (top,) = re.findall(r'class="up"[^>]*><span>([\d.]+)</span>', chart)[:1]
        rates = drawn(chart, float(top), len(shown.done))
        for phase, span in enumerate(pairwise(edges)):
            events = len(truth.ends[phase])
            assert in_bins(rates, shown.start_s, shown.bin_s, span) * shown.bin_s == pytest.approx(
                events, rel=0.05
            )


def check_api(found: Activity, truth: Truth, edges: list[int]) -> None:
    """Events and payload time of each phase, and nothing in the gaps between them."""
    assert found.step_s == 1
    for phase, (low, high) in enumerate(pairwise(edges)):
        inside = course([found], bins_max=1_000, since_s=low, until_s=high)
        assert inside is not None
        assert sum(inside.done) == len(truth.ends[phase])
        if PHASES[phase][1] >= 1:  # else what it takes to start a shell is more than 5 %
            assert sum(inside.busy) * inside.bin_s == pytest.approx(truth.busy_s(phase), rel=0.05)
    for before, after in zip(truth.ends[:-1], truth.begins[1:], strict=True):
        quiet = course([found], bins_max=100, since_s=max(before) + 1.5, until_s=min(after) - 0.5)
        assert quiet is not None
        assert sum(quiet.done) == sum(quiet.busy) == 0
