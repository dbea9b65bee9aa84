"""Ports for services that tests start."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "scripts"


def free_port() -> int:
    """A port of loopback on which nothing listens, as `scripts/service.sh` finds it.

    It is below those that the kernel gives to connections: one of these may belong to a connection of another test when
    the service starts, some seconds later under load.
    """
    text = subprocess.run(
        ["sh", "-c", '. "$1"/service.sh; free_ports 1', "sh", str(SCRIPTS)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(text.stdout)
