"""Times and bounds: what no operator has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

CATALOGUE_SILENCE_S = 20.0
"""Give up a reply when the server sends nothing for this time: it answers in a second or two."""

replace_for_tests("replicas", globals())
