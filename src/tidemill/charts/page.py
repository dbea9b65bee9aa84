"""Pages around figures, each one HTML file that needs nothing else: no network, no script; light and dark, on screen,
phone and paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from tidemill import __version__, clock

_NUMBER = "<b>@figure@</b>"  #: stands for a figure's number until all are there


def document(title: str, subtitle: str, body: str, *, made_us: int, reload_s: int = 0) -> str:
    """A whole page around `body`, which is HTML. `reload_s`: a browser reads it again as often; 0 = it is final."""
    style = resources.files("tidemill.charts").joinpath("style.css").read_text(encoding="utf-8")
    title = escape(title)
    reload = f'\n<meta http-equiv="refresh" content="{reload_s}">' if reload_s else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{reload}
<title>Tidemill: {title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header><h1>{title}</h1><div class="soft">{escape(subtitle)}</div></header>
{body}
<footer>Made by Tidemill {escape(__version__)} at {clock.utc_text(made_us)}. All times are UTC.</footer>
</main>
</body>
</html>
"""


def cards(facts: Iterable[tuple[str, str, str]]) -> str:
    """Names and values that come first on a page; the third word colours one (`bad`, `good` or none)."""
    drawn = "".join(
        f'<div class="fact{" " + kind if kind else ""}"><b>{escape(value)}</b>{escape(name)}</div>'
        for name, value, kind in facts
    )
    return f'<section class="facts">{drawn}</section>'


def section(title: str, body: str) -> str:
    """A part of a page; `body` is HTML."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def figure(caption: str, drawn: str) -> str:
    """A drawing with its caption."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}</figure>"


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Iterable[int] = (),
    whole: Iterable[int] = (),
) -> str:
    """A table of texts; columns in `right` are numbers, those in `whole` short texts that stay on one line."""
    numeric, unbroken = set(right), set(whole)
    kinds = [
        "n" if k in numeric else "whole" if k in unbroken else "name" if k == 0 else ""
        for k in range(len(heads))
    ]
    head = "".join(f'<th class="{kind}">{escape(text)}</th>' for kind, text in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{code(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def code(text: str) -> str:
    """Escaped text with its backticks as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if k % 2 else piece for k, piece in enumerate(pieces))


def captioned(words: str, drawn: str) -> str:
    """A figure with its caption, whose number `numbered` writes."""
    return f"<figure>{drawn}<figcaption>{_NUMBER}{escape(words)}</figcaption></figure>"


def pair(figures: Sequence[str]) -> str:
    """Figures side by side; below each other on a phone."""
    return f'<div class="pair">{"".join(figures)}</div>' if figures else ""


def numbered(html: str) -> str:
    """A page with the number of each figure in its caption."""
    first, *rest = html.split(_NUMBER)
    return first + "".join(f"<b>Figure {k}.</b> {part}" for k, part in enumerate(rest, start=1))
