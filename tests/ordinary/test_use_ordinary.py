"""What a person used, and whom Tidemill kept waiting, against what sacct says of the same jobs."""

from __future__ import annotations

import csv
import os
from datetime import datetime
from typing import Any

import pytest
from tests.worlds.batch.newcomer import Newcomer
from tests.worlds.batch.ordinary_cluster import OrdinaryCluster

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(400),
]

SLEPT_S, EVENTS = 3, 60
UNKNOWN = ("Unknown", "None", "")


def charged(cluster: OrdinaryCluster) -> dict[str, dict[str, str]]:
    """Tidemill's jobs that held nodes, as sacct has them, by number."""
    rows = [row for row in cluster.accounted("ada") if row["JobName"].startswith("tm-")]
    return {row["JobID"]: row for row in rows if int(row["ElapsedRaw"]) > 0}


def waits(cluster: OrdinaryCluster) -> dict[str, float]:
    """Seconds from submission to start of bob's jobs that have started, by number."""
    found = {}
    for row in cluster.accounted("bob"):
        if row["Start"] not in UNKNOWN:
            submitted, started = (datetime.fromisoformat(row[key]) for key in ("Submit", "Start"))
            found[row["JobID"]] = (started - submitted).total_seconds()
    return found


def test_a_report_has_the_core_hours_that_sacct_has_line_by_line(
    ordinary_cluster: OrdinaryCluster, newcomer: Newcomer
) -> None:
    earlier = set(charged(ordinary_cluster))
    ordinary_cluster.regular("n1", "n2")
    newcomer.run_beside("prod", "--events", str(EVENTS), "--", "sleep", str(SLEPT_S))

    def begun() -> Any:
        return newcomer.data("report")["core_hours"]["total"]

    newcomer.wait(lambda: begun()["used_h"] > 0, "a running campaign has core-hours")
    newcomer.wait(lambda: newcomer.job(1)["state"] == "COMPLETED", "it has ended", 120)
    (newcomer.site / "STOP").touch()
    newcomer.wait(lambda: not ordinary_cluster.allocations(), "its nodes are given back", 120)
    rows = {number: row for number, row in charged(ordinary_cluster).items() if number not in earlier}
    assert rows

    def lines() -> dict[str, Any]:
        return {row["batch_id"]: row for row in newcomer.data("report")["core_hours"]["allocations"]}

    newcomer.wait(
        lambda: set(lines()) >= set(rows) and all(row["ended_us"] for row in lines().values()),
        "the server knows all ends",
    )
    found = {key: row for key, row in lines().items() if row["elapsed_us"] > 0}
    assert set(found) == set(rows)
    for number, row in rows.items():
        mine = found[number]
        assert (mine["cores"], mine["elapsed_us"] / 1e6) == (int(row["NCPUS"]), int(row["ElapsedRaw"])), row
        gpus = dict(part.split("=") for part in row["AllocTRES"].split(",")).get("gres/gpu", "0")
        assert mine["gpus"] == int(gpus), row
    total = newcomer.data("report")["core_hours"]["total"]
    theirs_h = sum(int(row["ElapsedRaw"]) * int(row["NCPUS"]) for row in rows.values()) / 3600
    assert total["held_h"] == pytest.approx(theirs_h, rel=0.01)
    assert EVENTS * SLEPT_S <= 3600 * total["used_h"] < 2 * EVENTS * SLEPT_S

    done = newcomer.done("report", "--csv", "tables")
    assert done == ""
    with (newcomer.space / "tables" / "core_hours_allocations.csv").open(newline="") as file:
        table = {row["batch_id"]: float(row["held"]) for row in csv.DictReader(file)}
    assert {number: table[number] for number in rows} == {
        number: int(row["ElapsedRaw"]) * int(row["NCPUS"]) for number, row in rows.items()
    }


