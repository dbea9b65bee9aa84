"""Times and bounds: what no operator has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

CLOCK_LEEWAY_S = 30.0
"""Tolerated difference of clocks (`exp`, `nbf`): machines without NTP drift by seconds."""

replace_for_tests("tokens", globals())
