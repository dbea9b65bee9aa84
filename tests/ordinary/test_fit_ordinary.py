"""Before anything runs: what `site init` and `site check` say about a cluster whose nodes are shared."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from tests.worlds.batch.ordinary_cluster import NODES, OrdinaryCluster
from tests.worlds.batch.person import SlurmPerson

from tidemill import clock

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(300),
]


def by_check(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["check"]: each for each in findings}


def running(cluster: OrdinaryCluster, user: str) -> set[str]:
    """Nodes on which this user's jobs run, by sacct: it learns of them some seconds later."""
    return {row["NodeList"] for row in cluster.accounted(user) if row["State"] == "RUNNING"}


def probes(cluster: OrdinaryCluster, since_s: int) -> list[dict[str, str]]:
    """Jobs that a `site init` has submitted since a time, and that have started, as sacct has them. Earlier tests
    had theirs; the last number of a name is the time."""
    rows = [row for row in cluster.accounted("ada") if "-e0-" in row["JobName"] and row["NodeList"] in NODES]
    return [row for row in rows if int(row["JobName"].rsplit("-", 1)[1]) >= since_s]


def test_init_says_that_no_node_is_wholly_idle_and_its_probe_runs_on_a_part_of_one(
    ordinary_cluster: OrdinaryCluster,
) -> None:
    ordinary_cluster.regular(*NODES)
    ordinary_cluster.wait(lambda: running(ordinary_cluster, "bob") == set(NODES), "sacct knows bob's jobs")
    person = SlurmPerson(ordinary_cluster, "fit")
    began_s = int(clock.now_us() / 1e6)

    told = person.data("site", "init")

    findings = by_check(told["findings"])
    use, now, rest = findings["fit"]["found"].splitlines()
    assert use.startswith(
        "This version of Tidemill uses whole nodes; jobs of `short` share nodes (OverSubscribe=NO, "
    )
    assert "select/cons_tres" in use
    assert now.startswith("Now 0 of 6 nodes are wholly idle; over the last day ")
    assert rest.startswith("6 nodes have cores free that it cannot use (3 of 8 cores each). ")
    assert findings["GPU nodes"]["found"] == "2 of 6 nodes have GPUs, 0 of them wholly idle"
    assert findings["compute node"]["state"] == "ok", "the probe found room beside other users' jobs"
    ordinary_cluster.wait(lambda: bool(probes(ordinary_cluster, began_s)), "sacct knows the probe")
    (probe,) = probes(ordinary_cluster, began_s)
    assert (probe["NCPUS"], "gpu" in probe["AllocTRES"]) == ("1", False)
    assert len((person.site / "site.toml").read_text().splitlines()) <= 60


def test_check_says_what_is_idle_now_and_that_a_submission_would_be_refused(
    ordinary_cluster: OrdinaryCluster,
) -> None:
    ordinary_cluster.regular("n1")
    person = SlurmPerson(ordinary_cluster, "check")
    person.done("site", "init", "--no-probe")

    findings = by_check(person.data("site", "check"))

    assert findings["fit"]["state"] == "ok"
    _, now, rest = findings["fit"]["found"].splitlines()
    assert now.startswith(f"Now {len(NODES) - 1} of 6 nodes are wholly idle")
    assert rest == "1 node has cores free that it cannot use (3 of 8 cores each). Work can start now."
    assert "submit" not in findings

    for change, back, words in (
        ("AllowGroups=root", "AllowGroups=ALL", "fail submit a job of one node would be refused: "),
        (
            "AllowAccounts=cms",
            "AllowAccounts=ALL",
            "warn submit partition short runs jobs of these accounts only: cms",
        ),
    ):
        ordinary_cluster.run("scontrol", "update", "PartitionName=short", change)
        try:
            answer = person.run("site", "check")
        finally:
            ordinary_cluster.run("scontrol", "update", "PartitionName=short", back)
        assert words in " ".join(answer.stdout.split()), answer.stdout


def test_a_probe_that_waits_says_for_what(ordinary_cluster: OrdinaryCluster) -> None:
    for _ in NODES:
        ordinary_cluster.run_as_user(
            "sbatch", "--exclusive", "-N", "1", "-t", "10", "-o", "/dev/null", "--wrap", "sleep 600"
        )
    ordinary_cluster.wait(
        lambda: set(ordinary_cluster.states().values()) == {"allocated"}, "all nodes are taken"
    )
    person = SlurmPerson(ordinary_cluster, "waits")

    answer = person.run("site", "init", "--probe-wait", "6s")

    said = " ".join(answer.stderr.split())
    assert "it asks for one core of a node" in said
    assert "the probe waits for" in said
    assert "(the batch system says: " in said


def test_payloads_and_ranks_see_the_name_of_their_own_node(ordinary_cluster: OrdinaryCluster) -> None:
    ordinary_cluster.regular("g1", "g2", "n1", "n2")
    person = SlurmPerson(ordinary_cluster, "where")
    script = ("--", "sh", "-c", "echo at $TIDEMILL_NODE")

    def seen(campaign: str) -> list[str]:
        """What the payloads of a campaign printed."""
        place = person.space / "tidemill-out" / campaign
        tars = b"".join(path.read_bytes() for path in sorted(place.rglob("*stdout*")) if path.is_file())
        return sorted(found.decode() for found in re.findall(rb"at [a-z0-9]+", tars))

    with person.staying():
        person.done("site", "init", "--enable")
        printed = person.done("run", "--name", "ranks", "--nodes", "2", "--ranks", "2", *script)
        assert sorted(printed.splitlines()) == ["at n3", "at n4"]
        person.done("run", "--name", "plain", "--events", "2", *script)
        person.done("up", "--stop")
    assert len(seen("plain")) == 2
    assert set(seen("plain")) <= {"at n3", "at n4"}
