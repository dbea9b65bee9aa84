"""What a site's status says, as metrics. Pure.

Names and meanings are in `model/metrics` and, for people, in docs/metrics.md. Counters count since the start of the
agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.batch.contract import CommandCounts
from tidemill.harvest.account.ledger import Line
from tidemill.model.figures.job_classes import LENGTHS, SIZES
from tidemill.model.metrics import Sample
from tidemill.model.trouble import Trouble
from tidemill.site.state.status import AreaFigures, DataFigures, HarmFigures, SiteStatus
from tidemill.site.watch.cache_views import cache_samples
from tidemill.wire.monitoring import RegularWaits


def samples_of(status: SiteStatus) -> list[Sample]:
    """All metrics of an agent."""
    samples = [
        *status.figures,
        Sample("tidemill_batch_glance_off", float(status.is_glance_off)),
        *_of_nodes(status),
        Sample("tidemill_drained", float(status.is_drained)),
        *_of_grants(status.grants, status.left_node_s),
        Sample("tidemill_quarantined_nodes", status.bad_nodes_total),
        *_of_breakers(status.troubles),
        *(Sample("tidemill_waits_for", 1.0, (("cause", cause),)) for cause in status.causes),
        *_of_areas(status.areas),
        *_of_data(status.data),
        *cache_samples(status.caches),
    ]
    if status.harm is not None:
        samples += [*_of_harm(status.harm), *of_waits(status.waits)]
    return samples


def _of_harm(harm: HarmFigures) -> Iterator[Sample]:
    yield Sample("tidemill_harm_today_seconds", harm.today_s)
    yield Sample("tidemill_harm_today_low_seconds", harm.low_s)
    yield Sample("tidemill_harm_today_high_seconds", harm.high_s)
    yield Sample("tidemill_harm_today_jobs", harm.jobs)


def of_waits(waits: Iterable[RegularWaits]) -> Iterator[Sample]:
    """What regular jobs waited today, by class; records that do not say of which are left out."""
    known = {(each.size, each.length): each for each in waits}
    for size in SIZES:
        for length in LENGTHS:
            each = known.get((size, length))
            jobs, wait_s, share_s = (each.jobs, each.wait_s, each.share_s) if each else (0, 0.0, 0.0)
            labels = (("size", size), ("length", length))
            yield Sample("tidemill_regular_today_jobs", jobs, labels)
            yield Sample("tidemill_regular_today_wait_seconds", wait_s, labels)
            yield Sample("tidemill_regular_today_harm_seconds", share_s, labels)


def of_calls(calls: CommandCounts) -> Iterator[Sample]:
    """What was asked of the batch system."""
    yield Sample("tidemill_batch_calls_total", calls.queries - calls.glances, (("kind", "query"),))
    yield Sample("tidemill_batch_calls_total", calls.glances, (("kind", "glance"),))
    yield Sample("tidemill_batch_calls_total", calls.actions, (("kind", "action"),))
    yield Sample("tidemill_batch_failures_total", calls.failures)
    yield Sample("tidemill_batch_slow_total", calls.slow)
    yield Sample("tidemill_batch_bytes_total", calls.bytes)
    yield Sample("tidemill_batch_seconds_total", calls.seconds)
    yield Sample("tidemill_batch_last_seconds", calls.last_s)
    yield Sample("tidemill_batch_interval_factor", calls.interval_factor)


def _of_nodes(status: SiteStatus) -> Iterator[Sample]:
    if status.polled_s is not None:
        yield Sample("tidemill_batch_polled_time_seconds", status.polled_s)
        for state in ("idle", "regular", "ours", "other"):
            yield Sample("tidemill_nodes", status.nodes.get(state, 0), (("state", state),))


def _of_grants(grants: Sequence[Line], left_node_s: float | None) -> Iterator[Sample]:
    for line in grants:
        for kind, node_s in (
            ("granted", line.granted_s),
            ("settled", line.settled_s),
            ("in_flight", line.in_flight_s),
            ("committed", line.committed_s),
            ("left", line.left_s),
        ):
            yield Sample("tidemill_grant_node_seconds", node_s, (("account", line.account), ("kind", kind)))
    if left_node_s is not None:
        yield Sample("tidemill_left_node_seconds", left_node_s)


def _of_areas(areas: Iterable[AreaFigures]) -> Iterator[Sample]:
    for each in areas:
        label = (("area", each.area),)
        if each.ops_per_s is not None:
            yield Sample("tidemill_io_budget_ops_per_second", each.ops_per_s, label)
        if each.bytes_per_s is not None:
            yield Sample("tidemill_io_budget_bytes_per_second", each.bytes_per_s, label)
        yield Sample("tidemill_io_ops_total", each.ops, label)
        yield Sample("tidemill_io_bytes_total", each.bytes, label)
        yield Sample("tidemill_io_over_total", each.ops_over, (*label, ("kind", "ops")))
        yield Sample("tidemill_io_over_total", each.bytes_over, (*label, ("kind", "bytes")))


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
