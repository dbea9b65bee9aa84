"""How fast are jobs dispatched? Starts a real server, agent, lead and pilot in a temporary home and measures

floor_per_s        a loop of posix_spawn of /bin/true by two threads before and after each figure: the mean of all
command_per_s      one job of 100,000 events, /bin/true once per event, submit to COMPLETED
command_ratio      that, divided by the mean of the floors right before and after it
jobs_per_s         20,000 separate jobs of one event each, submit to the last COMPLETED
records_per_s      one job of persistent payloads whose events are ranges of their own, from the end of the first to
                   that of the last. Neighbours are joined before the lead: a record line covers thousands of them
record_lines_per_s the same with ranges that end in an order in which none can be joined: each is a line of its own,
                   framed, sent, synced by the lead and acknowledged; from submit to COMPLETED, so that the agent has
                   taken each, and the server the job
first_result_s     one job on an idle site without a pilot, submit to COMPLETED (median of three fresh homes)
hyperqueue_per_s   the same as command_per_s by HyperQueue, null where `hq` is not on PATH

    python bench/dispatch.py --json [--only command] [--events 5000] [--keep]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tidemill.client.client import Client
from tidemill.errors import TidemillError
from tidemill.model.job import JobSpec, Resources
from tidemill.model.state import JOB_FINAL
from tidemill.node.binary import find_binary

SLOTS = 2
FLOOR_STARTS = 20_000
COMMAND_EVENTS = 100_000
JOBS = 20_000
RECORD_EVENTS = 600_000
RECORD_LINES = 100_000
READY_S = 60.0
FIGURE_S = 900.0
POLL_S = 0.02
PAYLOAD = Resources(cores=1, memory_mb=100, scratch_mb=16, event_s=0.001)
SITE = """name = "bench"
server = "unix:{home}/server/api.sock"
allow_adhoc = true
shared = true             # with this, payloads are isolated or do not run
[local]
nodes = 1
[node]
cores = {slots}
memory_mb = 2000
"""
APPLICATION = """name = "range-counter"
executable = "{path}"
digest = "sha256:{digest}"
mode = "range"
arguments = {arguments}
events_per_range_max = 1
[resources]
cores = 1
memory_mb = 100
scratch_mb = 16
event_s = 0.00002
"""


class BenchError(Exception):
    """A figure could not be taken, or what was measured is not what was asked for."""


class Lab:
    """A running `tidemill up` in a temporary home with one local node of two cores."""

    def __init__(self, home: Path, applications: dict[str, str] | None = None) -> None:
        self.home = home
        self._log = (home / "up.log").open("wb")
        site = home / "site"
        (site / "apps").mkdir(parents=True, mode=0o700)
        home.chmod(0o700)
        site.chmod(0o700)
        (site / "site.toml").write_text(SITE.format(home=home, slots=SLOTS))
        for name, text in (applications or {}).items():
            (site / "apps" / f"{name}.toml").write_text(text)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", "up", "--home", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.client = self._connect()

    def _connect(self) -> Client:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                client = Client(home=self.home, retry_s=0)
                if any(site.state == "UP" for site in client.sites()):
                    return Client(home=self.home)
                problem = "no site is up"
            except TidemillError as error:
                problem = error.message
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise BenchError(f"`tidemill up` did not start: {problem}\n{self.tail()}")
            time.sleep(0.05)

    def tail(self) -> str:
        """The last lines that `up` wrote."""
        return "\n".join((self.home / "up.log").read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """End it: TERM, and KILL to its session after 30 s."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()

    def run(self, spec: JobSpec, jobs: int = 1, *, limit_s: float = FIGURE_S) -> float:
        """Seconds from the submission of `jobs` copies of a job until all are COMPLETED; any other end is an error."""
        began = time.monotonic()
        submission = self.client.submit(spec, campaign="bench", repeat=[jobs])
        while True:
            row = self.client.campaign(submission.campaign)
            ended = sum(number for state, number in row.states.items() if state in JOB_FINAL)
            if ended == jobs:
                seconds = time.monotonic() - began
                break
            if time.monotonic() - began > limit_s:
                raise BenchError(
                    f"not done after {limit_s:.0f} s: {row.states}, {row.events_done} events\n{self.tail()}"
                )
            time.sleep(POLL_S)
        if row.states.get("COMPLETED") != jobs or row.events_done != jobs * spec.events:
            raise BenchError(f"expected {jobs} COMPLETED, got {row.states}: {row.failures}\n{self.tail()}")
        if spec.command and row.usage.payloads != row.events:
            raise BenchError(f"{row.usage.payloads} processes were started for {row.events} events")
        self.check_isolation()
        return seconds

    def journals(self) -> list[Path]:
        """The journals of all fleets."""
        return sorted((self.home / "site" / "fleets").glob("*/journal/*.log"))

    def check_isolation(self) -> None:
        """Raise unless every pilot ran its payloads in namespaces."""
        found = {
            kind
            for path in self.journals()
            for kind in re.findall(rb'"isolation":"(\w+)"', path.read_bytes())
        }
        if found != {b"namespaces"}:
            raise BenchError(f"payloads were isolated by {sorted(found)}, not by namespaces")


