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

from tests.worlds.batch.slurm_cluster import UID, SlurmCluster
from tests.worlds.home.world import Options, World

SITE = """name = "centre"
server = "unix:{home}/server/api.sock"
batch = "slurm"
contact = "operator@example.org"
stop_file = "{staff}/STOP"
data_roots = ["/"]
allow_adhoc = true
tuning.output_flush_s = 0.3
tuning.pilot_grace_s = 2
tuning.idle_s = {idle_s}
tuning.queue_s = 0.5
tuning.start_backoff_s = 0.2
tuning.start_backoff_max_s = 1
tuning.sync_interval_max_s = 1
tuning.dead_agent_s = 5
tuning.heartbeat_s = 1
nodes_max = 16
walltime_s = "30m"
tuning.cluster = {{ unknown_s = 4, timeout_s = 5 }}
tuning.harvest.cycle_s = 2
tuning.harvest.startup_s = 1
{top}
[cluster]
calls_per_min_max = 1200
{cluster}
[harvest]
poll_s = {poll_s}
{harvest}
[tuning.yield]
dead_after_s = 10
stop_s = 3
drain_s = 5
"""


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
    options = Options(nodes=1, cores=1, user=UID, environment=environment, parent=parent)
    home = Path(tempfile.mkdtemp(prefix="tm-", dir=parent))
    world = World(home, options)
    keys = {"top": top, "harvest": harvest, "cluster": cluster_keys, "idle_s": idle_s, "poll_s": poll_s}
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
