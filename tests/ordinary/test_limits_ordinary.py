"""Staff lower a limit, or cancel what waits, while Tidemill asks for nodes, on a real Slurm."""

from __future__ import annotations

import json
import os

import pytest
from tests.worlds.batch.newcomer import settings
from tests.worlds.batch.ordinary_cluster import LICENSE, OrdinaryCluster
from tests.worlds.batch.person import SlurmPerson

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(300),
]
CAMPAIGN = """
[[job]]
command = ["/bin/sleep", "5"]
events = 300
"""


def begin(person: SlurmPerson, *, nodes: int, cluster: str = "") -> None:
    """A site that has read the machine, and has no work yet; `cluster`: a further line of that table."""
    person.done("site", "init", "--enable", "--no-probe", "--nodes", str(nodes))
    if cluster:
        file = person.site / "site.toml"
        file.write_text(settings(file.read_text(), cluster=cluster))
    person.done("up", "--detach")
    person.cluster.wait(lambda: bool(records(person)), "the site has polled")


def submit(person: SlurmPerson) -> None:
    """Work for all nodes."""
    (person.space / "jobs.toml").write_text(CAMPAIGN)
    person.done("submit", str(person.space / "jobs.toml"))


def status(person: SlurmPerson) -> str:
    """What people read, in one line."""
    return " ".join(person.done("site", "status").split())


def records(person: SlurmPerson) -> list[dict[str, object]]:
    """What the site planned and did."""
    lines = [
        line for path in (person.site / "harvest").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines]


def test_a_lowered_limit_costs_one_poll(ordinary_cluster: OrdinaryCluster) -> None:
    person = SlurmPerson(ordinary_cluster, "limits")
    with person.staying():
        begin(person, nodes=4)
        ordinary_cluster.limit("short", "20")
        submit(person)
        ordinary_cluster.wait(
            lambda: len(ordinary_cluster.allocations("R")) == 4,
            "all run within the new limit",
            deadline_s=120,
        )
        assert {row["limit"] for row in ordinary_cluster.allocations("R")} <= {"20:00", "19:00", "18:00"}
        asked = [each for each in records(person) if each["kind"] == "submit"]
        person.done("up", "--stop")
        ordinary_cluster.wait(lambda: ordinary_cluster.allocations() == [], "all nodes are given back")
    assert len([each for each in asked if float(str(each["walltime_s"])) > 1200]) <= 1


def test_what_staff_cancel_while_it_waits_is_not_asked_for_again_until_it_is_resumed(
    ordinary_cluster: OrdinaryCluster,
) -> None:
    person = SlurmPerson(ordinary_cluster, "withdrawn")
    with person.staying():
        begin(person, nodes=2, cluster=f'directives = ["--licenses={LICENSE}"]')
        ordinary_cluster.take_licenses()
        submit(person)

        def waiting() -> int:
            return len(ordinary_cluster.allocations("PD"))

        ordinary_cluster.wait(lambda: waiting() == 2, "two wait", deadline_s=60)
        ordinary_cluster.run("scancel", "-u", "ada", "-t", "PENDING")
        paused = "paused allocations that waited were canceled, and not by Tidemill"
        ordinary_cluster.wait(lambda: paused in status(person), "it is seen", deadline_s=60)
        assert waiting() == 0
        ordinary_cluster.run("scancel", "-n", "licensed")
        person.done("site", "resume", "--reason", "there are licenses again")
        ordinary_cluster.wait(
            lambda: len(ordinary_cluster.allocations("R")) == 2, "it asks again", deadline_s=120
        )
        person.done("up", "--stop")
        ordinary_cluster.wait(lambda: ordinary_cluster.allocations() == [], "all nodes are given back")


def test_cancels_of_the_sites_own_user_are_not_laid_at_the_staffs_door(
    ordinary_cluster: OrdinaryCluster,
) -> None:
    person = SlurmPerson(ordinary_cluster, "own-cancels")
    with person.staying():
        begin(person, nodes=4)
        submit(person)

        def running() -> list[str]:
            return [row["id"] for row in ordinary_cluster.allocations("R")]

        ordinary_cluster.wait(lambda: len(running()) == 4, "all run", deadline_s=120)
        ordinary_cluster.wait(lambda: "4 ACTIVE" in status(person), "the pilots have reported", deadline_s=30)
        ordinary_cluster.run_as_user("scancel", running()[0])
        first = "1 allocation was canceled by you (user `ada`), outside Tidemill; 3 such cancels within 600 s stop"
        ordinary_cluster.wait(lambda: first in status(person), "the first is seen", deadline_s=60)
        ordinary_cluster.run_as_user("scancel", *running())
        why = "allocations were canceled within 600 s by you (user `ada`), outside Tidemill"
        ordinary_cluster.wait(lambda: why in status(person), "the site is stopped", deadline_s=60)
        ordinary_cluster.wait(
            lambda: "in use by Tidemill" not in status(person), "nodes are shown free", deadline_s=30
        )
        assert why in " ".join(person.done("job", "explain", "1").split())
        person.done("up", "--stop")
        ordinary_cluster.wait(lambda: ordinary_cluster.allocations() == [], "all nodes are given back")
