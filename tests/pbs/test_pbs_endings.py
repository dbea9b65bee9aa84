"""PBS's history, lost replies, numbers that come back and unreadable JSON, on complete fake commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.batch.batch_pbs import PbsWorld, person, world
from tests.worlds.batch.batch_world import KEY

from tidemill import clock
from tidemill.batch import processes
from tidemill.batch.contract import Answer, BatchSubmission, Ending, Status
from tidemill.batch.pbs import PbsBatchSystem
from tidemill.batch.pbs.deaths import ENOUGH, Deaths
from tidemill.config.site import Cluster
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

DEADLINE_S = 30.0


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as made:
        yield made


def client(pbs: PbsWorld, deaths: Deaths | None = None) -> PbsBatchSystem:
    config = Cluster(calls_per_min_max=100_000, launcher="fork")
    return PbsBatchSystem(pbs.directory, config, key=KEY, deaths=deaths)


def submission(script: str, name: str = "tm-here-e1-1") -> BatchSubmission:
    return BatchSubmission(
        name=name, command=["/bin/sh", "-c", script], nodes=1, cores=4, memory_mb=0, walltime_s=600
    )


def wait(batch: PbsBatchSystem, name: str, done: Callable[[Status], bool]) -> Status:
    deadline_s = clock.monotonic_s() + DEADLINE_S
    while not done(status := batch.status([name])[name]):
        assert clock.monotonic_s() < deadline_s, f"waited in vain: {status}"
        clock.sleep_s(0.02)
    return status


def is_final(status: Status) -> bool:
    return status.answer is Answer.FOUND and status.state in ALLOCATION_FINAL


def runs(status: Status) -> bool:
    return status.state is AllocationState.ACTIVE


def until_there(path: Path) -> None:
    deadline_s = clock.monotonic_s() + DEADLINE_S
    while not path.exists():
        assert clock.monotonic_s() < deadline_s, f"waited in vain for {path}"
        clock.sleep_s(0.02)


def kill(batch: PbsBatchSystem) -> None:
    """Start an allocation, and kill its script, which then notes nothing."""
    number = batch.submit(submission("sleep 600"))
    wait(batch, "tm-here-e1-1", runs)
    subprocess.run(["qsig", "-s", "KILL", number], env=person(), check=True)


def test_end_that_no_file_tells_is_asked_of_the_history(pbs: PbsWorld) -> None:
    pbs.configure(job_history_enable="True")
    batch = client(pbs)
    kill(batch)
    status = wait(batch, "tm-here-e1-1", is_final)
    assert status.ending in (Ending.CANCELED, Ending.FAILED)
    assert "Exit_status" in status.reason


def test_a_mom_that_starts_again_and_aborts_a_job_is_a_failure_of_the_node(pbs: PbsWorld) -> None:
    """The start had not failed: the job ran. OpenPBS 23.06 gives such a job `Exit_status = -4`."""
    pbs.configure(job_history_enable="True")
    batch = client(pbs)
    number = batch.submit(submission("sleep 600"))
    wait(batch, "tm-here-e1-1", runs)
    (pbs.state / "end" / number.partition(".")[0]).write_text("-4")
    status = wait(batch, "tm-here-e1-1", is_final)
    assert (status.state, status.ending) == (AllocationState.FAILED, Ending.NODE)


@pytest.mark.timing(batch={"UNKNOWN_S": 0.5})
def test_end_that_nobody_tells_is_unclear_and_then_gone(pbs: PbsWorld) -> None:
    batch = client(pbs)
    kill(batch)
    assert wait(batch, "tm-here-e1-1", lambda each: each.answer is not Answer.FOUND).answer is Answer.UNCLEAR
    assert wait(batch, "tm-here-e1-1", lambda each: each.answer is Answer.GONE).answer is Answer.GONE


def test_submission_whose_reply_was_lost_is_found_by_name(pbs: PbsWorld) -> None:
    wanted = submission("sleep 600")
    number = client(pbs).submit(wanted)
    (pbs.directory / "scripts" / f"{wanted.name}.id").unlink()
    batch = client(pbs)
    assert batch.status([wanted.name])[wanted.name].answer is Answer.FOUND
    assert batch.submit(wanted) == number


@pytest.mark.timing(batch={"UNKNOWN_S": 0.2})
def test_number_that_came_back_is_another_job(pbs: PbsWorld) -> None:
    batch = client(pbs)
    number = batch.submit(submission("sleep 600"))
    subprocess.run(["qdel", number], env=person(), check=True)
    deadline_s = clock.monotonic_s() + DEADLINE_S
    while subprocess.run(["qstat", number], env=person(), capture_output=True, check=False).returncode == 0:
        assert clock.monotonic_s() < deadline_s
        clock.sleep_s(0.05)
    (pbs.directory / "exit" / "tm-here-e1-1").unlink(missing_ok=True)
    state = json.loads((pbs.state / "state.json").read_text())
    (pbs.state / "state.json").write_text(json.dumps({**state, "next": int(number.partition(".")[0])}))
    assert pbs.plant(name="mine", comment="-", stranger=False) == number
    wait(batch, "tm-here-e1-1", lambda each: each.answer is Answer.GONE)
    batch.cancel(["tm-here-e1-1"])
    assert pbs.lives(number)


def test_json_that_cannot_be_repaired_is_asked_for_as_text(pbs: PbsWorld) -> None:
    config = json.loads((pbs.state / "config.json").read_text())
    config["queues"]["workq"]["comment"] = "UNREADABLE"
    (pbs.state / "config.json").write_text(json.dumps(config))
    batch = client(pbs)
    batch.facts()
    before = batch.calls.queries
    seen = batch.snapshot()
    assert batch.calls.queries - before == 5, "four, and queues once more"
    assert [each.name for each in seen.partitions] == ["workq"]


def preempting(pbs: PbsWorld, order: str, *, history: bool) -> PbsBatchSystem:
    """One of ours on each node, and then an urgent job of both."""
    pbs.configure(preempt_order=order, job_history_enable=str(history))
    batch = client(pbs)
    for number in (1, 2):
        # a script that TERM meets before its traps are set leaves no note of its end
        batch.submit(submission(f": > {pbs.space}/up{number}; exec sleep 600", f"tm-here-e1-{number}"))
        until_there(pbs.space / f"up{number}")
    (pbs.space / "urgent").write_text("sleep 600\n")
    words = [
        "qsub",
        "-q",
        "urgent",
        "-l",
        "select=2:ncpus=4",
        "-l",
        "place=scatter:excl",
        str(pbs.space / "urgent"),
    ]
    subprocess.run(words, env=person(), check=True, capture_output=True)
    return batch


def test_what_the_scheduler_suspends_is_told_and_ends_when_it_is_canceled(pbs: PbsWorld) -> None:
    batch = preempting(pbs, "S", history=False)
    told = wait(batch, "tm-here-e1-1", lambda each: each.suspended)
    assert told.state is AllocationState.ACTIVE
    batch.cancel(["tm-here-e1-1", "tm-here-e1-2"])
    ended = wait(batch, "tm-here-e1-1", is_final)
    assert (ended.state, ended.ending) == (AllocationState.CANCELED, Ending.PREEMPTED)
    assert "suspended" in ended.reason


@pytest.mark.parametrize(("history", "ending"), [(True, Ending.PREEMPTED), (False, Ending.CANCELED)])
def test_what_the_scheduler_deletes_was_preempted_where_a_history_tells(
    pbs: PbsWorld, *, history: bool, ending: Ending
) -> None:
    batch = preempting(pbs, "D", history=history)
    told = wait(batch, "tm-here-e1-1", is_final)
    assert (told.state, told.ending) == (AllocationState.CANCELED, ending)


def test_what_a_person_deletes_was_canceled(pbs: PbsWorld) -> None:
    pbs.configure(job_history_enable="True")
    batch = client(pbs)
    number = batch.submit(submission(f": > {pbs.space}/up; exec sleep 600"))
    until_there(pbs.space / "up")  # TERM ends it, not KILL a second later
    subprocess.run(["qdel", number], env=person(), check=True)
    assert wait(batch, "tm-here-e1-1", is_final).ending is Ending.CANCELED


def test_foreign_jobs_that_are_hidden_are_said_to_be(pbs: PbsWorld) -> None:
    pbs.configure(query_other_jobs="False", scheduler_iteration="600")
    facts = client(pbs).facts()
    assert facts.others_hidden
    assert facts.scheduler["scheduler_iteration"] == "600"
    seen = client(pbs).snapshot()
    assert seen.are_jobs_hidden
    assert any("query_other_jobs" in each for each in seen.hidden)


def test_limits_of_several_are_lowered_by_one_call_each(pbs: PbsWorld) -> None:
    batch = client(pbs)
    for number in (1, 2):
        batch.submit(submission("sleep 600", f"tm-here-e1-{number}"))
    starts = {name: wait(batch, name, runs).started_s or 0.0 for name in ("tm-here-e1-1", "tm-here-e1-2")}
    before = batch.calls.actions
    ends = batch.shorten(
        {"tm-here-e1-1": starts["tm-here-e1-1"] + 100, "tm-here-e1-2": starts["tm-here-e1-2"] + 200}
    )
    assert batch.calls.actions - before == 2
    assert {name: end - starts[name] for name, end in ends.items()} == {
        "tm-here-e1-1": 100,
        "tm-here-e1-2": 200,
    }
    assert batch.shorten({"tm-here-e1-1": starts["tm-here-e1-1"] + 500}) == {}, "never raised"


def foreign(pbs: PbsWorld, nodes: int, walltime_s: int) -> str:
    """Another user's job of whole nodes: its number."""
    script = pbs.space / "foreign"
    script.write_text("sleep 600\n")
    words = ["qsub", "-l", f"select={nodes}:ncpus=4", "-l", "place=scatter:excl"]
    words += ["-l", f"walltime={walltime_s}", str(script)]
    return subprocess.run(
        words, check=True, capture_output=True, text=True, env=person("stranger")
    ).stdout.strip()


