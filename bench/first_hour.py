"""What does a newcomer meet in the first hour on an ordinary cluster? `python bench/first_hour.py --json`. Needs root.

The cluster is that of `scripts/ordinary.sh`: six shared nodes of eight cores, two of them with GPUs, and another user's
jobs of five cores. Its nodes are this machine, so seconds hold for this machine; payloads sleep. The site is as
`tidemill site init` writes it: all polls and pauses are the defaults. Printed, each with what was counted:

first        two nodes without GPUs are idle. Commands, and seconds from the first one to the first result: the offline
             file (made and copied beforehand), PATH, `site init --enable` with its probe, `run --events 8`
spread       200 events of 5 to 20 s, three nodes without GPUs are idle: seconds from `run` until Slurm runs an
             allocation on each of them; the most GPUs that any allocation held
outputs      of the same campaign: seconds from the end of the first event (its file has the time) to the first file
harm         bob's jobs need nodes that Tidemill holds: the sum of `site harm` with its bounds, and the sum of all waits
             of his jobs in sacct
core_hours   `tidemill report` against sacct, of all allocations
limit        the partition's limit is lowered under allocations that wait: polls and seconds until Slurm has one within

    python bench/first_hour.py [--json] [--offline FILE] [--keep]

FILE: an offline file of `make bundle`. Without it the bench makes one for this machine's architecture alone, which
takes the network and some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.worlds.batch.newcomer import settings  # noqa: E402
from tests.worlds.batch.ordinary_cluster import ADA, CPU_NODES, GPU_NODES, LICENSE, LICENSES, OrdinaryCluster  # noqa: E402

from tidemill.batch.slurm.times import parse_span  # noqa: E402

WAIT_S = 300.0
SAMPLE_S = 0.5
EVENTS = 200
LOWERED_MIN = 20
INSTALLED = ".local/share/tidemill/bin"
EVENT = "sleep $((5 + {event} % 16)); date +%s.%N > n-{event}"


class Ada:
    """A person with an account, at the shell of the login node."""

    def __init__(self, cluster: OrdinaryCluster) -> None:
        self.cluster = cluster
        self.home = cluster.directory / "home" / "ada"
        self.words = [
            str(ROOT / "scripts" / "ordinary.sh"), "enter", str(cluster.directory), "ada",
            "env", "-i", f"HOME={self.home}", f"SLURM_CONF={cluster.conf}", "LANG=C.UTF-8",
            f"PATH={self.home / INSTALLED}:/usr/bin:/bin",
        ]  # fmt: skip

    def shell(self, line: str) -> str:
        """What a line prints; the bench ends if it fails."""
        done = subprocess.run(
            [*self.words, "bash", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"`{line}` ends with status {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def beside(self, line: str) -> subprocess.Popen[bytes]:
        """A line that goes on beside the bench."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen([*self.words, "bash", "-c", line], stdin=quiet, stdout=quiet, stderr=quiet)

    def data(self, words: str) -> Any:
        """What `tidemill WORDS --json` prints."""
        return json.loads(self.shell(f"tidemill {words} --json"))

    def stop(self) -> None:
        """End Tidemill, and wait until Slurm has all nodes back."""
        self.shell("tidemill up --stop")
        until(lambda: not self.cluster.allocations(), "allocations end")


def until(done: Callable[[], Any], what: str) -> float:
    """Ask until it is so; seconds that it took. The bench ends when it does not come."""
    began_s = time.monotonic()
    while not done():
        if time.monotonic() - began_s > WAIT_S:
            raise SystemExit(f"waited {WAIT_S:g} s in vain: {what}")
        time.sleep(SAMPLE_S)
    return time.monotonic() - began_s


def offline_file(folder: Path) -> Path:
    """Make the file as `make bundle` does, with this machine's `tidemill-node` only."""
    uv, maturin = ROOT / ".uv" / "venv" / "bin" / "uv", Path(sys.executable).with_name("maturin")
    node, out = ROOT / "crates" / "tidemill-node", str(folder)
    extensions = sorted(path.parent.name for path in ROOT.glob("extensions/*/pyproject.toml"))
    packages = ["tidemill", *(f"tidemill-{name}" for name in extensions)]
    steps: list[tuple[Path, list[str]]] = [
        *(
            (ROOT, [str(uv), "build", "--quiet", "--wheel", "--package", each, "--out-dir", out])
            for each in packages
        ),
        (node, [str(maturin), "build", "--quiet", "--release", "--locked", "--out", out]),
        (ROOT, [sys.executable, "scripts/bundle.py", out, out]),
    ]
    for where, command in steps:
        subprocess.run(command, cwd=where, check=True, stdout=subprocess.DEVNULL)
    (made,) = folder.glob("tidemill-*-offline.sh")
    return made


