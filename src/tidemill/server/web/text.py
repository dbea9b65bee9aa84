"""How times and states read on a page; `model.quantities` has the numbers. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup, escape

from tidemill import clock
from tidemill.harvest.plan.sentences import FOR_MORE, capacity_text, in_words
from tidemill.model.quantities import (
    bytes_text,
    coarse_text,
    count_text,
    figure_text,
    percent_text,
    share_text,
    span_text,
)
from tidemill.model.state import told_reason
from tidemill.wire.api import JobRow, SiteRow

STATE_LETTERS_MAX = 20  #: of a state that a site made up
LAST_S = 253_402_300_799  #: the last second of the year 9999
#: State -> (class of its colour, sign): no meaning in colour alone.
STATES = {
    "WAITING": ("idle", "…"), "ASSIGNED": ("idle", "▷"), "RUNNING": ("main", "▶"), "COMPLETED": ("good", "✓"),
    "PARTIAL": ("warn", "◐"),
    "FAILED": ("bad", "✗"), "CANCELED": ("soft", "⊘"),
    "UP": ("good", "✓"), "SILENT": ("warn", "?"), "LOST": ("bad", "✗"), "DOWN": ("warn", "⊖"), "DRAINED": ("warn", "‖"),
    "INTENDED": ("idle", "…"), "QUEUED": ("idle", "…"), "ACTIVE": ("main", "▶"), "SETTLED": ("good", "✓"),
    "RELEASED": ("soft", "↩"),
}  # fmt: skip


def utc(at_us: int) -> str:
    """`2026-11-20 23:05:01`."""
    bounded = min(max(at_us // 1_000_000, 0), LAST_S)  # a site may report any number
    return datetime.fromtimestamp(bounded, UTC).strftime("%Y-%m-%d %H:%M:%S")


def ago(at_us: int | None, now_us: int) -> Markup:
    """An element with the time that has passed, or is to come; the moment itself is its title."""
    if not at_us:
        return Markup("<span>-</span>")
    moment = utc(at_us)
    gap_s = (now_us - at_us) / 1e6
    words = f"{coarse_text(gap_s)} ago" if gap_s >= 0 else f"in {coarse_text(-gap_s)}"
    return Markup('<time datetime="{}Z" title="{} UTC">{}</time>').format(
        moment.replace(" ", "T"), moment, words
    )


def state(name: str) -> Markup:
    """A state as a badge: sign, word and colour."""
    kind, sign = STATES.get(name, ("idle", "·"))
    if len(name) > STATE_LETTERS_MAX:
        name = name[:STATE_LETTERS_MAX] + "…"
    return Markup('<span class="state {}"><span aria-hidden="true">{}</span> {}</span>').format(
        kind, sign, name
    )


def code(text: str) -> Markup:
    """Our own texts with their backticks as code; everything in them is escaped."""
    pieces = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if k % 2 else escape(piece) for k, piece in enumerate(pieces)
    )


def reason(row: JobRow) -> str:
    """`last failure: exit status 3` of a job that goes on; of one that has ended, why."""
    return told_reason(row.state, row.reason, row.ends)


def no_more_nodes(row: SiteRow, waits_for: str) -> str:
    """Why a site asks for no more nodes, below a head that says so. `waits_for`: in words without figures, as its view
    has it; empty = it asks."""
    text = capacity_text(row.capacity, clock.now_us()).removeprefix(FOR_MORE)
    return text or (in_words(waits_for) if waits_for else "")


FILTERS = {
    "count": count_text, "figure": figure_text, "size": bytes_text, "span": span_text, "utc": utc, "share": share_text,
    "percent": percent_text, "no_more_nodes": no_more_nodes,
    "state": state, "code": code, "reason": reason,
}  # fmt: skip
