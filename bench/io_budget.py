"""Does a campaign keep to the metadata operations, or to the bytes, that a centre allows? Prints one JSON object.

    bench/io_budget.py --json [--starts 300] [--nodes 4] [--cores 4] [--budget 2000] [--only with|without]
                       [--of ops|bytes] [--file-bytes 20000000]

A whole Tidemill (server, agent, lead, pilots of the local batch system) runs a campaign that starts a Python payload
`--starts` times. Its interpreter and libraries lie on a slow shared file system (bench/slowfs) behind search paths with
dead entries. The cost of one start is measured beforehand and stated in the application's file. `with` a budget in
`[[io]]` of site.toml, and `without`: `worst_10s` = the highest rate of metadata requests that the server counted over
any 10 s, divided by the budget; `mean_use` = the mean rate from first to last request, divided by the budget (a low one
would be needlessly slow), `wall_s` = from submitting to the end, `ops_per_start`. Runs as root or as an ordinary user,
in namespaces of its own.

`--of bytes`: payloads read a file of that file system, past the page cache, and the budget (default: 200 MB/s) is one
of bytes; the bench reads ten times a second how many bytes the server has handed out.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pilots import SITE, application, run_starts
from bench.slowfs import mount
from bench.slowfs.mount import SlowFs, slowfs
from bench.software import PYTHON, copy_interpreter, make_dead_entries
from tests.worlds.home.world import world

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
{kind}_per_s = {budget}
"""
LOOK_S = 0.1


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


class Looks:
    """What the server had handed out, and when."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.bytes: list[int] = []

    def look(self, shared: SlowFs) -> None:
        self.bytes.append(shared.reading().read_bytes)
        self.at_s.append(time.monotonic())

    def worst_per_s(self, window_s: float) -> float:
        """The highest rate over any window between two readings."""
        worst = 0
        for first, at_s in enumerate(self.at_s):
            last = bisect.bisect_right(self.at_s, at_s + window_s) - 1
            worst = max(worst, self.bytes[last] - self.bytes[first])
        return worst / window_s

    def mean_per_s(self) -> float:
        """From the first byte to the last."""
        first = bisect.bisect_right(self.bytes, self.bytes[0]) - 1
        last = bisect.bisect_left(self.bytes, self.bytes[-1])
        return (self.bytes[-1] - self.bytes[0]) / max(LOOK_S, self.at_s[last] - self.at_s[first])


@contextlib.contextmanager
def looking(shared: SlowFs) -> Iterator[Looks]:
    """Look at the counters until the end."""
    looks, ended = Looks(), threading.Event()

    def look_on() -> None:
        while not ended.wait(LOOK_S):
            looks.look(shared)

    looks.look(shared)
    thread = threading.Thread(target=look_on)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()
        looks.look(shared)


def campaign(arguments: argparse.Namespace, source: Path, *, budget: float | None) -> dict[str, Any]:
    """One campaign on a file system that was mounted for it."""
    area = AREA / "sw"
    area.mkdir(exist_ok=True)
    extra = SITE
    if budget is not None:
        extra += IO.format(area=area, kind=arguments.of, budget=budget)
    is_bytes = arguments.of == "bytes"
    with slowfs(source, area) as shared:
        cost = arguments.file_bytes if is_bytes else cost_of_a_start(shared)
        text = reading_application(area, cost) if is_bytes else starting_application(area, cost)
        with world(nodes=arguments.nodes, cores=arguments.cores, extra=extra) as it, looking(shared) as looks:
            ran = run_starts(it, shared, text, arguments.starts)
    if is_bytes:
        read = ran.used.read_bytes
        counted = {"bytes": read, "bytes_per_start": round(read / arguments.starts)}
        rates = looks.worst_per_s(WINDOW_S), looks.worst_per_s(1.0), looks.mean_per_s()
    else:
        counted = {"ops": ran.used.ops, "ops_per_start": round(ran.used.ops / arguments.starts, 1)}
        rates = rates_of(ran.bins, ran.bin_s)
    worst, worst_1s, mean = (round(rate / arguments.budget, 3) for rate in rates)
    found = {f"start_{arguments.of}": cost, **counted, "wall_s": round(ran.wall_s, 1)}
    return {**found, "worst_10s": worst, "worst_1s": worst_1s, "mean_use": mean}


def starting_application(area: Path, cost: int) -> str:
    command = [str(area / "bin" / PYTHON), str(area / "payload.py")]
    return application(command, environment(area), more=f"start_ops = {{ sw = {cost} }}")


def reading_application(area: Path, cost: int) -> str:
    """One that reads past the page cache."""
    command = ["/bin/dd", f"if={area}/data", "of=/dev/null", "bs=1M", "iflag=direct", "status=none"]
    return application(command, {}, more=f'start_bytes = {{ sw = "{cost}B" }}')


def rates_of(busy: list[int], bin_s: float) -> tuple[float, float, float]:
    """Of metadata requests: the highest over 10 s and over 1 s, the mean from the first to the last."""
    active = [at for at, count in enumerate(busy) if count]
    span = busy[active[0] : active[-1] + 1] if active else []
    worst = [mount.worst_per_s(busy, bin_s=bin_s, window_s=window_s) for window_s in (WINDOW_S, 1.0)]
    return worst[0], worst[1], sum(span) / max(bin_s, len(span) * bin_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON (the only way)")
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cores", type=int, default=4, help="of each emulated node: payloads at once")
    parser.add_argument("--of", choices=("ops", "bytes"), default="ops", help="what the budget bounds")
    parser.add_argument("--budget", type=float, help="per second (default: 2000 operations or 200e6 bytes)")
    parser.add_argument(
        "--file-bytes", type=int, default=20_000_000, help="what a start reads with --of bytes"
    )
    parser.add_argument("--only", choices=("with", "without"))
    arguments = parser.parse_args()
    if arguments.budget is None:
        arguments.budget = 200e6 if arguments.of == "bytes" else 2000.0
    if why := mount.missing():
        raise SystemExit(f"cannot measure: {why}")
    mount.private()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tm-bench", AREA], check=True)
    source = AREA / "source"
    if arguments.of == "bytes":
        source.mkdir()
        (source / "data").write_bytes(os.urandom(1 << 20) * (arguments.file_bytes // (1 << 20) + 1))
        os.truncate(source / "data", arguments.file_bytes)
    else:
        make_software(source)
    found: dict[str, Any] = {"starts": arguments.starts, "of": arguments.of, "budget_per_s": arguments.budget}
    found |= {"nodes": arguments.nodes, "cores": arguments.cores, "user": os.geteuid()}
    if arguments.only != "without":
        found["with"] = campaign(arguments, source, budget=arguments.budget)
    if arguments.only != "with":
        found["without"] = campaign(arguments, source, budget=None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
