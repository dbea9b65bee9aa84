"""A cache's times and bounds: what no operator has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests
from tidemill_caches.settings import FLUSH_BLOCKS_MIN, RAM_BYTES_MIN

NOMINAL_PARTS = 9
"""Tenths of `space.max` that remain after a purge, so that one comes after each tenth of new files."""

BASE_PARTS = 5
"""Tenths of `space.max` down to which files are removed when the whole disk is fuller than DISK_HIGH, so that other
files cannot take the whole cache."""

DISK_LOW = 0.93
"""The share of the whole disk to which such a purge tries to come: 3 % below its start."""

DISK_HIGH = 0.96
"""The share of the whole disk, other files included, above which the cache shrinks: before the disk is full
for the others, and above what a cache on a disk of its own fills by `max`."""

PURGE_INTERVAL_S = 60.0
"""Time between two polls of the space in use: XCache's least, since between two the cache may exceed `max`."""

RAM_BYTES = RAM_BYTES_MIN
"""Memory for blocks on their way to the disk: XCache's least, seconds of a fast line."""

FLUSH_BLOCKS = FLUSH_BLOCKS_MIN
"""Blocks of a file after which what is on disk is recorded: a crash loses the record of at most these, per
open file. XCache's least."""

FILES_OPEN_MAX = 10_000
"""Files that clients may have open at a time, if the system allows the 3 descriptors that each takes, else
as many as it allows: several for each of a thousand payloads."""

ORIGIN_WAIT_S = 10.0
"""Longest wait for an origin to accept a connection; after it a read of a file that is not cached fails, and
the payload reads by another way."""

ORIGIN_STALL_S = 60.0
"""Longest wait for an origin's answer to a request: shorter than the 70 s that clients wait for the cache."""

RESTART_S = 120.0
"""Longest time that payloads wait for a cache that is restarting, before their reads fail: through a
restart, and not much longer for a cache that is gone."""

HANG_S = 180.0
"""Time without an answer after which xrootd is killed and restarted: a loaded cache answers sooner."""

replace_for_tests("caches", globals())
