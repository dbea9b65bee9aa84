"""SITE/metrics.prom: what the agent counts, in Prometheus' text format 0.0.4, for node_exporter's textfile collector.

Names and meanings are in `model/metrics` and, for people, in docs/metrics.md. Counters count since the start of the
agent. Every sample carries the site's name: several agents may be on one host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tidemill import __version__, clock
from tidemill.batch.contract import CommandCounts
from tidemill.errors import SiteError
from tidemill.files import write_whole
from tidemill.harvest.account.ledger import UNBOUNDED_S, Ledger
from tidemill.log import Log
from tidemill.model.figures.job_classes import LENGTHS, SIZES, ClassTotals, SizeAndLength
from tidemill.model.machine import Snapshot
from tidemill.model.metrics import Sample, render
from tidemill.model.state import REPORTED_STATES
from tidemill.model.trouble import Trouble
from tidemill.site.data.site_data import SiteData
from tidemill.site.data.staging import DataFigures
from tidemill.site.fleet.io_budget import IoShares
from tidemill.site.link.exchange import Exchange
from tidemill.site.nodes.harvesting import HarvestCounts, Harvesting
from tidemill.site.state.served_site import ServedSite
from tidemill.site.state.site_state import SiteState
from tidemill.site.watch.exporter import listener_of
from tidemill.site.watch.record_totals import RecordTotals
from tidemill.site.watch.views import Shown, node_counts

BEATS = 3
"""The number of heartbeats between two writes of the file: 15 s unless configured otherwise."""

_log = Log("metrics")


class MetricsFile:
    """Writes the file when it is time, and serves the same text to a Prometheus that may scrape it."""

    def __init__(
        self,
        site: ServedSite,
        harvesting: Harvesting,
        data: SiteData,
        *,
        exchange: Exchange,
        shown: Shown,
    ) -> None:
        config = site.config
        path = site.directory / "metrics.prom"
        self._paths = [path, *([config.metrics.textfile] if config.metrics.textfile else [])]
        self._site, self._harvesting, self._data, self._exchange = site, harvesting, data, exchange
        self._shown = shown
        self.totals = RecordTotals()
        self._pause_s = BEATS * config.heartbeat_s
        self._next_s = 0.0
        self._started = 0  #: regular jobs that started today, as last written
        self._listener = listener_of(config.metrics)

    def close(self) -> None:
        """End the listener."""
        if self._listener is not None:
            self._listener.close()

    def write(self) -> None:
        """Write the figures of now, whole; a failure is logged, for nothing depends on the file."""
        now_s, started = clock.monotonic_s(), self._started_today()
        if now_s < self._next_s and started == self._started:  # `site harm` has them from their poll on
            return
        self._started = started
        self._next_s = now_s + self._pause_s
        text = render(self._samples(), common=(("site", self._site.config.name),))
        if self._listener is not None:
            self._listener.text = text.encode()
        for path in self._paths:
            try:
                write_whole(path, text.encode(), mode=0o644)
            except SiteError as error:
                _log.warning("metrics.unwritten", reason=error.message)

    def _started_today(self) -> int:
        return self._harvesting.harm.day(clock.now_us() / 1e6).jobs

    def _samples(self) -> list[Sample]:
        state, harvesting, sync = self._site.state, self._harvesting, self._exchange.sync
        machine = harvesting.machine
        samples = [
            Sample("tidemill_info", 1, (("version", __version__),)),
            *self.totals.samples(),
            Sample("tidemill_sync_seconds", sync.last_s),
            Sample("tidemill_sync_failures_total", sync.failed),
            Sample("tidemill_reports_waiting", len(state.reports)),
            *_of_calls(harvesting.calls.batch.calls),
            Sample("tidemill_batch_glance_seconds", harvesting.glance_s or 0),
            Sample("tidemill_batch_glance_off", float(bool(harvesting.glances.why_not))),
            Sample("tidemill_batch_doubted", float(bool(harvesting.doubts.shown))),
            Sample("tidemill_headroom_nodes", machine.headroom),
            *_of_machine(machine.snapshot),
            *_of_state(state, harvesting.counts),
            *_of_ledger(machine.ledger),
            Sample("tidemill_quarantined_nodes", len(machine.quarantine.verdict.exclude)),
            *_of_breakers(harvesting.fleets.granting.troubles.shown()),
            Sample("tidemill_startup_seconds", machine.costs.startup_s),
            *(Sample("tidemill_waits_for", 1.0, (("cause", cause),)) for cause in harvesting.causes),
            *_of_io(harvesting.fleets.io),
            *_of_data(self._data.figures()),
            *self._shown.caches.samples(),
            *self._shown.nodes.samples(),
        ]
        if machine.reads_snapshots:
            now_s = clock.now_us() / 1e6
            totals = harvesting.harm.day(now_s)
            samples.append(Sample("tidemill_harm_today_seconds", totals.share_s))
            samples.append(Sample("tidemill_harm_today_low_seconds", totals.share_low_s))
            samples.append(Sample("tidemill_harm_today_high_seconds", totals.share_high_s))
            samples.append(Sample("tidemill_harm_today_jobs", totals.delayed))
            samples += of_waits(harvesting.harm.day_classes(now_s))
        return samples


def of_waits(classes: Mapping[SizeAndLength, ClassTotals]) -> Iterator[Sample]:
    """What regular jobs waited today, by class; records that do not say of which are left out."""
    for size in SIZES:
        for length in LENGTHS:
            totals = classes.get(SizeAndLength(size, length), ClassTotals())
            labels = (("size", size), ("length", length))
            yield Sample("tidemill_regular_today_jobs", totals.jobs, labels)
            yield Sample("tidemill_regular_today_wait_seconds", totals.wait_s, labels)
            yield Sample("tidemill_regular_today_harm_seconds", totals.share_s, labels)


def _of_calls(calls: CommandCounts) -> Iterator[Sample]:
    yield Sample("tidemill_batch_calls_total", calls.queries - calls.glances, (("kind", "query"),))
    yield Sample("tidemill_batch_calls_total", calls.glances, (("kind", "glance"),))
    yield Sample("tidemill_batch_calls_total", calls.actions, (("kind", "action"),))
    yield Sample("tidemill_batch_failures_total", calls.failures)
    yield Sample("tidemill_batch_slow_total", calls.slow)
    yield Sample("tidemill_batch_bytes_total", calls.bytes)
    yield Sample("tidemill_batch_seconds_total", calls.seconds)
    yield Sample("tidemill_batch_last_seconds", calls.last_s)
    yield Sample("tidemill_batch_interval_factor", calls.interval_factor)


def _of_machine(snapshot: Snapshot | None) -> Iterator[Sample]:
    if snapshot is None:
        return
    yield Sample("tidemill_batch_polled_time_seconds", snapshot.at_s)
    counts = node_counts(snapshot)
    for state in ("idle", "regular", "ours", "other"):
        yield Sample("tidemill_nodes", counts[state], (("state", state),))


def _of_state(state: SiteState, counts: HarvestCounts) -> Iterator[Sample]:
    allocations = Counter(allocation.shown for allocation in state.allocations.values())
    for each in REPORTED_STATES:
        yield Sample("tidemill_allocations", allocations[each], (("state", each),))
    yield Sample("tidemill_starts_total", counts.starts)
    yield Sample("tidemill_cancels_total", counts.cancels, (("by", "us"),))
    yield Sample("tidemill_cancels_total", counts.foreign_cancels, (("by", "others"),))
    yield Sample("tidemill_shortens_total", counts.shortens)
    yield Sample("tidemill_drained", float(state.stop is not None or state.drained is not None))
    yield Sample("tidemill_plans_total", counts.plans)
    yield Sample("tidemill_plan_seconds_total", counts.plan_seconds)
    yield Sample("tidemill_epoch", state.epoch)


def _of_ledger(ledger: Ledger) -> Iterator[Sample]:
    for line in ledger.lines:
        for kind, node_s in (
            ("granted", line.granted_s),
            ("settled", line.settled_s),
            ("in_flight", line.in_flight_s),
            ("committed", line.committed_s),
            ("left", line.left_s),
        ):
            yield Sample("tidemill_grant_node_seconds", node_s, (("account", line.account), ("kind", kind)))
    if ledger.node_s_left < UNBOUNDED_S:
        yield Sample("tidemill_left_node_seconds", ledger.node_s_left)


def _of_io(io: IoShares) -> Iterator[Sample]:
    for area, (ops_per_s, bytes_per_s) in io.budgets.items():
        label = (("area", area),)
        if ops_per_s is not None:
            yield Sample("tidemill_io_budget_ops_per_second", ops_per_s, label)
        if bytes_per_s is not None:
            yield Sample("tidemill_io_budget_bytes_per_second", bytes_per_s, label)
        yield Sample("tidemill_io_ops_total", io.observed[area, "ops"], label)
        yield Sample("tidemill_io_bytes_total", io.observed[area, "bytes"], label)
        for kind in ("ops", "bytes"):
            yield Sample("tidemill_io_over_total", io.over[area, kind], (*label, ("kind", kind)))
    if io.budgets:
        yield Sample("tidemill_io_told", io.told_sum())


def _of_breakers(troubles: Sequence[Trouble]) -> Iterator[Sample]:
    """As far as they are shown: owners and places do not become labels."""
    owned = [bool(each.owner) for each in troubles if each.is_open]
    yield Sample("tidemill_breakers_open", sum(owned), (("of", "owner"),))
    yield Sample("tidemill_breakers_open", len(owned) - sum(owned), (("of", "all"),))


def _of_data(data: DataFigures) -> Iterator[Sample]:
    for way, done, failed, moved_bytes in data.moves:
        yield Sample("tidemill_moves_total", done, (("way", way), ("outcome", "done")))
        yield Sample("tidemill_moves_total", failed, (("way", way), ("outcome", "failed")))
        yield Sample("tidemill_moves_bytes_total", moved_bytes, (("way", way),))
    yield Sample("tidemill_data_cache_files", data.files)
    yield Sample("tidemill_data_cache_bytes", data.pinned_bytes, (("state", "pinned"),))
    yield Sample("tidemill_data_cache_bytes", data.bytes - data.pinned_bytes, (("state", "idle"),))
    yield Sample("tidemill_data_cache_requests_total", data.hits, (("outcome", "hit"),))
    yield Sample("tidemill_data_cache_requests_total", data.misses, (("outcome", "miss"),))
    yield Sample("tidemill_data_cache_evicted_bytes_total", data.evicted_bytes)
    yield Sample("tidemill_stage_bytes", data.pinned_bytes, (("state", "used"),))
    yield Sample("tidemill_stage_bytes", data.reserved_bytes, (("state", "reserved"),))
    yield Sample("tidemill_stage_bytes", data.waiting_bytes, (("state", "waiting"),))
    yield Sample("tidemill_stage_waiting_jobs", data.waiting_jobs)
