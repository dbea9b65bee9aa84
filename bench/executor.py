"""1,000 numpy calls and the latency of one: Executor, ProcessPoolExecutor, Parsl's HTEX, Dask distributed, in one run.

`bench/executor.py [--json] [--calls 1000] [--workers 2]`. The peers come from integrations/.venv
(scripts/integrations.sh), where this program runs itself. `cold`: the first batch, with the start of workers and their
imports; `warm`: the best of three more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / "integrations" / ".venv" / "bin" / "python"
ROUNDS = 3
SINGLE = 20


def norm(size: int) -> float:
    """A small numpy call."""
    import numpy

    return float(numpy.linalg.norm(numpy.arange(size)))


@contextmanager
def tidemill_pool(workers: int) -> Iterator[Callable[..., Future[Any]]]:
    """Executor on a home of its own, whose site runs already."""
    from tidemill import Executor

    with Executor(workers=workers) as pool:
        yield pool.submit


@contextmanager
def process_pool(workers: int) -> Iterator[Callable[..., Future[Any]]]:
    """The standard library's."""
    with ProcessPoolExecutor(workers) as pool:
        yield pool.submit


@contextmanager
def parsl_htex(workers: int) -> Iterator[Callable[..., Future[Any]]]:
    """Parsl's HighThroughputExecutor on this machine."""
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    executor = HighThroughputExecutor(
        label="htex", address="127.0.0.1", encrypted=False, max_workers_per_node=workers,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as directory,
        parsl.load(Config(executors=[executor], run_dir=directory, usage_tracking=0)),
    ):
        yield parsl.python_app(norm)


@contextmanager
def dask_cluster(workers: int) -> Iterator[Callable[..., Any]]:
    """Dask's LocalCluster of processes."""
    from dask.distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield lambda function, size: client.submit(function, size, pure=False)


POOLS = {
    "tidemill": tidemill_pool,
    "process_pool": process_pool,
    "parsl_htex": parsl_htex,
    "dask": dask_cluster,
}


def measured(name: str, *, calls: int, workers: int) -> dict[str, float]:
    """Seconds of a cold and a warm batch and of a single call."""

    def batch() -> float:
        began = time.monotonic()
        futures = [
            submit(size) if name == "parsl_htex" else submit(norm, size) for size in range(1, calls + 1)
        ]
        for each in futures:
            each.result()
        return time.monotonic() - began

    began = time.monotonic()
    with POOLS[name](workers) as submit:
        batch()
        cold = time.monotonic() - began
        warm = min(batch() for _ in range(ROUNDS))
        singles = []
        for _ in range(SINGLE):
            start = time.monotonic()
            (submit(9) if name == "parsl_htex" else submit(norm, 9)).result()
            singles.append(time.monotonic() - start)
    return {
        "cold_s": round(cold, 3),
        "warm_s": round(warm, 3),
        "one_call_ms": round(1e3 * statistics.median(singles), 2),
    }


def measure_all(*, calls: int, workers: int) -> dict[str, Any]:
    """All pools, one after the other."""
    found: dict[str, Any] = {"calls": calls, "workers": workers, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="tmb-") as home:
        os.environ["TIDEMILL_HOME"] = home
        os.environ["PATH"] = f"{PYTHON.parent}:{os.environ['PATH']}"  # Parsl starts programs by their names
        tidemill = [sys.executable, "-m", "tidemill.cli.main"]
        subprocess.run([*tidemill, "up", "--detach"], check=True, stdout=sys.stderr)
        try:
            for name in POOLS:
                found[name] = measured(name, calls=calls, workers=workers)
        finally:
            subprocess.run([*tidemill, "up", "--stop"], check=False, stdout=sys.stderr)
    found["warm_over_process_pool"] = round(found["tidemill"]["warm_s"] / found["process_pool"]["warm_s"], 2)
    return found


def main() -> int:
    """Run in the peers' environment and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if Path(sys.prefix) != PYTHON.parents[1]:
        subprocess.run([ROOT / "scripts" / "integrations.sh"], check=True, stdout=sys.stderr)
        return subprocess.run([PYTHON, __file__, *sys.argv[1:]], check=False).returncode
    found = measure_all(calls=args.calls, workers=args.workers)
    if args.json:
        print(json.dumps(found))
        return 0
    for name in POOLS:
        print(f"{name:14}", "  ".join(f"{key} {value}" for key, value in found[name].items()))
    print(f"tidemill warm / process_pool warm: {found['warm_over_process_pool']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
