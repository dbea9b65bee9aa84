"""`tidemill quickstart` ends with a report, which shows what the campaign was for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import TIDEMILL

pytest.importorskip("pythia8mc")
pytest.importorskip("uproot")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        (Path(directory) / "tmp").mkdir()
        yield Path(directory)


def quickstart(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TMPDIR": str(place / "tmp"), "TIDEMILL_HOME": str(place / "unused")}
    done = subprocess.run(
        [*TIDEMILL, "quickstart", "--events", "60", *words],
        cwd=place, env=env, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list((place / "tmp").iterdir())
    return done


@pytest.mark.slow
def test_quickstart_leaves_a_report_with_the_peak_of_its_muon_pairs(place: Path) -> None:
    told = json.loads(quickstart(place, "--json").stdout)
    (campaign,) = told["data"]["campaigns"]
    assert (campaign["jobs"], campaign["events_done"], campaign["events_failed"]) == (6, 63, 0)
    assert told["report"] == str(place / "tidemill-quickstart" / "report.html")
    page = Path(told["report"]).read_text()
    assert page.startswith("<!doctype html>")
    assert re.search(r"mass of muon pairs, highest at (8[5-9]|9\d)\.", page), "the Z boson's is 91.2 GeV"
    assert "events per second over time" in page


@pytest.mark.slow
def test_quickstart_prints_the_tables_and_where_the_page_is(place: Path) -> None:
    done = quickstart(place)
    assert done.stdout.startswith("core-hours  ")
    assert "quickstart" in done.stdout
    assert "report: tidemill-quickstart/report.html" in done.stderr
