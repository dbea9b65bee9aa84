"""How many GPUs the node part finds on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from tidemill.log import Log

_log = Log("gpus")
TIMEOUT_S = 10.0
"""Small reads of /sys; a driver that hangs must not stop an agent."""


def count_gpus(binary: Path) -> int:
    """What `tidemill-node gpus` lists; 0 where it cannot, which is logged."""
    try:
        done = subprocess.run([binary, "gpus"], capture_output=True, timeout=TIMEOUT_S, check=True)
        return len(msgspec.json.decode(done.stdout, type=list[dict[str, str | int | None]]))
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        _log.warning("gpus.unknown", cause=str(error))
        return 0
