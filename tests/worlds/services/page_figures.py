"""Pages with figures that are files, in Chromium: each figure drawn whole, readable, and nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worlds.services.browser import CONTRAST, NAMELESS

PAPER = {"width": 720, "height": 1040}
"""A4 with margins of 1 cm, at 96 dots an inch."""

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
#: Figures without marks, or with marks that have no size; sizes are in units of the drawing.
UNDRAWN = """() => [...document.querySelectorAll("figure")].flatMap((figure) => {
  const svg = figure.querySelector("svg.figure");
  if (!svg || getComputedStyle(svg).display === "none") return ["no drawing: " + figure.textContent];
  const marks = [...svg.querySelectorAll(".step, .dot, .shaded")];
  const boxes = marks.map((el) => [el, el.getBoundingClientRect()]);
  const empty = boxes.filter(([, r]) => !(r.width > 0) && !(r.height > 0));
  const unit = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const wide = Math.max(0, ...boxes.map(([, r]) => r.width / unit));
  return [...empty.map(([el]) => svg.ariaLabel + ": " + el.outerHTML.slice(0, 90)),
    ...(wide < 5 ? [svg.ariaLabel + ": nothing is drawn"] : [])];
})"""
BROKEN = """() => document.documentElement.outerHTML.match(/.{0,40}\\b(NaN|Infinity|undefined)\\b.{0,40}/g) ?? []"""
#: Figures that are too tall for a page.
TALL = """() => [...document.querySelectorAll("figure")].filter((el) => el.getBoundingClientRect().height > 1040)
  .map((el) => el.textContent.slice(0, 90))"""


#: Tables that paper would cut, or for which a browser would shrink the whole page.
CUT = """() => [...document.querySelectorAll("table")].filter((el) => el.getBoundingClientRect().right > innerWidth + 1)
  .map((el) => el.textContent.trim().slice(0, 60) + ": " + Math.round(el.getBoundingClientRect().width))"""


@contextmanager
def shown(
    browser: Any, file: Path, *, media: str = "screen", **options: Any
) -> Iterator[tuple[Any, list[str]]]:
    """The page of a file, and all that it asks for and says on the console."""
    context = browser.new_context(**options)
    page, asked = context.new_page(), []
    page.emulate_media(media=media)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: asked.append(message.text))
    page.goto(f"file://{file}")
    try:
        yield page, asked
    finally:
        context.close()


def check_figures(page: Any) -> int:
    """The number of figures: each is drawn within its frame, numbered, and readable."""
    assert page.evaluate(UNDRAWN) == []
    assert page.evaluate(BROKEN) == []
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(COVERED) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    numbers = [each.inner_text().split(".")[0] for each in page.query_selector_all("figcaption b")]
    assert numbers == [f"Figure {k}" for k in range(1, len(page.query_selector_all("figure")) + 1)]
    return len(numbers)
