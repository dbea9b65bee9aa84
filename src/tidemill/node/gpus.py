"""How many GPUs the node part finds on this machine."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import msgspec

from tidemill.log import Log

_log = Log("gpus")
TIMEOUT_S = 10.0
"""Small reads of /sys; a driver that hangs must not stop an agent."""

LIST_BYTES_MAX = 1 << 20
stuck: list[subprocess.Popen[bytes]] = []
"""Counts that did not end when they were killed: a driver holds them (state D)."""


def count_gpus(binary: Path, *, timeout_s: float = TIMEOUT_S) -> int:
    """What `tidemill-node gpus` lists; 0 where it cannot, which is logged. Takes no longer than `timeout_s`."""
    try:
        return len(msgspec.json.decode(_listed(binary, timeout_s), type=list[dict[str, str | int | None]]))
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        _log.warning("gpus.unknown", cause=str(error), hint="the site goes on without GPUs on this machine")
        return 0


def _listed(binary: Path, timeout_s: float) -> bytes:
    """The output of `tidemill-node gpus`. A process that cannot be killed is left behind, not waited for, and
    not followed by more."""
    stuck[:] = [each for each in stuck if each.poll() is None]
    if stuck:
        raise TimeoutError(f"an earlier count, process {stuck[0].pid}, still hangs")
    with (
        tempfile.TemporaryFile() as output
    ):  # a pipe is open for as long as any child of a hung process has it
        nothing = subprocess.DEVNULL
        process = subprocess.Popen([binary, "gpus"], stdin=nothing, stdout=output, stderr=nothing)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            stuck.append(process)
            raise
        if status != 0:
            raise subprocess.CalledProcessError(status, [str(binary), "gpus"])
        output.seek(0)
        return output.read(LIST_BYTES_MAX)
