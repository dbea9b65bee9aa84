"""Does a campaign keep to the metadata operations that a centre allows? Prints one JSON object.

    bench/io_budget.py --json [--starts 300] [--nodes 4] [--cores 4] [--budget 2000] [--only with|without]

A whole Tidemill (server, agent, lead, pilots of the local batch system) runs a campaign of so many starts of a Python
payload, whose interpreter and libraries lie on a slow shared file system (bench/slowfs) behind search paths with dead
entries. What one start costs is measured beforehand and told in the application's file. `with` a budget in
`[[io]]` of site.toml, and `without`: `worst_10s` = the highest rate of metadata requests that the server counted over
any 10 s, divided by the budget; `mean_use` = the mean rate from first to last request, divided by the budget (a low one
would be needlessly slow), `wall_s` = from submitting to the end, `ops_per_start`. Runs as root or as an ordinary user,
in namespaces of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pilots import SITE, application, run_starts
from bench.slowfs import mount
from bench.slowfs.mount import SlowFs, slowfs
from bench.software import PYTHON, copy_interpreter, make_dead_entries
from tests.fault.world import world

AREA = Path("/mnt")
"""Where the software is shown, in our own mount namespace: payloads do not see our /tmp."""

DEAD_ENTRIES = 10
WINDOW_S = 10.0
PAYLOAD = """
import argparse, csv, decimal, email.message, http.client, json, logging, statistics, sqlite3, unittest, xml.dom.minidom
print(json.dumps(str(decimal.Decimal(1) / 7)))
"""

IO = """[[io]]
name = "sw"
prefixes = ["{area}"]
ops_per_s = {budget}
"""


def make_software(top: Path) -> None:
    """An interpreter with its standard library, a payload, and directories that search paths name in vain."""
    copy_interpreter(top)
    make_dead_entries(top, DEAD_ENTRIES)
    (top / "payload.py").write_text(PAYLOAD)


def environment(top: Path) -> dict[str, str]:
    dead = [top / "external" / f"package{number}" for number in range(DEAD_ENTRIES)]
    return {
        "LD_LIBRARY_PATH": ":".join([*(f"{each}/lib" for each in dead), f"{top}/lib"]),
        "PYTHONPATH": ":".join(f"{each}/python" for each in dead),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def cost_of_a_start(shared: SlowFs, starts: int = 4) -> int:
    """Requests of one start on a node that has seen the software before."""
    top = shared.mount
    command = [str(top / "bin" / PYTHON), str(top / "payload.py")]
    for count in (1, starts):
        before = shared.reading()
        for _ in range(count):
            subprocess.run(command, env=environment(top), check=True, capture_output=True, cwd="/")
    return (shared.reading() - before).ops // starts


def campaign(arguments: argparse.Namespace, source: Path, *, budget: float | None) -> dict[str, Any]:
    """One campaign on a file system that was mounted for it."""
    area = AREA / "sw"
    area.mkdir(exist_ok=True)
    extra = SITE if budget is None else SITE + IO.format(area=area, budget=budget)
    with slowfs(source, area) as shared:
        cost = cost_of_a_start(shared)
        command = [str(area / "bin" / PYTHON), str(area / "payload.py")]
        text = application(command, environment(area), more=f"start_ops = {{ sw = {cost} }}")
        with world(nodes=arguments.nodes, cores=arguments.cores, extra=extra) as it:
            ran = run_starts(it, shared, text, arguments.starts)
    busy, bin_s = ran.bins, ran.bin_s
    active = [at for at, count in enumerate(busy) if count]
    span = busy[active[0] : active[-1] + 1] if active else []
    worst = mount.worst_per_s(busy, bin_s=bin_s, window_s=WINDOW_S)
    return {
        "start_ops": cost,
        "ops": ran.used.ops,
        "ops_per_start": round(ran.used.ops / arguments.starts, 1),
        "wall_s": round(ran.wall_s, 1),
        "worst_10s": round(worst / arguments.budget, 3),
        "worst_1s": round(mount.worst_per_s(busy, bin_s=bin_s, window_s=1.0) / arguments.budget, 3),
        "mean_use": round(sum(span) / max(bin_s, len(span) * bin_s) / arguments.budget, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON (the only way)")
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cores", type=int, default=4, help="of each emulated node: payloads at once")
    parser.add_argument("--budget", type=float, default=2000.0, help="metadata operations per second")
    parser.add_argument("--only", choices=("with", "without"))
    arguments = parser.parse_args()
    if why := mount.missing():
        raise SystemExit(f"cannot measure: {why}")
    mount.private()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tm-bench", AREA], check=True)
    source = AREA / "source"
    make_software(source)
    found: dict[str, Any] = {"starts": arguments.starts, "budget_per_s": arguments.budget}
    found |= {"nodes": arguments.nodes, "cores": arguments.cores, "user": os.geteuid()}
    if arguments.only != "without":
        found["with"] = campaign(arguments, source, budget=arguments.budget)
    if arguments.only != "with":
        found["without"] = campaign(arguments, source, budget=None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
