"""What does a cache do for far and for near data, and does routing choose the quicker way?

A real XRootD origin behind a delay line (10 ms = `near`, 250 ms = `far`; 4 MiB window) and a real XCache, set up and
run by `tidemill cache`. The two example programs read as jobs of a site (`tidemill up` and a submission), and report
what it took:

    xrdcp      `far-copy` fetches a file of --mb MB whole
    sparse     `skim` reads 2 of 20 branches of a ROOT file of 80 MB with uproot (vector reads)
    campaign   a campaign of `far-copy` jobs, one for each of --files files of events that Pythia 8 has made: the sum
               of what its payloads report. `wall_s` is the time from submission to end

`direct_s`: at the origin. `first_s`: through the cache, empty before each round. `second_s`: again. `routed_s`:
a job with `read = "url"`, and the site decides; what it chose is `routed_way`. Each is the median of --rounds rounds;
even rounds measure directly last. The values of `xrdcp` stand once more beside the others.

`crowd`: what the origin sends, as a multiple of the files' bytes, to 8 clients that read one cold file
(`clients_8_factor`) and to 366 readers of 8 files (`readers_366_factor`, `readers_366_s`).

    python bench/cache.py --json [--mb 128] [--rounds 3] [--files 4] [--events 150]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.worlds.home.world import Options, World
from tests.worlds.services.cache_world import CacheWorld, cache_world
from tests.worlds.services.root_reader import read_together

from tidemill import examples
from tidemill.examples import APPLICATIONS, FAR, HERE, try_ranges
from tidemill.model.job import Input, JobSpec, Output, OutputKind

RTTS_MS = {"near": 10.0, "far": 250.0}
TREE_EVENTS = 1_000_000
JOB_S = 600.0
PROGRAMS = {"xrdcp": "far-copy", "sparse": "skim", "campaign": "far-copy"}
SITE = """network = "open"
[[endpoints]]
url = "{origin}"
"""
CACHES = """[[caches]]
name = "near"
url = "root://127.0.0.1:{port}"
"""


class Files(NamedTuple):
    """Names at the origin, by what reads them."""

    xrdcp: list[str]
    sparse: list[str]
    campaign: list[str]


Taken = dict[tuple[str, str], list[float]]
READERS, CROWD_FILES, CROWD_BYTES = 366, 8, 2 << 20


def has_routing() -> bool:
    """Whether inputs may be URLs (`read = "url"`)."""
    return "read" in Input.__struct_fields__


def make_files(folder: Path, args: argparse.Namespace) -> Files:
    """Make what is read: random bytes, a tree, and files of Pythia's events."""
    (folder / "whole").write_bytes(os.urandom(args.mb * 1_000_000))
    make = [
        sys.executable,
        str(HERE / "skim" / "make.py"),
        str(folder / "tree.root"),
        "--events",
        str(TREE_EVENTS),
    ]
    subprocess.run(make, check=True)
    generate = [sys.executable, str(HERE / APPLICATIONS["pythia8"])]
    names = []
    for number in range(args.files):
        work = folder / f"made{number}"
        work.mkdir()
        trial = try_ranges.Trial(
            events=args.events,
            size=args.events,
            seed=1 + number * args.events,
            params={"process": "zmumu"},
            timeout_s=600,
        )
        made = try_ranges.run(generate, work, trial)
        assert not made.error, made.error
        names.append(f"events{number}.hepmc")
        (folder / names[-1]).write_bytes(b"".join(piece.outputs["events"] for piece in made.pieces))
    return Files(["whole"], ["tree.root"], names)


