"""The bench of the Executor runs small beside its peers. What it measures is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "executor.py"
END_S = 300.0  #: later it hangs


def test_the_bench_runs_small_with_every_peer() -> None:
    command = [sys.executable, str(BENCH), "--json", "--calls", "10"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {"tidemill", "process_pool", "parsl_htex", "dask"} <= figures.keys()
