"""Payloads that span nodes on a real Slurm, as an ordinary user: srun, widths, ends of all kinds."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.batch.site_slurm import Site, site_on
from tests.worlds.batch.slurm_cluster import SlurmCluster
from tests.worlds.home.mpi_world import compiled
from tests.worlds.home.processes import Process, send, snapshot

from tidemill import examples

pytestmark = pytest.mark.timeout(150)
STATES = ("COMPLETED", "FAILED", "PARTIAL", "CANCELED")
SLOW_MS = 50_000


@pytest.fixture(scope="module")
def it() -> Iterator[Site]:
    # Debian's MPICH speaks PMI-1, which Slurm's plugin `pmi2` serves
    cluster = SlurmCluster("--nodes", "4", "--cores", "2", "--line", "MpiDefault=pmi2")
    try:
        program = compiled(cluster.space, "mpich")
        with site_on(cluster, idle_s=2) as site:
            apps = site.directory / "apps"
            examples.install_mpi(apps, program)
            os.chown(apps / "mpi-darts.toml", cluster.uid, cluster.gid)
            site.wait(lambda: "mpi-darts" in site.world.run("app", "list").stdout, "the example is offered")
            yield site
    finally:
        cluster.stop()


def submit(it: Site, *words: str, nodes: int = 2, ranks: int = 4, events: int = 1, **params: int) -> int:
    asked = ["--nodes", str(nodes), "--ranks", str(ranks), "--events", str(events), "--retries", "1"]
    for name, value in params.items():
        asked += ["-p", f"{name}={value}"]
    done = it.world.run("submit", "--app", "mpi-darts", *asked, *words, "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["jobs"][0])


def show(it: Site, number: int) -> dict[str, Any]:
    done = it.world.run("job", "show", str(number), "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def wait_done(it: Site, number: int) -> dict[str, Any]:
    it.wait(lambda: show(it, number)["row"]["state"] in STATES, f"job {number} ends")
    return show(it, number)


def lines_of(told: dict[str, Any]) -> list[tuple[int, int, str]]:
    path = Path(told["outputs"][0]["url"].removeprefix("file://"))
    rows = [line.split(" ") for line in path.read_text().splitlines()]
    return [(int(row[0]), int(row[1]), row[2]) for row in rows]


def ranks_of(it: Site) -> list[Process]:
    """The running ranks, on all nodes."""
    program = str(it.cluster.space / "darts-mpich")
    return [each for each in snapshot().values() if each.argv[:1] == (program,)]


def test_ranks_fill_exactly_as_many_nodes_and_every_event_runs_once(it: Site) -> None:
    # a chunk of fewer events than ranks leaves the last ranks without one: some have more
    told = wait_done(it, submit(it, events=48, sleep_ms=10))
    assert told["row"]["state"] == "COMPLETED", told
    lines = lines_of(told)
    assert [event for event, _, _ in lines] == list(range(48))
    places = {rank: node for _, rank, node in lines}
    assert sorted(places) == [0, 1, 2, 3]
    assert len(set(places.values())) == 2
    assert places[0] == places[1]
    assert places[2] == places[3]
    wide = [record for record in it.records("submit") if record["width"] == 2]
    assert {record["count"] for record in wide} == {1}
    assert "payloads span nodes: ranks run outside of the slot" in it.log()


def test_a_killed_rank_ends_its_payload_and_srun_names_it(it: Site) -> None:
    number = submit(it, sleep_ms=SLOW_MS)
    it.wait(lambda: len(ranks_of(it)) == 4, "four ranks run")
    assert send(ranks_of(it)[-1], signal.SIGKILL)
    it.wait(lambda: bool(show(it, number)["failures"]), "the failure is told")
    evidence = show(it, number)["failures"][0]["evidence"]
    assert evidence["failure"] == "payload"
    assert "rank " in evidence["message"]
    assert "Killed" in evidence["message"]
    it.world.run("job", "cancel", str(number))
    it.wait(lambda: not ranks_of(it), "no rank is left")


def test_a_canceled_job_ends_all_ranks_and_the_next_runs_in_the_same_allocation(it: Site) -> None:
    number = submit(it, sleep_ms=SLOW_MS)
    it.wait(lambda: len(ranks_of(it)) == 4, "four ranks run")
    held = it.ours("R")
    it.world.run("job", "cancel", str(number))
    it.wait(lambda: not ranks_of(it), "all ranks on all nodes are gone", 10)
    then = submit(it, events=4, sleep_ms=1)
    assert wait_done(it, then)["row"]["state"] == "COMPLETED"
    assert held


@pytest.mark.parametrize("how", ["scancel", "pilot", "node"])
def test_the_end_of_the_allocation_ends_all_ranks_and_loses_nothing(it: Site, how: str) -> None:
    number = submit(it, events=60, sleep_ms=60)
    it.wait(lambda: show(it, number)["row"]["events_done"] > 2 and bool(ranks_of(it)), "events are done")
    if how == "scancel":
        it.cluster.run("scancel", *it.ours("R"))
    elif how == "node":
        it.cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    else:
        pilots = it.world.processes("pilot") or [
            each for each in snapshot().values() if "--allocation" in each.argv and "run" in each.argv
        ]
        assert send(pilots[0], signal.SIGKILL)
    told = wait_done(it, number)
    assert told["row"]["state"] == "COMPLETED", told
    assert [event for event, _, _ in lines_of(told)] == list(range(60))
    it.wait(lambda: not ranks_of(it), "no rank is left")
    if how == "node":
        it.cluster.resume_node("n2")  # by itself it comes back when it next registers
        state = ("sinfo", "-h", "-n", "n2", "-o", "%T")
        it.wait(lambda: "down" not in it.cluster.run(*state), "the node is back")


def test_wide_and_ordinary_jobs_share_the_machine(it: Site) -> None:
    file = it.home / "me" / "plain.toml"
    file.write_text('[[job]]\ncommand = ["/bin/sleep", "0.5"]\nevents = 24\nresources = { event_s = 0.5 }\n')
    file.chmod(0o644)
    done = it.world.run("submit", str(file), "--json")
    assert done.returncode == 0, done.stderr
    plain = int(json.loads(done.stdout)["jobs"][0])
    it.wait(lambda: show(it, plain)["row"]["events_done"] > 2, "ordinary work runs")
    told = wait_done(it, submit(it, nodes=4, ranks=8, events=8, sleep_ms=1))
    assert told["row"]["state"] == "COMPLETED", told
    assert wait_done(it, plain)["row"]["state"] == "COMPLETED"


def test_more_nodes_than_there_are_are_named(it: Site) -> None:
    number = submit(it, nodes=5, ranks=5)
    it.wait(lambda: show(it, number)["waits_for"] == "too_few_nodes", "the cause is named")
    it.world.run("job", "cancel", str(number))


def restart_with(it: Site, launcher: str) -> None:
    file = it.directory / "site.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("launcher")]
    at = lines.index("[cluster]") + 1
    file.write_text("\n".join([*lines[:at], f'launcher = "{launcher}"', *lines[at:]]) + "\n")
    (agent,) = it.world.processes("agent")
    assert send(agent, signal.SIGTERM)
    it.wait(lambda: any(each.pid != agent.pid for each in it.world.processes("agent")), "a new agent")


def test_mpiexec_starts_its_ranks_on_the_nodes_of_the_allocation(it: Site) -> None:
    restart_with(it, "mpiexec")
    try:
        told = wait_done(it, submit(it, nodes=3, ranks=6, events=6))
        assert told["row"]["state"] == "COMPLETED", told
        assert [event for event, _, _ in lines_of(told)] == list(range(6))
    finally:
        restart_with(it, "auto")
