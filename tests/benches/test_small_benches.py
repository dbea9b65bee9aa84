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
    "cache": "--mb 4 --rounds 1 --files 1 --events 20",
    "campaign_reads": "--jobs 100 --only attach run_resume results as_completed follow",
    "dispatch": "--only command --events 200",
    "harm": "--shape debug --days 1 --seeds 1 --replicas 1 --workers 1",
    "history": "--sqlite --campaigns 20 --jobs 2000",
    "hospital": "--jobs 100 --only sqlite",
    "image": "--starts 1 --only direct",
    "io_budget": "--starts 4 --nodes 1 --cores 2 --only with",
    "lead": "--connections 10 --seconds 1 --rate 100 --journals 10",
    "nodes": "--seconds 5",
    "rates": "--seconds 20 --interval 5",
    "report": "--jobs 5000",
    "stage": "--mb 4 --ranks 2",
    "store": "--jobs 100 --only sqlite",
    "stress": "--seeds 1 --time-scale 0",
    "submit": "--jobs 100",
    "trace": "--rounds 1 --seconds 0 --seconds-max 1 --only threads",
    "transfer": "--mb 4 --rounds 1 --schemes file",
    "two_checkouts": f"{BENCH.parent} --events 50 --rounds 2",
    "worst": "--seconds 2",
    "worst_owner": "--rounds 1 --jobs 1 --kinds 403",
}

#: Why a bench does not run here.
NOT_HERE = {
    "executor": "its peers Parsl and Dask are not in this environment: integrations/tests runs it",
    "first_hour": "makes a cluster of its own: an hour",
    "pages": "asks for each page of a server six times, however few its jobs: minutes",
    "profile_variables": "makes a cluster of its own: minutes for each variable",
    "slurm_harvest": "makes a cluster of its own: 40 minutes",
    "stress_scan": "judges levels that it holds for minutes",
    "workloads": "prints no JSON; harm makes its logs with it",
}


def test_each_bench_runs_small_or_says_why_not() -> None:
    programs = {path.stem for path in BENCH.glob("*.py") if '"__main__"' in path.read_text()}
    assert programs == {*SMALLEST, *NOT_HERE}


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
