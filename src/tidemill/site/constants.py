"""The agent's times and bounds: what no site has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

NEAR_S = 0.02
"""Origins with a shorter round trip are read directly: a cache helps nothing there."""

PROBE_S = 300.0
"""Measure the round trip to an origin or cache at most once in this time, by three connections."""

WAY_STAGE_BYTES_MAX = 64_000_000
"""Files of at most this size that programs read whole may be copied: larger ones would fill the memory of
nodes."""

LEASES_PER_MIN_MAX = 1_000_000
"""Leases taken in a minute, at most; more than an honest server gives."""

JOBS_MAX = 1_000_000
"""Jobs known at a time, those included that are done and not yet delivered: they are in the agent's memory."""

EVENTS_MAX = 1_000_000_000
"""Events of one lease, at most: more than a campaign has."""

SPEC_BYTES_MAX = 8_000_000
"""Bytes of one job's specification, at most: it may carry a list of 100,000 inputs."""

SPECS_BYTES_MAX = 1_000_000_000
"""Bytes of all jobs' specifications together, at most: they are in the agent's memory."""

SYNC_REPLY_BYTES_MAX = 32_000_000
"""Bytes of one answer of the server, at most: an honest one is cut into smaller answers."""

OUTPUTS_EVERY_S = 30.0
"""The files of finished events wait this long, while their job runs, until they are put in their place, some at a
time; longer where a job has more than 10,000 files. A job whose files come all at its end says `deliver`."""

DOUBT_S = 300.0
"""The site stops if replies cannot be believed for this time: it cannot yield nodes to jobs that are not
shown."""

DEAD_AFTER_S = 300.0
"""A pilot that hears nothing from lead or agent for this time drains and leaves: longer than a restart of
the agent, short beside the time that regular jobs wait."""

DRAIN_S = 60.0
"""A draining pilot ends what still runs after this time: payloads that take ranges stop within it."""

STOP_S = 20.0
"""After a stop by staff, pilots drain for at most T before their allocations are canceled: staff expect the
nodes soon."""

TOP_UP_S = 60.0
"""Without TCP: pause between two reads of new work by a pilot, for one look-up a minute and node on the
shared file system."""

CYCLE_S = 30.0
"""The scheduler's backfill cycle: the default of Slurm's `bf_interval` (slurm.conf(5), SchedulerParameters)."""

DEATH_S = 5.0
"""From cancelling one of Tidemill's allocations to its nodes being free, until that was measured (PBS with a
history). OpenPBS 23.06: 1 to 3 s (see `script_words` in batch/pbs/command)."""

SLACK_S = 30.0
"""Regular jobs end at most T after their limit: Slurm's KillWait and the epilog."""

STARTUP_S = 10.0
"""Prolog, epilog and a pilot's start together, until the first starts were measured."""

STARTS_PER_NODE_HOUR = 6.0
"""Starts per node of the machine and hour, at most, but 60 an hour in any case: pilots of a minute would be
mostly prolog and epilog, and load the scheduler."""

START_BY_S = 600.0
"""Treat a pilot that has not started after this time as failed: slow launchers and prologs need minutes."""

WAKE_NODES = False
"""Do powered-down nodes count as idle? Waking one takes minutes and the centre's power, which it saves by
leaving them asleep."""

QUARANTINE_STARTS = 3
"""Fast failures that put a node into quarantine: one or two happen by chance."""

FIRST_RECORD_S = 300.0
"""Release an allocation that has run for this time without a message of a pilot: launchers and file systems
that are slow need a minute or two, and nodes should not be held idle for much longer."""

MONITOR_INTERVAL_S = 30.0
"""Interval at which pilots measure their nodes: CPU, memory, network, disks, file systems, GPUs; 0 = never.
Charts have a point every half minute."""

OUTPUT_FLUSH_S = 30.0
"""Outputs on a node become durable at least this often: a node that dies loses this much, and a flush costs
the shared file system one write."""

STORAGE_PATIENCE_S = 300.0
"""A node whose outputs cannot be written (input/output errors, a stale or hung mount, a full area) keeps
them and tries again for at most this long; then it gives its events back and leaves. A failover of a file
server takes a few minutes."""

QUEUE_S = 2.0
"""Seconds of work that the lead keeps queued at each core: more than a round trip, little to take back when
a node is lost."""

IDLE_S = 20.0
"""A pilot without work for this time leaves: the node should not be held idle, and new work often comes
within seconds."""

PILOT_GRACE_S = 30.0
"""The work of a pilot whose connection is lost for this time goes to other pilots: a passing trouble of the
network is shorter."""

BUNDLE_BYTES_MAX = 4_000_000_000
"""A larger output bundle is closed, a new one started: a bundle is delivered and deleted as a whole."""

DELIVERY_BYTES_MAX = 10_000_000_000_000
"""Bytes of all outputs of one job at most, holes included: a job that writes more has gone wrong, or should
be split."""

WAIT_MAX_S = 259200.0
"""Jobs wait at the site this long at most for a trouble of its own to end, such as an expired credential or
a full disk; then they go back to the server. It spans a weekend."""

LEASE_AHEAD_S = 60.0
"""Seconds of work for all cores that the site keeps leased ahead: a few syncs."""

LEASE_RANGES_MAX = 100_000
"""Leased ranges that are not settled, at most: they are in the agent's memory."""

SYNC_INTERVAL_S: float | None = None
"""Pause between two syncs when nothing presses; none = 0.2 s on a Unix socket, which costs nothing, else 10
s."""

SYNC_INTERVAL_MAX_S = 60.0
"""Longest pause between two syncs while the server is unreachable: it is noticed within a minute when it is
back."""

SYNC_TIMEOUT_S = 60.0
"""Wait at most T for the server in one exchange: a busy server answers in seconds."""

LOCAL_POLL_S = 1.0
"""Pause between two queries of the local batch system, which is a process of our own."""

CLUSTER_POLL_S = 30.0
"""Pause between two polls of a centre's machine: 2-3 % of a typical run of 20 minutes and more. What polls cost a
centre is bounded by `cluster.calls_per_min_max`."""

START_BACKOFF_S = 2.0
"""First pause after an allocation that failed to start."""

START_BACKOFF_MAX_S = 600.0
"""Longest pause after allocations that failed to start: a repaired cluster is used again within 10 minutes."""

HEARTBEAT_S = 5.0
"""Interval of the agent's heartbeat: one small write."""

DEAD_AGENT_S = 60.0
"""An agent on another host without a heartbeat for this time counts as dead: 12 heartbeats, for file systems
that show writes late."""

STAGE_FREE_BYTES_MIN = 1_000_000_000
"""Inputs wait while the file system of the stage has less free than this; 2 % of it at most. The site's log
and the fleets' journals need the rest."""

FLEET_KEEP_S = 86400.0
"""Keep an ended fleet, with its payloads' logs, for this time: a day to fetch the log of a failure."""

STAGE_CACHE_BYTES_MAX: int | None = None
"""Keep staged inputs that no job needs now up to N bytes in all; none = half of `stage_bytes_max`, so that
new inputs always find room."""

replace_for_tests("site", globals())
