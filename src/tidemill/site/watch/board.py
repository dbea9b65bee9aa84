"""The agent's status: made when it is asked for, written with the metrics when it is time or something is new.

SITE/status.json     the record (`state/status`), for `site status` and `tidemill up`
SITE/metrics.prom    its metrics in Prometheus' text format 0.0.4, for node_exporter's textfile collector

Every sample carries the site's name: several agents may be on one host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidemill import __version__, clock
from tidemill.errors import SiteError
from tidemill.files import write_whole
from tidemill.harvest.account.ledger import UNBOUNDED_S
from tidemill.harvest.snapshot.quarantine import Sentence
from tidemill.log import Log
from tidemill.model.metrics import Sample, render
from tidemill.model.state import REPORTED_STATES
from tidemill.site import constants
from tidemill.site.data.site_data import SiteData
from tidemill.site.link.exchange import Exchange
from tidemill.site.nodes.harvesting import Harvesting
from tidemill.site.state.served_site import ServedSite
from tidemill.site.state.status import AreaFigures, HarmFigures, SiteStatus, read_status, write_status
from tidemill.site.watch.exporter import listener_of
from tidemill.site.watch.metrics import of_calls, samples_of
from tidemill.site.watch.record_totals import RecordTotals
from tidemill.site.watch.views import TEXT_MAX, Shown, node_counts
from tidemill.wire.monitoring import BadNode, RegularWaits
from tidemill.wire.views import ROWS_MAX

BEATS = 3
"""The number of heartbeats between two beats of the figures: 15 s."""

_log = Log("metrics")


class StatusBoard:
    """Makes and writes the status, and serves its metrics to a Prometheus that may scrape them."""

    def __init__(
        self, site: ServedSite, harvesting: Harvesting, data: SiteData, *, exchange: Exchange, shown: Shown
    ) -> None:
        config = site.config
        self._prom = [
            site.directory / "metrics.prom",
            *([config.metrics.textfile] if config.metrics.textfile else []),
        ]
        self._site, self._harvesting, self._data, self._exchange = site, harvesting, data, exchange
        self._shown = shown
        self.totals = RecordTotals()
        self._pause_s = BEATS * constants.HEARTBEAT_S
        self._next_s = 0.0
        self._since_us = clock.now_us()
        self._figures: list[Sample] = []
        earlier = read_status(site.directory).status
        self._failed, self._earlier_poll = earlier.failed, earlier.poll
        self._written: object = None  #: what was new when the status was written last
        self._started = 0  #: regular jobs that started today, as last written
        self._listener = listener_of(config.metrics)

    def close(self) -> None:
        """End the listener."""
        if self._listener is not None:
            self._listener.close()

    def ran_well(self) -> None:
        """The agent runs well, or ends without an error: its earlier failures are over."""
        self._failed = None

    def write(self, *, at_once: bool = False) -> None:
        """Write the status where a fact is new that people wait for, and the metrics with it when it is time.
        `at_once`: for the last time of this agent."""
        harvesting = self._harvesting
        now_s, started = clock.monotonic_s(), harvesting.harm.day(clock.now_us() / 1e6).jobs
        is_beat = (
            now_s >= self._next_s or started != self._started
        )  # `site harm` has these from their poll on
        news = (
            harvesting.shown, harvesting.outage, self._failed, tuple(harvesting.causes), self._stopped,
            harvesting.fleets.granting.troubles.written,
        )  # fmt: skip
        if not is_beat and news == self._written and not at_once:
            return
        if is_beat:
            self._figures = list(self._counted())
        status = self.now()
        write_status(self._site.directory, status)
        self._written = news
        if is_beat:
            self._started, self._next_s = started, now_s + self._pause_s
            self._write_metrics(status)

    def _write_metrics(self, status: SiteStatus) -> None:
        """Write the metrics, whole; a failure is logged, for nothing depends on the file."""
        text = render(samples_of(status), common=(("site", self._site.config.name),))
        if self._listener is not None:
            self._listener.text = text.encode()
        for path in self._prom:
            try:
                write_whole(path, text.encode(), mode=0o644)
            except SiteError as error:
                _log.warning("metrics.unwritten", reason=error.message)

    @property
    def _stopped(self) -> str:
        stop = self._site.state.stop
        return "" if stop is None else stop.reason[:TEXT_MAX]

    def now(self) -> SiteStatus:
        """The site as it is now, with the figures of the last beat."""
        harvesting, machine = self._harvesting, self._harvesting.machine
        state, snapshot, ledger = self._site.state, machine.snapshot, machine.ledger
        bad = machine.quarantine.serving()
        return SiteStatus(
            at_us=clock.now_us(),
            since_us=self._since_us,
            mode=self._site.config.mode,
            stopped=self._stopped,
            is_drained=state.stop is not None or state.drained is not None,
            waits_for=(harvesting.waits_for or "")[:TEXT_MAX],
            causes=harvesting.causes,
            away=harvesting.outage,
            failed=self._failed,
            poll=harvesting.last_poll() or self._earlier_poll,
            is_glance_off=bool(harvesting.glances.why_not),
            polled_s=None if snapshot is None else snapshot.at_s,
            nodes={} if snapshot is None else dict(node_counts(snapshot)),
            grants=list(ledger.lines),
            left_node_s=ledger.node_s_left if ledger.node_s_left < UNBOUNDED_S else None,
            bad_nodes=[_bad_node(each) for each in bad[:ROWS_MAX]],
            bad_nodes_total=len(bad),
            troubles=harvesting.fleets.granting.troubles.shown(),
            data=self._data.figures(),
            areas=list(self._areas()),
            harm=self._harm(),
            waits=list(self._waits()),
            caches=self._shown.caches.views()[:ROWS_MAX],
            figures=self._figures,
        )

    def _counted(self) -> Iterator[Sample]:
        """Counts that nothing but metrics needs."""
        state, harvesting, sync = self._site.state, self._harvesting, self._exchange.sync
        counts = harvesting.counts
        yield Sample("tidemill_info", 1, (("version", __version__),))
        yield from self.totals.samples()
        yield Sample("tidemill_sync_seconds", sync.last_s)
        yield Sample("tidemill_sync_failures_total", sync.failed)
        yield Sample("tidemill_reports_waiting", len(state.reports))
        yield from of_calls(harvesting.calls.batch.calls)
        yield Sample("tidemill_batch_glance_seconds", harvesting.glance_s or 0)
        yield Sample("tidemill_batch_doubted", float(bool(harvesting.doubts.shown)))
        yield Sample("tidemill_headroom_nodes", harvesting.machine.headroom)
        allocations = Counter(allocation.shown for allocation in state.allocations.values())
        for each in REPORTED_STATES:
            yield Sample("tidemill_allocations", allocations[each], (("state", each),))
        yield Sample("tidemill_starts_total", counts.starts)
        yield Sample("tidemill_cancels_total", counts.cancels, (("by", "us"),))
        yield Sample("tidemill_cancels_total", counts.foreign_cancels, (("by", "others"),))
        yield Sample("tidemill_shortens_total", counts.shortens)
        yield Sample("tidemill_plans_total", counts.plans)
        yield Sample("tidemill_plan_seconds_total", counts.plan_seconds)
        yield Sample("tidemill_epoch", state.epoch)
        yield Sample("tidemill_startup_seconds", harvesting.machine.costs.startup_s)
        if harvesting.fleets.io.budgets:
            yield Sample("tidemill_io_told", harvesting.fleets.io.given_sum())
        yield from self._shown.nodes.samples()

    def _areas(self) -> Iterator[AreaFigures]:
        io = self._harvesting.fleets.io
        for area, (ops_per_s, bytes_per_s) in io.budgets.items():
            yield AreaFigures(
                area=area, ops=io.observed[area, "ops"], bytes=io.observed[area, "bytes"],
                ops_over=io.over[area, "ops"], bytes_over=io.over[area, "bytes"], ops_per_s=ops_per_s,
                bytes_per_s=bytes_per_s,
            )  # fmt: skip

    def _harm(self) -> HarmFigures | None:
        if not self._harvesting.machine.reads_snapshots:
            return None
        harm = self._harvesting.harm
        today = harm.day(clock.now_us() / 1e6)
        return HarmFigures(
            all_s=harm.share_s, today_s=today.share_s, low_s=today.share_low_s, high_s=today.share_high_s,
            jobs=today.delayed,
        )  # fmt: skip

    def _waits(self) -> Iterator[RegularWaits]:
        """Waits of today's regular jobs, by class."""
        if self._harvesting.machine.reads_snapshots:
            today = self._harvesting.harm.day_classes(clock.now_us() / 1e6)
            for kind, totals in sorted(today.items()):
                yield RegularWaits(size=kind.size, length=kind.length, **totals._asdict())


def _bad_node(each: Sentence) -> BadNode:
    return BadNode(
        node=each.node, since_us=int(each.since_s * 1e6), until_us=int(each.until_s * 1e6),
        why=each.why[:TEXT_MAX], evidence=[text[:TEXT_MAX] for text in each.evidence],
    )  # fmt: skip
