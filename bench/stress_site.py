"""A stress test on a real site of 16 emulated nodes: how steady are its levels, and what does watching a node cost?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worlds.home.world import world

from tidemill.node.binary import find_binary
from tidemill_stress import store
from tidemill_stress.analysis import analyse

NODES, LEVELS = 16, (4, 8, 12, 16)
HOLD_S, MEAN_S, EVENT_S = 600.0, 60.0, 20.0
"""The window of a level, the interval of its means, and a payload's mean length, in the site's time."""

PAYLOAD = (
    "fails=0; [ $((RANDOM % 20)) -eq 0 ] && fails=3; ms=$(( MEAN / 2 + RANDOM * MEAN / 32768 )); "
    "sleep $((ms / 1000)).$(printf %03d $((ms % 1000))); exit $fails"
)
"""A random length, from a half to one and a half of the mean; one in 20 fails."""

TEST = """
name = "levels"
levels = {levels}
hold_s = {hold}
ramp_up_s = {ramp}
ramp_down_s = 30
tolerance = 0.05
[payload]
command = ["/bin/bash", "-c", {script}]
event_s = {event}
memory_mb = 100
"""


def levels(scale: float) -> dict[str, Any]:
    """Run the levels with time `scale` times as fast. Raises SystemExit where the run stops."""
    test = TEST.format(
        levels=list(LEVELS), hold=HOLD_S / scale, ramp=300 / scale, event=EVENT_S / scale,
        script=json.dumps(PAYLOAD.replace("MEAN", str(round(1_000 * EVENT_S / scale)))),
    )  # fmt: skip
    with world(nodes=NODES, cores=1) as site:
        path = site.home / "me" / "levels.toml"
        path.write_text(test)
        most_s = 60 + len(LEVELS) * (2 * HOLD_S / scale + 120)
        done = site.run("stress", "run", str(path), "--runs", "runs", timeout_s=most_s)
        if done.returncode:
            sys.exit(f"tidemill stress run ended with {done.returncode}: {done.stderr}")
        (directory,) = (site.home / "me" / "runs").iterdir()
        run = store.load(directory)
    found = analyse(run, mean_s=MEAN_S / scale)
    return {
        "worst_level_error": found.worst_level_error, "time_scale": scale,
        "level_errors": {each.step.level: each.worst_level_error for each in found.steps},
        "running": {each.step.level: each.figures and each.figures.running for each in found.steps},
        "payloads": sum(len(each.payloads) for each in run.steps),
        "failed": sum(bool(one.failure) for each in run.steps for one in each.payloads),
        "nodes": len({one.node for each in run.steps for one in each.payloads}),
    }  # fmt: skip


def monitor_core_share() -> float:
    """The part of a core that the monitor of a node takes at the default interval."""
    done = subprocess.run(
        [find_binary(), "monitor", "--rounds", "50", "--json"], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["monitor_core_share"])
