"""What `SITE/site.toml` may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Duration, Size, doc


class LocalBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded batch system: it emulates nodes of this machine."""

    nodes: Annotated[int, msgspec.Meta(ge=1, le=10_000), doc("Emulated nodes")] = 1
    cores_per_node: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None,
        doc("Cores of a node; none = this machine's, divided by `nodes`"),
    ] = None
    memory_mb_per_node: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        doc("Memory of a node in MB; none = this machine's, divided by `nodes`"),
    ] = None
    queue_wait_s: Annotated[
        Duration, msgspec.Meta(ge=0), doc("An allocation waits at least so long, as in a real queue")
    ] = 0.0
    grace_s: Annotated[
        Duration, msgspec.Meta(ge=0.1), doc("Time from SIGTERM to SIGKILL at walltime's end or cancel")
    ] = 5.0


class SiteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site: `SITE/site.toml`."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,30}$"), doc("Name of the site")]
    server: Annotated[str, doc("The server's address: `unix:/path/api.sock` or `http://host:port`")]
    secret_file: Annotated[
        Path | None, doc("File (mode 0600) with the secret of the server's TCP listener")
    ] = None
    mode: Annotated[
        Literal["run", "observe"],
        doc("`observe` takes no work and submits nothing, it only shows what it sees"),
    ] = "run"
    batch: Annotated[Literal["local"], doc("The batch system")] = "local"
    local: Annotated[LocalBatch, doc("The embedded batch system")] = LocalBatch()
    nodes_max: Annotated[
        int, msgspec.Meta(ge=1, le=100_000), doc("Nodes that we hold or ask for at most")
    ] = 100
    walltime_s: Annotated[Duration, msgspec.Meta(ge=10), doc("Time that an allocation asks for")] = 3600.0
    data_roots: Annotated[
        list[Path], doc("`file:` inputs and outputs must lie below one of these directories")
    ] = []
    output_dir: Annotated[
        Path | None, doc("Where outputs go that name no place; none = `out` in the site directory")
    ] = None
    output_name: Annotated[
        str, doc("Name of a delivered output: `{campaign}`, `{job}`, `{name}` (of the job), `{output}`")
    ] = "{campaign}/{job}-{output}"
    allow_adhoc: Annotated[bool, doc("May submitters run commands that no application file approves?")] = (
        False
    )
    shared: Annotated[
        bool, doc("Does the site serve others than its operator? Then payloads must be isolated")
    ] = False
    allow_unisolated: Annotated[
        bool, doc("A shared site runs payloads even where the kernel gives no namespaces")
    ] = False
    affinity: Annotated[
        Literal["spread", "compact", "core", "none"],
        doc("How slots are bound to cores; `core` = one slot per physical core"),
    ] = "spread"
    mask: Annotated[
        list[Path], doc("Paths that payloads must not see, besides the site directory and its secrets")
    ] = []
    output_flush_s: Annotated[
        Duration, msgspec.Meta(ge=0.05), doc("Outputs on a node are made durable at least so often")
    ] = 30.0
    record_flush_s: Annotated[
        Duration, msgspec.Meta(ge=0.001, le=10), doc("Results are made durable at least so often")
    ] = 0.1
    queue_s: Annotated[
        Duration, msgspec.Meta(ge=0), doc("Seconds of work that the lead keeps queued at each core")
    ] = 2.0
    idle_s: Annotated[Duration, msgspec.Meta(ge=0), doc("A pilot without work for so long leaves")] = 20.0
    dead_after_s: Annotated[
        Duration, msgspec.Meta(ge=1), doc("A pilot that hears nothing for so long drains and leaves")
    ] = 300.0
    pilot_grace_s: Annotated[
        Duration,
        msgspec.Meta(ge=0),
        doc("The work of a pilot whose connection is gone for so long is given to others"),
    ] = 30.0
    bundle_bytes_max: Annotated[
        Size, msgspec.Meta(ge=1_000_000), doc("A larger output bundle is closed, a new one started")
    ] = 4_000_000_000
    lease_ahead_s: Annotated[
        Duration, msgspec.Meta(ge=1), doc("Seconds of work for all cores that the site keeps leased ahead")
    ] = 60.0
    lease_core_s_max: Annotated[float, msgspec.Meta(ge=1), doc("Core-seconds of leased work at most")] = 1e7
    lease_ranges_max: Annotated[
        int, msgspec.Meta(ge=1, le=1_000_000), doc("Leased ranges that are not settled, at most")
    ] = 100_000
    sync_interval_s: Annotated[
        Annotated[Duration, msgspec.Meta(ge=0.01)] | None,
        doc("Pause between two syncs when nothing presses; none = 0.2 s on a Unix socket, else 10 s"),
    ] = None
    sync_interval_max_s: Annotated[
        Duration, msgspec.Meta(ge=0.01), doc("Longest pause while the server is away")
    ] = 60.0
    sync_timeout_s: Annotated[
        Duration, msgspec.Meta(ge=1), doc("One exchange with the server takes at most so long")
    ] = 60.0
    tick_s: Annotated[
        Duration, msgspec.Meta(ge=0.005, le=60), doc("Pause of the agent's loop while work is running")
    ] = 0.05
    tick_max_s: Annotated[
        Duration, msgspec.Meta(ge=0.01, le=600), doc("Longest pause of the agent's loop while nothing runs")
    ] = 1.0
    batch_poll_s: Annotated[
        Duration, msgspec.Meta(ge=0.05), doc("Pause between two queries of the batch system")
    ] = 1.0
    start_backoff_s: Annotated[
        Duration, msgspec.Meta(ge=0), doc("First pause after an allocation that failed to start")
    ] = 2.0
    start_backoff_max_s: Annotated[
        Duration, msgspec.Meta(ge=0), doc("Longest pause after allocations that failed to start")
    ] = 600.0
    lead_listen: Annotated[str, doc("Address that the lead listens on; port 0 = any free one")] = (
        "127.0.0.1:0"
    )
    node_binary: Annotated[Path | None, doc("The `tidemill-node` binary; none = the installed one")] = None
    heartbeat_s: Annotated[
        Duration, msgspec.Meta(ge=0.1), doc("The agent renews its sign of life so often")
    ] = 5.0
    dead_agent_s: Annotated[
        Duration,
        msgspec.Meta(ge=1),
        doc("An agent on another host without a sign of life for so long counts as dead"),
    ] = 60.0
    stage_bytes_max: Annotated[
        Size, msgspec.Meta(ge=1), doc("Bytes of staged inputs at most, of all jobs together")
    ] = 100_000_000_000
    stage_file_bytes_max: Annotated[Size, msgspec.Meta(ge=1), doc("Bytes of one staged input at most")] = (
        20_000_000_000
    )
    fleet_keep_s: Annotated[
        Duration,
        msgspec.Meta(ge=0),
        doc("A fleet that has ended is kept for so long, for its payloads' logs"),
    ] = 86400.0
    log_snapshot_lines: Annotated[
        int, msgspec.Meta(ge=100), doc("The site's log is condensed into a snapshot after so many lines")
    ] = 50_000