@contextlib.contextmanager
def lab(keep: bool, applications: dict[str, str] | None = None) -> Iterator[Lab]:
    """A lab in a fresh home, which is removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="tm-bench-"))
    try:
        running = Lab(home, applications)
        try:
            yield running
        finally:
            running.stop()
    finally:
        if keep:
            print(f"kept: {home}", file=sys.stderr)
        else:
            shutil.rmtree(home, ignore_errors=True)


def floor(starts: int) -> float:
    """Starts per second of the bare loop."""
    command = [str(find_binary()), "floor", str(starts), str(SLOTS), "/bin/true"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    match = re.search(r"\d+(?:\.\d+)?", re.sub(r'"[^"]*":', "", result.stdout))
    if result.returncode != 0 or match is None:
        raise BenchError(
            f"`{' '.join(command)}` ended with {result.returncode}: {result.stdout}{result.stderr}"
        )
    return float(match[0])


def command_per_s(events: int, keep: bool) -> dict[str, float]:
    """One job, one process per event."""
    with lab(keep) as running:
        seconds = running.run(JobSpec(command=["/bin/true"], events=events, resources=PAYLOAD))
    return {"command_per_s": events / seconds}


def jobs_per_s(jobs: int, keep: bool) -> dict[str, float]:
    """Many jobs of one event."""
    with lab(keep) as running:
        seconds = running.run(JobSpec(command=["/bin/true"], resources=PAYLOAD), jobs)
    return {"jobs_per_s": jobs / seconds}


def count_ranges(events: int, keep: bool, arguments: list[str]) -> tuple[float, list[int]]:
    """Ranges of one event by persistent payloads; seconds until COMPLETED, and when each record line ended, in us."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-app-") as folder:
        program = Path(folder) / "range_counter"
        source = Path(__file__).parent / "range_counter.c"
        subprocess.run(["gcc", "-O2", "-o", program, source], check=True, timeout=60)
        Path(folder).chmod(0o755)
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        app = APPLICATION.format(path=program, digest=digest, arguments=json.dumps(arguments))
        with lab(keep, {"range-counter": app}) as running:
            whole_s = running.run(JobSpec(app="range-counter", events=events))
            ended_us: list[int] = []
            for path in running.journals():
                ended_us += [int(text) for text in re.findall(rb'"ended_us":(\d+)', path.read_bytes())]
    if len(ended_us) < 2:
        raise BenchError(f"{events} events left {len(ended_us)} records: too few to time; take more events")
    return whole_s, ended_us


def records_per_s(events: int, keep: bool) -> dict[str, float]:
    """Persistent payloads: ranges of one event. `record_lines`: the lines into which their records were joined."""
    whole_s, ended_us = count_ranges(events, keep, [])
    seconds = (max(ended_us) - min(ended_us)) / 1e6
    return {"records_per_s": events / seconds, "record_lines": len(ended_us), "records_whole_s": whole_s}


def record_lines_per_s(events: int, keep: bool) -> dict[str, float]:
    """The same where next to no records are joined."""
    whole_s, ended_us = count_ranges(events, keep, ["scattered"])
    if len(ended_us) < 0.9 * events:
        raise BenchError(f"{events} events left only {len(ended_us)} records: they were joined")
    return {"record_lines_per_s": len(ended_us) / whole_s}


def first_result_s(repeats: int, keep: bool) -> dict[str, float]:
    """One job on a site that has just started, where no pilot runs."""
    times = []
    for _ in range(repeats):
        with lab(keep) as running:
            times.append(running.run(JobSpec(command=["/bin/true"], resources=PAYLOAD), limit_s=READY_S))
    return {"first_result_s": statistics.median(times)}


