#!/usr/bin/env python3
"""A program that its parent cannot see the end of, as one that hangs in a driver (state D) and is killed.

A second process traces it and never waits: the kernel keeps the end of a traced process from its parent until the
tracer has seen it (ptrace(2), "Death under ptrace"). The tracer's number goes to the file $UNDEAD_TRACER; it ends by
itself after a minute, or when it is killed.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

PR_SET_PTRACER, PTRACE_SEIZE = 0x59616D61, 0x4206
PAUSE_S = 60.0

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)
traced = os.getpid()
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    for stream in (0, 1, 2):
        os.close(stream)
    failed = libc.ptrace(PTRACE_SEIZE, traced, 0, 0)
    Path(os.environ["UNDEAD_TRACER"]).write_text(str(os.getpid()))
    os.write(told, b"n" if failed else b"y")
    time.sleep(PAUSE_S)
else:
    if os.read(ready, 1) == b"n":
        raise SystemExit("failed to be traced")
    time.sleep(PAUSE_S)