def first_result(ada: Ada, file: Path) -> dict[str, Any]:
    """From the offline file to the first result."""
    ada.cluster.regular("n1", "n2", *GPU_NODES)
    shutil.copy(file, ada.home / file.name)
    os.chown(ada.home / file.name, ADA, ADA)
    lines = (
        f"sh {file.name}",
        f"export PATH=$HOME/{INSTALLED}:$PATH",
        "tidemill site init --enable",
        "tidemill run --events 8 --name first -- hostname",
    )
    began_s, ends = time.monotonic(), {}
    for line in lines:
        at_s = time.monotonic()
        ada.shell(line)
        ends[line] = round(time.monotonic() - at_s, 1)
    seconds = time.monotonic() - began_s
    return {"commands": len(lines), "seconds": round(seconds, 1), "seconds_of": ends}


def spread(ada: Ada) -> tuple[dict[str, Any], dict[str, Any]]:
    """A campaign on three idle nodes without GPUs, and one with: nodes, GPUs, first output."""
    ada.stop()
    ada.cluster.regular("n1", "g2")
    idle = set(CPU_NODES) - {"n1"}
    known = {row["JobID"] for row in ada.cluster.accounted("ada")}
    folder = ada.home / "tidemill-out" / "prod"
    began_s = time.monotonic()
    process = ada.beside(
        f"tidemill run --events {EVENTS} --name prod --output 'n-{{event}}' -- sh -c '{EVENT}'"
    )
    nodes: set[str] = set()
    used_s: float | None = None
    file_at: float | None = None
    while process.poll() is None and time.monotonic() - began_s < WAIT_S:
        nodes |= {each["node"] for each in ada.cluster.allocations("R")}
        if used_s is None and idle <= nodes:
            used_s = time.monotonic() - began_s
        if file_at is None and any(folder.rglob("n-*")):
            file_at = time.time()
        time.sleep(SAMPLE_S)
    campaign_s = time.monotonic() - began_s
    ada.stop()
    ends = [float(path.read_text()) for path in folder.rglob("n-*")]
    rows = [row for row in ada.cluster.accounted("ada") if row["JobID"] not in known]
    file_s = round(file_at - min(ends), 1) if file_at is not None and ends else None
    spread_found = {
        "events": EVENTS,
        "all_idle_plain_nodes_in_use_s": None if used_s is None else round(used_s, 1),
        "nodes": sorted(nodes),
        "gpus_held_max": max((gpus_of(row) for row in rows), default=0),
        "campaign_s": round(campaign_s, 1),
    }
    return spread_found, {"first_file_after_first_end_s": file_s, "files": len(ends)}


def gpus_of(row: dict[str, str]) -> int:
    """GPUs that sacct says an allocation held."""
    held = dict(part.split("=") for part in row["AllocTRES"].split(",") if part)
    return int(held.get("gres/gpu", 0))


def lowered_limit(ada: Ada) -> dict[str, Any]:
    """Allocations wait for a license; staff lower the limit below what they asked for."""
    file = ada.home / ".local" / "state" / "tidemill" / "site" / "site.toml"
    kept = file.read_text()
    file.write_text(settings(kept, cluster=f'directives = ["--licenses={LICENSE}"]'))
    ada.cluster.take_licenses()
    process = ada.beside("tidemill run --events 400 --name limit -- sleep 10")
    until(lambda: ada.cluster.allocations("PD"), "allocations wait for the license")
    polls = {polled_us(ada)}
    ada.cluster.limit("short", str(LOWERED_MIN))
    before = {each["id"] for each in ada.cluster.allocations()}

    def within() -> bool:
        polls.add(polled_us(ada))
        asked = [each["limit"] for each in ada.cluster.allocations("PD") if each["id"] not in before]
        return any((parse_span(limit) or float("inf")) <= LOWERED_MIN * 60 for limit in asked)

    seconds = until(within, "one is asked for within the new limit")
    process.kill()
    ada.shell("tidemill job cancel --campaign limit")
    ada.stop()
    ada.cluster.limit("short", "02:00:00")
    ada.cluster.run("scancel", "-n", "licensed")
    file.write_text(kept)
    return {"polls": len(polls) - 1, "seconds": round(seconds, 1)}