def test_harm_adds_up_to_no_more_than_regular_jobs_waited(
    ordinary_cluster: OrdinaryCluster, newcomer: Newcomer
) -> None:
    """bob's job of five nodes comes while Tidemill holds some of them, then jobs of 5 cores, and others of a second
    that no poll sees run."""
    earlier = set(waits(ordinary_cluster))
    ordinary_cluster.regular("n1")
    newcomer.run_beside("much", "--events", "2000", "--", "sleep", "2")
    newcomer.wait(
        lambda: len([row for row in ordinary_cluster.allocations("R") if row["node"]]) >= 3,
        "Tidemill holds nodes",
        120,
    )
    whole = (
        "sbatch",
        "--parsable",
        "-N5",
        "--exclusive",
        "--chdir=/",
        "-o/dev/null",
        "-t1",
        "--wrap=sleep 5",
    )
    wide = ordinary_cluster.run_as_user(*whole, user="bob").strip()
    newcomer.wait(
        lambda: wide in waits(ordinary_cluster), "Tidemill yields to a job of five whole nodes", 120
    )
    ordinary_cluster.regular("6")
    small = ("sbatch", "-N1", "-c3", "--chdir=/", "-o/dev/null", "-t1", "--wrap=sleep 1")
    for _ in range(3):
        ordinary_cluster.run_as_user(*small, user="bob")
    newcomer.give_back()

    def told() -> dict[str, Any]:
        found: dict[str, Any] = newcomer.data("site", "harm")
        return found

    def all_seen() -> bool:
        names = {each["id"] for each in told()["jobs"] if each["state"] != "waiting"}
        running = {
            line for line in ordinary_cluster.run("squeue", "-h", "-u", "bob", "-t", "R", "-o", "%i").split()
        }
        return running <= names

    newcomer.wait(all_seen, "the site has seen bob's jobs start")
    harm = told()
    waited = {number: wait for number, wait in waits(ordinary_cluster).items() if number not in earlier}
    assert any(each["share_s"] > 0 for each in harm["jobs"]), "somebody waited, or this shows nothing"
    for each in harm["jobs"]:
        assert 0 <= each["share_low_s"] <= each["share_s"] <= each["share_high_s"]
        assert each["share_s"] <= waited.get(each["id"], 0.0), each
    totals = harm["totals"]
    assert totals["share_low_s"] <= totals["share_s"] <= totals["share_high_s"]
    assert totals["share_s"] <= sum(waited.values())
    assert {each["size"] for each in harm["by_size"]} <= {"1/16", "1/4", "1"}, "3 and 5 of 48 cores, 5 nodes"
    number = totals["delayed"]
    text = f"{number} regular job{'s' if number != 1 else ''} waited"
    assert text in newcomer.shown("site", "status"), "as `site harm` says"


def test_jobs_of_some_cores_that_come_while_tidemill_holds_the_nodes_waited_for_it(
    ordinary_cluster: OrdinaryCluster, newcomer: Newcomer
) -> None:
    """Two of bob's jobs of 5 cores find a node, four wait for Tidemill: the estimate has what they waited until its
    allocations on their nodes ended, by sacct. Before, it had the part of one of the four."""
    earlier, before = set(waits(ordinary_cluster)), set(charged(ordinary_cluster))
    newcomer.run_beside("much", "--events", "2000", "--", "sleep", "2")
    newcomer.wait(
        lambda: len([row for row in ordinary_cluster.allocations("R") if row["node"]]) >= 4,
        "Tidemill holds four nodes",
        120,
    )
    ordinary_cluster.regular("6")

    def told() -> dict[str, Any]:
        found: dict[str, Any] = newcomer.data("site", "harm")
        return found

    running = set(ordinary_cluster.run("squeue", "-h", "-u", "bob", "-t", "R", "-o", "%i").split())
    newcomer.wait(
        lambda: running <= {each["id"] for each in told()["jobs"] if each["state"] == "started"},
        "the site has seen bob's jobs start",
    )
    newcomer.wait(lambda: running <= set(waits(ordinary_cluster)), "slurmdbd has heard of them")

    def ends() -> dict[str, str]:
        rows = [row for number, row in charged(ordinary_cluster).items() if number not in before]
        return {row["NodeList"]: row["End"] for row in rows if row["End"] not in UNKNOWN}

    newcomer.wait(lambda: len(ends()) >= 4, "slurmdbd has heard that Tidemill has left")
    assert len(running) == 6
    jobs = {each["id"]: each for each in told()["jobs"]}
    for row in ordinary_cluster.accounted("bob"):
        number = row["JobID"]
        if number in earlier or number not in running:
            continue
        end, submitted, started = (
            datetime.fromisoformat(each)
            for each in (ends().get(row["NodeList"], row["Submit"]), row["Submit"], row["Start"])
        )
        for_tidemill_s = max(0.0, (min(end, started) - submitted).total_seconds())
        waited_s = (started - submitted).total_seconds()
        job = jobs[number]
        # sacct knows whole seconds; what Slurm took to start the job on a free node may count, and nothing beyond it
        assert for_tidemill_s - 1 <= job["share_s"] <= waited_s, (row, job)
        assert job["share_low_s"] - 1 <= for_tidemill_s <= job["share_high_s"] + 1, (row, job)
