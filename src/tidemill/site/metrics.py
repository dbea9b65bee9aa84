"""SITE/metrics.prom: what the agent counts, in Prometheus' text format 0.0.4, for node_exporter's textfile collector.

Names and meanings are in `METRICS` and, for people, in docs/metrics.md; a test keeps the two alike. Counters count
since the start of the agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch.contract import Calls
from tidemill.errors import SiteError
from tidemill.harvest.ledger import HOUR_S, UNBOUNDED_S, Ledger
from tidemill.log import Log
from tidemill.model.machine import NodeState, Snapshot
from tidemill.model.state import AllocationState
from tidemill.node.files import write_whole
from tidemill.site.harvesting import Figures, Harvesting
from tidemill.site.io import IoShares
from tidemill.site.machine import Machine
from tidemill.site.remarks import Remarks
from tidemill.site.state import SiteState

BEATS = 3
"""The file is written every so many heartbeats: 15 s unless configured otherwise."""

METRICS: dict[str, tuple[str, str]] = {
    "tidemill_batch_calls_total": ("counter", "Commands that we ran, by kind: query, action"),
    "tidemill_batch_failures_total": ("counter", "Commands that failed"),
    "tidemill_batch_slow_total": ("counter", "Replies that took over cluster.slow_s, or a rate limit"),
    "tidemill_batch_bytes_total": ("counter", "Bytes of replies"),
    "tidemill_batch_seconds_total": ("counter", "Seconds that commands took"),
    "tidemill_batch_last_seconds": ("gauge", "Seconds that the last query took"),
    "tidemill_batch_interval_factor": ("gauge", "Polls are so many times rarer than configured"),
    "tidemill_nodes": ("gauge", "Nodes of the machine, by state: idle, regular (others' jobs), ours, other"),
    "tidemill_allocations": ("gauge", "Allocations that the site's log knows, by state"),
    "tidemill_starts_total": ("counter", "Allocations that we asked for"),
    "tidemill_cancels_total": ("counter", "Allocations that were canceled, by us and by others"),
    "tidemill_shortens_total": ("counter", "Limits of running allocations that we lowered"),
    "tidemill_harm_seconds_today": ("gauge", "Our estimated part of the waits of regular jobs since 0 h UTC"),
    "tidemill_harm_jobs_today": ("gauge", "Regular jobs since 0 h UTC whose wait was partly ours"),
    "tidemill_grant_node_hours": (
        "gauge",
        "Node-hours of an account, by kind: granted, before, settled, in_flight, committed, left",
    ),
    "tidemill_node_hours_left": ("gauge", "Node-hours that new allocations may use; no sample = no bound"),
    "tidemill_quarantined_nodes": ("gauge", "Nodes that are not used because starts fail there"),
    "tidemill_drained": ("gauge", "Whether the site is stopped or drained: 1, else 0"),
    "tidemill_plans_total": ("counter", "Decisions that were made"),
    "tidemill_plan_seconds_total": ("counter", "Seconds that decisions took"),
    "tidemill_startup_seconds": (
        "gauge",
        "Start of an allocation until it works, a fading mean of what was seen",
    ),
    "tidemill_waits_for": ("gauge", "Why no more nodes are asked for: 1 for each cause that holds"),
    "tidemill_io_budget_ops_per_second": ("gauge", "Metadata operations that the site may cause, per area"),
    "tidemill_io_budget_bytes_per_second": ("gauge", "Bytes that the site may move, per area"),
    "tidemill_io_told": ("gauge", "Part of the budget that fleets were told, all together: 0 to 1"),
    "tidemill_io_ops_total": ("counter", "Metadata operations that nodes' own counters saw, per area"),
    "tidemill_io_bytes_total": ("counter", "Bytes that nodes' own counters saw, per area"),
    "tidemill_io_over_total": ("counter", "Reports of pilots that an area was over its budget, by `kind`"),
    "tidemill_noted_total": (
        "counter",
        "Remarks of pilots, by topic (such as `image`, `spill`) and mode (such as `fuse`, `unpack`, `failed`)",
    ),
    "tidemill_epoch": ("gauge", "Number of the agent's term"),
}

_log = Log("metrics")


class Sample(msgspec.Struct, frozen=True):
    """One value; `labels` as (name, value)."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def render(samples: Iterator[Sample] | list[Sample]) -> str:
    """The text of the samples, each metric with its help and type."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, (kind, text) in METRICS.items():
        if name not in by_name:
            continue
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for sample in by_name[name]:
            labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels)
            lines.append(
                f"{name}{{{labels}}} {sample.value:.15g}" if labels else f"{name} {sample.value:.15g}"
            )
    return "\n".join(lines) + "\n"


class MetricsFile:
    """Writes the file when it is time."""

    def __init__(self, path: Path, heartbeat_s: float, remarks: Remarks, *, io: IoShares) -> None:
        self._path = path
        self._remarks = remarks
        self._pause_s = BEATS * heartbeat_s
        self._next_s = 0.0
        self._io = io

    def write(self, state: SiteState, harvesting: Harvesting, machine: Machine, *, calls: Calls) -> None:
        """Put today's figures there, whole; a failure is logged, for nothing depends on it."""
        now_s = clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._pause_s
        samples = [
            *_of_calls(calls),
            *_of_machine(machine.snapshot),
            *_of_state(state, harvesting.figures),
            *_of_ledger(machine.ledger),
            Sample("tidemill_quarantined_nodes", len(machine.bad.verdict.exclude)),
            Sample("tidemill_startup_seconds", machine.costs.startup_s),
            *(Sample("tidemill_waits_for", 1.0, (("cause", cause),)) for cause in harvesting.causes),
            *_of_io(self._io),
        ]
        for (topic, mode), count in sorted(self._remarks.counts.items()):
            samples.append(Sample("tidemill_noted_total", count, (("topic", topic), ("mode", mode))))
        if machine.reads_snapshots:
            totals = harvesting.harm.day(clock.now_us() / 1e6)
            samples.append(Sample("tidemill_harm_seconds_today", totals.share_s))
            samples.append(Sample("tidemill_harm_jobs_today", totals.delayed))
        try:
            write_whole(self._path, render(samples).encode(), mode=0o644)
        except SiteError as error:
            _log.warning("metrics.unwritten", reason=error.message)


