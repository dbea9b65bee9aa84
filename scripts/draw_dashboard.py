"""Write deploy/grafana-dashboard.json: one row of panels per question; `--check` says whether it is up to date.

Every query is checked against `model/metrics`, and run by a real Prometheus, in the tests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent.parent / "deploy" / "grafana-dashboard.json"
HEIGHT = 7
SITE = '{site=~"$site"}'
S = 'site=~"$site"'


class Panel(NamedTuple):
    """A graph: title, Grafana's unit, what it means, and pairs of query and legend. `width` of 24."""

    title: str
    unit: str
    about: str
    queries: tuple[tuple[str, str], ...]
    width: int = 8


def per_s(name: str, by: str = "", labels: str = "") -> str:
    """A counter's rate, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}{labels}[$__rate_interval]))"


def quantile(name: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Half and nearly all of a histogram."""
    group = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile({q}, sum by ({group}) (rate({name}_bucket[$__rate_interval])))",
            f"{word}{legend}",
        )
        for q, word in ((0.5, "half below"), (0.99, "99 % below"))
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is anything wrong?",
        (
            Panel("Problems", "short", "1 = the server says so; /v1/health has the words", (
                ("tidemill_server_health", "{{problem}}"),
            )),
            Panel("Sites", "short", "1 = in that state", (
                (f"tidemill_server_site_state{SITE} > 0", "{{site}} {{state}}"),
            )),
            Panel("Silence of sites", "s", "Seconds since a site was heard", (
                (f"tidemill_server_site_silent_seconds{SITE}", "{{site}}"),
            )),
        ),
    ),
    (
        "Work",
        (
            Panel("Jobs", "short", "Jobs by state", (("tidemill_server_jobs", "{{state}}"),)),
            Panel("Events a second", "ops", "What pilots keep, and what fails", (
                (per_s("tidemill_events_total", "outcome", SITE), "{{outcome}}"),
            )),
            Panel("Events left", "short", "Open events, and those at sites", (
                ('tidemill_server_events{state="open"}', "open"),
                (f"tidemill_server_site_leased_events{SITE}", "at {{site}}"),
            )),
            Panel("Failures by class", "ops", "Failures a second", (
                (per_s("tidemill_failures_total", "class", SITE), "{{class}}"),
            )),
            Panel("Processor time of payloads", "short", "Cores' worth of user and system time", (
                (per_s("tidemill_payload_cpu_seconds_total", "mode", SITE), "{{mode}}"),
                (per_s("tidemill_payload_setup_seconds_total", "", SITE), "set-up (wall-clock)"),
            )),
            Panel("Slots busy", "percentunit", "Of the time of slots whose pilots have ended", (
                (
                    f'sum by (site) (rate(tidemill_slot_seconds_total{{state="busy",{S}}}[$__rate_interval]))'
                    f" / sum by (site) (rate(tidemill_slot_seconds_total{SITE}[$__rate_interval]))",
                    "{{site}}",
                ),
            )),
        ),
    ),
    (
        "The tide",
        (
            Panel("Nodes", "short", "The machine: regular jobs, Tidemill, idle", (
                (f"sum by (state) (tidemill_nodes{SITE})", "{{state}}"),
            )),
            Panel("Allocations", "short", "Ours, by state", (
                (f'sum by (state) (tidemill_allocations{{state=~"INTENDED|QUEUED|ACTIVE",{S}}})', "{{state}}"),
            )),
            Panel("Starts, cancels, shortened", "ops", "What the broker does", (
                (per_s("tidemill_starts_total", "", SITE), "starts"),
                (per_s("tidemill_cancels_total", "by", SITE), "canceled by {{by}}"),
                (per_s("tidemill_shortens_total", "", SITE), "shortened"),
            )),
            Panel("Waits of others because of us", "s", "Our estimated part, since 0 h UTC", (
                (f"tidemill_harm_today_seconds{SITE}", "{{site}}"),
            )),
            Panel("Why no more nodes are asked for", "short", "1 for each cause that holds", (
                (f"tidemill_waits_for{SITE}", "{{site}} {{cause}}"),
            )),
            Panel("Grants", "s", "Seconds of one node that are left", (
                (f"tidemill_left_node_seconds{SITE}", "{{site}}"),
                (f'tidemill_grant_node_seconds{{kind="left",{S}}}', "{{site}} {{account}}"),
            )),
        ),
    ),
    (
        "Our manners",
        (
            Panel("Commands of the batch system", "ops", "A second, and how many failed", (
                (per_s("tidemill_batch_calls_total", "kind", SITE), "{{kind}}"),
                (per_s("tidemill_batch_failures_total", "", SITE), "failed"),
            )),
            Panel("Time of a query", "s", "The last one", (
                (f"tidemill_batch_last_seconds{SITE}", "{{site}}"),
                (f"tidemill_batch_interval_factor{SITE} > 1", "{{site}} polls less often by this factor"),
            )),
            Panel("Metadata operations", "ops", "On shared file systems, and what is allowed", (
                (per_s("tidemill_io_ops_total", "site, area", SITE), "{{site}} {{area}}"),
                (f"tidemill_io_budget_ops_per_second{SITE}", "{{site}} {{area}} allowed"),
            )),
        ),
    ),
    (
        "Nodes",
        (
            Panel("CPU of nodes", "percentunit", "Mean over the nodes that pilots measure", (
                (f'sum by (mode) (tidemill_node_cpu_ratio{{mode!="idle",{S}}})', "{{mode}}"),
            )),
            Panel("Pressure", "percentunit", "Time for which processes waited for a resource", (
                (f'tidemill_node_pressure_ratio{{kind="some",{S}}}', "{{site}} {{resource}}"),
            )),
            Panel("Memory of nodes", "bytes", "Mean over nodes", (
                (f"tidemill_node_memory_bytes{SITE}", "{{site}} {{state}}"),
            )),
            Panel("Network of nodes", "Bps", "Mean over nodes", (
                (f"tidemill_node_network_bytes_per_second{SITE}", "{{site}} {{direction}}"),
            )),
            Panel("NFS and Lustre from nodes", "Bps", "Mean over nodes", (
                (f"tidemill_node_nfs_bytes_per_second{SITE}", "{{site}} NFS {{direction}}"),
                (f"tidemill_node_lustre_bytes_per_second{SITE}", "{{site}} Lustre {{direction}}"),
            )),
            Panel("NFS round trip", "s", "Mean of requests, over nodes", (
                (f"tidemill_node_nfs_round_trip_seconds{SITE}", "{{site}}"),
            )),
            Panel("Files opened and closed from nodes", "ops", "Mean over nodes", (
                (f"tidemill_node_nfs_opens_per_second{SITE}", "{{site}} NFS opens"),
                (f"tidemill_node_nfs_closes_per_second{SITE}", "{{site}} NFS closes"),
                (f"tidemill_node_lustre_opens_per_second{SITE}", "{{site}} Lustre opens"),
                (f"tidemill_node_lustre_closes_per_second{SITE}", "{{site}} Lustre closes"),
            )),
        ),
    ),
    (
        "Caches",
        (
            Panel("Caches that do not answer, or are too small", "short", "1 = so", (
                (f"1 - tidemill_cache_up{SITE}", "{{site}} {{cache}} does not answer"),
                (f"tidemill_cache_thrashing{SITE}", "{{site}} {{cache}} fetches what it had"),
                (f"tidemill_cache_disagrees{SITE}", "{{site}} {{cache}} figures disagree"),
            )),
            Panel("Bytes of caches", "Bps", "To clients, from origins by records, and on the wire", (
                (per_s("tidemill_cache_bytes_total", "cache", f'{{kind="served",{S}}}'), "{{cache}} to clients"),
                (per_s("tidemill_cache_bytes_total", "cache", f'{{kind="fetched",{S}}}'), "{{cache}} from origins"),
                (per_s("tidemill_cache_wire_bytes_total", "cache", SITE), "{{cache}} on the wire"),
            )),
            Panel("Hits without prefetch", "percentunit", "Of the bytes to clients, those that were there before", (
                (
                    f'sum by (cache) (rate(tidemill_cache_bytes_total{{kind="known",{S}}}[$__rate_interval]))'
                    f' / sum by (cache) (rate(tidemill_cache_bytes_total{{kind="served",{S}}}[$__rate_interval]))',
                    "{{cache}}",
                ),
            )),
        ),
    ),
    (
        "Data",
        (
            Panel("Bytes moved", "Bps", "Remote files, in and out", (
                (per_s("tidemill_moves_bytes_total", "site, way", SITE), "{{site}} {{way}}"),
            )),
            Panel("Copies of inputs", "bytes", "That sites keep; pinned = jobs need them", (
                (f"sum by (site, state) (tidemill_data_cache_bytes{SITE})", "{{site}} {{state}}"),
            )),
            Panel("Inputs that were there", "percentunit", "Of those that were asked for", (
                (
                    f'sum by (site) (rate(tidemill_data_cache_requests_total{{outcome="hit",{S}}}[$__rate_interval]))'
                    f" / sum by (site) (rate(tidemill_data_cache_requests_total{SITE}[$__rate_interval]))",
                    "{{site}}",
                ),
            )),
        ),
    ),
    (
        "The server",
        (
            Panel("Requests", "reqps", "By status", (
                (per_s("tidemill_server_requests_total", "status"), "{{status}}"),
            )),
            Panel("Time of requests", "s", "Without feeds", quantile("tidemill_server_request_seconds")),
            Panel("Time of syncs", "s", "Until they are committed", quantile("tidemill_server_sync_seconds")),
            Panel("Time of transactions", "s", "Of the database", quantile("tidemill_server_transaction_seconds")),
            Panel("Transactions", "ops", "By outcome", (
                (per_s("tidemill_server_transactions_total", "outcome"), "{{outcome}}"),
                ("tidemill_server_waiting_requests", "requests that wait"),
            )),
            Panel("Memory and database", "bytes", "Of the server", (
                ("tidemill_server_resident_bytes", "memory"),
                ("tidemill_server_database_bytes", "database"),
            )),
        ),
    ),
    (
        "Messages",
        (
            Panel("Notifications", "ops", "A second, by what became of them", (
                (per_s("tidemill_server_notifications_total", "channel, outcome"), "{{channel}} {{outcome}}"),
            )),
            Panel("Notifications that wait", "short", "Messages that are to be sent", (
                ("tidemill_server_notifications_waiting", "{{channel}}"),
            )),
            Panel("Age of the oldest", "s", "Of those that wait", (
                ("tidemill_server_notification_oldest_seconds", "{{channel}}"),
            )),
        ),
    ),
)  # fmt: skip


