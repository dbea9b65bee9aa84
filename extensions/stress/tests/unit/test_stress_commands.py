"""Runs on disk, the crontab line, and the commands that need no server."""

from __future__ import annotations

import json
import random
import stat
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from tidemill.cli.main import main
from tidemill.errors import ConfigError
from tidemill_stress import store
from tidemill_stress.cli import schedule
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import PayloadPlan, Plan, StressStep
from tidemill_stress.run import Run, StepRun


def run(name: str, cpu: float, *, ended_us: int = 5, digest: str = "d") -> Run:
    dice, rows = random.Random(name), []
    for k in range(4):
        now = 0.0
        while now < 120:
            wall = dice.uniform(2, 4)
            rows.append(Payload(f"n{k}", now, now + wall, cpu * wall, 0.1, 1))
            now += wall
    plan = Plan(name="x", payload=PayloadPlan(event_s=3, command=["x"]), levels=[4])
    step = StepRun(
        step=StressStep(1, "", 4), campaign="c", status="measured", start_s=5, end_s=110, payloads=rows
    )
    return Run(
        id=name,
        mode="run",
        plan=plan,
        digest=digest,
        version="",
        started_us=1,
        ended_us=ended_us,
        steps=[step],
    )


def test_a_run_comes_back_as_it_was_and_its_analysis_repeats(tmp_path: Path) -> None:
    one = run("a", 0.8)
    store.save(tmp_path / "a", one)
    assert store.load(tmp_path / "a") == one
    first = store.finish(tmp_path / "a", one)
    assert store.finish(tmp_path / "a", store.load(tmp_path / "a")) == first
    page = (tmp_path / "a" / "page.html").read_text()
    assert "<h2>Levels</h2>" in page
    assert "CPU/wall of a payload, payloads that count" in page
    assert "4: 80 ± " in page
    assert "Sites side by side" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_sites_of_a_test_stand_side_by_side_with_what_stopped_one_of_them(tmp_path: Path) -> None:
    both = run("a", 0.8)
    (step,) = both.steps
    there = msgspec.structs.replace(step, step=StressStep(2, "there", 4))
    reason = "site there was over its I/O budget"
    stopped = StepRun(step=StressStep(3, "there", 8), campaign="c", status="stopped", reason=reason)
    stopped.remarks.append("a source did not answer")
    both.steps = [msgspec.structs.replace(step, step=StressStep(1, "here", 4)), there, stopped]
    store.finish(tmp_path, both)
    page = (tmp_path / store.PAGE).read_text()
    assert "<h2>Sites side by side</h2>" in page
    assert f"level 8: {reason}" in page
    assert "a source did not answer" in page


def test_the_page_of_a_run_that_goes_on_says_so_and_is_read_again(tmp_path: Path) -> None:
    store.finish(tmp_path, run("a", 0.8, ended_us=0))
    text = (tmp_path / store.PAGE).read_text()
    assert '<meta http-equiv="refresh" content="30">' in text
    assert "1 level so far; the run goes on" in text
    store.finish(tmp_path, run("a", 0.8))
    text = (tmp_path / store.PAGE).read_text()
    assert "refresh" not in text
    assert "run a, 1 level<" in text


def test_the_baseline_is_the_newest_whole_run_of_the_same_test(tmp_path: Path) -> None:
    for name, ended_us, digest in (("old", 5, "d"), ("new", 9, "d"), ("other", 20, "e"), ("open", 0, "d")):
        store.save(tmp_path / name, run(name, 0.8, ended_us=ended_us, digest=digest))
    stopped = run("stopped", 0.8, ended_us=30)
    stopped.stopped = "a guard"
    store.save(tmp_path / "stopped", stopped)
    assert store.newest(tmp_path, "d") == tmp_path / "new"
    assert store.newest(tmp_path, "f") is None


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        store.load(tmp_path)
    (tmp_path / "run.json").write_text('{"id": 1}')
    with pytest.raises(ConfigError, match="is not the run"):
        store.load(tmp_path)


def test_compare_prints_what_differs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store.save(tmp_path / "a", run("a", 0.8))
    store.save(tmp_path / "b", run("b", 0.6))
    assert main(["stress", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {each["quantity"]: each["verdict"] for each in found["rows"]}["cpu_wall"] == "less"
    assert found["differ"]


def test_compare_judges_only_what_both_runs_have(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = run("a", 0.8)
    more = msgspec.structs.replace(one.steps[0], step=StressStep(2, "", 8))
    store.save(tmp_path / "a", msgspec.structs.replace(one, steps=[*one.steps, more]))
    for name, told in (("b", "do not differ"), ("c", "differ")):
        store.save(tmp_path / name, msgspec.structs.replace(run("a", 0.8 if name == "b" else 0.6), id=name))
        assert main(["stress", "compare", str(tmp_path / "a"), str(tmp_path / name)]) == 0
        printed = capfd.readouterr()
        assert f"the steps that both runs have {told} beyond chance" in printed.out + printed.err


TEST = 'name = "x"\nlevels = [4]\nhold_s = 60\n[payload]\ncommand = ["x"]\nevent_s = 3\n'


def arguments(tmp_path: Path, at: str = "17 3 * * 1") -> Namespace:
    return Namespace(
        file=tmp_path / "50%.toml", at=at, runs=tmp_path / "r", scan=False, server="unix:/a b", secret_file=None,
        home=None,
    )  # fmt: skip


def test_a_crontab_line_is_quoted_and_marked(tmp_path: Path) -> None:
    line = schedule.crontab_line(arguments(tmp_path), "x")
    assert line.startswith("17 3 * * 1 ")
    assert line.endswith("# tidemill stress x")
    assert r"50\%.toml" in line
    assert "--server 'unix:/a b'" in line
    assert " --gate " in line


def test_a_crontab_line_has_what_this_shell_says_of_the_server_and_makes_the_logs_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "home=$TIDEMILL_HOME server=$TIDEMILL_SERVER"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "a home"))
    monkeypatch.setenv("TIDEMILL_SERVER", "unix:/a b")
    line = schedule.crontab_line(arguments(tmp_path), "x")
    command = line.removeprefix("17 3 * * 1 ").replace(r"\%", "%")
    subprocess.run(["/bin/sh", "-c", command], env={"PATH": "/usr/bin:/bin"}, check=True, timeout=60)
    assert (tmp_path / "r" / "x.log").read_text() == f"home={tmp_path}/a home server=unix:/a b\n"


@pytest.mark.parametrize("at", ["17 3 * *", "17 3 * * 1; rm", "@daily x x x $(x)"])
def test_what_is_no_time_of_cron_is_refused(tmp_path: Path, at: str) -> None:
    with pytest.raises(ConfigError, match="five fields"):
        schedule.crontab_line(arguments(tmp_path, at), "x")


def test_installing_twice_leaves_one_line_and_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, program = tmp_path / "table", tmp_path / "crontab"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -l ]; then cat {table} 2>/dev/null || {{ echo no crontab for me >&2; exit 1; }}; '
        f"else cat > {table}; fi\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    table.write_text("0 1 * * * other\n")
    (tmp_path / "t.toml").write_text(TEST)
    for at in ("1 1 * * *", "2 2 * * *"):
        assert main(["stress", "schedule", str(tmp_path / "t.toml"), "--at", at, "--install"]) == 0
    lines = table.read_text().splitlines()
    assert len(lines) == 2
    assert lines[0] == "0 1 * * * other"
    assert lines[1].startswith("2 2 * * * ")
