"""A whole Tidemill of an ordinary user whose site is a real Slurm: `World` with another site.toml."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.timing import Values, merged
from tests.worlds.batch.slurm_cluster import UID, SlurmCluster
from tests.worlds.home.world import Options, World

SITE = """name = "centre"
server = "unix:{home}/server/api.sock"
batch = "slurm"
contact = "operator@example.org"
stop_file = "{staff}/STOP"
data_roots = ["/"]
allow_adhoc = true
nodes_max = 16
walltime_s = "30m"
{top}
[cluster]
calls_per_min_max = 1200
{cluster}
[harvest]
{harvest}
"""
TIMING: Values = {
    "batch": {"UNKNOWN_S": 4, "COMMAND_TIMEOUT_S": 5},
    "site": {
        "START_BACKOFF_S": 0.2, "START_BACKOFF_MAX_S": 1, "DEAD_AGENT_S": 5, "CYCLE_S": 2, "STARTUP_S": 1,
        "DEAD_AFTER_S": 10, "STOP_S": 3, "DRAIN_S": 5,
    },
}  # fmt: skip
"""Besides that of all worlds."""


class Site:
    """A world and its cluster. `staff`: a folder that another user may write to."""

    def __init__(self, cluster: SlurmCluster, world: World, staff: Path) -> None:
        self.cluster = cluster
        self.world = world
        self.home = world.home
        self.directory = world.home / "site"
        self.staff = staff

    def ours(self, *states: str) -> list[str]:
        """Slurm's numbers of our jobs in these states (default: pending and running)."""
        words = ["squeue", "-h", "-r", "-u", "nobody", "-o", "%i %j"]
        if states:
            words += ["-t", ",".join(states)]
        lines = self.cluster.run(*words).splitlines()
        return [line.split()[0] for line in lines if line.split()[1].startswith("tm-centre-")]

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Lines of this kind in the log of plans."""
        lines = [
            json.loads(line)
            for path in sorted((self.directory / "harvest").glob("*.jsonl"))
            for line in path.read_text().rpartition("\n")[0].splitlines()  # the last one may be half written
        ]
        return [line for line in lines if line["kind"] == kind]

    def log(self) -> str:
        """What the agents have logged."""
        return (self.home / "site.log").read_text()

    def metric(self, name: str) -> float:
        """A value of the metrics file, as text before the value has it; not a number before there is a file."""
        file = self.directory / "metrics.prom"
        if not file.exists():
            return math.nan
        text = file.read_text()
        (line,) = [line for line in text.splitlines() if line.startswith(f'{name}{{site="')]
        return float(line.rpartition(" ")[2])

    def wait(self, done: object, what: str, timeout_s: float = 60.0) -> None:
        """Ask until it is so; the failure shows logs and queue."""
        self.world.wait_for(done, what, timeout_s)


@contextlib.contextmanager
def site_on(
    cluster: SlurmCluster,
    *,
    top: str = "",
    harvest: str = "",
    cluster_keys: str = "",
    idle_s: float = 20,
    timing: Values | None = None,
    poll_s: float = 0.5,
    first_on_path: str = "",
    binary: Path | None = None,
) -> Iterator[Site]:
    """A running world on the cluster, ended and removed afterwards. `first_on_path`: a folder of other commands;
    `binary`: instead of the installed `tidemill-node`."""
    parent = cluster.space
    staff = Path(tempfile.mkdtemp(prefix="st-", dir=cluster.directory))
    staff.chmod(0o777)
    environment = {"SLURM_CONF": str(cluster.conf)}
    if first_on_path:
        environment["PATH"] = f"{first_on_path}:{os.environ['PATH']}"
    if binary is not None:
        environment["TIDEMILL_NODE_BINARY"] = str(binary)
    values = merged(TIMING, {"site": {"IDLE_S": idle_s, "CLUSTER_POLL_S": poll_s}}, timing or {})
    options = Options(nodes=1, cores=1, user=UID, timing=values, environment=environment, parent=parent)
    home = Path(tempfile.mkdtemp(prefix="tm-", dir=parent))
    world = World(home, options)
    keys = {"top": top, "harvest": harvest, "cluster": cluster_keys}
    text = SITE.format(home=home, staff=staff, **keys)
    (home / "site" / "site.toml").write_text(text)
    try:
        world.start()
        yield Site(cluster, world, staff)
    finally:
        world.stop()
        cluster.cancel_all()
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(staff, ignore_errors=True)