def hyperqueue(folder: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a command of HyperQueue that says nothing."""
    command = ["hq", "--server-dir", folder, *words]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def hyperqueue_per_s(events: int, keep: bool) -> dict[str, float]:
    """HyperQueue's server and one worker of two cores, journal on, no output files."""
    del keep
    with tempfile.TemporaryDirectory(prefix="tm-bench-hq-") as folder:
        server = hyperqueue(folder, "server", "start", "--journal", f"{folder}/journal")
        try:
            deadline = time.monotonic() + READY_S
            while hyperqueue(folder, "server", "info").wait(timeout=30):
                if time.monotonic() > deadline:
                    raise BenchError("HyperQueue's server did not start")
                time.sleep(0.1)
            worker = hyperqueue(folder, "worker", "start", "--cpus", str(SLOTS))
            began = time.monotonic()
            nothing = ["--stdout", "none", "--stderr", "none", "--wait"]
            status = hyperqueue(folder, "submit", "--array", f"1-{events}", *nothing, "/bin/true").wait(
                FIGURE_S
            )
            seconds = time.monotonic() - began
            if status:
                raise BenchError(f"`hq submit` ended with {status}")
            hyperqueue(folder, "server", "stop").wait(timeout=30)
            worker.wait(timeout=30)
        finally:
            server.kill()
            server.wait()
    return {"hyperqueue_per_s": events / seconds}


Figure = Callable[[int, bool], dict[str, float]]
FIGURES: dict[str, tuple[Figure, int]] = {
    "command": (command_per_s, COMMAND_EVENTS),
    "jobs": (jobs_per_s, JOBS),
    "records": (records_per_s, RECORD_EVENTS),
    "record_lines": (record_lines_per_s, RECORD_LINES),
    "first_result": (first_result_s, 3),
    "hyperqueue": (hyperqueue_per_s, 10_000),
}
KEYS = [
    "floor_per_s",
    "command_per_s",
    "command_ratio",
    "jobs_per_s",
    "records_per_s",
    "record_lines_per_s",
    "first_result_s",
    "hyperqueue_per_s",
]


def measure(names: list[str], events: int | None, keep: bool) -> dict[str, float | None]:
    """The figures, each between two floors; what was not asked for is None."""
    result: dict[str, float | None] = dict.fromkeys(KEYS)
    floors: list[float] = []
    starts = min(FLOOR_STARTS, 5 * (events or FLOOR_STARTS))
    for name in names:
        if name == "hyperqueue" and shutil.which("hq") is None:
            continue
        figure, number = FIGURES[name]
        before = floor(starts)
        values = figure(events or number, keep)
        after = floor(starts)
        floors += [before, after]
        own_floor = (before + after) / 2
        result.update(values)
        if name in ("command", "jobs"):
            result[f"{name}_ratio"] = values[f"{name}_per_s"] / own_floor
        text = ", ".join(f"{key} {value:,.3f}" for key, value in values.items())
        print(f"{name}: {text}; floor {before:,.0f} before, {after:,.0f} after", file=sys.stderr)
    result["floor_per_s"] = statistics.mean(floors) if floors else None
    return result


def enter_namespace() -> None:
    """As root: go on in a PID namespace of our own, so that nothing that we start can outlive us."""
    if os.geteuid() == 0 and "TIDEMILL_BENCH_INSIDE" not in os.environ:
        os.environ["TIDEMILL_BENCH_INSIDE"] = "1"
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
        os.execvp("unshare", inside)


def main() -> int:
    """Print the figures: one JSON object with `--json`, else one per line."""
    parser = argparse.ArgumentParser(description="How fast are jobs dispatched?")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--only", choices=list(FIGURES), action="append", help="take only this figure; may be repeated"
    )
    parser.add_argument(
        "--events", type=int, help="number of events (or jobs, or repeats); default: the usual number"
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary homes")
    args = parser.parse_args()
    enter_namespace()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # PID 1 has no default action
    for variable in ("TIDEMILL_SERVER", "TIDEMILL_SECRET_FILE"):
        os.environ.pop(variable, None)  # they would come before the lab's own server
    try:
        result = measure(args.only or list(FIGURES), args.events, args.keep)
    except (BenchError, TidemillError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rounded = {key: None if value is None else round(value, 3) for key, value in result.items()}
    print(
        json.dumps(rounded) if args.json else "\n".join(f"{key:18} {value}" for key, value in rounded.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
