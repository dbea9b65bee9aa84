"""The page with which a centre decides, in Chromium: each figure drawn, nothing loaded; in light, in dark, on paper."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.worlds.services.browser import DESK, PHONE, WIDE, chromium
from tests.worlds.services.page_figures import CUT, PAPER, TALL, check_figures, shown

pytest.importorskip("playwright")

SHOTS = os.environ.get("TIDEMILL_SCREENSHOTS", "")  #: a directory: pictures for the documentation
NODES, CORES = 96, 64
DAYS = 240 if SHOTS else 56
BEGIN_S = int(datetime(2026, 8, 3, tzinfo=UTC).timestamp())  #: a Monday


def at(seconds: int) -> str:
    return datetime.fromtimestamp(BEGIN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def dump(days: int) -> str:
    """Jobs of a machine whose users submit by day, more on working days; started first come, first served."""
    chance = Random(16)
    lines = ["JobID|User|Submit|Start|End|NNodes|NCPUS|TimelimitRaw|State"]
    submit, earliest, ends = 0, 0, [0] * NODES
    while submit < days * 86_400:
        hour, is_weekend = submit // 3600 % 24, submit // 86_400 % 7 > 4
        pace = (3.0 if 8 <= hour < 19 else 1.0) * (0.35 if is_weekend else 1.0)
        submit += 1 + int(chance.expovariate(pace / 2400))
        width, run = 2 ** min(6, int(chance.expovariate(0.4))), int(chance.lognormvariate(9.2, 1.0))
        run = min(run, 86_400)
        ends.sort()
        start = earliest = max(earliest, submit, ends[width - 1])
        ends[:width] = [start + run] * width
        limit = min(1440, int(run * chance.uniform(1.1, 3) / 60) + 1)
        fields = (
            len(lines),
            "u",
            at(submit),
            at(start),
            at(start + run),
            width,
            width * CORES,
            limit,
            "COMPLETED",
        )
        lines.append("|".join(map(str, fields)))
    return "".join(f"{line}\n" for line in lines)


def made(place: Path, *words: str, days: int = DAYS) -> Path:
    """The page of `tidemill report opportunity`."""
    (place / "sacct.txt").write_text(dump(days))
    file = place / "opportunity.html"
    command = [sys.executable, "-m", "tidemill.cli.main", "report", "opportunity", str(place / "sacct.txt")]
    command += ["--nodes", str(NODES), "--html", str(file), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return file


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(
        tmp_path_factory.mktemp("report"), "--event-length", "5m,1h,4h", "--seeds", "4" if SHOTS else "2"
    )


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_figure_is_drawn_and_nothing_is_loaded(window: Any, report: Path, scheme: str) -> None:
    with shown(window, report, viewport=DESK, color_scheme=scheme) as (page, asked):
        assert check_figures(page) == 5
        assert asked == [f"file://{report}"]
        if SHOTS:
            section = page.query_selector_all("section:has(svg.figure)")[0 if scheme == "light" else 1]
            box = section.bounding_box()
            box["height"] = min(box["height"], 910)
            page.screenshot(path=Path(SHOTS) / f"opportunity-{scheme}.png", full_page=True, clip=box)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_has_each_figure_whole(window: Any, report: Path, scheme: str) -> None:
    with shown(window, report, viewport=PAPER, color_scheme=scheme, media="print") as (page, asked):
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert check_figures(page) == 5
        assert page.evaluate(TALL) == []
        assert page.evaluate(CUT) == []
        assert asked == [f"file://{report}"]


def test_it_fits_a_phone(window: Any, report: Path) -> None:
    with shown(window, report, viewport=PHONE) as (page, _):
        wide = [each for each in page.evaluate(WIDE) if "<t" not in each[:3]]
        assert [each for each in wide if not each.startswith(("<table", "<tr", "<td", "<th", "<tbody"))] == []


def test_a_log_of_two_days_with_one_pair_of_runs_has_its_figures_too(window: Any, tmp_path: Path) -> None:
    file = made(tmp_path, "--event-length", "1h", "--seeds", "1", "--policy", "yield", days=2)

    with shown(window, file, viewport=DESK) as (page, _):
        assert check_figures(page) >= 4
