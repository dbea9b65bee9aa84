"""How busy are the slots of a node, and how soon is it released? Prints one JSON object.

    bench/nodes.py --json [--seconds S]

`occupancy`: the share of their time that two slots are busy with ranges of 1 s for `--seconds`, by a whole site.
`yield_s`: from the batch system's signal to the end of a pilot whose payloads sleep for ever, by each way that a fleet
is served; `yield_copying_s`: of one that copies 700 MB of outputs. `silent_s`: from an agent that stops to the last
pilot's end, where 3 s of silence are allowed and 1 s is for draining. `snapshot_s`: what our code needs, beside the
commands, to read 8,000 nodes, 8,000 running and 12,000 waiting jobs of Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.slurm.fake import install  # noqa: E402
from tests.worlds.home.world import world  # noqa: E402
from tests.worlds.node.fleet_way import WAYS, Way, served  # noqa: E402
from tests.worlds.node.pilot_fleet import field, grants, job, output, program  # noqa: E402

from tidemill.batch.slurm import SlurmBatchSystem  # noqa: E402
from tidemill.config.site import Cluster  # noqa: E402
from tidemill.model.job import JobSpec, Resources  # noqa: E402

CROWD = {"running": 8000, "waiting": 12000, "nodes": 8000}
ENDLESS = "exec sleep 3600"


def occupancy(seconds: int) -> float:
    """The busy share of two slots."""
    with world(nodes=1, cores=2) as it:
        spec = JobSpec(command=["/bin/sleep", "1"], events=2 * seconds, resources=Resources(event_s=1.0))
        it.submit("busy", spec)
        it.wait_campaign("busy", timeout_s=seconds + 60)
        it.wait_for(lambda: any(one.slot_us for one in it.client.allocations()), "the pilot has reported it")
        (one,) = [each for each in it.client.allocations() if each.slot_us]
        return round(one.busy_us / one.slot_us, 4)


def yield_s(folder: Path, way: Way) -> float:
    """Seconds from the signal to the pilot's end."""
    with served(folder, way) as it:
        it.give(job(1, ENDLESS, events=8), programs=[program(event_s=1.0)])
        it.lead()
        pilot = it.pilot(0)
        children = Path(f"/proc/{pilot.pid}/task/{pilot.pid}/children")
        it.until(lambda: bool(children.read_text()), "it runs")
        it.until(lambda: b"sleep\x003600" in commands(), "a payload runs")
        start_s = time.monotonic()
        it.it.signal(pilot, signal.SIGTERM)
        it.left(pilot)
        return round(time.monotonic() - start_s, 2)


def commands() -> bytes:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue  # it has ended
    return b"\n".join(found)


def yield_copying_s(folder: Path) -> float:
    """Seconds from the signal to the end of a pilot in the middle of a large output."""
    with field(folder, output_flush_s=30.0) as it:
        work = job(1, "head -c 700000000 /dev/zero > out", events=40)
        large = program(outputs=[output("zeros", "out")], event_s=0.5, scratch_mb=4000, memory_mb=4000)
        it.fleet.write_work(programs=[large], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2", "--memory-mb", "10000")
        bundle = it.fleet.bundle / "tm-here-e1-1.r0.i1.tar"
        it.until(lambda: bundle.exists() and bundle.stat().st_size > 100_000_000, "an output is copied")
        start_s = time.monotonic()
        it.signal(pilot, signal.SIGTERM)
        it.ended(pilot)
        return round(time.monotonic() - start_s, 2)


def silent_s(folder: Path, way: Way) -> float:
    """Seconds from the agent's last beat to the end of both pilots."""
    with served(folder, way, dead_after_s=3.0, drain_s=1.0, idle_s=60.0) as it:
        it.give(job(1, ENDLESS, events=8), programs=[program(event_s=0.1)])
        it.lead()
        pilots = [it.pilot(k) for k in range(2)]
        it.until(lambda: commands().count(b"sleep\x003600") > 1, "they work")
        it.agent_lives = False
        start_s = time.monotonic()
        it.left(*pilots)
        return round(time.monotonic() - start_s, 2)


def snapshot_s(folder: Path) -> float:
    """Seconds of our own for a snapshot of a crowded Slurm."""
    install(folder / "bin", {"calls": str(folder / "calls"), "crowd": CROWD})
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    batch = SlurmBatchSystem(folder / "batch", Cluster(), key="0123456789abcdef")
    batch.snapshot()
    before_s, start_s = batch.calls.seconds, time.monotonic()
    batch.snapshot()
    return round(time.monotonic() - start_s - (batch.calls.seconds - before_s), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object (the only form there is)")
    parser.add_argument("--seconds", type=int, default=120)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)

        def fresh(text: str) -> Path:
            (folder / text).mkdir()
            return folder / text

        found = {
            "yield_s": {way: yield_s(fresh(f"y-{way}"), way) for way in WAYS},
            "yield_copying_s": yield_copying_s(fresh("copying")),
            "silent_s": {way: silent_s(fresh(f"s-{way}"), way) for way in WAYS},
            "snapshot_s": snapshot_s(fresh("slurm")),
            "occupancy": occupancy(given.seconds),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