class Distance:
    """Everything at one round trip: origin, line, cache, and a site."""

    def __init__(self, world: CacheWorld, made: Path, files: Files) -> None:
        self._world = world
        self._files = files
        for name in (*files.xrdcp, *files.sparse, *files.campaign):
            world.make(f"b/{name}", (made / name).read_bytes())
        world.init()
        self._taken: Taken = defaultdict(list)
        self._ways: dict[str, str] = {}
        self._site: World | None = None
        self._campaigns = 0

    def run(self, rounds: int) -> dict[str, Any]:
        """Measure; medians by what reads."""
        home = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
        extra = SITE.format(origin=self._world.direct("b/"))
        if has_routing():
            extra += CACHES.format(port=self._world.port)
        site = World(home, Options(nodes=1, cores=2, extra=extra))
        if has_routing():
            examples.install_far(home / "site" / "apps")
        site.start()
        self._site = site
        try:
            self._world.start()
            self._all(
                "warm_up", self._world.direct("")
            )  # the first pilot, and what programs read of the disk
            for number in range(rounds):
                passes = [self._direct, self._cached]
                for each in passes if number % 2 else reversed(passes):
                    each()
                self._world.stop()
        finally:
            site.stop()
            shutil.rmtree(home, ignore_errors=True)
        return self._result()

    def _direct(self) -> None:
        self._all("direct_s", self._world.direct(""))

    def _cached(self) -> None:
        """Two passes through an empty cache, then what routing chooses: the cache holds the files by then."""
        self._world.stop()
        done = self._world.tidemill("cache", "purge", str(self._world.directory), "--to", "0")
        assert done.returncode == 0, done.stderr
        self._world.start()
        for key in ("first_s", "second_s"):
            self._all(key, self._world.url(""))
        if has_routing():
            for what in PROGRAMS:
                self._taken[what, "routed_s"].append(self._campaign(what, "", routed=True))

    def _all(self, key: str, before: str) -> None:
        for what in PROGRAMS:
            self._taken[what, key].append(self._campaign(what, before, key=key))

    def _campaign(self, what: str, before: str, *, key: str = "routed_s", routed: bool = False) -> float:
        """What the payloads of a campaign report, together."""
        assert self._site is not None
        self._campaigns += 1
        name = f"c{self._campaigns}"
        start_s = time.monotonic()
        jobs = self._site.submit(
            name, *(self._job(what, each, before, routed) for each in getattr(self._files, what))
        )
        self._site.wait_campaign(name, JOB_S)
        wall_s = time.monotonic() - start_s
        found = []
        for job in jobs:
            detail = self._site.client.job(job)
            assert detail.row.state == "COMPLETED", (detail.row.reason, detail.failures, self._site.tails())
            (summary,) = [each for each in detail.outputs if each.name == "summary"]
            found.append(json.loads(Path(unquote(urlsplit(summary.url).path)).read_text()))
        if routed:
            self._ways[what] = ", ".join(sorted({self._way(each["input"]) for each in found}))
        if what == "campaign":
            self._taken["wall", key].append(wall_s)
        return sum(float(each["seconds"]) for each in found)

    def _job(self, what: str, name: str, before: str, routed: bool) -> JobSpec:
        program = PROGRAMS[what]
        if routed:
            url = self._world.direct(f"b/{name}")
            read: dict[str, Any] = {"read": "url"}
            return JobSpec(app=program, inputs=[Input(name="events", url=url, **read)], events=1)
        output = Output(name="summary", path=f"{program}.json", kind=OutputKind.CONCAT)
        command = [sys.executable, str(HERE / FAR[program]), f"{before}b/{name}"]
        return JobSpec(command=command, outputs=[output], events=1)

    def _way(self, where: str) -> str:
        if "://" not in where:
            return "stage"
        return "cache" if where.startswith(f"root://127.0.0.1:{self._world.port}/") else "direct"

    def _result(self) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {what: {} for what in PROGRAMS}
        self._taken = {each: values for each, values in self._taken.items() if each[1] != "warm_up"}
        for (what, key), values in self._taken.items():
            if what == "wall":
                found["campaign"].setdefault("wall_s", {})[key.removesuffix("_s")] = round(
                    statistics.median(values), 3
                )
            else:
                found[what][key] = round(statistics.median(values), 3)
        for what, each in found.items():
            each.setdefault("routed_s", None)
            each["routed_way"] = self._ways.get(what, "not measured: inputs cannot be URLs here")
            each["second_speedup"] = round(each["direct_s"] / max(0.001, each["second_s"]), 1)
            each["runs"] = {key: values for (of, key), values in self._taken.items() if of == what}
        return {**found["xrdcp"], **found}


def crowd(mb: int) -> dict[str, float]:
    """What the origin, 100 ms away, sends to many who read the same at a time."""
    with cache_world(rtt_ms=100.0) as world:
        world.make("one", os.urandom(mb * 1_000_000))
        for number in range(CROWD_FILES):
            world.make(f"d/{number}", os.urandom(CROWD_BYTES))
        world.init()
        world.start()
        before = world.sent()["down"]
        clients = [
            subprocess.Popen(
                ["xrdcp", "--silent", world.url("one"), "-"], env=world.client_environ, stdout=subprocess.DEVNULL
            )
            for _ in range(8)
        ]  # fmt: skip
        if any([each.wait() for each in clients]):
            raise SystemExit("a client failed")
        between = world.sent()["down"]
        began_s = time.monotonic()
        paths = [f"//{world.direct(f'd/{number % CROWD_FILES}')}" for number in range(READERS)]
        asyncio.run(read_together(world.port, paths, CROWD_BYTES))
        took_s = time.monotonic() - began_s
        after = world.sent()["down"]
    return {
        "clients_8_factor": round((between - before) / (mb * 1_000_000), 3),
        "readers_366_factor": round((after - between) / (CROWD_FILES * CROWD_BYTES), 3),
        "readers_366_s": round(took_s, 3),
    }


def main() -> int:
    """Print the table, or with --json the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--events", type=int, default=150)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as text:
        made = Path(text)
        files = make_files(made, args)
        result: dict[str, Any] = {}
        for name, rtt_ms in RTTS_MS.items():
            with cache_world(rtt_ms=rtt_ms) as world:
                result[name] = {"rtt_ms": rtt_ms, **Distance(world, made, files).run(args.rounds)}
    result["crowd"] = crowd(args.mb)
    result |= {
        "mb": args.mb,
        "rounds": args.rounds,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{'':6}{'':10}{'direct_s':>10}{'first_s':>10}{'second_s':>10}{'routed_s':>10}  routed")
    for name in RTTS_MS:
        for what in PROGRAMS:
            row = result[name][what]
            cells = "".join(
                f"{row[key] or 0:10.3f}" for key in ("direct_s", "first_s", "second_s", "routed_s")
            )
            print(f"{name:6}{what:10}{cells}  {row['routed_way']}")
    print(", ".join(f"{key} {value}" for key, value in result["crowd"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
