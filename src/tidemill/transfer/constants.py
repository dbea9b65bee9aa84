"""How long a move is tried: what no site has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

TRANSFERS_MAX = 8
"""Files that are moved at the same time, at most: two endpoints with their default of 4 each; one that may
have more gets them."""

DEADLINE_S = 21600.0
"""Give up the move of one file after this time, all tries together: the largest files take hours."""

STALL_S = 120.0
"""End a try that has moved nothing for this time: tape-backed and busy servers pause for a minute."""

TRIES_MAX = 5
"""Tries of one move, at most: what fails five times does not pass by itself."""

PAUSE_S = 2.0
"""Pause before the second try; each next one is twice as long."""

READ_BACK = True
"""Outputs are read again and compared where the server reports no checksum: what is not compared is not known to be
there."""

replace_for_tests("transfer", globals())
