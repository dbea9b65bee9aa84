"""Write docs/metrics.md from `model/metrics`; `--check` says whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from page import settle

from tidemill.model.metrics import AGENT, SERVER, Label, Metric
from tidemill.model.metrics.nodes import QUANTITIES

HEAD = """# Metrics

This reference lists the metrics for Prometheus.

<!-- Drawn by `make gen` from `src/tidemill/model/metrics`: edit that. -->

Names, types, labels and units are stable; the changelog announces the removal of a metric one release before. Times
are in seconds, sizes in bytes.

| metrics of | where | who can read them |
|---|---|---|
| the server | `GET /metrics` | [operators](operations.md#metrics) |
| a site's agent, its pilots | `SITE/metrics.prom`, whole, every three heartbeats (15 s) | users who may read the file |
| the same | `[metrics] textfile` in `site.toml`: a copy for node_exporter's collector | users who may read the copy |
| the same | `[metrics] listen` and `secret_file`: `GET /metrics` on the login node | clients that send the secret |

[Operations](operations.md#metrics) describes how to scrape them, and the
[dashboard](../deploy/grafana-dashboard.json) for Grafana. Counters count since the start of the process. Metrics
without data are omitted, such as nodes on the embedded batch system.

Metrics whose names end in `_total` are counters, those marked so histograms, all others gauges. Labels stand in
brackets.

The label `site` is a site's name (at most 1000), `cache` a cache of `[[caches]]` and `area` an area of `[[io]]` (at
most 100 each). Labels that have the same values in several metrics:

"""
OF_AGENTS = """Every sample has the label `site`. [Monitoring](monitoring.md#definitions) lists the metrics of nodes:
gauges `tidemill_node_...`, each a mean over nodes.
"""
TAIL = """
## What to watch

- `tidemill_server_health` is 1 for a `problem`: `/v1/health` describes it.
- `tidemill_server_site_state{state="LOST"}` or `"SILENT"`: an agent does not report; run `tidemill site status`
  at the site.
- `tidemill_server_notification_oldest_seconds` grows: a mail server or hook is unreachable; the log has
  `message.delayed`.
- `tidemill_server_transaction_seconds`: the database is slow when most take longer than 0.1 s.
- `tidemill_drained` is 1: staff have stopped the site. `tidemill site status` shows who and why.
- `tidemill_batch_doubted` is 1: replies of the batch system do not show Tidemill's own running jobs, or cancels end
  nothing. Nothing is submitted; [what to do](troubleshooting.md#replies-that-are-not-believed).
- `tidemill_cancels_total{by="others"}` grows: the centre's staff, or one of their scripts, ends Tidemill's allocations.
- `tidemill_batch_interval_factor` is above 1: the batch system is slow, and the agent polls it less often.
- `tidemill_harm_today_seconds`: how long regular jobs waited because of Tidemill; `tidemill site harm` names them.
- `tidemill_waits_for{cause="..."}`: `idle` (no node is wholly idle), `regular` (regular jobs are about to use it),
  `ours` (allocations of Tidemill wait for what is idle), `headroom` (kept for small jobs to come), `payback` (the
  gaps are too short), `backlog` (no work for more), `short` (work for less than half a minute of one more node),
  `learning` (the first events run, to learn how long one takes), `nodes`, `allocations`, `waiting`, `starts`,
  `submits`, `width` (a bound of the site), `grant`, `hidden` (other users' jobs cannot be seen), `scheduler` (the
  batch system's scheduler does not run), `closed` (the partition is closed), `failed_starts`, `wide` (nodes for a job
  that spans several), `stopped`, `contested` (the server takes another agent for the site's), `doubt` (replies of the
  batch system are not believed, or one is being checked), `limit` (its time limit is short), `withdrawn` (others
  canceled what waited, and the site pauses).
  `tidemill site status` describes the cause.
- `tidemill_io_over_total` grows: nodes counted more operations or bytes on an area than the [I/O
  budget](decisions/evidence/io-budget.md) allows; starts are slowed.
- `tidemill_quarantined_nodes`: nodes on which starts fail; the agent's log has the evidence.
- `tidemill_slot_seconds_total{state="idle"}` grows as fast as `busy`: ranges are too short, or start-up too long.
- `tidemill_noted_total{topic="image",mode="failed"}` grows: nodes cannot get an image; `mode="died"`: squashfuse ends
  there.
"""


NAMES = {"site", "cache", "area"}
"""Labels of several metrics that mean the same in each: the head of the page says what."""


OF_NODES = {each.metric for each in QUANTITIES}  #: docs/monitoring.md lists them


def label_text(name: str, label: Label) -> str:
    """A label as a reader wants it."""
    if name in NAMES:
        return f"`{name}`"
    if label.values:
        return f"`{name}`: " + ", ".join(f"`{each}`" for each in label.values)
    return f"`{name}`: " + (f"{label.about}, " if label.about else "") + f"at most {label.most}"


def shared() -> dict[str, Label]:
    """The labels that several metrics have, with the same values in each: the head of the page lists them."""
    found: dict[str, list[Label]] = {}
    for metric in [*SERVER.values(), *AGENT.values()]:
        for name, label in metric.labels.items():
            found.setdefault(name, []).append(label)
    return {
        name: labels[0] for name, labels in found.items()
        if name not in NAMES and len(labels) > 1 and labels[0].values
        and all(each.values == labels[0].values for each in labels)
    }  # fmt: skip


def listed(metrics: Mapping[str, Metric], known: Collection[str]) -> list[str]:
    """One line for each metric; `known`: labels whose values stand at the head of the page."""
    lines = []
    for name, metric in metrics.items():
        if name in OF_NODES:
            continue
        labels = "; ".join(
            f"`{each}`" if each in known else label_text(each, rule) for each, rule in metric.labels.items()
        )
        if (metric.kind == "counter") is not name.endswith("_total"):
            raise ValueError(f"{name} is a {metric.kind}: only counters end in `_total`, the page says")
        kind = "Histogram: " if metric.kind == "histogram" else ""
        lines.append(f"- `{name}`{f' ({labels})' if labels else ''}: {kind}{metric.help}")
    return lines


def drawn() -> str:
    """The whole page."""
    known = shared()
    parts = [HEAD + "\n".join(f"- {label_text(name, label)}" for name, label in known.items())]
    parts += ["", "## The server", "", *listed(SERVER, known), "", "## An agent and its pilots", ""]
    parts += [OF_AGENTS, *listed(AGENT, known)]
    return "\n".join(parts) + "\n" + TAIL


if __name__ == "__main__":
    sys.exit(settle("metrics.md", drawn()))
