"""The broker on a real Slurm, as an ordinary user: from submission to results, yielding, staff's word, crashes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worlds.batch.site_slurm import Site, site_on
from tests.worlds.batch.slurm_cluster import OTHER_USER, SlurmCluster
from tests.worlds.home.metrics_text import OF_CLUSTER, families, of_site
from tests.worlds.home.processes import send

from tidemill.model.metrics import wrong
from tidemill.node.binary import find_binary
from tidemill.site.state.status import read_status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
STATES = ("COMPLETED", "FAILED", "PARTIAL", "CANCELED")
SECOND = ("/bin/sleep", "1")
DEAD_AFTER_S, DRAIN_S = 10, 5  #: as in tests/worlds/batch/site_slurm.py
POLL_S = 5  #: a look at the queue, signs of life every few seconds


def campaign(it: Site, *command: str, events: int) -> int:
    """Submit a command for so many events; the job."""
    file = it.home / "me" / f"job-{events}.toml"
    words = json.dumps(list(command))
    file.write_text(
        f"[[job]]\ncommand = {words}\nevents = {events}\nretries = 5\nresources = {{ event_s = 1.0 }}\n"
    )
    file.chmod(0o644)
    done = it.world.run("submit", str(file), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return int(told["jobs"][0])


def job(it: Site, number: int) -> dict[str, object]:
    done = it.world.run("job", "show", str(number), "--json")
    assert done.returncode == 0, done.stderr
    row: dict[str, object] = json.loads(done.stdout)["row"]
    return row


def wait_done(it: Site, number: int, timeout_s: float = 90) -> dict[str, object]:
    it.wait(lambda: job(it, number)["state"] in STATES, f"job {number} ends", timeout_s)
    return job(it, number)


def hold_all(it: Site, nodes: int, events: int = 2000) -> int:
    """Long work, and wait until we hold so many nodes."""
    number = campaign(it, *SECOND, events=events)
    it.wait(lambda: len(it.ours("R")) >= nodes, f"we hold {nodes} nodes")
    return number


def test_a_campaign_runs_on_nodes_that_slurm_has_idle(slurm_cluster: SlurmCluster) -> None:
    grant = '[[accounts]]\nname = "tide"\nnode_hours = 1000'
    with site_on(slurm_cluster, idle_s=2, harvest=grant) as it:
        number = campaign(it, "/bin/sh", "-c", "sleep 0.2; echo $SLURMD_NODENAME", events=60)
        row = wait_done(it, number)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 60)
        submits = it.records("submit")
        assert submits
        assert {record["plan"] for record in submits} <= {record["plan"] for record in it.records("plan")}
        comments = slurm_cluster.run("squeue", "-h", "-t", "all", "-u", "nobody", "-o", "%k").splitlines()
        key = (it.directory / "key").read_text().strip()
        assert f"tidemill {key} site=centre contact=operator@example.org" in comments
        assert (it.directory / "key").stat().st_mode & 0o777 == 0o600
        it.wait(lambda: not it.ours(), "idle pilots leave")
        it.wait(lambda: it.metric("tidemill_starts_total") >= 1, "metrics are written")
        assert it.metric("tidemill_drained") == 0
        text = (it.directory / "metrics.prom").read_text
        it.wait(lambda: families(text()) >= OF_CLUSTER, "metrics that only a cluster has are there, too")
        assert wrong(of_site(text(), "centre")) == []


def test_work_that_comes_after_the_pilots_have_left_does_not_wait_for_the_next_poll(
    slurm_cluster: SlurmCluster,
) -> None:
    with site_on(slurm_cluster, idle_s=1, poll_s=3600) as it:
        for _ in range(2):
            number = campaign(it, "/bin/sleep", "0.2", events=4)
            assert wait_done(it, number)["state"] == "COMPLETED"
            it.wait(lambda: not it.ours(), "idle pilots leave")
        assert "start_failed" not in it.log()


def test_regular_jobs_get_our_nodes_and_the_harm_is_on_record(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster) as it:
        number = hold_all(it, 4)
        theirs = slurm_cluster.run_as_user(
            "sbatch", "--parsable", "-N3", "-t2", "-o/dev/null", "--wrap", "sleep 5", user=OTHER_USER
        ).strip()
        slurm_cluster.wait(
            lambda: (
                slurm_cluster.run("squeue", "-h", "-t", "all", "-j", theirs, "-o", "%T").strip() != "PENDING"
            ),
            "the regular job starts",
        )
        it.wait(
            lambda: any(record["id"] == theirs for record in it.records("regular")), "its wait is on record"
        )
        (record,) = [record for record in it.records("regular") if record["id"] == theirs]
        assert record["share_s"] >= 0
        assert record["plans"]
        assert set(record["plans"]) <= {plan["plan"] for plan in it.records("plan")}
        canceled = [name for each in it.records("cancel") for name in each["names"]]
        assert len(canceled) >= 3
        it.wait(lambda: len(it.ours("R")) >= 4, "we are back on its nodes", 90)
        assert job(it, number)["events_failed"] == 0


def test_pilots_in_the_way_of_a_planned_job_are_told_to_end_before_it(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster) as it:
        # the first one outlasts the start of the site, of its pilots, and Slurm's plan
        submit = ("sbatch", "--parsable", "-t3", "-o/dev/null", "--wrap", "sleep 180")
        slurm_cluster.run_as_user(submit[0], "-N2", *submit[1:], user=OTHER_USER)
        hold_all(it, 2)
        slurm_cluster.run_as_user(submit[0], "-N4", *submit[1:], user=OTHER_USER)
        ends_s: dict[str, float] = {}

        def shortened() -> int:
            for record in it.records("shorten"):
                ends_s.update(record["ends_s"])
            return len(ends_s)

        it.wait(lambda: shortened() == 2, "limits are shortened")
        assert max(ends_s.values()) < time.time() + 180 + 60

        def told() -> set[str]:
            files = (it.directory / "fleets").rglob("0*.json")
            return {end["allocation"] for file in files for end in json.loads(file.read_text())["ends"]}

        it.wait(lambda: told() == set(ends_s), "their pilots are told")
        limits = slurm_cluster.run("squeue", "-h", "-r", "-u", "nobody", "-t", "R", "-o", "%e").split()
        assert len(set(limits)) == 1


def test_a_stop_file_of_another_user_ends_us_until_an_operator_resumes(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster) as it:
        number = hold_all(it, 4)
        stop = it.staff / "STOP"
        slurm_cluster.run_as_user("sh", "-c", f"echo we need the machine > {stop}", user=OTHER_USER)
        it.wait(lambda: not it.ours(), "all of ours are gone", 60)
        done = job(it, number)["events_done"]
        stop.unlink()
        it.world.restart("agent")
        it.wait(
            lambda: "agent.started" in it.log().rpartition("site.stopped")[2], "another agent serves the site"
        )
        refused = it.world.run("site", "status", str(it.directory), "--json")
        assert "we need the machine" in json.loads(refused.stdout)["drained"]
        assert not it.ours()
        resumed = it.world.run("site", "resume", str(it.directory), "--reason", "agreed by telephone")
        assert resumed.returncode == 0, resumed.stderr
        it.wait(lambda: len(it.ours("R")) >= 4, "we work again")
        it.wait(lambda: job(it, number)["events_done"] > done, "and go on")  # type: ignore[operator]


def test_a_resumed_site_does_not_wait_for_the_next_poll(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster, poll_s=3600) as it:
        number = hold_all(it, 1)
        (it.staff / "STOP").write_text("a test\n")
        it.wait(lambda: not it.ours(), "all of ours are gone", 60)
        done = job(it, number)["events_done"]
        (it.staff / "STOP").unlink()
        resumed = it.world.run("site", "resume", str(it.directory), "--reason", "agreed by telephone")
        assert resumed.returncode == 0, resumed.stderr
        it.wait(lambda: job(it, number)["events_done"] > done, "it works again", 60)  # type: ignore[operator]


def test_three_cancellations_by_staff_drain_the_site(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster) as it:
        hold_all(it, 4)
        for number in it.ours("R")[:3]:
            slurm_cluster.run("scancel", number)
        it.wait(lambda: "site.stopped" in it.log(), "the site stops")
        it.wait(lambda: not it.ours(), "all of ours are gone", 60)
        assert '"cause":"cancels"' in it.log()
        it.wait(lambda: it.metric("tidemill_drained") == 1, "the metric tells", 30)


def test_a_pilot_that_staff_put_on_hold_drains_the_site(slurm_cluster: SlurmCluster) -> None:
    words = ("sbatch", "-N4", "-t5", "-o/dev/null", "--wrap", "sleep 300")
    slurm_cluster.run_as_user(*words, user=OTHER_USER)
    with site_on(slurm_cluster, harvest='policy = "demand"') as it:  # queues like anybody else
        campaign(it, *SECOND, events=500)
        it.wait(lambda: bool(it.ours("PD")), "pilots wait in the queue")
        slurm_cluster.run("scontrol", "hold", it.ours("PD")[0])
        it.wait(lambda: '"cause":"held"' in it.log(), "the site stops")
        it.wait(lambda: not it.ours(), "all of ours are gone", 60)


def killing_sbatch(it_commands: Path, moment: str) -> Callable[[Path], str]:
    """A directory with an `sbatch` that kills who called it, once, before or after the real one has done its work."""

    def make(real: Path) -> str:
        folder = it_commands / f"kill-{moment}"
        folder.mkdir()
        flag = folder / "done"
        before = "kill -9 $PPID; exit 1" if moment == "before" else f'{real} "$@"; kill -9 $PPID; exit 1'
        (folder / "sbatch").write_text(
            f'#!/bin/sh\nif [ ! -e {flag} ]; then : > {flag}; {before}; fi\nexec {real} "$@"\n'
        )
        (folder / "sbatch").chmod(0o755)
        folder.chmod(0o777)
        return str(folder)

    return make


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_agent_killed_while_it_submits_submits_nothing_twice(
    slurm_cluster: SlurmCluster, moment: str
) -> None:
    path = killing_sbatch(slurm_cluster.space, moment)(Path("/usr/bin/sbatch"))
    with site_on(slurm_cluster, first_on_path=path, idle_s=5) as it:
        number = campaign(it, "/bin/sleep", "0.2", events=100)
        row = wait_done(it, number)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 100)
        assert it.log().count("agent.started") == 2
        jobs = slurm_cluster.run(
            "squeue", "-h", "-r", "-t", "all", "-u", "nobody", "-o", "%j %i %k"
        ).splitlines()
        key = (it.directory / "key").read_text().strip()  # other tests' sites gave the same names
        names = [line.split()[0] for line in jobs if "_" not in line.split()[1] and key in line]
        assert len(names) == len(set(names))
        it.wait(lambda: not it.ours(), "idle pilots leave")


def test_a_killed_agents_successor_finds_what_runs(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster) as it:
        number = hold_all(it, 4, events=120)
        before = set(it.ours())
        it.world.restart("agent")
        row = wait_done(it, number, 120)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 120)
        assert before
        assert "allocation.lost" not in it.log()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_pilots_whose_agent_is_stopped_or_killed_leave_by_themselves_and_lose_nothing(
    slurm_cluster: SlurmCluster, how: signal.Signals
) -> None:
    with site_on(slurm_cluster) as it:
        number = hold_all(it, 4, events=240)
        keepers = it.world.processes("up")
        (agent,) = it.world.processes("agent")
        assert all(send(each, signal.SIGSTOP) for each in keepers)  # which would start another agent
        assert send(agent, how)
        it.wait(lambda: not it.ours("R"), "every node is given back", DEAD_AFTER_S + DRAIN_S + POLL_S)
        assert all(send(each, signal.SIGCONT) for each in keepers)
        if how is signal.SIGSTOP:
            assert send(agent, signal.SIGCONT)
        row = wait_done(it, number, 120)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 240)


def test_a_preempted_and_requeued_pilot_loses_nothing_and_is_no_failure(
    start_slurm: Callable[..., SlurmCluster],
) -> None:
    cluster = start_slurm("--nodes", "2", "--preempt", "requeue")
    with site_on(cluster, harvest='policy = "preempt"', cluster_keys='partition = "preempt"') as it:
        number = hold_all(it, 2, events=60)
        theirs = cluster.run_as_user(
            "sbatch", "--parsable", "-N2", "-t2", "-o/dev/null", "--wrap", "sleep 3", user=OTHER_USER
        ).strip()
        it.wait(lambda: not it.ours("R"), "the scheduler takes our nodes")
        cluster.run("scontrol", "show", "job", theirs)
        row = wait_done(it, number, 120)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 60)
        assert "start_failed" not in it.log()
        assert "site.stopped" not in it.log()


def test_a_controller_that_loses_jobs_and_reuses_their_numbers_loses_no_event(
    start_slurm: Callable[..., SlurmCluster],
) -> None:
    cluster = start_slurm("--nodes", "4")
    with site_on(cluster) as it:
        number = campaign(it, "/bin/sleep", "0.5", events=200)
        it.wait(lambda: bool(it.records("submit")), "pilots are asked for")
        cluster.crash_controller()
        cluster.start_controller()
        foreign = cluster.run_as_user(
            "sbatch", "--parsable", "-n1", "-pshared", "-t2", "-o/dev/null", "-Jtm-centre-e1-1",
            "--comment=tidemill 0123456789abcdef centre", "--wrap", "sleep 40", user=OTHER_USER
        ).strip()  # fmt: skip
        row = wait_done(it, number, 120)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 200)
        state = ("squeue", "-h", "-t", "all", "-j", foreign, "-o", "%T")
        it.wait(
            lambda: cluster.run(*state).strip() in ("RUNNING", "COMPLETED"),
            "the foreign job has what it asked for",
        )


def test_a_node_on_which_every_start_fails_costs_few_starts(slurm_cluster: SlurmCluster) -> None:
    binary = slurm_cluster.space / "node-binary"
    binary.write_text(
        '#!/bin/sh\nif [ "$SLURMD_NODENAME" = n1 ]; then echo no licence here >&2; exit 1; fi\n'
        f'exec {find_binary()} "$@"\n'
    )
    binary.chmod(0o755)
    with site_on(slurm_cluster, binary=binary) as it:
        number = campaign(it, *SECOND, events=2000)
        it.wait(lambda: "node.quarantined" in it.log(), "the node is in quarantine")
        done = job(it, number)["events_done"]
        it.wait(lambda: job(it, number)["events_done"] > done, "the others go on")  # type: ignore[operator]
        failed = [line for line in it.log().splitlines() if '"ending":"failed"' in line]
        assert 3 <= len(failed) <= 5
        (sentence,) = [json.loads(line) for line in it.log().splitlines() if "node.quarantined" in line]
        assert sentence["node"] == "n1"
        assert "no licence here" in str(sentence["evidence"])
        it.wait(lambda: it.metric("tidemill_quarantined_nodes") == 1, "the metric tells", 30)


def test_a_node_on_which_pilots_hang_is_given_back_and_then_left_alone(slurm_cluster: SlurmCluster) -> None:
    binary = slurm_cluster.space / "node-that-hangs"
    binary.write_text(
        f'#!/bin/sh\n[ "$SLURMD_NODENAME" = n1 ] && exec sleep 600\nexec {find_binary()} "$@"\n'
    )
    binary.chmod(0o755)
    # long beside a pilot's start on a busy machine: only n1 is to be found silent
    quick = {"site": {"FIRST_RECORD_S": 8, "QUARANTINE_STARTS": 2}}
    with site_on(slurm_cluster, timing=quick, binary=binary) as it:
        number = campaign(it, *SECOND, events=2000)
        it.wait(lambda: "node.quarantined" in it.log(), "the node is in quarantine")
        (sentence,) = [json.loads(line) for line in it.log().splitlines() if "node.quarantined" in line]
        assert sentence["node"] == "n1"
        assert "no pilot of it was heard" in str(sentence["evidence"])
        assert any("on n1 and no pilot" in record["reason"] for record in it.records("cancel"))
        done = job(it, number)["events_done"]
        it.wait(lambda: job(it, number)["events_done"] > done, "the others go on")  # type: ignore[operator]
        assert "site.stopped" not in it.log()


def test_a_site_that_observes_says_what_it_would_do_and_submits_nothing(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster, top='mode = "observe"') as it:
        campaign(it, "/bin/true", events=5)
        it.wait(lambda: bool(it.records("plan")), "it plans")
        assert it.records("plan")[0]["submit"] >= 4
        it.wait(lambda: it.metric("tidemill_plans_total") > 0, "metrics are written", 30)
        assert not it.records("submit")
        assert not it.ours()


def test_node_hours_are_used_up_to_their_bound_and_not_beyond(slurm_cluster: SlurmCluster) -> None:
    with site_on(slurm_cluster, harvest="node_hours_max = 0.05", idle_s=2) as it:  # 3 node-minutes
        campaign(it, *SECOND, events=2000)
        it.wait(lambda: any(plan["waits_for"] == "grant" for plan in it.records("plan")), "the bound is told")
        asked = sum(each["count"] * each["width"] * each["walltime_s"] for each in it.records("submit"))
        assert 0 < asked <= 180


def test_an_agent_that_starts_while_the_controller_is_down_waits_for_it(
    start_slurm: Callable[..., SlurmCluster],
) -> None:
    cluster = start_slurm("--nodes", "2")
    with site_on(cluster) as it:
        cluster.crash_controller()
        it.world.restart("agent")
        it.wait(lambda: "batch.away" in it.log(), "the agent says that it waits")
        number = campaign(it, "/bin/sleep", "0.2", events=20)
        cluster.start_controller()
        row = wait_done(it, number)
        assert (row["state"], row["events_done"]) == ("COMPLETED", 20)
        assert it.log().count("agent.started") == 2


def test_up_starts_while_the_controller_is_down_and_says_that_the_site_waits(
    start_slurm: Callable[..., SlurmCluster],
) -> None:
    cluster = start_slurm("--nodes", "2")
    cluster.crash_controller()
    with site_on(cluster) as it:
        # `up` has its file before it prints: the lines follow
        it.wait(lambda: "    stop " in (it.home / "up.log").read_text(), "`up` has printed what runs")
        assert "the site waits for its batch system" in (it.home / "up.log").read_text()
        status = it.world.run("site", "status", str(it.directory))
        assert "asked again and again" in " ".join(status.stdout.split()), status.stderr
        number = campaign(it, "/bin/sleep", "0.2", events=20)
        cluster.start_controller()
        assert wait_done(it, number)["events_done"] == 20
        assert read_status(it.directory).status.away is None
