"""The contract of metrics: every name, type, label and unit, in one table, and their text for Prometheus. Pure.

Names follow https://prometheus.io/docs/practices/naming: base units (seconds, bytes) at the end, `_total` for counters.
The text is format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats. docs/metrics.md is drawn
from this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemill.config.addressee import Channel
from tidemill.model.failure import FailureClass
from tidemill.model.figures.job_classes import LENGTHS, SIZES
from tidemill.model.metrics.nodes import FAMILIES, QUANTITIES
from tidemill.model.state import REPORTED_STATES, JobState


class Label(NamedTuple):
    """What a label may say: one of `values`, or anything, of which there are at most `most`."""

    values: tuple[str, ...] = ()
    most: int = 0
    about: str = ""


class Metric(NamedTuple):
    """A metric: `kind` is counter, gauge or histogram; `buckets` are a histogram's upper bounds."""

    kind: str
    help: str
    labels: Mapping[str, Label] = {}
    buckets: tuple[float, ...] = ()


class Sample(NamedTuple):
    """One value; `labels` as (name, value). Of a histogram also the names with `_bucket`, `_sum` and `_count`."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


OTHER = "other"
VIEWS_MAX = 100
CACHE_KINDS = ("served", "hit", "known", "fetched", "bypass", "again")
SITES_MAX, ROUTES_MAX, AREAS_MAX, ACCOUNTS_MAX, REMARKS_MAX = 1_000, 200, 100, 100, 200
TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SITE = Label(most=SITES_MAX, about="the site's name")
_AREA = Label(most=AREAS_MAX, about="an area of `[[io]]`")
_CACHE = Label(most=VIEWS_MAX, about="a cache of `[[caches]]`")
_NODES = Label(("idle", "regular", "ours", "other"))
_SIZES = Label(SIZES, about="share of the machine, at most")
_LENGTHS = Label(LENGTHS, about="requested walltime, at most")
_ALLOCATIONS = Label(REPORTED_STATES)
_CHANNEL = Label(tuple(str(each) for each in Channel))
_CAUSES = Label(
    (
        "idle", "regular", "ours", "headroom", "payback", "backlog", "short", "learning", "nodes", "allocations",
        "waiting", "starts", "submits", "width", "grant", "hidden", "scheduler", "closed", "failed_starts", "wide",
        "stopped", "contested", "doubt", "limit", "withdrawn",
    ),
    about="what binds",
)  # fmt: skip

AGENT: dict[str, Metric] = {
    "tidemill_info": Metric("gauge", "Always 1; the agent's version", {"version": Label(most=1)}),
    "tidemill_epoch": Metric("gauge", "Number of the agent's term"),
    "tidemill_batch_calls_total": Metric(
        "counter",
        "Commands of the batch system that Tidemill ran",
        {"kind": Label(("query", "glance", "action"))},
    ),
    "tidemill_batch_failures_total": Metric("counter", "Commands that failed"),
    "tidemill_batch_slow_total": Metric("counter", "Replies that took over 2 s, or a rate limit"),
    "tidemill_batch_bytes_total": Metric("counter", "Bytes of replies"),
    "tidemill_batch_seconds_total": Metric("counter", "Seconds that commands took"),
    "tidemill_batch_last_seconds": Metric("gauge", "Seconds that the last query took"),
    "tidemill_batch_interval_factor": Metric(
        "gauge", "Factor by which polls are less frequent than configured"
    ),
    "tidemill_batch_polled_time_seconds": Metric(
        "gauge", "When the machine was last polled with success, in seconds since 1970; no sample = not yet"
    ),
    "tidemill_batch_glance_seconds": Metric(
        "gauge",
        "Seconds between two glances at the counts of jobs; 0 while there are none",
    ),
    "tidemill_batch_glance_off": Metric(
        "gauge",
        "Is 1 while glances are off: the batch system shows no counts of jobs, or the query for them fails",
    ),
    "tidemill_headroom_nodes": Metric("gauge", "Idle nodes that are kept free for small jobs, at most"),
    "tidemill_nodes": Metric("gauge", "Nodes of the machine; regular = other users' jobs", {"state": _NODES}),
    "tidemill_allocations": Metric("gauge", "Allocations that the site's log knows", {"state": _ALLOCATIONS}),
    "tidemill_starts_total": Metric("counter", "Allocations that Tidemill asked for"),
    "tidemill_cancels_total": Metric(
        "counter", "Allocations that were canceled", {"by": Label(("us", "others"))}
    ),
    "tidemill_shortens_total": Metric("counter", "Limits of running allocations that Tidemill lowered"),
    "tidemill_harm_today_seconds": Metric(
        "gauge", "Estimated part of the waits of regular jobs that Tidemill caused since 0 h UTC"
    ),
    "tidemill_harm_today_low_seconds": Metric("gauge", "Lower bound of that estimate"),
    "tidemill_harm_today_high_seconds": Metric("gauge", "Upper bound of that estimate"),
    "tidemill_harm_today_jobs": Metric(
        "gauge", "Regular jobs since 0 h UTC that waited partly because of Tidemill"
    ),
    "tidemill_regular_today_jobs": Metric(
        "gauge", "Regular jobs that started since 0 h UTC", {"size": _SIZES, "length": _LENGTHS}
    ),
    "tidemill_regular_today_wait_seconds": Metric(
        "gauge", "Sum of their waits", {"size": _SIZES, "length": _LENGTHS}
    ),
    "tidemill_regular_today_harm_seconds": Metric(
        "gauge",
        "Part of their waits that is due to Tidemill, as estimated",
        {"size": _SIZES, "length": _LENGTHS},
    ),
    "tidemill_grant_node_seconds": Metric(
        "gauge",
        "What an account's grant holds, in seconds of one node",
        {
            "account": Label(most=ACCOUNTS_MAX, about="an account of `[[accounts]]`"),
            "kind": Label(("granted", "settled", "in_flight", "committed", "left")),
        },
    ),
    "tidemill_left_node_seconds": Metric(
        "gauge", "Seconds of one node that new allocations may use; no sample = no bound"
    ),
    "tidemill_quarantined_nodes": Metric("gauge", "Nodes that are not used because starts fail there"),
    "tidemill_breakers_open": Metric(
        "gauge",
        "Open breakers: of single owners, and those that hold back all",
        {"of": Label(("owner", "all"))},
    ),
    "tidemill_batch_doubted": Metric(
        "gauge", "Whether replies of the batch system are not believed: 1, else 0"
    ),
    "tidemill_drained": Metric("gauge", "Whether the site is stopped or drained: 1, else 0"),
    "tidemill_plans_total": Metric("counter", "Decisions that were made"),
    "tidemill_plan_seconds_total": Metric("counter", "Seconds that decisions took"),
    "tidemill_startup_seconds": Metric(
        "gauge", "Start of an allocation until it works, a fading mean of what was seen"
    ),
    "tidemill_waits_for": Metric(
        "gauge", "Why no more nodes are asked for: 1 for each cause that holds", {"cause": _CAUSES}
    ),
    "tidemill_io_budget_ops_per_second": Metric(
        "gauge", "Metadata operations that Tidemill may cause", {"area": _AREA}
    ),
    "tidemill_io_budget_bytes_per_second": Metric("gauge", "Bytes that the site may move", {"area": _AREA}),
    "tidemill_io_told": Metric("gauge", "Part of the budget assigned to all fleets together: 0 to 1"),
    "tidemill_io_ops_total": Metric(
        "counter", "Metadata operations that nodes' own counters saw", {"area": _AREA}
    ),
    "tidemill_io_bytes_total": Metric("counter", "Bytes that nodes' own counters saw", {"area": _AREA}),
    "tidemill_io_over_total": Metric(
        "counter",
        "Reports of pilots that an area was over its budget",
        {"area": _AREA, "kind": Label(("ops", "bytes"))},
    ),
    "tidemill_node_samples_total": Metric("counter", "Samples of nodes that pilots sent"),
    "tidemill_node_sampled_nodes": Metric(
        "gauge", "Nodes whose samples came in the last intervals: the means are over these"
    ),
    "tidemill_moves_total": Metric(
        "counter",
        "Remote files that were moved",
        {"way": Label(("in", "out")), "outcome": Label(("done", "failed"))},
    ),
    "tidemill_moves_bytes_total": Metric(
        "counter", "Bytes of remote files that were moved", {"way": Label(("in", "out"))}
    ),
    "tidemill_data_cache_files": Metric("gauge", "Copies of inputs that the site keeps"),
    "tidemill_data_cache_bytes": Metric(
        "gauge", "Bytes of copies of inputs; pinned = jobs need them", {"state": Label(("pinned", "idle"))}
    ),
    "tidemill_data_cache_requests_total": Metric(
        "counter", "Inputs that were asked for", {"outcome": Label(("hit", "miss"))}
    ),
    "tidemill_data_cache_evicted_bytes_total": Metric(
        "counter", "Bytes of copies that were deleted to make room, or for age"
    ),
    "tidemill_stage_bytes": Metric(
        "gauge",
        "Bytes in the stage: in use by jobs, reserved for inputs on their way, and what waiting jobs need more",
        {"state": Label(("used", "reserved", "waiting"))},
    ),
    "tidemill_stage_waiting_jobs": Metric("gauge", "Jobs whose inputs wait for room in the stage"),
    "tidemill_cache_up": Metric(
        "gauge", "Whether the cache answers its clients: 1 = it does", {"cache": _CACHE}
    ),
    "tidemill_cache_restarts": Metric(
        "gauge", "Restarts of the cache's server since its supervisor started", {"cache": _CACHE}
    ),
    "tidemill_cache_thrashing": Metric(
        "gauge",
        "Whether most of what the cache fetches it had before, being too small: 1 = so",
        {"cache": _CACHE},
    ),
    "tidemill_cache_disagrees": Metric(
        "gauge",
        "Whether its records and the kernel's counters differ (believe the counters): 1 = so",
        {"cache": _CACHE},
    ),
    "tidemill_cache_opens_total": Metric(
        "counter", "Times that a file was in use, from its first open to its last close", {"cache": _CACHE}
    ),
    "tidemill_cache_lost_records_total": Metric(
        "counter", "Records of the cache that did not arrive or could not be read", {"cache": _CACHE}
    ),
    "tidemill_cache_wire_bytes_total": Metric(
        "counter", "Bytes on its connections to origins, as the kernel counts them", {"cache": _CACHE}
    ),
    "tidemill_cache_bytes_total": Metric(
        "counter",
        "Bytes by XCache's records: sent to clients (of them XCache's hits), there before they were asked for, fetched "
        "in blocks, past the cache, fetched once more",
        {"cache": _CACHE, "kind": Label(CACHE_KINDS)},
    ),
    "tidemill_noted_total": Metric(
        "counter",
        "Remarks of pilots on how they do things",
        {
            "topic": Label(most=REMARKS_MAX, about="such as `image`, `spill`"),
            "mode": Label(most=REMARKS_MAX, about="such as `fuse`, `unpack`, `failed`"),
        },
    ),
    "tidemill_pilots_started_total": Metric("counter", "Pilots that said they work"),
    "tidemill_pilots_ended_total": Metric(
        "counter",
        "Pilots that said why they leave",
        {
            "reason": Label(
                (
                    "idle",
                    "yield",
                    "walltime",
                    "drain",
                    "stop",
                    "dead_lead",
                    "dead_agent",
                    "late",
                    "error",
                    OTHER,
                )
            )
        },
    ),
    "tidemill_payloads_total": Metric("counter", "Payload processes whose work was kept"),
    "tidemill_payload_wall_seconds_total": Metric("counter", "Wall-clock seconds of payloads"),
    "tidemill_payload_setup_seconds_total": Metric("counter", "Part of it before they were ready for events"),
    "tidemill_payload_cpu_seconds_total": Metric(
        "counter", "Processor seconds of payloads", {"mode": Label(("user", "system"))}
    ),
    "tidemill_payload_bytes_total": Metric(
        "counter",
        "Bytes that payloads read and wrote, if measured",
        {"direction": Label(("read", "write"))},
    ),
    "tidemill_payload_resident_max_bytes": Metric("gauge", "Memory of the largest payload"),
    "tidemill_events_total": Metric(
        "counter", "Events that pilots kept, or that failed there", {"outcome": Label(("kept", "failed"))}
    ),
    "tidemill_failures_total": Metric(
        "counter",
        "Failures of ranges, by class",
        {"class": Label((*(str(each) for each in FailureClass), OTHER))},
    ),
    "tidemill_slot_seconds_total": Metric(
        "counter", "Seconds of slots of pilots that have ended", {"state": Label(("busy", "idle"))}
    ),
    "tidemill_sync_seconds": Metric("gauge", "Seconds that the last exchange with the server took"),
    "tidemill_sync_failures_total": Metric("counter", "Exchanges with the server that failed"),
    "tidemill_reports_waiting": Metric("gauge", "Reports that the server has not acknowledged"),
}


def _of_nodes() -> dict[str, Metric]:
    """Gauges of what pilots measure."""
    values: dict[str, dict[str, dict[str, None]]] = {}
    helps: dict[str, str] = {}
    for each in QUANTITIES:
        labels = values.setdefault(each.metric, {})
        helps.setdefault(each.metric, FAMILIES.get(each.metric, each.help))
        for name, value in each.labels:
            labels.setdefault(name, {})[value] = None
    return {
        metric: Metric(
            "gauge",
            f"{helps[metric]}; mean over nodes",
            {name: Label(tuple(known)) for name, known in labels.items()},
        )
        for metric, labels in values.items()
    }


AGENT.update(_of_nodes())

SERVER: dict[str, Metric] = {
    "tidemill_server_info": Metric(
        "gauge",
        "Always 1; version and database",
        {"version": Label(most=1), "database": Label(("sqlite", "postgresql"))},
    ),
    "tidemill_server_start_time_seconds": Metric(
        "gauge", "When the server started, in seconds since 1970 UTC"
    ),
    "tidemill_server_cpu_seconds_total": Metric("counter", "Processor seconds that the server has used"),
    "tidemill_server_resident_bytes": Metric("gauge", "Memory of the server's process"),
    "tidemill_server_open_files": Metric("gauge", "Files and sockets that the server has open"),
    "tidemill_server_health": Metric(
        "gauge",
        "What `/health` reports: 1 for a present problem, else 0",
        {
            "problem": Label(
                (
                    "database_away",
                    "database_full",
                    "storage",
                    "writer_ended",
                    "busy",
                    "archive",
                    "no_site",
                    "sites_silent",
                    "transport_away",
                    "notifications",
                )
            )
        },
    ),
    "tidemill_server_jobs": Metric("gauge", "Jobs", {"state": Label(tuple(str(each) for each in JobState))}),
    "tidemill_server_events": Metric(
        "gauge", "Events of all jobs", {"state": Label(("open", "done", "failed", "canceled"))}
    ),
    "tidemill_server_campaigns": Metric("gauge", "Campaigns"),
    "tidemill_server_failures_total": Metric(
        "counter",
        "Failures that sites reported",
        {"class": Label((*(str(each) for each in FailureClass), OTHER))},
    ),
    "tidemill_server_submits_total": Metric("counter", "Submissions that were taken, repeated ones included"),
    "tidemill_server_submitted_jobs_total": Metric("counter", "Jobs of submissions that were not repeated"),
    "tidemill_server_site_state": Metric(
        "gauge",
        "Whether a site is in this state: 1, else 0",
        {"site": _SITE, "state": Label(("UP", "SILENT", "LOST", "DOWN", "DRAINED"))},
    ),
    "tidemill_server_site_silent_seconds": Metric(
        "gauge", "Seconds since a site was heard, or since the server started", {"site": _SITE}
    ),
    "tidemill_server_site_leased_events": Metric(
        "gauge", "Events that a site has to settle", {"site": _SITE}
    ),
    "tidemill_server_site_busy_cores": Metric("gauge", "Cores of the allocations that run", {"site": _SITE}),
    "tidemill_server_site_allocations": Metric(
        "gauge", "Allocations in the site's last report", {"site": _SITE, "state": _ALLOCATIONS}
    ),
    "tidemill_server_sync_seconds": Metric(
        "histogram", "A sync, from when it was read until it was committed", {}, TIMES_S
    ),
    "tidemill_server_reports_total": Metric(
        "counter",
        "Reports that sites sent, repeated ones included",
        {"kind": Label(("done", "failure", "release", "delivered", "allocation", "log", OTHER))},
    ),
    "tidemill_server_orders_total": Metric(
        "counter",
        "Orders that sites were sent, repeated ones included",
        {"kind": Label(("lease", "cancel", "discard", "deliver", "forget", "fetch_log", "drain", OTHER))},
    ),
    "tidemill_server_requests_total": Metric(
        "counter",
        "Requests of the HTTP API",
        {
            "route": Label(most=ROUTES_MAX, about="the route's path as the API document has it"),
            "method": Label(("GET", "POST", OTHER)),
            "status": Label(("2xx", "3xx", "4xx", "5xx")),
        },
    ),
    "tidemill_server_request_seconds": Metric(
        "histogram",
        "Requests of the HTTP API, without feeds and what waits for a site",
        {"route": Label(most=ROUTES_MAX, about="as above")},
        TIMES_S,
    ),
    "tidemill_server_transaction_seconds": Metric(
        "histogram", "Writing transactions of the database, with all requests that shared one", {}, TIMES_S
    ),
    "tidemill_server_transactions_total": Metric(
        "counter", "Writing transactions", {"outcome": Label(("committed", "refused", "failed"))}
    ),
    "tidemill_server_waiting_requests": Metric("gauge", "Requests that wait for the one writer"),
    "tidemill_server_active": Metric(
        "gauge", "Whether this server may write: 1, or 0 on the standby of a pair"
    ),
    "tidemill_server_database_bytes": Metric("gauge", "Size of the database"),
    "tidemill_server_stored_bytes": Metric("gauge", "What the jobs of all submitters count for"),
    "tidemill_server_stored_bytes_limit": Metric(
        "gauge", "The limit of what they count for: beyond it, submissions are refused"
    ),
    "tidemill_server_feed_readers": Metric("gauge", "Clients that follow the feed of changes"),
    "tidemill_server_notifications_total": Metric(
        "counter",
        "Messages, by what became of them; `delayed` counts each failed try",
        {"channel": _CHANNEL, "outcome": Label(("sent", "given_up", "delayed"))},
    ),
    "tidemill_server_notifications_waiting": Metric(
        "gauge", "Messages that are to be sent", {"channel": _CHANNEL}
    ),
    "tidemill_server_notification_oldest_seconds": Metric(
        "gauge", "Age of the oldest message that is to be sent", {"channel": _CHANNEL}
    ),
    "tidemill_server_gateway_connected": Metric(
        "gauge", "Whether the transport beside HTTP is connected: 1, else 0"
    ),
    "tidemill_server_gateway_messages_total": Metric(
        "counter",
        "Messages of the transport beside HTTP",
        {
            "direction": Label(("in", "out")),
            "outcome": Label(("done", "refused", "repeated", "failed", OTHER)),
        },
    ),
}
ALL = {**AGENT, **SERVER}


def family(name: str) -> str:
    """The metric that a sample belongs to. Raises KeyError if it is in no table."""
    if name in ALL:
        return name
    stem, _, part = name.rpartition("_")
    if part in ("bucket", "sum", "count") and stem in ALL and ALL[stem].kind == "histogram":
        return stem
    raise KeyError(f"`{name}` stands in no table of model/metrics.py")


def render(samples: Iterable[Sample], *, common: tuple[tuple[str, str], ...] = ()) -> str:
    """The text of the samples, each metric with its help and type. `common`: labels that all of them get."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(family(sample.name), []).append(sample)
    lines: list[str] = []
    for name, metric in ALL.items():
        if name not in by_name:
            continue
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [_line(sample, common) for sample in by_name[name]]
    return "\n".join(lines) + "\n"