def polled_us(ada: Ada) -> int:
    """When the site last asked Slurm."""
    polled_s: float = ada.data("site status")["metrics"]["tidemill_batch_polled_time_seconds"][0][1]
    return int(polled_s * 1e6)


def harm(ada: Ada) -> dict[str, Any]:
    """bob wants all nodes, twice, while Tidemill has those that were idle."""
    known = {row["JobID"] for row in ada.cluster.accounted("bob")}
    began_s = time.monotonic()
    ada.cluster.regular("n1")
    process = ada.beside("tidemill run --events 5000 --name much -- sleep 2")
    for number in (3, 5):
        until(lambda: len(ada.cluster.allocations("R")) >= 3, "Tidemill holds nodes")
        ada.cluster.regular("n1", str(number))
        time.sleep(60)  # two polls, so that the site sees who has started
        ada.cluster.regular("n1")
    process.kill()
    found = ada.data(f"site harm --since {time.monotonic() - began_s:.0f}s")
    ada.shell("tidemill job cancel --campaign much")
    ada.stop()
    rows = [
        row for row in ada.cluster.accounted("bob") if row["JobID"] not in known and row["Start"][0].isdigit()
    ]
    waits = [
        (datetime.fromisoformat(row["Start"]) - datetime.fromisoformat(row["Submit"])).total_seconds()
        for row in rows
    ]
    totals = found["totals"]
    return {
        "said_s": round(totals["share_s"], 1),
        "said_low_s": round(totals["share_low_s"], 1),
        "said_high_s": round(totals["share_high_s"], 1),
        "all_waits_s": sum(waits),
        "regular_jobs": len(waits),
    }


def core_hours(ada: Ada) -> dict[str, Any]:
    """Both sides of all allocations of Tidemill that held a node, the probe apart."""
    ada.shell("tidemill up --detach")
    rows = [row for row in ada.cluster.accounted("ada") if row["JobName"].startswith("tm-")]
    theirs = {
        row["JobID"]: int(row["ElapsedRaw"]) * int(row["NCPUS"]) for row in rows if int(row["ElapsedRaw"])
    }

    def ours() -> dict[str, float]:
        found = ada.data("report")["core_hours"]["allocations"]
        return {row["batch_id"]: row["held_core_us"] / 1e6 for row in found if row["elapsed_us"]}

    time.sleep(5)  # what the last agent had not sent
    said = ours()
    both = said.keys() & theirs.keys()
    said_s, sacct_s = sum(said.values()), sum(theirs[each] for each in both)
    only = sum(theirs[each] for each in theirs.keys() - both)
    ada.stop()
    return {
        "report_core_h": round(said_s / 3600, 4),
        "sacct_core_h": round(sacct_s / 3600, 4),
        "difference": round(said_s / sacct_s - 1, 5) if sacct_s else None,
        "allocations": len(both),
        "only_in_sacct_core_h": round(only / 3600, 4),
    }


def measured(cluster: OrdinaryCluster, file: Path) -> dict[str, Any]:
    """All figures, one after the other."""
    ada = Ada(cluster)
    found: dict[str, Any] = {"bench": "first_hour", "load_at_start": os.getloadavg()[0]}
    found["first"] = first_result(ada, file)
    print(found["first"], file=sys.stderr)
    found["spread"], found["outputs"] = spread(ada)
    print(found["spread"], found["outputs"], file=sys.stderr)
    found["harm"] = harm(ada)
    print(found["harm"], file=sys.stderr)
    found["core_hours"] = core_hours(ada)
    print(found["core_hours"], file=sys.stderr)
    found["limit"] = lowered_limit(ada)
    return found


def main() -> int:
    """Start the cluster, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--offline", type=Path, metavar="FILE", help="an offline file (default: make one)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, and say where")
    args = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = args.offline or offline_file(Path(folder))
        cluster = OrdinaryCluster("--line", f"Licenses={LICENSE}:{LICENSES}")
        try:
            found = measured(cluster, file) | {"seconds": round(time.monotonic() - began_s, 1)}
        finally:
            if args.keep:
                print(f"the cluster is in {cluster.directory}", file=sys.stderr)
            else:
                cluster.stop()
    if args.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:<14} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
