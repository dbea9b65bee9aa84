"""The report of a synthetic year in Chromium: each figure is drawn within its frame, nothing is loaded, it is
readable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.browser import CONTRAST, DESK, NAMELESS, PHONE, WIDE, chromium

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

#: Parts of figures that lie outside their drawing, and texts of one figure that cover each other.
OUTSIDE = """() => [...document.querySelectorAll("svg.figure")].flatMap((svg) => {
  const box = svg.getBoundingClientRect(), parts = [...svg.querySelectorAll("path, circle, rect, text")];
  return parts.filter((el) => {
    const r = el.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1;
  }).map((el) => svg.ariaLabel + ": " + el.outerHTML.slice(0, 90));
})"""
COVERED = """() => [...document.querySelectorAll("svg.figure")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].map((el) => [el.textContent, el.getBoundingClientRect()]);
  return texts.flatMap(([a, r], k) => texts.slice(k + 1).filter(([b, s]) =>
    Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top,
    s.top) > 4
  ).map(([b]) => svg.ariaLabel + ": " + a + " | " + b));
})"""
DRAWN = """() => [...document.querySelectorAll("svg.figure")].map((svg) => {
  const parts = [...svg.querySelectorAll(".step, .dot")].map((el) => el.getBoundingClientRect());
  return [svg.ariaLabel, parts.length, Math.max(0, ...parts.map((r) => r.width)), getComputedStyle(svg).display];
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bench import year

    from tidemill.report.operation.gather import gather
    from tidemill.report.operation.page import page
    from tidemill.report.operation.source import ReportFiles

    folder = Path(tmp_path_factory.mktemp("report"))
    size = year.Size() if SHOTS else year.Size(jobs=20_000, week_jobs=1_175)
    year.make(folder / "archive", seed=5, size=size)
    file = folder / "report.html"
    file.write_text(page(gather(ReportFiles([folder / "archive"]))))
    return file


@contextmanager
def shown(browser: Any, report: Path, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    context = browser.new_context(**options)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: asked.append(message.text))
    page.goto(f"file://{report}")
    try:
        yield page, asked
    finally:
        context.close()


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_figure_is_drawn_and_nothing_is_loaded(window: Any, report: Path, scheme: str) -> None:
    with shown(window, report, viewport=DESK, color_scheme=scheme) as (page, asked):
        figures = page.evaluate(DRAWN)
        assert len(figures) == len(page.query_selector_all("figure")) >= 15
        assert [
            name for name, parts, wide, display in figures if not parts or wide < 5 or display == "none"
        ] == []
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(COVERED) == []
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(NAMELESS) == []
        assert asked == [f"file://{report}"]
        numbers = [each.inner_text().split(".")[0] for each in page.query_selector_all("figcaption b")]
        for section, name, high in PICTURES[scheme] if SHOTS else ():
            box = page.query_selector(f"#{section}").bounding_box()
            box["height"] = min(box["height"], high)
            page.screenshot(path=Path(SHOTS) / f"{name}-{scheme}.png", full_page=True, clip=box)
        assert numbers == [f"Figure {k}" for k in range(1, len(figures) + 1)]


def test_it_fits_a_phone_and_paper(window: Any, report: Path) -> None:
    with shown(window, report, viewport=PHONE) as (page, _):
        wide = [each for each in page.evaluate(WIDE) if "<t" not in each[:3]]
        assert [each for each in wide if not each.startswith(("<table", "<tr", "<td", "<th", "<tbody"))] == []
    with shown(window, report, viewport=DESK, color_scheme="dark") as (page, _):
        page.emulate_media(media="print", color_scheme="dark")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(255, 255, 255)", "paper is white"
        assert page.evaluate(CONTRAST) == []
