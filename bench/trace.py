"""What does a trace cost, and does it count what strace counts? For each case, in one JSON object

ops, failed                 operations in the profile of `tidemill-node trace`, and those among them that failed
strace_ops, strace_failed   the same calls in the output of strace, without fstat by its other name (newfstatat and
                            statx of an open file, AT_EMPTY_PATH), which the trace does not stop at
trace_ratio                 wall time of the fastest run under the trace, divided by that of the bare command
strace_ratio                the same under `strace -f -o FILE`
strace_seccomp_ratio        the same under `strace -f --seccomp-bpf -e trace=CALLS -o FILE` with the calls of the trace

WAY_cpu_ratio               the same of the user and system time of all processes, those of the tracer included
noise, cpu_noise            how far the bare command is from itself by these two
WAY_median_ratio            the median of the ratios of each round, to the mean of its two bare runs
WAY_median_noise            how sure it is: half the width of the interval that holds the true median with 95 %
strace_seccomp_over_trace   what the trace saves against strace --seccomp-bpf, in percent of the bare command's time

In a round the ways follow each other, each round beginning with the next one, and the bare command is taken twice.
Other work on a shared machine only ever adds to a run, whichever it is: so the fastest runs are compared, as timeit
does. Medians are reported as well, with their noise.
A case goes on for `--rounds` rounds and `--seconds` seconds, then until all ratios are surer than NOISE_MAX or
`--seconds-max` is over; none of it asks how the trace does. Cases:

import   a scientific Python stack          storm    the same behind 25 dead search directories of Python and the linker
compile  g++ -c of four standard headers    find     a tree, by size
pythia   100 events, where pythia8mc is     threads  8 forks of 4 threads, dirfd, chdir, a static program
network  100 MB in requests of 64 kB from a server on this host, with their digest: each request is counted

    python bench/trace.py --json [--only import] [--rounds 20]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.errors import TidemillError
from tidemill.node.binary import find_binary

ROUNDS = 8
SECONDS = 10.0
SECONDS_MAX = 75.0
NOISE_MAX = 0.01
UNSURE = 0.05
DEAD_DIRECTORIES = 25
MIX_ROUNDS = 60
LIMIT_S = 120.0
MODULES = ["numpy", "scipy.stats", "matplotlib.pyplot", "pandas", "awkward", "uproot", "hist", "pyhepmc"]
SOURCE = """#include <iostream>
#include <map>
#include <regex>
#include <string>
int main() { std::map<std::string, int> known; std::cout << known.size(); }
"""
PYTHIA = """import pythia8mc
pythia = pythia8mc.Pythia("", False)
pythia.readString("Print:quiet = on")
pythia.readString("HardQCD:all = on")
pythia.readString("PhaseSpace:pTHatMin = 20.")
pythia.init()
for _ in range(100):
    pythia.next()
"""
REQUESTS, REPLY_BYTES = 1600, 64 << 10
NETWORK = f"""import hashlib, socket, sys
digest = hashlib.sha256()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    for _ in range({REQUESTS}):
        connection.sendall(b"?")
        left = {REPLY_BYTES}
        while left:
            piece = connection.recv(left)
            digest.update(piece)
            left -= len(piece)
"""

Ends = dict[tuple[str, str], int]
"""Operations by call and errno (empty: success)."""


BARE, AGAIN = "bare", "again"
WAYS = ("trace", "strace", "strace_seccomp")


class BenchError(Exception):
    """A figure could not be taken."""


@dataclass(frozen=True)
class Case:
    """A command and its environment, beside this process's."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def environ(self) -> dict[str, str]:
        return {**os.environ, **self.env}


def importable(modules: list[str]) -> list[str]:
    """Those of some modules that this Python has."""
    return [
        module
        for module in modules
        if subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, check=False, timeout=LIMIT_S
        ).returncode
        == 0
    ]


def build_mix(folder: Path) -> list[str]:
    """The command of metadata_mix.c, which executes itself as a static program."""
    source = Path(__file__).parent / "metadata_mix.c"
    dynamic, static = str(folder / "mix"), str(folder / "mix-static")
    subprocess.run(["gcc", "-O2", "-pthread", "-o", dynamic, source], check=True, timeout=LIMIT_S)
    subprocess.run(["gcc", "-O2", "-static", "-pthread", "-o", static, source], check=True, timeout=LIMIT_S)
    return [dynamic, str(MIX_ROUNDS), static]


