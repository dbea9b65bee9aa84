"""`tidemill top`: campaigns as they run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of, count
from tidemill.cli.progress import site_waits_text
from tidemill.cli.terminal import live_tables, show, show_json, show_table, stdout_is_terminal
from tidemill.model.campaign import shown_names
from tidemill.model.figures.activity import REPORTED_S, pace
from tidemill.model.quantities import count_text, duration_text, percent_text, rate_text, ratio
from tidemill.model.trouble import Scope
from tidemill.wire.server_connection import NotFoundError

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import CampaignRow, SiteRow

PAUSE_S = 1.0
RATE_S = 5.0  #: for which a rate is shown before the server is asked again
ROWS = 20
TROUBLE_CHARS_MAX = 100


def define(parser: Parser) -> None:
    """Options of `top`."""
    parser.add_argument(
        "--once", action="store_true", help="print once and exit (default where stdout is not a terminal)"
    )
    parser.add_argument(
        "--rows", type=count, default=ROWS, metavar="N", help=f"campaigns shown (default: {ROWS})"
    )


def run(args: Namespace) -> int:
    """Show campaigns, again and again on a terminal, until Ctrl-C."""
    client = client_of(args)
    if args.json:
        show_json(client.campaigns()[: args.rows])
        return 0
    rates = _Rates(client)
    if args.once or not stdout_is_terminal():
        rows = client.campaigns()[: args.rows]
        show_table(*_table(rows, rates), right=_RIGHT)
        for site in client.sites() if any(_state(row) in _OPEN for row in rows) else ():
            show(f"site {site_text(site)}")
        return 0
    with suppress(KeyboardInterrupt):
        live_tables(_pages(client, args.rows, rates), right=_RIGHT)
    return 0


_RIGHT = (2, 3, 4, 5, 6, 7, 8)
_OPEN = ("RUNNING", "ASSIGNED", "WAITING")


class _Rates:
    """Events per second of campaigns that run, as the server knows what payloads did; asked rarely."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, tuple[float, float | None]] = {}

    def rate(self, row: CampaignRow) -> float | None:
        """The rate of late; None of a campaign that does not run, or in which nothing has been done."""
        if row.phase or not row.states.get("RUNNING") or not row.events_done:
            return None
        now = clock.monotonic_s()
        at, rate = self._known.get(row.reference, (now - RATE_S, None))
        if now - at >= RATE_S:
            rate = self._asked(row)
            self._known[row.reference] = (now, rate)
        return rate

    def _asked(self, row: CampaignRow) -> float | None:
        now_us = clock.now_us()
        with suppress(NotFoundError):  # the campaign has just gone
            rate = pace(self._client.activity(row.reference), now_us / 1e6 - REPORTED_S)
            if rate is not None and rate.per_s > 0:
                return rate.per_s
        if row.first_started_us is None:
            return None
        return ratio(row.events_done, (now_us - row.first_started_us) / 1e6)


def _table(rows: list[CampaignRow], rates: _Rates) -> tuple[list[str], list[list[object]]]:
    heads = ["CAMPAIGN", "STATE", "JOBS", "EVENTS", "DONE", "FAILED", "EVENTS/S", "CPU/WALL", "TIME"]
    names = shown_names([(row.owner, row.name) for row in rows])
    return heads, [
        [
            name,
            _state(row),
            count_text(row.jobs),
            count_text(row.events),
            percent_text(ratio(row.events_done, row.events)),
            count_text(row.events_failed) if row.events_failed else "-",
            rate_text(rates.rate(row)),
            percent_text(ratio(row.usage.user_us + row.usage.system_us, row.usage.wall_us)),
            _time(row),
        ]
        for name, row in zip(names, rows, strict=True)
    ]


def _state(row: CampaignRow) -> str:
    """The most informative state: running before waiting before how it ended."""
    if row.phase:
        return row.phase
    for state in ("RUNNING", "WAITING", "FAILED", "PARTIAL", "CANCELED"):
        if row.states.get(state):
            return state
    return "COMPLETED"


def _time(row: CampaignRow) -> str:
    if row.first_started_us is None:
        return "-"
    running = _state(row) in _OPEN
    end = clock.now_us() if running or row.last_ended_us is None else row.last_ended_us
    return duration_text(max(0, end - row.first_started_us) / 1e6)


def site_text(site: SiteRow) -> str:
    """A site with its state and, if it takes no work at all, its trouble; else what its work waits for."""
    troubles = site.capacity.get("troubles", [])
    told = [each["message"] for each in troubles if each["is_open"] and each["scope"] == Scope.ALL]
    why = told[0][:TROUBLE_CHARS_MAX] if told else site_waits_text(site)
    return f"{site.name} {site.state}" + (f": {why}" if why else "")


def _pages(client: Any, rows: int, rates: _Rates) -> Iterator[tuple[str, list[str], list[list[object]]]]:
    """What there is to see now, without end: a headline, headers and rows."""
    while True:
        counts = client.counts()
        sites = "; ".join(map(site_text, client.sites())) or "none"
        headline = (
            f"tidemill {clock.utc_text(clock.now_us())}  jobs: {count_text(counts.jobs)}"
            f"  events done: {count_text(counts.events_done)}  sites: {sites}  (Ctrl-C ends)"
        )
        yield headline, *_table(client.campaigns()[:rows], rates)
        clock.sleep_s(PAUSE_S)


COMMANDS = {"top": Command(define, run, "tidemill top")}