def _line(sample: Sample, common: tuple[tuple[str, str], ...]) -> str:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in (*common, *sample.labels))
    return (
        f"{sample.name}{{{labels}}} {sample.value:.15g}" if labels else f"{sample.name} {sample.value:.15g}"
    )


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def wrong(samples: Iterable[Sample]) -> list[str]:
    """What of these samples breaks the contract: names, labels, and how many values a label has. For tests."""
    found: list[str] = []
    seen: dict[tuple[str, str], set[str]] = {}
    for sample in samples:
        try:
            name = family(sample.name)
        except KeyError as error:
            found.append(str(error))
            continue
        labels = {**ALL[name].labels, **({"le": Label(most=100)} if sample.name.endswith("_bucket") else {})}
        if {each for each, _ in sample.labels} != set(labels):
            found.append(
                f"{sample.name} has the labels {[each for each, _ in sample.labels]}, not {list(labels)}"
            )
            continue
        for each, value in sample.labels:
            values = seen.setdefault((name, each), set())
            values.add(value)
            if labels[each].values and value not in labels[each].values:
                found.append(f'{sample.name}{{{each}="{value}"}} is not in the table')
            elif not labels[each].values and len(values) > labels[each].most:
                found.append(f"{sample.name} has more than {labels[each].most} values of `{each}`")
    return found