def drawn() -> str:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(_row(len(panels) + 1, title, y))
        y += 1
        x = 0
        for panel in row:
            if x + panel.width > 24:
                x, y = 0, y + HEIGHT
            panels.append(_panel(len(panels) + 1, panel, x, y))
            x += panel.width
        y += HEIGHT
    source = {"type": "prometheus", "uid": "${source}"}
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "site", "label": "Site", "type": "query", "datasource": source, "multi": True, "includeAll": True,
            "allValue": ".*", "refresh": 2, "query": "label_values(tidemill_info, site)",
            "current": {"text": "All", "value": "$__all"},
        },
    ]  # fmt: skip
    board = {
        "title": "Tidemill", "uid": "tidemill", "tags": ["tidemill"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-6h", "to": "now"}, "timezone": "utc",
        "templating": {"list": variables}, "panels": panels,
    }  # fmt: skip
    return json.dumps(board, indent=1) + "\n"


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    place = {"h": 1, "w": 24, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number, "type": "timeseries", "title": panel.title, "description": panel.about, "datasource": source,
        "gridPos": {"h": HEIGHT, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def main() -> int:
    """Write or compare."""
    if sys.argv[1:] != ["--check"]:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(drawn(), encoding="utf-8")
        return 0
    if FILE.exists() and FILE.read_text(encoding="utf-8") == drawn():
        return 0
    print("deploy/grafana-dashboard.json is not what the script draws\nhint: make gen", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
