"""Settings and programs of the node wire as tests and benches need them: they say what they care about, no more.

The wire has no defaults, so that every new field has to be thought of; here is where tests do.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.wire.node import Program, Settings


def settings(**changes: Any) -> Settings:
    """Of an open fleet: quick, not pinned, nothing masked, no budget."""
    values: dict[str, Any] = {
        "record_flush_ms": 50,
        "output_flush_s": 1.0,
        "queue_s": 4.0,
        "idle_s": 1.0,
        "dead_after_s": 60.0,
        "drain_s": 60.0,
        "top_up_s": 1.0,
        "stop_files": [],
        "scratch": None,
        "pilot_grace_s": 30.0,
        "isolation": "preferred",
        "affinity": "none",
        "network": "open",
        "mask": [],
        "batch_commands": [],
        "bundle_bytes_max": 1 << 30,
        "output_bytes_max": 1 << 30,
        "store_mb": 0,
        "images": "auto",
        "peers": True,
        "stage_readers": 1,
        "fast_dir": None,
        "fast_bytes": 1 << 30,
        "spill": None,
        "io": [],
    }
    return msgspec.convert(values | changes, Settings)


def program(number: int = 1, **changes: Any) -> Program:
    """A shell on one core: one event at a time, neither traced nor paced."""
    values: dict[str, Any] = {
        "program": number,
        "app": "sh",
        "version": "1",
        "executable": "/bin/sh",
        "mode": "command",
        "env": {},
        "cores": 1,
        "memory_mb": 64,
        "devices": {},
        "scratch_mb": 64,
        "network": "open",
        "processes_max": None,
        "event_s": 0.01,
        "chunk_max": 1,
        "range_s": 60.0,
        "timeout_s": None,
        "looping_s": None,
        "ready_timeout_s": 30.0,
        "log_bytes_max": 65536,
        "outputs": [],
        "stdout_output": False,
        "batch_commands": False,
        "pass_env": [],
        "images": [],
        "files": [],
        "wrap": [],
        "setup": None,
        "trace_first": False,
        "trace_every": 0,
        "start_ops": {},
        "start_bytes": {},
    }
    return msgspec.convert(values | changes, Program)
