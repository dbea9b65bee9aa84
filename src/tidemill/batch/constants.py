"""How batch systems are called: what no site has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

LOCAL_GRACE_S = 5.0
"""Time from SIGTERM to SIGKILL at walltime's end or cancel: pilots need 2 s to write what is finished."""

NICE = 1_000_000
"""The `--nice` value of Tidemill's jobs, on PBS and Grid Engine the least priority (`-p`): behind regular
jobs, whose priorities rarely differ by as much."""

COMMAND_TIMEOUT_S = 60.0
"""Give up a command of the batch system after this time: a controller that is busy answers later than this
only when it is in trouble."""

SLOW_S = 2.0
"""A reply that takes longer doubles the pause between polls: batch systems answer in a fraction of it while
they are well."""

SLOWDOWN_MAX = 16.0
"""Pauses between polls grow at most N times, to 8 minutes: nodes must be released in the end."""

REPLY_BYTES_MAX = 200_000_000
"""Give up a reply of the batch system with more bytes than this: 100,000 jobs and elements take 175 MB on
PBS, whose `qstat -t -f` prints 1.2 to 1.8 kB for each, and 65 MB on Slurm."""

UNKNOWN_S = 120.0
"""An allocation that queue and accounting have not listed for this time is lost: accounting may be written
after the job has left the queue."""

WORD_S = 60.0
"""A pilot's record reaches the agent within this time, also on a network file system (nfs(5): attributes are
cached for up to 60 s): a later one was written after the reply that does not show its job."""

replace_for_tests("batch", globals())