def serve() -> int:
    """The port of a server, in a thread of this process, that sends a reply for each byte it receives."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                while asked := connection.recv(4096):
                    connection.sendall(bytes(REPLY_BYTES * len(asked)))

    threading.Thread(target=answer, daemon=True).start()
    return int(listener.getsockname()[1])


def make_cases(folder: Path) -> Iterator[tuple[str, Case]]:
    """All cases that can be run here."""
    stack = importable(MODULES)
    if not stack:
        raise BenchError(f"this Python has none of {', '.join(MODULES)}: install one of them")
    importing = [sys.executable, "-c", f"import {', '.join(stack)}"]
    yield "import", Case(importing)
    dead = []
    for number in range(DEAD_DIRECTORIES):
        (folder / f"dead{number}" / "lib").mkdir(parents=True)
        dead.append(str(folder / f"dead{number}" / "lib"))
    paths = {"PYTHONPATH": ":".join(dead), "LD_LIBRARY_PATH": ":".join(dead)}
    yield "storm", Case(importing, paths)
    (folder / "main.cc").write_text(SOURCE)
    yield (
        "compile",
        Case(["g++", "-O0", "-c", "-o", str(folder / "main.o"), str(folder / "main.cc")]),
    )
    tree = str(Path(json.__file__).parent.parent)
    yield "find", Case(["find", tree, "-size", "+100000k"])
    if importable(["pythia8mc"]):
        (folder / "pythia.py").write_text(PYTHIA)
        yield "pythia", Case([sys.executable, str(folder / "pythia.py")])
    yield "threads", Case(build_mix(folder))
    (folder / "network.py").write_text(NETWORK)
    yield "network", Case([sys.executable, str(folder / "network.py"), str(serve())])


def call_names() -> list[str]:
    """The calls that a trace counts."""
    result = subprocess.run(
        [find_binary(), "trace", "--calls"], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    return result.stdout.split()


def strace_filter() -> str:
    """For strace's `-e`; it may be older than a call."""
    return "trace=" + ",".join(f"?{name}" for name in call_names())


def count_by_strace(case: Case, folder: Path, *, prefix: tuple[str, ...] = ()) -> Ends:
    """What strace sees of a command, one file per thread so that no line is cut in two."""
    logs = folder / "strace"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    logs.chmod(0o777)
    command = [*prefix, "strace", "-ff", "-o", str(logs / "log"), "-e", strace_filter(), *case.command]
    run(command, case)
    ends: collections.Counter[tuple[str, str]] = collections.Counter()
    for log in logs.iterdir():
        for line in log.read_text(errors="replace").splitlines():
            ends.update(read_line(line))
    return dict(ends)


def read_line(line: str) -> list[tuple[str, str]]:
    """The call and errno of a line of strace; nothing for signals, ends, and calls that never returned."""
    match = re.match(r"(\w+)\(.*\)\s+= (-?\d+|\?)(?: (E\w+))?", line)
    if match is None:
        if line.startswith(("+++", "---")) or "<unfinished" in line:
            return []
        raise BenchError(f"no line of strace: `{line}`")
    name, result, errno = match.groups()
    if (name in ("newfstatat", "statx") and "AT_EMPTY_PATH" in line) or (result == "?" and not errno):
        return []
    return [(name, errno or "")]


def count_by_trace(
    case: Case, folder: Path, *options: str, prefix: tuple[str, ...] = ()
) -> tuple[Ends, dict[str, object]]:
    """What the trace counts of a command, and its profile."""
    profile = folder / "profile.json"
    profile.unlink(missing_ok=True)
    run([*prefix, str(find_binary()), "trace", *options, "-o", str(profile), "--", *case.command], case)
    content = json.loads(profile.read_bytes())
    ends: Ends = {}
    for name, each in content["ops"].items():
        ends.update({(name, errno): count for errno, count in each["errors"].items()})
        if each["ok"]:
            ends[name, ""] = each["ok"]
    return ends, content


@dataclass(frozen=True)
class Took:
    """What a run cost: wall time; user and system time of all its processes."""

    wall_s: float
    cpu_s: float


