"""The report of a synthetic year in Chromium: each figure is drawn within its frame, nothing is loaded, it is
readable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.browser import DESK, PHONE, WIDE, chromium
from tests.worlds.services.page_figures import CUT, PAPER, TALL, check_figures, shown

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")
pytest.importorskip("playwright")

SHOTS = os.environ.get(
    "TIDEMILL_SCREENSHOTS", ""
)  #: a directory: pictures for the documentation, of a whole year
#: section, its picture's name, the height that is shown of it at most
PICTURES = {
    "light": (
        ("core-hours--jobs-and-events", "work", 2_000),
        ("failures", "failures", 2_000),
        ("i-o-per-job", "io", 1_370),
    ),
    "dark": (("backfill", "backfill", 690), ("set-up-and-event-times", "times", 880)),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bench import year

    from tidemill_report.operation.gather import gather
    from tidemill_report.operation.page import page
    from tidemill_report.operation.source import ReportFiles

    folder = Path(tmp_path_factory.mktemp("report"))
    size = year.Size() if SHOTS else year.Size(jobs=20_000, week_jobs=1_175)
    year.make(folder / "archive", seed=5, size=size)
    file = folder / "report.html"
    file.write_text(page(gather(ReportFiles([folder / "archive"]))))
    return file


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on three years and four months."""
    from bench import year

    from tidemill_report.operation.gather import gather
    from tidemill_report.operation.page import page
    from tidemill_report.operation.source import ReportFiles, Window

    folder = Path(tmp_path_factory.mktemp("years"))
    with pytest.MonkeyPatch.context() as patch:
        for each in (2016, 2017, 2018, 2019):
            patch.setattr(year, "YEAR", each)
            year.make(folder / "archive", seed=each, size=year.Size(jobs=2_000, week_jobs=0))
    file = folder / "report.html"
    until_us = int(datetime(2019, 5, 1, tzinfo=UTC).timestamp() * 1e6)
    file.write_text(page(gather(ReportFiles([folder / "archive"], Window(until_us=until_us)))))
    return file


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_figure_is_drawn_and_nothing_is_loaded(window: Any, report: Path, scheme: str) -> None:
    with shown(window, report, viewport=DESK, color_scheme=scheme) as (page, asked):
        assert check_figures(page) >= 15
        assert asked == [f"file://{report}"]
        for section, name, high in PICTURES[scheme] if SHOTS else ():
            box = page.query_selector(f"#{section}").bounding_box()
            box["height"] = min(box["height"], high)
            page.screenshot(path=Path(SHOTS) / f"{name}-{scheme}.png", full_page=True, clip=box)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_has_each_figure_whole(window: Any, report: Path, scheme: str) -> None:
    with shown(window, report, viewport=PAPER, color_scheme=scheme, media="print") as (page, asked):
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert check_figures(page) >= 15
        assert page.evaluate(TALL) == []
        assert page.evaluate(CUT) == []
        assert asked == [f"file://{report}"]


def test_it_fits_a_phone(window: Any, report: Path) -> None:
    with shown(window, report, viewport=PHONE) as (page, _):
        wide = [each for each in page.evaluate(WIDE) if "<t" not in each[:3]]
        assert [each for each in wide if not each.startswith(("<table", "<tr", "<td", "<th", "<tbody"))] == []


@pytest.mark.parametrize("media", ["screen", "print"])
def test_a_report_on_years_names_few_enough_months(window: Any, years: Path, media: str) -> None:
    with shown(window, years, viewport=DESK if media == "screen" else PAPER, media=media) as (page, _):
        assert check_figures(page) >= 5
        words = page.evaluate("""[...document.querySelectorAll("svg.figure")][0].textContent""")
        assert all(each in words for each in ("2016", "2017", "2018", "2019"))
