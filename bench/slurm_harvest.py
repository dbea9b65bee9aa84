"""How much idle time of a real Slurm cluster becomes work, and who waits for it? Needs root and the tests' packages.

For each seed the same random jobs of a regular user (see `bench/slurm_mix.py`) are submitted to four clusters of 16
emulated nodes side by side: twice without us, to see how much such a run differs from itself; once without us, but each
job runs up to VARIED_S longer, to see what such moments do to the order in which a scheduler starts jobs; and once with
a Tidemill of an ordinary user who has events of one second without end.

idle_node_s        node-seconds without a regular job, first run without us, all seeds; from 30 s after the start on
harvested_share    events of one second that ended in that time in our cluster, divided by idle_node_s
mean_delay_s       mean over all regular jobs of (wait with us) - (mean of the two waits without us)
small_...          the same of the small jobs that --small adds: as many a minute, of one node and 10 to 30 s, in bursts
delayed_over_30s   jobs of which that is more than 30 s;  worst_delay_s: the largest
failed             regular jobs that did not end well in our cluster
calls_per_min      commands that our agent ran against Slurm
mean_delay_low_s, mean_delay_high_s   95 % bounds of mean_delay_s over the jobs
harm_mean_s        mean delay as `tidemill site harm` estimates it, from what the agent saw alone, beside mean_delay_s;
harm_low_s, harm_high_s   its bounds, from what polls saw and what they cannot exclude
baseline_mean_s, baseline_worst_s   the second run without us against the first: the noise of all that
varied_mean_s, varied_over_30s, varied_worst_s   as delayed, of the cluster without us whose jobs run a little longer
runs               the figures of each seed

Without --seeds it takes the first four whose mix is steady and leaves 15-45 % idle, as `bench/slurm_play.py` finds
without a cluster and without us. In others seconds decide which of two jobs starts first: 5 and 6 are such.

    python bench/slurm_harvest.py --json [--seeds 5 6 7 8] [--seconds 450] [--load 0.85] [--poll 1.5] [--keep]
    python bench/slurm_harvest.py --json --seeds 1 2 7 8 --load 0.6 --small 12        many small jobs
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import slurm_mix as mixes  # noqa: E402
from bench.slurm_mix import NODES, VARIED_S, Delays, RegularJob, Run, Times  # noqa: E402
from bench.slurm_play import steady_seeds  # noqa: E402
from tests.timing import merged  # noqa: E402
from tests.worlds.home.world import Options, World  # noqa: E402

from tidemill.harvest.account.broker_log import RegularStarted, decode  # noqa: E402
from tidemill.harvest.account.harm import WaitPart, part_of  # noqa: E402
from tidemill.node.journal import JournalTail  # noqa: E402
from tidemill.wire.node import Done  # noqa: E402

SKIPPED_S = 30.0
EVENTS = 10_000_000
REGULAR_UID, OUR_UID, GROUP = 1, 65534, 65534
START_S_MAX = 900.0
SLURM = ["--nodes", str(NODES), "--cores", "1", "--memory", "1000", "--bf-interval", "2", "--kill-wait", "8"]

# Jobs are about 60 times shorter than real ones: so are polls (2 % of a mean run of 73 s), cycles and limits, and
# starts are 60 times more frequent.
SITE = """batch = "slurm"
contact = "bench@example.org"
[cluster]
partition = "batch"
calls_per_min_max = 600
[harvest]
policy = "yield"
"""
TIMING = {
    "site": {
        "CYCLE_S": 2, "STARTUP_S": 1, "DEATH_S": 0.3, "SLACK_S": 8, "START_BY_S": 120, "STARTS_PER_NODE_HOUR": 720,
    },
}  # fmt: skip
SCRIPT = """#!/bin/sh
date +%s.%N > {out}.started
sleep {run_s:.3f}
date +%s.%N > {out}.ended
"""


class Cluster:
    """One Slurm and the regular user's jobs in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o755)
        self.jobs = directory / "jobs"
        self.jobs.mkdir()
        os.chown(self.jobs, REGULAR_UID, GROUP)
        self.run = Run(times={})
        done = subprocess.run(
            [ROOT / "scripts" / "slurm.sh", "start", directory / "c", *SLURM],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"Slurm does not start: {done.stderr}")
        self.conf = done.stdout.strip()

    def submit(self, job: RegularJob) -> None:
        """Submit a job as the regular user."""
        script = SCRIPT.format(out=self.jobs / job.name, run_s=job.run_s)
        words = [
            "setpriv",
            f"--reuid={REGULAR_UID}",
            f"--regid={GROUP}",
            "--clear-groups",
            "sbatch",
            "--parsable",
        ]
        words += [
            "-p",
            "batch",
            "-N",
            str(job.width),
            "-t",
            str(job.limit_min),
            "-J",
            job.name,
            "--no-requeue",
        ]
        words += ["-o", "/dev/null", "-D", "/"]
        self.run.times[job.name] = Times(submitted_s=time.time())
        done = subprocess.run(
            words,
            input=script,
            env={**os.environ, "SLURM_CONF": self.conf},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.run.times[job.name].failed = f"not accepted: {done.stderr.strip()}"

    def look(self) -> bool:
        """Read what the jobs wrote; whether all that were submitted have started."""
        for name, times in self.run.times.items():
            if times.started_s is None:
                times.started_s = _moment(self.jobs / f"{name}.started")
            if times.started_s is not None and times.ended_s is None:
                times.ended_s = _moment(self.jobs / f"{name}.ended")
        return all(times.started_s is not None or times.failed for times in self.run.times.values())

    def settle(self) -> None:
        """What has become of jobs that started and left no end."""
        words = ["squeue", "-h", "-a", "-t", "all", "-o", "%j %T"]
        told = subprocess.run(
            words, env={**os.environ, "SLURM_CONF": self.conf}, capture_output=True, text=True, check=True
        ).stdout
        states = dict(line.split() for line in told.splitlines())
        for name, times in self.run.times.items():
            if times.ended_s is None and states.get(name) not in ("RUNNING", "COMPLETING", "COMPLETED"):
                times.failed = times.failed or f"state {states.get(name, 'unknown')}"

    def stop(self) -> None:
        """End it and all that runs there."""
        subprocess.run([ROOT / "scripts" / "slurm.sh", "stop", self.directory / "c"], check=False)


def _moment(path: Path) -> float | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return float(text) if text.endswith("\n") else None


def start_tidemill(cluster: Cluster, parent: Path, poll_s: float) -> World:
    """A Tidemill of an ordinary user in front of the cluster, with work for longer than the run."""
    home = Path(tempfile.mkdtemp(prefix="tm-", dir=parent))
    binary = parent / "tidemill-node"
    if not binary.exists():
        shutil.copy(Path(sys.executable).parent / "tidemill-node", binary)
        binary.chmod(0o755)
    options = Options(
        nodes=NODES,
        cores=1,
        user=OUR_UID,
        parent=parent,
        extra=SITE,
        timing=merged(TIMING, {"site": {"CLUSTER_POLL_S": poll_s}}),
        environment={"SLURM_CONF": cluster.conf, "TIDEMILL_NODE_BINARY": str(binary)},
    )
    world = World(home, options)
    world.start()
    job = home / "me" / "job.toml"
    job.write_text(
        f'campaign = "tide"\n[[job]]\ncommand = ["sleep", "1"]\nevents = {EVENTS}\n'
        "[job.resources]\ncores = 1\nmemory_mb = 100\nscratch_mb = 16\nevent_s = 1.0\n"
    )
    job.chmod(0o644)
    done = world.run("submit", str(job))
    if done.returncode:
        sys.exit(f"our job was not accepted: {done.stderr}{done.stdout}")
    return world


def read_events(home: Path) -> list[float]:
    """The end of each harvested event, from the journals of all fleets."""
    ends: list[float] = []
    for path in (home / "site" / "fleets").glob("*/journal/*.log"):
        tail = JournalTail(path)
        while records := tail.read():
            for record in records:
                if isinstance(record, Done):
                    step_s = (record.ended_us - record.started_us) / 1e6 / record.count
                    ends += [record.ended_us / 1e6 - step_s * n for n in range(record.count)]
    return ends


def harm_told(home: Path) -> list[WaitPart]:
    """The part of the wait of each regular job that Tidemill caused, as estimated, from the agent's records."""
    found = []
    for path in sorted((home / "site" / "harvest").glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            record = decode(line)
            if isinstance(record, RegularStarted):
                found.append(part_of(record))
    return found


def calls_made(home: Path) -> float:
    """Commands that the agent has run, from its metrics."""
    text = (home / "site" / "metrics.prom").read_text()
    found = re.findall(r"^tidemill_batch_calls_total\{[^}]*\} ([0-9.e+]+)$", text, re.MULTILINE)
    return sum(map(float, found))


def run_seed(seed: int, args: argparse.Namespace, parent: Path) -> tuple[dict[str, object], Delays]:
    """One seed in four clusters side by side."""
    jobs = mixes.mix(seed, load=args.load, seconds=args.seconds)
    jobs = sorted(
        [*jobs, *mixes.small(seed, per_min=args.small, seconds=args.seconds)], key=lambda job: job.at_s
    )
    varied = mixes.vary(jobs, seed, by_s=VARIED_S)
    clusters: list[Cluster] = []
    world: World | None = None
    try:
        clusters = [Cluster(parent / f"{seed}-{name}") for name in ("base", "again", "varied", "ours")]
        base, again, other, ours = clusters
        world = start_tidemill(ours, parent, args.poll)
        since_s = time.time()
        _submit_all([(base, jobs), (again, jobs), (other, varied), (ours, jobs)], since_s)
        _wait_until(since_s + args.seconds)
        calls = calls_made(world.home) / ((time.time() - since_s) / 60)
        deadline_s = time.time() + START_S_MAX
        while not all([cluster.look() for cluster in clusters]) and time.time() < deadline_s:
            time.sleep(1.0)
        for cluster in clusters:
            cluster.settle()
        ours.run.done_s = read_events(world.home)
        figures, delays = _figures(seed, jobs, clusters, (since_s + SKIPPED_S, since_s + args.seconds, calls))
        parts = harm_told(world.home)
        figures["harm_jobs"] = len(parts)
        for name, value in (("mean", "likely"), ("low", "low"), ("high", "high")):
            mean_s = sum(getattr(part, value) for part in parts) / max(1, len(parts))
            figures[f"harm_{name}_s"] = round(mean_s, 2)
        return figures, delays
    finally:
        if world is not None:
            world.stop()
        for cluster in clusters:
            cluster.stop()


def _submit_all(mixes_of: list[tuple[Cluster, list[RegularJob]]], since_s: float) -> None:
    """Each cluster's jobs, which come at the same times everywhere."""
    clusters = [cluster for cluster, _ in mixes_of]
    for same in zip(*(jobs for _, jobs in mixes_of), strict=True):
        _wait_until(since_s + same[0].at_s)
        for cluster, job in zip(clusters, same, strict=True):
            cluster.submit(job)
            cluster.look()


def _wait_until(at_s: float) -> None:
    while (left_s := at_s - time.time()) > 0:
        time.sleep(min(left_s, 0.2))


def _figures(
    seed: int, jobs: list[RegularJob], clusters: list[Cluster], window: tuple[float, float, float]
) -> tuple[dict[str, object], Delays]:
    since_s, until_s, calls = window
    base, again, varied, ours = (cluster.run for cluster in clusters)
    capacity = NODES * (until_s - since_s)
    idle = [
        capacity - mixes.busy_node_s(jobs, run, since_s=since_s, until_s=until_s)
        for run in (base, again, ours)
    ]
    delays = Delays.of(jobs, (base, again, varied, ours))
    done = mixes.events_done(ours, since_s=since_s, until_s=until_s)
    figures: dict[str, object] = {
        "seed": seed,
        "idle_share": round(idle[0] / capacity, 3),
        "idle_node_s": round(idle[0]),
        "idle_again_node_s": round(idle[1]),
        "idle_with_us_node_s": round(idle[2]),
        "events": done,
        "harvested_share": round(done / idle[0], 3),
        "failed": sum(bool(times.failed) for times in ours.times.values()),
        "not_started": len(jobs) - len(delays.each_s),
        "calls_per_min": round(calls, 1),
        **mixes.pooled([delays]),
        "delays": {job.name: round(each, 1) for job, each in zip(jobs, delays.each_s, strict=False)},
        "varied": {job.name: round(each, 1) for job, each in zip(jobs, delays.varied_s, strict=False)},
    }
    return figures, delays


def measure(args: argparse.Namespace) -> dict[str, object]:
    """All seeds, pooled."""
    parent = Path(tempfile.mkdtemp(prefix="tm-bench-", dir="/tmp"))
    parent.chmod(0o755)
    runs, delays = [], []
    try:
        with ThreadPoolExecutor(args.at_once) as hands:
            for figures, delay in hands.map(lambda seed: run_seed(seed, args, parent), args.seeds):
                runs.append(figures)
                delays.append(delay)
                print(json.dumps(figures), file=sys.stderr, flush=True)
    finally:
        if args.keep:
            print(f"kept {parent}", file=sys.stderr)
        else:
            shutil.rmtree(parent, ignore_errors=True)
    idle = sum(int(str(run["idle_node_s"])) for run in runs)
    return {
        "idle_node_s": idle,
        "harvested_share": round(sum(int(str(run["events"])) for run in runs) / idle, 3),
        **mixes.pooled(delays),
        "failed": sum(int(str(run["failed"])) for run in runs),
        "calls_per_min": round(sum(float(str(run["calls_per_min"])) for run in runs) / len(runs), 1),
        **{name: _harm_mean(runs, name) for name in ("harm_mean_s", "harm_low_s", "harm_high_s")},
        "seconds": args.seconds,
        "poll_s": args.poll,
        "small_per_min": args.small,
        "runs": runs,
    }


def _harm_mean(runs: list[dict[str, object]], name: str) -> float:
    """The mean of a figure of `site harm` over the jobs of all runs."""
    jobs = sum(int(str(run["harm_jobs"])) for run in runs)
    total_s = sum(float(str(run[name])) * int(str(run["harm_jobs"])) for run in runs)
    return round(total_s / max(1, jobs), 2)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: the first four steady ones")
    parser.add_argument("--seconds", type=float, default=450.0, help="length of a run (default: 450)")
    parser.add_argument(
        "--load", type=float, default=0.85, help="offered load of regular jobs (default: 0.85)"
    )
    parser.add_argument(
        "--poll", type=float, default=1.5, help="the agent's poll interval in s (default: 1.5)"
    )
    parser.add_argument(
        "--small",
        type=float,
        default=0.0,
        metavar="N",
        help="add N jobs of one node and 10-30 s a minute (default: 0)",
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="seeds at a time (default: 1)")
    parser.add_argument("--keep", action="store_true", help="keep all files")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("Slurm's daemons start jobs of other users: this bench needs root")
    args.seeds = args.seeds or steady_seeds(4, load=args.load, seconds=args.seconds, since_s=SKIPPED_S)
    found = measure(args)
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            if name != "runs":
                print(f"{name:20} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
