"""Times and bounds: what no operator has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

QUEUE_MESSAGES_MAX = 100_000
"""Messages that a queue holds at most, so that a reader that has stopped does not fill the broker's disk;
then submitters are refused, and state changes wait in the database."""

HEARTBEAT_S = 30.0
"""A connection that is silent for two heartbeats is given up: within a minute, at two small frames a minute."""

RECONNECT_MAX_S = 30.0
"""Longest pause between the server's attempts to reach the broker: short beside an outage, and no load on a broker that
comes back."""

replace_for_tests("messages", globals())