def _of_calls(calls: Calls) -> Iterator[Sample]:
    yield Sample("tidemill_batch_calls_total", calls.queries, (("kind", "query"),))
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
    ours = {name for job in snapshot.running if job.ours for name in job.nodes}
    counts = Counter(
        "ours"
        if node.name in ours
        else "idle"
        if node.state is NodeState.IDLE
        else "regular"
        if node.state in (NodeState.BUSY, NodeState.SHARED, NodeState.ENDING)
        else "other"
        for node in snapshot.nodes
    )
    for state in ("idle", "regular", "ours", "other"):
        yield Sample("tidemill_nodes", counts[state], (("state", state),))


def _of_state(state: SiteState, figures: Figures) -> Iterator[Sample]:
    counts = Counter(allocation.state for allocation in state.allocations.values())
    for each in AllocationState:
        yield Sample("tidemill_allocations", counts[each], (("state", each.value),))
    yield Sample("tidemill_starts_total", figures.starts)
    yield Sample("tidemill_cancels_total", figures.cancels, (("by", "us"),))
    yield Sample("tidemill_cancels_total", figures.foreign_cancels, (("by", "others"),))
    yield Sample("tidemill_shortens_total", figures.shortens)
    yield Sample("tidemill_drained", float(state.stop is not None or state.drained is not None))
    yield Sample("tidemill_plans_total", figures.plans)
    yield Sample("tidemill_plan_seconds_total", figures.plan_seconds)
    yield Sample("tidemill_epoch", state.epoch)


def _of_ledger(ledger: Ledger) -> Iterator[Sample]:
    for line in ledger.lines:
        for kind, node_s in (
            ("granted", line.granted_s),
            ("before", line.before_s),
            ("settled", line.settled_s),
            ("in_flight", line.in_flight_s),
            ("committed", line.committed_s),
            ("left", line.left_s),
        ):
            yield Sample(
                "tidemill_grant_node_hours", node_s / HOUR_S, (("account", line.account), ("kind", kind))
            )
    if ledger.node_s_left < UNBOUNDED_S:
        yield Sample("tidemill_node_hours_left", ledger.node_s_left / HOUR_S)


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


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
