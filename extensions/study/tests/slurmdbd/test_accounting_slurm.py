"""`report accounting` on a Slurm cluster with its slurmdbd: what Tidemill ran there, against what sacct says of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from extensions.study.tests.slurmdbd.slurm_database import SlurmDatabase
from tests.worlds.batch.site_slurm import Site, site_on
from tests.worlds.batch.slurm_cluster import CORES, NODES, OTHER_USER, REACH, SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
HELD_S = 130
"""Tidemill sees ends by polls, a second late: of allocations so long that is less than 1 %."""
POLLED_S = 3
"""Of each allocation: whole seconds on both sides, and a poll."""
STRANGER = "tm-centre-e9-1"
GRANT = '[[accounts]]\nname = "grant"\nnode_hours = 1000'
JOB = f"""
[[job]]
command = ["/bin/sleep", "5"]
events = {NODES * CORES * HELD_S // 5}
resources = {{ event_s = 5.0 }}
"""


class Month:
    """A site whose allocations have ended, its slurmdbd, and the month in which that was."""

    def __init__(self, site: Site, database: SlurmDatabase) -> None:
        self.site = site
        self.database = database
        self.month = datetime.now(UTC).strftime("%Y-%m")

    def report(self, *words: str) -> tuple[int, str, dict[str, Any]]:
        """Exit status, what is said beside it, and the document."""
        words = ("report", "accounting", "--month", self.month, "--granted", "grant", *words, "--json")
        done = self.site.world.run(*words)
        return done.returncode, done.stderr, json.loads(done.stdout or "{}")

    def rows(self) -> list[dict[str, str]]:
        """What sacct says of Tidemill's allocations and of the one that only looks like them."""
        columns = "JobID,JobName,User,Account,Submit,Start,End,ElapsedRaw,NNodes,NCPUS,State,TotalCPU"
        table = self.database.sacct("-S", f"{self.month}-01", "-E", "now", columns=columns)
        return [
            row
            for row in csv.DictReader(io.StringIO(table), delimiter="|")
            if row["JobName"].startswith("tm-")
        ]

    def own(self) -> list[dict[str, str]]:
        """Rows of Tidemill's allocations."""
        return [row for row in self.rows() if row["JobName"] != STRANGER]

    def is_settled(self) -> bool:
        """Whether both sides know that all allocations have ended."""
        here = [each["here"]["end_s"] for each in self.report()[2]["pairs"] if each["here"]]
        ends = {row["JobName"]: row["End"] for row in self.rows()}
        return (
            len(here) == len(self.own())
            and None not in here
            and STRANGER in ends
            and "Unknown" not in ends.values()
        )

    def dump(self, name: str, rows: list[dict[str, str]]) -> str:
        """These rows as a dump that the site's user can read."""
        path = self.site.home / "me" / name
        lines = ["|".join(rows[0]), *("|".join(row.values()) for row in rows)]
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(0o644)
        return str(path)


def hold(site: Site) -> None:
    """Run a campaign on all nodes until its pilots have left, and a job of another user with an allocation's name."""
    file = site.home / "me" / "job.toml"
    file.write_text(JOB)
    file.chmod(0o644)
    done = site.world.run("submit", str(file))
    assert done.returncode == 0, done.stderr
    site.wait(lambda: len(site.ours("R")) == NODES, "Tidemill has all nodes")
    site.wait(lambda: not site.ours(), "its pilots leave", HELD_S + 100)
    words = ("sbatch", "-A", "free", "-J", STRANGER, "-o/dev/null", "--chdir=/", "--wrap", "sleep 2")
    site.cluster.run_as_user(*words, user=OTHER_USER)
    site.wait(lambda: not site.cluster.run("squeue", "-h"), "the other user's job ends")


@pytest.fixture(scope="module")
def month() -> Iterator[Month]:
    database = SlurmDatabase()
    cluster = None
    try:
        words = ("--nodes", str(NODES), "--cores", str(CORES), *REACH)
        cluster = SlurmCluster(*words, "--accounting", f"slurmdbd={database.place}")
        with site_on(cluster, idle_s=2, harvest=GRANT) as site:
            it = Month(site, database)
            hold(site)
            site.wait(it.is_settled, "server and slurmdbd know all ends")
            yield it
    finally:
        if cluster is not None:
            cluster.stop()
        database.stop()


def test_a_month_of_allocations_on_slurm_agrees_with_sacct_within_one_percent(month: Month) -> None:
    status, said, data = month.report()

    own = month.own()
    assert (status, data["is_agreed"]) == (0, True), said
    assert len(own) >= NODES
    ids = {each["batch_id"] for each in data["pairs"] if each["here"]}
    assert ids == {row["JobID"] for row in own}
    granted, harvested, total = data["totals"]
    assert [each["kind"] for each in data["totals"]] == ["granted", "harvested", "all"]
    node_h = sum(int(row["ElapsedRaw"]) * int(row["NNodes"]) for row in own) / 3600
    assert granted["allocations"] == len(own)
    assert granted["node_h_there"] == pytest.approx(node_h)
    assert granted["core_h_there"] == pytest.approx(node_h * CORES)
    assert granted["node_h_here"] == pytest.approx(node_h, abs=POLLED_S * len(own) / 3600)
    assert (harvested["allocations"], harvested["node_h_here"]) == (1, 0)
    assert total["node_h_there"] == pytest.approx(node_h + harvested["node_h_there"])
    assert 0 <= data["difference"] < 0.01


def test_a_job_with_an_allocations_name_that_tidemill_never_submitted_is_listed(month: Month) -> None:
    _, _, data = month.report()

    (stranger,) = [row for row in month.rows() if row["JobName"] == STRANGER]
    (each,) = data["differing"]
    assert (each["batch_id"], each["name"], each["reason"]) == (
        stranger["JobID"],
        STRANGER,
        "only in the accounting",
    )


def test_a_dump_of_the_same_slurmdbd_says_the_same(month: Month) -> None:
    status, _, data = month.report("--sacct", month.dump("all.txt", month.rows()))

    assert status == 0
    asked = month.report()[2]
    assert (data["totals"], data["pairs"]) == (asked["totals"], asked["pairs"])


def test_what_the_accounting_lacks_or_has_otherwise_is_listed_by_batch_id(month: Month) -> None:
    lost, late, wide, *rest = month.own()
    begin = datetime.fromisoformat(late["Start"]).timestamp() + 90
    moved = late | {"Start": datetime.fromtimestamp(begin).strftime("%Y-%m-%dT%H:%M:%S")}  # noqa: DTZ006
    moved["ElapsedRaw"] = str(int(late["ElapsedRaw"]) - 90)
    changed = [moved, wide | {"NNodes": "2"}, *rest]

    status, _, data = month.report("--sacct", month.dump("changed.txt", changed))

    assert status == 1
    assert {each["batch_id"]: each["reason"] for each in data["differing"]} == {
        lost["JobID"]: "only in Tidemill",
        late["JobID"]: "starts differ",
        wide["JobID"]: "numbers of nodes differ",
    }


def test_the_apel_record_has_the_seconds_that_slurm_accounts_for(month: Month) -> None:
    file = month.site.home / "me" / "month.apel"
    words = ("--apel", str(file), "--vo", "atlas", "--benchmark", "10", "--apel-site", "LAB")
    status, said, _ = month.report("--sacct", month.dump("apel.txt", month.rows()), *words)

    assert status == 0, said
    rows = month.rows()
    wall = [line for line in file.read_text().splitlines() if line.startswith("WallDuration:")]
    assert sum(int(line.split()[1]) for line in wall) == sum(int(row["ElapsedRaw"]) for row in rows)
    assert "Site: LAB\n" in file.read_text()


def test_an_accounting_that_does_not_answer_is_no_agreement(month: Month) -> None:
    with month.database.down():
        done = month.site.world.run("report", "accounting", "--month", month.month)

    assert done.returncode == 3
    assert "Connection refused" in done.stderr
