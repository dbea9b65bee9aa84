"""A Chromium that watches what pages do, and what is measured in them: contrast, width, names of controls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = Path("/usr/bin/chromium")
PHONE = {"width": 375, "height": 740}
DESK = {"width": 1200, "height": 800}

#: Texts whose contrast to what is behind them is below WCAG 2.2, 1.4.3: 4.5, or 3 where they are large.
CONTRAST = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
  const over = (a, b) => [0, 1, 2].map((k) => a[k] * a[3] + b[k] * (1 - a[3])).concat(1);
  const part = (v) => v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = (c) => .2126 * part(c[0]) + .7152 * part(c[1]) + .0722 * part(c[2]);
  const behind = (el) => {
    const layers = [];
    for (let at = el; at; at = at.parentElement) {
      layers.push(parse(getComputedStyle(at).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((under, c) => over(c, under), [255, 255, 255, 1]);
  };
  const bad = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), el = walker.currentNode.parentElement;
    if (!text || /^(script|style|option|title)$/i.test(el.tagName)) continue;
    if (!el.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    const style = getComputedStyle(el), back = behind(el), front = over(parse(style.color), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) bad.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""

#: What makes the page wider than the window, and controls that say no name to a screen reader.
WIDE = """() => [...document.querySelectorAll("main *, .top *")]
  .filter((el) => el.getBoundingClientRect().right > innerWidth + 1 && !el.closest("pre, thead"))
  .slice(0, 5).map((el) => el.outerHTML.slice(0, 120))"""
NAMELESS = """() => [...document.querySelectorAll("a, button, input, select, textarea, [role=img]")]
  .filter((el) => el.type !== "hidden" && !el.textContent.trim() && !el.ariaLabel && !el.labels?.length)
  .map((el) => el.outerHTML.slice(0, 120))"""


class Watched:
    """A page of a context, and everything about it that must not happen."""

    def __init__(self, context: Any, base: str) -> None:
        self.base, self.context = base, context
        self.troubles: list[str] = []
        self.expected: list[str] = []  #: beginnings of console errors that a test wants
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(each in message.text for each in self.expected):
            self.troubles.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc:
            self.troubles.append(f"request to {request.url}")

    def go(self, path: str) -> Any:
        """Open a page of the server."""
        return self.page.goto(self.base + path)

    def follow(self, selector: str) -> None:
        """Click what leads to another page, and wait until that is there: a click alone may return before its first
        byte, and between two pages there is a document without a body."""
        with self.page.expect_navigation():
            self.page.click(selector)

    def text(self) -> str:
        return str(self.page.inner_text("main"))

    def check(self) -> None:
        """Nothing went wrong, everything can be read and named."""
        where = self.page.url
        assert not self.troubles, (where, self.troubles)
        assert self.page.evaluate(CONTRAST) == [], where
        assert self.page.evaluate(NAMELESS) == [], where
        assert (
            self.page.evaluate("document.documentElement.scrollWidth") <= self.page.viewport_size["width"]
        ), (
            where,
            self.page.evaluate(WIDE),
        )


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium; without it, or without playwright, a skip (in CI a failure)."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
