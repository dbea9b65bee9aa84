"""Benches run to their ends with their smallest arguments and print JSON. What they measure is not judged here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
END_S = 300.0  #: later it hangs

SMALLEST = {
    "accounting": "--rows 1000",
    "campaign_reads": "--jobs 100 --only attach run_resume results as_completed follow",
    "harm": "--shape debug --days 1 --seeds 1 --replicas 1 --workers 1",
    "history": "--sqlite --campaigns 20 --jobs 2000",
    "hospital": "--jobs 100 --only sqlite",
    "io_budget": "--starts 4 --nodes 1 --cores 2 --only with",
    "lead": "--connections 10 --seconds 1 --rate 100 --journals 10",
    "report": "--jobs 5000",
    "store": "--jobs 100 --only sqlite",
    "submit": "--jobs 100",
    "worst": "--seconds 2",
}


@pytest.mark.parametrize("name", sorted(SMALLEST))
def test_a_bench_runs_small_and_prints_json(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / f"{name}.py"), "--json", *SMALLEST[name].split()]
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        ) as bench,
    ):
        try:
            printed, _ = bench.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            os.killpg(bench.pid, signal.SIGKILL)
            raise
    assert bench.returncode == 0, (tmp_path / "errors").read_text(errors="replace")
    assert json.loads(printed)
