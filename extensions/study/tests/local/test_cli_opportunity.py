"""`tidemill report opportunity` agrees with `tidemill simulate` on the same log, in whatever form the log is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidemill import extensions

NODES = 128
CORES = 16
BEGIN_S = 1_792_800_000
RUNS = ("--seeds", "2", "--replicas", "2", "--policy", "yield", "--policy", "titan", "--workers", "2")


def tidemill(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def document(*words: str) -> dict[str, Any]:
    done = tidemill(*words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def jobs() -> list[tuple[int, int, int, int, int]]:
    """(submit, start, end, nodes, limit in minutes) of eight days, as first come, first served starts them."""
    chance = Random(16)
    submit, ends, found, earliest = 0, [0] * NODES, [], 0
    for _ in range(600):
        submit += 1 + int(chance.expovariate(1 / 1100))
        width = 2 ** chance.randint(0, 6)
        run = int(chance.uniform(600, 9000))
        ends.sort()
        start = earliest = max(earliest, submit, ends[width - 1])
        ends[:width] = [start + run] * width
        found.append((submit, start, start + run, width, int(run * chance.uniform(1.1, 3) / 60) + 1))
    return found


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same jobs as SWF, as a dump of sacct, and as an accounting log of PBS."""
    place = tmp_path_factory.mktemp("logs")

    def at(seconds: int) -> str:
        return datetime.fromtimestamp(BEGIN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    swf = ["; Version: 2.2", f"; MaxNodes: {NODES}", f"; MaxProcs: {NODES}", f"; UnixStartTime: {BEGIN_S}"]
    sacct = ["JobID|User|Submit|Start|End|NNodes|NCPUS|TimelimitRaw|State"]
    pbs = []
    for number, (submit, start, end, width, limit) in enumerate(jobs(), start=1):
        swf.append(
            f"{number} {submit} {start - submit} {end - start} {width} -1 -1 {width} {limit * 60} -1 1 1 1 1 1 1 -1 -1"
        )
        sacct.append(
            f"{number}|u|{at(submit)}|{at(start)}|{at(end)}|{width}|{width * CORES}|{limit}|COMPLETED"
        )
        times = f"qtime={BEGIN_S + submit} start={BEGIN_S + start} end={BEGIN_S + end}"
        asked = f"Resource_List.nodect={width} Resource_List.ncpus={width * CORES} Resource_List.walltime={limit * 60}"
        pbs.append(f"10/24/2026 00:00:00;E;{number}.pbs;user=u queue=q {times} {asked} Exit_status=0")
    head, *rows = sacct
    Random(1).shuffle(rows)  # no order is promised
    sacct = [head, *rows]
    pbs.sort(key=lambda record: record.split("end=")[1])
    found = {}
    for name, lines in (("swf", swf), ("sacct", sacct), ("pbs", pbs)):
        found[name] = place / f"made.{name}"
        found[name].write_text("".join(f"{line}\n" for line in lines))
    return found


@pytest.mark.parametrize("kind", ["swf", "sacct", "pbs"])
def test_the_report_agrees_with_simulate_on_the_same_log(logs: dict[str, Path], kind: str) -> None:
    words = ("--nodes", str(NODES), *RUNS)
    report = document("report", "opportunity", str(logs[kind]), "--event-length", "5m,1h", *words)

    for event_s in (300.0, 3600.0):
        simulated = document("simulate", str(logs[kind]), "--event-s", str(event_s), *words)
        assert simulated["parameters"]["kind"] == kind  # by its first lines
        assert (simulated["parameters"]["lead_s"] is None) is (kind == "pbs")  # PBS does not show its cycle
        assert simulated["parameters"]["order_known"] is (kind != "pbs")  # nor its order
        assert report["parameters"]["order_known"] == ("no" if kind == "pbs" else "yes")
        assert report["parameters"]["cycle_known"] == ("no" if kind == "pbs" else "yes")
        assert report["idle_share"] == simulated["idle_share"]
        for each in report["found"]:
            if each["event_s"] == event_s:
                same = simulated["policies"][each["policy"]]
                for key in (
                    "useful",
                    "useful_low",
                    "useful_high",
                    "occupied",
                    "wait_change",
                    "wait_s",
                    "by_size",
                    "by_length",
                    "promise",
                ):
                    assert each[key] == same[key], key


def test_all_three_forms_of_a_log_say_the_same(logs: dict[str, Path]) -> None:
    times = ("--death-s", "5", "--unaligned", "--unordered")  # else a log of PBS has those of PBS
    words = ("--nodes", str(NODES), "--cores-per-node", str(CORES), "--event-length", "5m", *times, *RUNS)
    swf, sacct, pbs = (
        document("report", "opportunity", str(logs[kind]), *words) for kind in ("swf", "sacct", "pbs")
    )

    for key in ("idle_share", "found"):
        assert swf[key] == sacct[key] == pbs[key], key
    for key in ("holes", "idle_node_h", "by_hour", "course"):
        assert swf["idle"][key] == sacct["idle"][key] == pbs["idle"][key], key


def test_idle_node_hours_are_those_of_the_jobs_and_money_follows_from_them(logs: dict[str, Path]) -> None:
    words = (
        "--nodes",
        str(NODES),
        "--event-length",
        "5m",
        "--seeds",
        "1",
        "--price",
        "0.02",
        "--currency",
        "USD",
    )
    data = document("report", "opportunity", str(logs["sacct"]), *words)

    last = max(submit for submit, *_ in jobs())
    used = sum(
        width * (min(end, last) - start) for _, start, end, width, _ in jobs() if start < last
    )  # counted to the last submission
    idle = data["idle"]
    assert idle["idle_node_h"] * 3600 == pytest.approx(NODES * (last - idle["start_s"] + BEGIN_S) - used)
    assert sum(each["node_h"] for each in idle["holes"]) == pytest.approx(idle["idle_node_h"])
    assert data["price"]["cores_per_node"] == CORES  # by the log
    each = data["found"][0]
    assert each["node_h_month"] == pytest.approx(each["useful"] * data["idle_share"] * NODES * 730.5)
    assert each["money_month"] == pytest.approx(each["node_h_month"] * CORES * 0.02)


def test_the_page_stands_alone_and_answers_first(logs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "idle.html"
    done = tidemill(
        *("report", "opportunity", str(logs["sacct"]), "--nodes", str(NODES), "--event-length", "5m"),
        *("--seeds", "2", "--policy", "yield", "--html", str(page)),
    )

    assert done.returncode == 0, done.stderr
    for question in ("How much is idle?", "What is that worth?", "What would it cost other users?"):
        assert question in done.stdout
    html = page.read_text()
    assert "<h3>How much is idle?</h3>" in html
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|<script", html)
    assert html.count("<svg") >= 4


def test_only_the_latest_jobs_are_simulated_when_there_are_too_many_and_the_report_says_so(
    logs: dict[str, Path],
) -> None:
    words = ("--nodes", str(NODES), "--event-length", "5m", "--seeds", "1", "--jobs-simulated", "200")
    data = document("report", "opportunity", str(logs["sacct"]), *words)

    assert (data["jobs"], data["jobs_simulated"]) == (600, 200)
    assert any("200 of 600 jobs are simulated" in each for each in data["remarks"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--nodes", "4"), "a job of 64 nodes on a machine of 4"),
        (("--timezone", "Mars/Olympus"), "`Mars/Olympus` is not a time zone"),
        (("--event-length", "0s"), "takes more than 0 s"),
        (("--price", "-1"), "is not a price"),
        (("--partition", "gpu"), "no job of partition `gpu`"),
        (("--kind", "pbs"), "could not be read: not a record of PBS"),
    ],
)
def test_what_cannot_be_is_said(logs: dict[str, Path], words: tuple[str, ...], text: str) -> None:
    done = tidemill("report", "opportunity", str(logs["sacct"]), *words)

    assert done.returncode == 2
    assert text in done.stderr


def test_report_alone_is_the_report_of_campaigns_of_another_extension() -> None:
    if "report" in extensions.installed():
        pytest.skip("the extension `report` is installed: `make test-study` runs this without it")
    done = tidemill("report", "--campaign", "x")
    assert (done.returncode, "`tidemill report` needs the extension `report`" in done.stderr) == (2, True)
    assert "report opportunity" in tidemill("report", "--help").stdout
