"""`GET /metrics`: what the server counts and what the database holds, as `model/metrics` names it.

What needs the database is read at most every CACHE_S, however often it is asked for.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tidemill import __version__, clock
from tidemill.errors import SiteError
from tidemill.model.failure import FailureClass
from tidemill.model.metrics import OTHER, SERVER, SITES_MAX, Sample, render
from tidemill.model.state import REPORTED_STATES
from tidemill.server.core.limits.storage import stored_bytes
from tidemill.server.database.store import Session, value
from tidemill.server.notices import tables
from tidemill.server.read import api_pages
from tidemill.server.watch.health import PROBLEMS, Watched, problems
from tidemill.wire.api import SiteRow

CACHE_S = 5.0
_CLASSES = frozenset(str(each) for each in FailureClass)
_STATES = frozenset(REPORTED_STATES)
_SITE_STATES = SERVER["tidemill_server_site_state"].labels["state"].values


class ServerMetrics:
    """The samples that `/metrics` shows."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._dispatcher = watched, watched.dispatcher
        self._started_us = clock.now_us()
        self._lock = threading.Lock()
        self._read_s = -CACHE_S
        self._kept: list[Sample] = []

    def text(self, session: Session | None, *, feed_readers: int) -> str:
        """The whole text; without the samples of the database if `session` is None or it does not answer."""
        samples = [
            Sample(
                "tidemill_server_info",
                1,
                (("version", __version__), ("database", self._dispatcher.writer.dialect)),
            ),
            Sample("tidemill_server_start_time_seconds", self._started_us / 1e6),
            Sample("tidemill_server_feed_readers", feed_readers),
            Sample("tidemill_server_waiting_requests", self._dispatcher.writer.waiting),
            Sample("tidemill_server_active", int(self._dispatcher.writer.is_active)),
            *_of_broker(self._watched),
            *_of_process(),
            *self._dispatcher.meters.samples(),
            *self._stored(session),
        ]
        return render(samples)

    def _stored(self, session: Session | None) -> list[Sample]:
        with self._lock:
            if clock.monotonic_s() - self._read_s >= CACHE_S:
                try:
                    if session is None:
                        raise SiteError("there is no connection")  # noqa: TRY301  one place handles both
                    self._kept = list(self._of_database(session))
                except SiteError:
                    self._kept = list(_of_problems(["database_away"]))
                self._read_s = clock.monotonic_s()
            return self._kept

    def _of_database(self, session: Session) -> Iterator[Sample]:
        yield from _of_problems(problems(session, self._watched))
        totals: dict[str, int] = dict(session.rows("totals"))
        counts = api_pages.counts_of(totals)
        for state, number in counts.states.items():
            yield Sample("tidemill_server_jobs", number, (("state", str(state)),))
        events = {
            "open": counts.events - counts.events_done - counts.events_failed - counts.events_canceled,
            "done": counts.events_done,
            "failed": counts.events_failed,
            "canceled": counts.events_canceled,
        }
        for state, number in events.items():
            yield Sample("tidemill_server_events", number, (("state", state),))
        yield Sample("tidemill_server_campaigns", counts.campaigns)
        failures: Counter[str] = Counter()
        for name, number in totals.items():
            kind, _, failure = name.partition("/")
            if kind == "failures":
                failures[failure if failure in _CLASSES else OTHER] += number
        for name, number in sorted(failures.items()):
            yield Sample("tidemill_server_failures_total", number, (("class", name),))
        yield Sample("tidemill_server_database_bytes", float(value(session, "database_bytes")))
        yield Sample("tidemill_server_stored_bytes", float(stored_bytes(session)))
        yield Sample("tidemill_server_stored_bytes_limit", float(self._dispatcher.storage.bytes_max))
        silent = self._dispatcher.site_watch.silent(site.name for site in api_pages.sites(session))
        for row in api_pages.site_rows(session, silent)[: SITES_MAX - 1]:
            yield from self._of_site(row)
        for channel, standing in tables.standing(session).items():
            yield Sample("tidemill_server_notifications_waiting", standing.waiting, (("channel", channel),))
            age_s = (
                0.0 if standing.oldest_us is None else max(0.0, (clock.now_us() - standing.oldest_us) / 1e6)
            )
            yield Sample("tidemill_server_notification_oldest_seconds", age_s, (("channel", channel),))

    def _of_site(self, row: SiteRow) -> Iterator[Sample]:
        site = ("site", row.name)
        for state in _SITE_STATES:
            yield Sample("tidemill_server_site_state", float(row.state == state), (site, ("state", state)))
        silent_s = max(0.0, self._dispatcher.site_watch.silent_s(row.name))
        yield Sample("tidemill_server_site_silent_seconds", silent_s, (site,))
        yield Sample("tidemill_server_site_leased_events", row.leased_events, (site,))
        yield Sample("tidemill_server_site_busy_cores", float(row.capacity.get("busy_cores", 0)), (site,))
        for state, number in sorted(row.allocations.items()):
            if state in _STATES:
                yield Sample("tidemill_server_site_allocations", number, (site, ("state", state)))


def _of_problems(found: list[str]) -> Iterator[Sample]:
    for name in PROBLEMS:
        yield Sample("tidemill_server_health", float(name in found), (("problem", name),))


def _of_broker(watched: Watched) -> Iterator[Sample]:
    if watched.transport_up is not None:
        yield Sample("tidemill_server_gateway_connected", float(watched.transport_up()))


def _of_process() -> Iterator[Sample]:
    times = os.times()
    yield Sample("tidemill_server_cpu_seconds_total", times.user + times.system)
    with suppress(OSError):
        pages_used = int(Path("/proc/self/statm").read_text().split()[1])  # proc(5): resident
        yield Sample("tidemill_server_resident_bytes", pages_used * os.sysconf("SC_PAGE_SIZE"))
        yield Sample("tidemill_server_open_files", sum(1 for _ in Path("/proc/self/fd").iterdir()))