def record_of(number: str) -> str:
    command = ["qstat", "-f", number]
    return subprocess.run(command, env=person(), check=True, capture_output=True, text=True).stdout


def test_no_job_is_backfilled_that_outlasts_the_end_of_what_is_deleted(pbs: PbsWorld) -> None:
    """Two allocations are deleted for a job of two nodes that PBS plans, and one of them is slow to end."""
    pbs.configure(strict_ordering=True)
    batch = client(pbs)
    scripts = {
        "tm-here-e1-1": "sleep 600",
        "tm-here-e1-2": "trap '' TERM; while :; do sleep 1; done",
    }
    for name, script in scripts.items():
        batch.submit(submission(script, name))
        wait(batch, name, runs)
    wide, long = foreign(pbs, 2, 300), foreign(pbs, 1, 400)
    assert any(job.planned_s for job in batch.snapshot().queued)
    batch.cancel(list(scripts))
    for name in scripts:
        wait(batch, name, is_final)
    assert " job_state = R" in record_of(wide)
    assert " job_state = Q" in record_of(long)


def test_a_limit_is_lowered_before_a_deletion_only_where_pbs_plans(pbs: PbsWorld) -> None:
    batch = client(pbs)
    batch.submit(submission("sleep 600"))
    wait(batch, "tm-here-e1-1", runs)
    batch.snapshot()
    before = batch.calls.actions
    batch.cancel(["tm-here-e1-1"])
    assert batch.calls.actions - before == 1


