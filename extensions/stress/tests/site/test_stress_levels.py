"""Stress tests of a real site: levels are held and measured, runs stop with a reason, and go on after a kill."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.timing import passed_on
from tests.worlds.home.world import SITE, TIDEMILL, TIMING, World, world

TEST = """
name = "short"
levels = {levels}
hold_s = {hold}
ramp_up_s = {ramp}
ramp_down_s = 20
tolerance = 0.15
{more}
[payload]
command = ["/bin/sh", "-c", {script!r}]
event_s = 1.0
{tail}
"""
# computes for some 30 ms: more keeps other tests from their processors
BUSY = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done; sleep 0.9"


OFTEN = {"site": {"MONITOR_INTERVAL_S": 1}}
EXTRA = """[[io]]
name = "sw"
prefixes = ["/sw"]
ops_per_s = 2000
"""


@pytest.fixture(scope="module")
def site() -> Iterator[World]:
    with world(nodes=2, cores=4, extra=EXTRA, timing=OFTEN) as it:
        yield it


def written(
    site: World, *, levels: str = "[2, 4]", hold: float = 12, ramp: float = 40, script: str = BUSY,
    more: str = 'sites = ["here"]', tail: str = "",
) -> Path:  # fmt: skip
    path = site.home / "me" / "test.toml"
    path.write_text(TEST.format(levels=levels, hold=hold, ramp=ramp, script=script, more=more, tail=tail))
    return path


def unended(site: World) -> int:
    counts = site.client.counts()
    return sum(count for state, count in counts.states.items() if state in ("WAITING", "RUNNING"))


@pytest.mark.slow
def test_two_levels_are_held_and_measured_and_leave_no_jobs(site: World) -> None:
    path = written(site)
    done = site.run("stress", "run", str(path), "--json", "--runs", "two", timeout_s=110)
    assert done.returncode == 0, done.stderr + done.stdout
    steps = json.loads(done.stdout)["steps"]
    assert [each["status"] for each in steps] == ["measured", "measured"]
    for each, level in zip(steps, (2, 4), strict=True):
        assert each["filter"]["counted"] > 4 * level
        assert each["figures"]["running"] == pytest.approx(level, rel=0.2)
        assert 0 < each["figures"]["cpu_wall"]["value"] < 1
        assert sum(each["filter"]["left_out"].values()) >= level
    (run,) = site.home.glob("me/two/*/run.json")
    for each in json.loads(run.read_text())["steps"]:
        series = {one["title"]: one for one in each["series"]}
        assert {"CPU in use", "memory in use", "load per core"} <= set(series)
        assert len(series["CPU in use"]["points"]) >= 5
        assert all(0 < value <= 1.01 for _, value in series["CPU in use"]["points"])
        assert each["remarks"] == []
    (row,) = [each for each in site.client.sites() if each.name == "here"]
    assert row.sums is not None
    assert [(each.way, each.failed) for each in row.sums.moves] == [("in", 0), ("out", 0)]
    assert [(each.area, each.ops_per_s, each.over) for each in row.sums.areas] == [("sw", 2000.0, 0)]
    (page,) = site.home.glob("me/two/*/page.html")
    assert "events/s of all payloads" in page.read_text()
    assert unended(site) == 0


@pytest.mark.slow
def test_a_payload_that_always_fails_stops_the_run_with_a_sentence(site: World) -> None:
    done = site.run("stress", "run", str(written(site, script="sleep 0.1; exit 3")), timeout_s=60)
    assert done.returncode == 1, done.stderr
    assert "the payload always fails" in done.stderr
    assert unended(site) == 0


@pytest.mark.slow
def test_a_level_beyond_the_site_is_said_to_be_unreached(site: World) -> None:
    done = site.run("stress", "run", str(written(site, levels="[30]", hold=6, ramp=6)), timeout_s=90)
    assert done.returncode == 3, done.stderr
    assert "level 30 was not reached within 6 s: at most" in done.stderr
    assert "its job waits" not in done.stderr, "all of it that the site can run is at work"
    assert unended(site) == 0


@pytest.mark.slow
def test_a_killed_run_goes_on_and_cancels_what_it_had_left(site: World) -> None:
    path = written(site, levels="[3]", hold=8)
    with site.running("stress", "run", str(path), "--runs", "killed") as process:
        deadline = time.monotonic() + 30
        while not unended(site):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.kill()
    assert unended(site) > 0
    (run,) = (site.home / "me" / "killed").iterdir()
    (left,) = json.loads((run / "run.json").read_text())["open_campaigns"]
    done = site.run("stress", "run", str(path), "--runs", "killed", "--resume", run.name, timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert (
        set(site.client.campaign(left).states) == {"CANCELED"}
        or "CANCELED" in site.client.campaign(left).states
    )
    assert unended(site) == 0


@pytest.mark.slow
def test_the_gate_fails_against_a_better_run_and_passes_against_the_same(site: World) -> None:
    path = written(site, levels="[2]", hold=9)
    again = ("stress", "run", str(path), "--runs", "gated", "--gate")
    first = site.run(*again, timeout_s=60)
    assert (first.returncode, "this one is the first baseline" in first.stderr) == (0, True), first.stderr
    runs = site.home / "me" / "gated"
    (one,) = runs.iterdir()
    better = json.loads((one / "run.json").read_text())
    for step in better["steps"]:
        for payload in step["payloads"]:
            payload[3] *= 2  # as if payloads had twice the CPU time in the same wall time
    (site.home / "me" / "better").mkdir()
    (site.home / "me" / "better" / "run.json").write_text(json.dumps(better))
    worse = site.run(*again, "--baseline", "better", timeout_s=60)
    assert worse.returncode == 1, worse.stderr
    assert "gate: worse than `better`" in worse.stderr
    same = site.run("stress", "compare", str(one), str(one))
    assert same.returncode == 0, same.stderr
    told = site.run(
        "report", "--home", str(site.home), "--local", "--stress", "gated", "--html", "r.html", "--csv", "csv",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "Stress tests" in (site.home / "me" / "r.html").read_text()
    assert len((site.home / "me" / "csv" / "stress.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_two_sites_hold_a_level_together_and_one_that_stops_leaves_the_other_alone(site: World) -> None:
    there = site.home / "there"
    (there / "apps").mkdir(parents=True, mode=0o700)
    text = SITE.format(home=site.home, nodes=1, cores=2, extra="")
    (there / "site.toml").write_text(text.replace('"here"', '"there"'))
    often = [f"{name}={value}" for name, value in passed_on(TIMING, OFTEN).items()]
    command = site.inside(["env", f"TIDEMILL_HOME={site.home}", *often, *TIDEMILL, "site", "run", str(there)])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        try:
            site.wait_for(lambda: len(site.client.sites()) == 2, "the second site joins")
            refused = site.run("stress", "run", str(written(site, more="")))
            assert refused.returncode == 2, refused.stderr
            assert "the test does not say at which of 2 sites it runs" in refused.stderr
            more = 'sites = ["here", "there"]\ntogether = true'
            path = written(site, levels="[2, 4]", hold=8, ramp=20, more=more)
            done = site.run("stress", "run", str(path), "--json", "--runs", "together", timeout_s=200)
        finally:
            agent.kill()
    assert done.returncode == 3, done.stderr + done.stdout
    assert "at there: level 4 was not reached within 20 s" in done.stderr
    steps = {each["step"][1] + str(each["step"][2]): each for each in json.loads(done.stdout)["steps"]}
    assert {name: each["status"] for name, each in steps.items()} == {
        "here2": "measured", "there2": "measured", "here4": "measured", "there4": "not reached",
    }  # fmt: skip
    one, other = (steps[name]["filter"] for name in ("here2", "there2"))
    assert (one["start_s"], one["end_s"]) == (other["start_s"], other["end_s"])
    assert min(each["counted"] for each in (one, other)) > 4
    (page,) = site.home.glob("me/together/*/page.html")
    assert "there: 4: level 4 was not reached" in page.read_text() or "at there: level 4" in page.read_text()
    assert unended(site) == 0