def cpu_of_children_s() -> float:
    """Of those that have ended and were waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(command: list[str], case: Case) -> Took:
    """What a command took; one that fails is an error."""
    cpu_s, began = cpu_of_children_s(), time.perf_counter()
    result = subprocess.run(
        command,
        env=case.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        timeout=LIMIT_S,
    )
    took = Took(time.perf_counter() - began, cpu_of_children_s() - cpu_s)
    if result.returncode:
        last = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BenchError(f"`{' '.join(command)[:200]}` ended with {result.returncode}: {last}")
    return took


@dataclass(frozen=True)
class Rounds:
    """Runs of each way, one per round."""

    runs: dict[str, list[Took]]

    def ratios(self, way: str) -> list[float]:
        """Wall time of a way, divided by the mean of the two bare runs, of each round; in order of size."""
        each = zip(self.runs[way], self.runs[BARE], self.runs[AGAIN], strict=True)
        return sorted(2 * run.wall_s / (bare.wall_s + again.wall_s) for run, bare, again in each)

    def noise(self, way: str) -> float:
        """Half the width of the 95 % interval of the median of the ratios."""
        ratios = self.ratios(way)
        outside = rank_outside(len(ratios))
        return (ratios[-1 - outside] - ratios[outside]) / 2

    def least_wall(self, way: str) -> float:
        """The fastest run, divided by the fastest bare one."""
        return min(run.wall_s for run in self.runs[way]) / min(run.wall_s for run in self.runs[BARE])

    def least_cpu(self, way: str) -> float:
        """The run that took the least CPU time, divided by the bare one that did."""
        return min(run.cpu_s for run in self.runs[way]) / min(run.cpu_s for run in self.runs[BARE])


def rank_outside(count: int) -> int:
    """So many of `count` values at each end lie outside of the 95 % interval of their median.

    The sign test: each value is as likely above the true median as below.
    """
    chance, ends = 0.0, 0
    while (chance := chance + math.comb(count, ends) / 2**count) <= UNSURE / 2:
        ends += 1
    return max(0, ends - 1)


@dataclass(frozen=True)
class Effort:
    """How long a case is measured."""

    rounds: int = ROUNDS
    seconds: float = SECONDS
    seconds_max: float = SECONDS_MAX


def take_rounds(case: Case, folder: Path, effort: Effort) -> Rounds:
    """Runs the ways in turn until that is enough."""
    run(case.command, case)  # what is compiled or cached at the first time
    log, profile = str(folder / "log"), str(folder / "profile.json")
    ways = {
        BARE: [],
        "trace": [str(find_binary()), "trace", "-o", profile, "--"],
        AGAIN: [],
        "strace": ["strace", "-f", "-o", log],
        "strace_seccomp": ["strace", "-f", "--seccomp-bpf", "-e", strace_filter(), "-o", log],
    }
    rounds = Rounds({way: [] for way in ways})
    order = collections.deque(ways)
    began = time.monotonic()
    while True:
        for way in order:
            rounds.runs[way].append(run([*ways[way], *case.command], case))
        order.rotate(-1)
        spent = time.monotonic() - began
        enough = len(rounds.runs[BARE]) >= effort.rounds and spent >= effort.seconds
        if enough and (spent >= effort.seconds_max or max(rounds.noise(way) for way in WAYS) <= NOISE_MAX):
            return rounds


def measure(case: Case, folder: Path, effort: Effort) -> dict[str, float]:
    """Counts and ratios of one case."""
    rounds = take_rounds(case, folder, effort)
    ours, _ = count_by_trace(case, folder)
    theirs = count_by_strace(case, folder)
    failed = {"failed": ours, "strace_failed": theirs}
    wall = {way: rounds.least_wall(way) for way in WAYS}
    return {
        "ops": sum(ours.values()),
        "strace_ops": sum(theirs.values()),
        **{name: sum(n for (_, errno), n in ends.items() if errno) for name, ends in failed.items()},
        **{f"{way}_ratio": round(wall[way], 3) for way in WAYS},
        **{f"{way}_cpu_ratio": round(rounds.least_cpu(way), 3) for way in WAYS},
        "noise": round(abs(rounds.least_wall(AGAIN) - 1), 3),
        **{f"{way}_median_ratio": round(statistics.median(rounds.ratios(way)), 3) for way in WAYS},
        **{f"{way}_median_noise": round(rounds.noise(way), 3) for way in WAYS},
        "cpu_noise": round(abs(rounds.least_cpu(AGAIN) - 1), 3),
        "strace_seccomp_over_trace": round(100 * (wall["strace_seccomp"] - wall["trace"]), 2),
        "rounds": len(rounds.runs[BARE]),
        "bare_s": round(statistics.median(run.wall_s for run in rounds.runs[BARE]), 4),
    }


def enter_namespace() -> None:
    """As root: go on in a PID namespace of our own, so that nothing that we start can outlive us."""
    if os.geteuid() == 0 and "TIDEMILL_BENCH_INSIDE" not in os.environ:
        os.environ["TIDEMILL_BENCH_INSIDE"] = "1"
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
        os.execvp("unshare", inside)


def main() -> int:
    """Print the figures: one JSON object with `--json`, else a line per case."""
    parser = argparse.ArgumentParser(
        description="What does a trace cost, and does it count what strace counts?"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", action="append", help="take only this case; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds per case (default: {ROUNDS})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="at least this time per case (default: 10)"
    )
    parser.add_argument(
        "--seconds-max", type=float, default=SECONDS_MAX, help="no longer, however noisy it is (default: 75)"
    )
    args = parser.parse_args()
    effort = Effort(args.rounds, args.seconds, args.seconds_max)
    enter_namespace()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # PID 1 has no default action
    results = {}
    try:
        with tempfile.TemporaryDirectory(prefix="tm-bench-trace-") as name:
            for case_name, case in make_cases(Path(name)):
                if args.only and case_name not in args.only:
                    continue
                results[case_name] = measure(case, Path(name), effort)
                print(f"{case_name}: {results[case_name]}", file=sys.stderr)
    except (BenchError, TidemillError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not results:
        print(f"error: none of the cases is called {' or '.join(args.only)}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(results))
    else:
        print("\n".join(f"{case_name:8} {figures}" for case_name, figures in results.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
