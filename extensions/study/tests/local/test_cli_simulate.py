"""`tidemill simulate` from the command line: the JSON document that others rely on, and errors."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the verb."""
    command = [sys.executable, "-m", "tidemill.cli.main", "simulate", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten days of a machine of 256 nodes, three quarters busy, in the Standard Workload Format 2.2."""
    chance = Random(7)
    lines = ["; Version: 2.2", "; MaxNodes: 256", "; MaxProcs: 256"]
    submit = 0
    for number in range(1, 901):
        submit += int(chance.expovariate(1 / 960))
        width = 2 ** chance.randint(0, 7)
        run = int(chance.uniform(600, 9000))
        asked = int(run * chance.uniform(1.1, 3))
        lines.append(f"{number} {submit} 0 {run} {width} -1 -1 {width} {asked} -1 1 1 1 1 1 1 -1 -1")
    path = tmp_path_factory.mktemp("log") / "made.swf.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_the_json_document_holds_every_figure_of_each_policy(log: Path, tmp_path: Path) -> None:
    plot = tmp_path / "tide.svg"

    done = simulate(
        *(str(log), "--policy", "yield", "--policy", "titan", "--seeds", "2", "--replicas", "2", "--json"),
        *("--plot", str(plot)),
    )

    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["nodes"], report["seeds"], report["parameters"]["event_s"]) == (256, 2, 300)
    assert list(report["policies"]) == ["yield", "titan"]
    for each in report["policies"].values():
        assert 0 < each["useful"] <= each["occupied"] <= 1.2
        assert set(each["wait_change"]) == {"mean", "low", "high"}
        nodes = [size["nodes"] for size in each["by_size"]]
        assert nodes == sorted(nodes)
        assert sum(size["jobs"] for size in each["by_size"]) == 900
        assert all("wait_change" in size for size in each["by_size"])
        assert each["by_size"][-1]["bound"] == {"change": 0.01, "delay_s": None}  # 65 to 128 of 256 nodes
        for name in ("by_length", "by_limit"):
            assert sum(length["jobs"] for length in each[name]) == 900
        assert each["by_size_and_length"]
        assert {size["verdict"] for size in each["by_size"]} <= {"kept", "broken", "unsure"}
        assert set(each["promise"]) == {"verdict", "mean", "broken", "unsure"}
        assert set(each["delay_s"]) == {"mean", "low", "high"}
        assert each["starts_per_h"] > 0
        assert each["cancels_per_h"] >= 0
        assert 0 < each["idle_share"] < 1
        assert each["seconds"] > 0
    assert report["policies"]["yield"]["useful"] > 0.85
    assert plot.read_text().startswith("<svg")


def test_without_json_it_prints_tables(log: Path) -> None:
    done = simulate(str(log), "--seeds", "1", "--replicas", "1", "--width-min", "8", "--jobs-max", "20")

    assert done.returncode == 0, done.stderr
    assert "USEFUL" in done.stdout
    assert "run 1 h to 6 h" in done.stdout
    assert (
        "yield: promise not sure; the promise is: no class waits more than 2 %" in done.stdout
    )  # of a single pair nothing is sure
    assert "900 jobs on 256 nodes (MaxNodes of the header)" in done.stderr


def test_a_log_without_submissions_gets_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    rows = [
        f"{k}|2026-10-{1 + k // 24:02d}T{k % 24:02d}:00:00|2026-10-{1 + k // 24:02d}T{k % 24:02d}:50:00|2"
        for k in range(400)
    ]
    path.write_text("\n".join(["JobID|Start|End|NNodes", *rows, ""]))

    done = simulate(str(path), "--seeds", "2", "--replicas", "1")

    assert done.returncode == 0, done.stderr
    assert "yield: no verdict: the log does not say when jobs were submitted" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(("all ", "2-2 nodes ", "run "))]
    assert len(rows) == 3
    assert all(line.endswith("no verdict") for line in rows)


def test_left_out_jobs_and_parts_of_nodes_are_said(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    rows = [
        f"{k}|2026-10-{1 + k // 24:02d}T{k % 24:02d}:00:00|2026-10-{1 + k // 24:02d}T{k % 24:02d}:00:00|"
        f"2026-10-{1 + k // 24:02d}T{k % 24:02d}:50:00|1|{4 if k % 4 else 32}"
        for k in range(400)
    ]
    rows.append("999|2026-10-02T00:00:00|Unknown|Unknown|1|4")
    path.write_text("\n".join(["JobID|Submit|Start|End|NNodes|NCPUS", *rows, ""]))

    done = simulate(str(path), "--seeds", "1", "--replicas", "1", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["skipped"] == {"never started": 1}
    assert "left out: 1 job never started" in done.stderr
    assert done.stderr.count("started") == 1, "said once"
    assert "300 jobs of 400 had fewer cores than 32 a node and count as whole nodes" in done.stderr


def test_an_availability_log_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "free.csv"
    chance = Random(3)
    path.write_text("".join(f"{k * 1800},{chance.randint(10, 60)}\n" for k in range(200)))

    done = simulate(str(path), "--seeds", "2", "--jitter-s", "0", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["parameters"]["kind"] == "availability"  # by its first lines
    found = document["policies"]["yield"]
    assert found["useful"] > 0.5
    assert found["wait_change"]["mean"] is None
    assert 0 < found["wait_s"] < 60


def test_what_is_no_log_is_a_usage_error_with_a_hint(tmp_path: Path, log: Path) -> None:
    text = tmp_path / "readme.txt"
    text.write_text("hello\n")
    cut = tmp_path / "cut.swf.gz"
    cut.write_bytes(log.read_bytes()[:-30])

    names = tmp_path / "sacct.txt"
    names.write_text("JobID|JobName|State\n17|a|COMPLETED\n")
    torn = tmp_path / "20260101"
    torn.write_text("01/01/2026 00:00:01;E;1.pbs;user=u start=never end=1767225660\n")

    for words, message in (
        ((str(text),), "line 1"),
        ((str(names),), "`sacct.txt`, line 1 lacks `Start`, `End`, `NNodes`"),
        (
            (str(torn),),
            "has no job that ran (1 line of 1 could not be read: record E of 1.pbs: start is `never`",
        ),
        ((str(log), "--partition", "debug"), "--partition needs a log of sacct or PBS"),
        ((str(cut),), "cut short"),
        ((str(tmp_path / "none.swf"),), "failed to read"),
        ((str(log), "--nodes", "16"), "on a machine of 16"),
        ((str(log), "--policy", "demand"), "--policy"),
        ((str(log), "--width-min", "500"), "--width-min 500"),
        ((str(log), "--event-s", "0"), "--event-s"),
    ):
        done = simulate(*words)
        assert done.returncode == 2, (words, done.stderr)
        assert message in done.stderr, done.stderr
        assert "error:" in done.stderr
