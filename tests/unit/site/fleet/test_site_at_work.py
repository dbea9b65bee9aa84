"""Which jobs no payload runs, by what leads say that pilots have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.site.fleet.at_work import UnstartedJobs, read_at_work, unstarted_jobs
from tidemill.site.state.site_state import STEP_BASE, SiteJob, SiteState
from tidemill.wire.capacity import UNSTARTED_CHARACTERS_MAX, unstarted_text
from tidemill.wire.node import AtWork, form_number


def running(fleet: Path, jobs: str) -> set[int] | None:
    (fleet / "at_work.json").write_bytes(msgspec.json.encode(AtWork(format=1, incarnation=1, jobs=jobs)))
    return read_at_work(fleet)


def job(number: int, events: int) -> SiteJob:
    return SiteJob(
        id=number, campaign="c", seed_base=0, spec=JobSpec(app="sim", events=8), done=IntervalSet(),
        open=IntervalSet([(0, events)] if events else []),
    )  # fmt: skip


def test_jobs_with_open_events_that_no_pilot_has_are_unstarted() -> None:
    jobs = [job(1, 8), job(2, 8), job(3, 0), job(4, 8), job(STEP_BASE + 1, 8)]
    state = SiteState(site="s", jobs={each.id: each for each in jobs})
    assert str(unstarted_jobs(state, {2})) == "1,4"
    assert str(unstarted_jobs(state, {1, 2, 4})) == ""


def test_forms_of_a_job_count_as_the_job(tmp_path: Path) -> None:
    assert running(tmp_path, f"1-3,{form_number(7, 2)}") == {1, 2, 3, 7}


@pytest.mark.parametrize("jobs", ["x", "5-1", "1-99999999999999"])
def test_a_file_that_says_no_jobs_counts_as_none(tmp_path: Path, jobs: str) -> None:
    assert running(tmp_path, jobs) is None


def test_a_lead_that_does_not_say_is_not_read_as_one_that_running_out_nothing(tmp_path: Path) -> None:
    assert read_at_work(tmp_path) is None
    assert running(tmp_path, "") == set()
    (tmp_path / "at_work.json").write_text("{")
    assert read_at_work(tmp_path) is None


def test_the_text_is_bounded_at_a_whole_number() -> None:
    jobs = IntervalSet()
    for number in range(0, 40_000, 2):
        jobs.add(number, number + 1)
    text = unstarted_text(jobs)
    assert len(text) <= UNSTARTED_CHARACTERS_MAX
    assert max(first for first, _ in IntervalSet.parse(text)) < 40_000


def test_a_job_that_has_just_come_runs_nowhere_although_leads_are_asked_again_later() -> None:
    state = SiteState(site="s", jobs={1: job(1, 8)})
    unstarted = UnstartedJobs({"f": {1}}.get)
    assert unstarted.text(state, ["f"]) == ""
    state.jobs[2], state.have = job(2, 8), 1
    assert unstarted.text(state, ["f"]) == "2"
    del state.jobs[2]
    state.jobs[3], state.have = job(3, 8), 2
    assert unstarted.text(state, ["f"]) == "3", "another one, in place of one that has ended"


def test_where_no_pilot_is_at_work_nothing_runs() -> None:
    state = SiteState(site="s", jobs={1: job(1, 8)})
    assert UnstartedJobs({"f": {1}}.get).text(state, []) == "1"