def test_jobs_of_the_fake_end_with_the_test_that_started_them(tmp_path: Path) -> None:
    script = f"trap '' TERM; : > {tmp_path}/runs; while :; do sleep 600; done"
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tests.worlds.batch.batch_pbs import world\n"
        "from tests.pbs.test_pbs_endings import client, submission\n"
        "with world(None, Path(sys.argv[1])) as made:\n"
        "    client(made).submit(submission(sys.argv[2]))\n"
        "    while not Path(sys.argv[1], 'runs').exists():\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), script],
        timeout=DEADLINE_S, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (tmp_path / "runs").exists()
    deadline_s = clock.monotonic_s() + DEADLINE_S
    here = str(tmp_path).encode()
    while any(here in word for pid in processes.processes() for word in processes.words_of(pid)):
        assert clock.monotonic_s() < deadline_s, "its processes stay"
        clock.sleep_s(0.05)


def test_how_long_nodes_are_kept_after_a_cancel_is_learned_from_the_history(pbs: PbsWorld) -> None:
    pbs.configure(job_history_enable="True", end_s=1.5)
    batch = client(pbs, deaths=Deaths(ripe_s=0.0))
    batch.facts()
    names = [f"tm-here-e1-{number}" for number in range(ENOUGH)]
    for name in names:
        up = pbs.space / name
        batch.submit(submission(f"trap '' TERM; : > {up}; while :; do sleep 1; done", name))
        until_there(up)  # it hears no TERM from now on
        wait(batch, name, runs)
        batch.cancel([name])
        wait(batch, name, is_final)
        batch.status([name])
    assert batch.calls.death_s >= 2, "killed a second after TERM, noticed 1.5 s later"
