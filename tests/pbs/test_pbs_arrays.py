"""Several allocations at once, arrays from their first element to the last, and keys that look like numbers, as a real
OpenPBS 23.06 treats them: the fake commands do the same."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fakes.pbs.server import NEVER
from tests.pbs.test_pbs_endings import DEADLINE_S, is_final, runs, submission, wait
from tests.worlds.batch.batch_pbs import PbsWorld, world
from tests.worlds.batch.batch_world import KEY

from tidemill import clock
from tidemill.batch.contract import Answer
from tidemill.batch.pbs import PbsBatchSystem
from tidemill.batch.pbs.replies import Record
from tidemill.batch.pbs.survey import NO_SCHEDULER, NO_SCHEDULING, is_silent, waiting
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState
from tidemill.site.nodes.batch_calls import BatchCalls, PollAnswer


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as made:
        yield made


def client(pbs: PbsWorld, key: str = KEY) -> PbsBatchSystem:
    return PbsBatchSystem(pbs.directory, Cluster(calls_per_min_max=100_000, launcher="fork"), key=key)


def test_all_of_several_allocations_are_told_and_canceled_by_one_call_each(pbs: PbsWorld) -> None:
    batch = client(pbs)
    names = [f"tm-here-e1-{number}" for number in (1, 2, 3)]
    for name in names:
        batch.submit(submission("sleep 600", name))
    before = batch.calls.queries
    told = batch.status(names)
    assert batch.calls.queries - before == 1
    assert [told[name].answer for name in names] == [Answer.FOUND] * 3
    before = batch.calls.actions
    batch.cancel(names)
    assert batch.calls.actions - before == 1
    for name in names:
        assert wait(batch, name, is_final).state is AllocationState.CANCELED


@pytest.mark.parametrize("key", ["0012345678901234", "12345678901234e5"])
def test_a_key_that_looks_like_a_number_stays_ours(pbs: PbsWorld, key: str) -> None:
    batch = client(pbs, key)
    batch.submit(submission("sleep 600"))
    assert wait(batch, "tm-here-e1-1", runs).answer is Answer.FOUND
    assert [each.ours for each in batch.snapshot().running] == [True]


def test_elements_of_an_array_have_names_of_their_own_while_some_run_and_others_wait(pbs: PbsWorld) -> None:
    """Two nodes: of four elements two run, and two wait, which are jobs as any other."""
    batch = client(pbs)
    batch.submit(msgspec.structs.replace(submission("sleep 600"), count=4))
    wait(batch, "tm-here-e1-1.1", runs)
    seen = batch.snapshot()
    assert sorted(each.name for each in seen.running) == ["tm-here-e1-1.0", "tm-here-e1-1.1"]
    assert sorted(each.name for each in seen.queued) == ["tm-here-e1-1.2", "tm-here-e1-1.3"]
    assert [each.ours for each in seen.running] == [each.ours for each in seen.queued] == [True, True]
    batch.cancel(["tm-here-e1-1.0"])
    assert wait(batch, "tm-here-e1-1.0", is_final).state is AllocationState.CANCELED
    assert wait(batch, "tm-here-e1-1.2", runs).answer is Answer.FOUND, "the next one has its node"


def test_an_element_that_ended_stays_ended_while_others_of_its_array_run(pbs: PbsWorld) -> None:
    batch = client(pbs)
    batch.submit(msgspec.structs.replace(submission('[ "$PBS_ARRAY_INDEX" = 0 ] || sleep 600'), count=2))
    assert wait(batch, "tm-here-e1-1.0", is_final).state is AllocationState.COMPLETED
    assert wait(batch, "tm-here-e1-1.1", runs).answer is Answer.FOUND


def test_a_lost_reply_is_searched_for_once_for_all_elements(pbs: PbsWorld) -> None:
    batch = client(pbs)
    names = [f"tm-here-e1-1.{index}" for index in range(4)]
    batch.submit(msgspec.structs.replace(submission("sleep 600"), count=4))
    (pbs.directory / "scripts" / "tm-here-e1-1.id").unlink()
    batch = client(pbs)
    told = batch.status(names)
    assert [told[name].answer for name in names] == [Answer.FOUND] * 4
    before = batch.calls.queries
    batch.status(names)
    assert batch.calls.queries - before == 1


def test_a_usage_error_is_quoted_and_not_the_usage(pbs: PbsWorld) -> None:
    config = Cluster(calls_per_min_max=100_000, launcher="fork", directives=["-r n"])
    batch = PbsBatchSystem(pbs.directory, config, key=KEY)
    with pytest.raises(SiteError, match="cannot submit non-rerunable Array Job") as caught:
        batch.submit(msgspec.structs.replace(submission("sleep 600"), count=2))
    assert not caught.value.transient


def test_the_start_that_pbs_plans_for_an_array_is_that_of_its_next_element() -> None:
    array: Record = {"job_state": "B", "estimated": {"start_time": "soon"}}
    jobs: dict[str, Record] = {
        "7[].pbs": array,
        "7[0].pbs": {"job_state": "R"},
        "7[1].pbs": {"job_state": "Q"},
        "7[2].pbs": {"job_state": "Q"},
        "8[].pbs": {"job_state": "H"},
        "8[0].pbs": {"job_state": "Q"},
        "9.pbs": {"job_state": "Q"},
    }
    found = dict(waiting(jobs))
    assert list(found) == ["7[1].pbs", "7[2].pbs", "8[0].pbs", "9.pbs"]
    assert [each.get("estimated") for each in found.values()] == [{"start_time": "soon"}, None, None, None]
    assert found["8[0].pbs"]["job_state"] == "H", "what holds the array holds its elements"
    assert dict(waiting({"7[].pbs": {"job_state": "Q"}})), "told without -t"


def test_a_server_that_is_down_is_told_by_each_command(pbs: PbsWorld) -> None:
    batch = client(pbs)
    batch.submit(submission("sleep 600"))
    wait(batch, "tm-here-e1-1", runs)
    with pbs.away():
        for call in (
            lambda: batch.status(["tm-here-e1-1"]),
            batch.snapshot,
            lambda: batch.cancel(["tm-here-e1-1"]),
            lambda: batch.submit(submission("true", "tm-here-e1-2")),
        ):
            with pytest.raises(SiteError) as caught:
                call()
            assert caught.value.transient
    deadline_s = clock.monotonic_s() + DEADLINE_S
    while batch.status(["tm-here-e1-1"])["tm-here-e1-1"].state is not AllocationState.ACTIVE:
        assert clock.monotonic_s() < deadline_s


def test_what_can_never_run_is_taken_waits_and_is_not_waited_for(pbs: PbsWorld) -> None:
    batch = client(pbs)
    batch.submit(msgspec.structs.replace(submission("true"), nodes=3, ranks=False))
    told = batch.status(["tm-here-e1-1"])["tm-here-e1-1"]
    assert (told.state, told.reason, told.hopeless) == (AllocationState.QUEUED, NEVER, NEVER)
    assert [each.eligible for each in batch.snapshot().queued] == [False]


def test_a_scheduler_that_is_down_is_told_and_what_was_submitted_waits_for_it(pbs: PbsWorld) -> None:
    assert client(pbs).snapshot().starts_nothing == ""
    (pbs.state / "no-scheduler").touch()
    batch = client(pbs)
    assert batch.snapshot().starts_nothing == batch.facts().starts_nothing == NO_SCHEDULER
    batch.submit(submission("true"))
    assert batch.status(["tm-here-e1-1"])["tm-here-e1-1"].state is AllocationState.QUEUED
    (pbs.state / "no-scheduler").unlink()
    assert batch.snapshot().starts_nothing == "", "asked for at every poll while it is down"
    assert wait(batch, "tm-here-e1-1", is_final).state is AllocationState.COMPLETED


def test_without_qmgr_a_site_works_and_its_scheduler_counts_as_running(
    pbs: PbsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = Path(shutil.which("qstat") or "").parent
    here = tmp_path / "without-qmgr"
    here.mkdir()
    for each in fakes.iterdir():
        if each.name != "qmgr":
            (here / each.name).symlink_to(each)
    monkeypatch.setenv("PATH", os.environ["PATH"].replace(str(fakes), str(here)))
    assert shutil.which("qmgr") is None
    batch = client(pbs)
    batch.submit(submission("true"))
    assert batch.snapshot().starts_nothing == ""
    assert wait(batch, "tm-here-e1-1", is_final).state is AllocationState.COMPLETED


def test_scheduling_that_is_switched_off_is_told(pbs: PbsWorld) -> None:
    pbs.configure(scheduling="False")
    assert client(pbs).snapshot().starts_nothing == NO_SCHEDULING


def test_a_job_that_no_cycle_has_commented_on_makes_the_scheduler_be_asked_for() -> None:
    now_s = time.mktime(time.strptime("Thu Nov 26 12:00:00 2026"))
    long_ago, just_now = "Thu Nov 26 11:59:00 2026", "Thu Nov 26 11:59:50 2026"
    job: Record = {"job_state": "Q", "qtime": long_ago}
    assert is_silent({"7.pbs": job}, now_s)
    assert not is_silent({"7.pbs": {**job, "comment": "Not Running: Not enough free nodes available"}}, now_s)
    assert not is_silent({"7.pbs": {**job, "qtime": just_now}}, now_s)
    assert not is_silent({"7.pbs": {**job, "job_state": "H"}}, now_s)
    assert not is_silent({"7[3].pbs": job}, now_s), "elements have no comments of their own"


def test_a_scheduler_that_goes_down_is_noticed_by_the_jobs_that_wait_for_it(pbs: PbsWorld) -> None:
    batch = client(pbs)
    before = batch.calls.queries
    batch.snapshot()
    assert batch.calls.queries - before == 6, "four, the server's settings and its scheduler"
    (pbs.state / "no-scheduler").touch()
    assert batch.snapshot().starts_nothing == "", "nothing waits: it was asked for a moment ago"
    assert batch.calls.queries - before == 10
    batch.submit(submission("true"))
    pbs.age(60)
    assert batch.snapshot().starts_nothing == NO_SCHEDULER


def test_the_interval_of_cycles_without_an_event_is_that_of_the_server(pbs: PbsWorld) -> None:
    pbs.configure(scheduler_iteration="480")
    assert client(pbs).snapshot().iteration_s == 480.0


def test_a_poll_costs_five_commands_while_tidemill_has_jobs(pbs: PbsWorld) -> None:
    """docs/guests-manners.md says so to staff; whatever else it is, `harvest.plan.pace` counts."""
    batch = client(pbs)
    batch.submit(submission("sleep 600"))
    wait(batch, "tm-here-e1-1", runs)
    batch.snapshot()
    calls = BatchCalls(batch, lambda: None, inline=True)
    calls.poll(["tm-here-e1-1"], machine=True)
    answer = calls.poll_answer()
    assert isinstance(answer, PollAnswer)
    assert answer.calls == 5


@pytest.mark.parametrize(
    ("directive", "words", "transient"),
    [
        ("-q nosuch", "Unknown queue", False),
        ("-l select=1:nosuch=1", "Unknown resource: nosuch", False),
        ("-l select=x", "Illegal attribute or resource value", False),
        ("-J 0-1000000", "Array job exceeds server or queue size limit", False),
    ],
)
def test_a_refusal_is_quoted_and_asking_again_changes_nothing(
    pbs: PbsWorld, directive: str, words: str, *, transient: bool
) -> None:
    config = Cluster(calls_per_min_max=100_000, directives=[directive, "-r y"])
    with pytest.raises(SiteError, match=words) as caught:
        PbsBatchSystem(pbs.directory, config, key=KEY).submit(submission("true"))
    assert caught.value.transient is transient
