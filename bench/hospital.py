"""What does the hospital cost at a million queued jobs? Prints one JSON object with `sqlite` and `postgresql`.

    bench/hospital.py --json [--jobs N] [--only sqlite|postgresql]

Jobs of one home in 10 campaigns, half of them with far data, two wards (`home_down`, and `waited_s` of a day), two
sites. All figures are of the server's transactions, without the network; `_cpu_ms` per transaction in this process,
`_ms` the slowest on the clock: a sync waits up to that time.

quiet      a round while the home is up and nothing is due: what the server pays every few seconds
stuck      a round while the home is down, and no site of a ward is there
admit      rounds that admit every job once the home is down; `admit_per_cpu_s` jobs
sync       syncs of a treating site that lease 5,000 jobs of the ward each
back       rounds that send home what is left, once the home is back
plans      how the database reads the queue: `index` is the name of the index
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.config.hospital import Ward, WardCure
from tidemill.model.job import Input, JobSpec
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database.store import Store
from tidemill.wire.api import AppOffer, Capacity, SubmitRequest, SyncReply, SyncRequest

SCRIPT = Path(__file__).parent.parent / "scripts" / "postgresql.sh"
BATCH, CAMPAIGNS, RANGES, SYNCS = 10_000, 10, 5_000, 5
LOST_S = 600.0
WARDS = (
    Ward(name="down", home_down=True, sites=["away"], cure=WardCure(read="cache")),
    Ward(name="waited", waited_s=86_400, sites=["away"]),
)
PLAN = (
    "SELECT id FROM jobs WHERE ready = 1 AND kind = 1 AND place = 1 AND (rank, id) > (0, 0) "
    "ORDER BY rank, id LIMIT 500"
)


class Bench:
    """A dispatcher with a clock that jumps."""

    def __init__(self, store: Store) -> None:
        self.now_s = 0.0
        rules = DispatchRules(site_lost_s=LOST_S, wards=WARDS)
        timed = ServerClock(monotonic_s=lambda: self.now_s)
        self.dispatcher = Dispatcher(store, rules, server_clock=timed)
        self._have: dict[str, int] = {}

    def submit(self, jobs: int) -> None:
        far = [Input(name="in", url="root://origin.example.org//store/run7/f.root")]
        specs = [JobSpec(app="sim", home="home", inputs=far if number % 2 else []) for number in range(BATCH)]
        for number in range(-(-jobs // BATCH)):
            request = SubmitRequest(
                key=f"k{number}", campaign=f"c{number % CAMPAIGNS}", jobs=specs[: jobs - number * BATCH]
            )
            self.dispatcher.handle_submit(request)

    def sync(self, name: str, ranges: int = 0) -> SyncReply:
        offer = AppOffer(
            name="sim", version="1", digest="", mode="command", parameters={}, outputs=[], cores=1, memory_mb=100,
            event_s=1.0,
        )  # fmt: skip
        capacity = Capacity(
            want_core_s=1e9 if ranges else 0.0, want_ranges_max=ranges, slot_cores_max=4, slot_memory_mb_max=4000,
            devices={}, event_s={}, nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        request = SyncRequest(
            site=name, epoch=1, host="h", version="1", reports=[], have=self._have.get(name, 0), offers=[offer],
            capacity=capacity,
        )  # fmt: skip
        reply = self.dispatcher.handle_sync(request)
        self._have[name] = max([self._have.get(name, 0), *(order.n for order in reply.orders)])
        return reply

    def silence(self, *heard: str) -> None:
        """The sites that are not heard are lost."""
        self.now_s += LOST_S + 100
        for each in heard:
            self.sync(each)
        self.dispatcher.check_sites()


def measured(act: Callable[[], bool]) -> dict[str, float]:
    """Call it until it returns False."""
    times, began = [], time.process_time()
    while True:
        at_s = time.monotonic()
        more = act()
        times.append(time.monotonic() - at_s)
        if not more:
            break
    cpu_s = time.process_time() - began
    return {
        "transactions": len(times), "cpu_ms": round(1000 * cpu_s / len(times), 2), "ms": round(1000 * max(times), 1),
        "cpu_s": round(cpu_s, 3),
    }  # fmt: skip


def measure(store: Store, jobs: int) -> dict[str, Any]:
    """All figures of one database."""
    store.init()
    bench = Bench(store)
    for name in ("home", "away"):
        bench.sync(name)
    bench.submit(jobs)
    bench.dispatcher.check_hospital()
    found: dict[str, Any] = {"jobs": jobs}

    def a_round() -> bool:
        return bench.dispatcher.check_hospital().more

    found["quiet"] = measured(a_round)
    bench.silence()
    found["stuck"] = measured(a_round)
    bench.silence("away")
    found["admit"] = measured(a_round)
    found["admit_per_cpu_s"] = round(jobs / found["admit"]["cpu_s"])
    left = iter(range(SYNCS))
    leased: list[int] = []

    def a_sync() -> bool:
        leased.append(len(bench.sync("away", RANGES).orders))
        return next(left, SYNCS - 1) < SYNCS - 1

    found["sync"] = measured(a_sync)
    found["leased"] = sum(leased)
    bench.sync("home")
    found["back"] = measured(a_round)
    found["plans"] = plans(store)
    bench.dispatcher.close()
    return found


def plans(store: Store) -> str:
    """The plan of the scan that admits."""
    session: Any = store.reader()
    words = "EXPLAIN QUERY PLAN" if store.dialect.value == "sqlite" else "EXPLAIN"
    try:
        return " | ".join(
            str(row[-1]).strip() for row in session._connection.execute(f"{words} {PLAN}").fetchall()
        )
    finally:
        session.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON (it always does)")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        if options.only != "postgresql":
            result["sqlite"] = measure(Store(path=Path(folder) / "t.db"), options.jobs)
        if options.only != "sqlite":
            started = subprocess.run(
                [SCRIPT, "start", f"{folder}/d"], capture_output=True, text=True, check=True
            )
            try:
                result["postgresql"] = measure(Store(url=started.stdout.strip()), options.jobs)
            finally:
                subprocess.run([SCRIPT, "stop", f"{folder}/d"], check=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
