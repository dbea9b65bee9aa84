"""What `job explain` says of a job that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from msgspec import structs

from tidemill.cli.arriving import arrived_text, outputs_lines, still_kept
from tidemill.cli.jobs.explain import _show_failure, story
from tidemill.cli.jobs.follow import standing
from tidemill.cli.jobs.job import _facts, _show_failures, used_text
from tidemill.cli.jobs.logs import _failed_try, _tell_none
from tidemill.cli.jobs.outcome import _tell_left
from tidemill.client.causes import step_of
from tidemill.client.client import Client
from tidemill.client.event_states import states
from tidemill.errors import ProtocolError
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Output, Pack
from tidemill.wire.api import (
    AT_WORK,
    Attempt,
    FailureRow,
    JobDetail,
    JobRow,
    KeptOutputs,
    OutputRow,
    PayloadUsage,
)

S = 1_000_000
START = 1_800_000_000 * S


def _attempt(first_s: int, last_s: int | None) -> Attempt:
    return Attempt(
        lease=first_s, site="here", state="ACTIVE" if last_s is None else "ENDED", first=0, count=1,
        leased_us=START + first_s * S, ended_us=None if last_s is None else START + last_s * S, reason="",
    )  # fmt: skip


def _detail(*attempts: Attempt, leased: int = 1, waits_for: str = AT_WORK) -> JobDetail:
    row = JobRow(
        id=1, campaign="c", name="", app="", state="RUNNING", site="here", events=10, events_done=9, events_failed=0,
        events_leased=leased, priority=0, created_us=START - S, started_us=START, ended_us=None, reason="",
    )  # fmt: skip
    return JobDetail(
        row=row, spec=JobSpec(command=["true"], events=10), seed_base=0, done="0-8", failed="", usage=PayloadUsage(),
        attempts=list(attempts), failures=[], outputs=[], waits_for=waits_for, waits_hint=None,
    )  # fmt: skip


def test_the_time_between_the_end_of_a_job_and_its_retry_is_not_time_that_it_ran() -> None:
    lines = story(_detail(_attempt(0, 4), _attempt(2, 5), _attempt(3600, None)), now_us=START + 3604 * S)
    assert lines[0] == "nothing holds it up: it runs at site here, which has had it for 9.0 s"
    assert lines[2].startswith("at 1 events/s it ends in about 1.0 s")


def test_a_job_of_which_the_server_shows_the_newest_leases_only_has_run_since_its_start() -> None:
    lines = story(_detail(_attempt(50, None)), now_us=START + 60 * S)
    assert "has had it for 1 m 00 s" in lines[0]


def test_only_the_last_failures_of_events_that_are_not_done_are_told_at_the_end() -> None:
    def failure(event: int | None, message: str, kind: FailureClass = FailureClass.MEMORY) -> FailureRow:
        evidence = Evidence(failure=kind, message=message, at_us=START)
        return FailureRow(job=1, event=event, seed=None, site="here", final=True, evidence=evidence)

    newest_first = [
        failure(9, "new"),
        failure(None, "of the job", FailureClass.DISPATCH),
        failure(None, "full", FailureClass.STAGE_OUT),
        failure(9, "old"),
        failure(8, "done since"),
    ]
    told = [each.evidence.message for each in standing(_detail(), newest_first)]
    assert told == ["new", "of the job"]
    kept = structs.replace(_detail(), kept=KeptOutputs(job=1, site="here", events="0-8"))
    assert "full" in [each.evidence.message for each in standing(kept, newest_first)]


NO_SERVER = cast("Client", None)


@pytest.mark.parametrize(
    "read",
    [
        lambda job: list(standing(job, [])),
        lambda job: _failed_try(job, 3),
        lambda job: _tell_left(NO_SERVER, job),
        lambda job: states(job, [], IntervalSet([(0, 3)]), now_us=START),
        lambda job: arrived_text(OutputRow(name="x", url="/x/", size_bytes=0, sha256="", events=job.done), 3),
        lambda job: still_kept([KeptOutputs(job=1, site="here", events=job.done)], []),
    ],
)
def test_a_list_of_events_that_cannot_be_read_is_an_error_and_no_bug(
    read: Callable[[JobDetail], object],
) -> None:
    with pytest.raises(ProtocolError, match="has events that cannot be read: `8-0` ends before it starts"):
        read(structs.replace(_detail(), done="8-0"))


def test_the_stdout_of_an_event_that_failed_is_not_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    kept = OutputRow(name="stdout", url="/out/stdout.tar", size_bytes=9, sha256="ab", events="0-8")
    job = structs.replace(_detail(_attempt(0, 1)), outputs=[kept])
    _tell_none(job, "job 1, event 9", 9)
    assert "wrote nothing to stdout and stderr" in capsys.readouterr().err
    _tell_none(job, "job 1, event 8", 8)
    assert "is in the output `stdout`: /out/stdout.tar" in capsys.readouterr().err


def test_what_was_delivered_before_a_retry_is_counted_with_what_arrives() -> None:
    there = OutputRow(name="stdout", url="/out/", size_bytes=600, sha256="ab", events="0-5")
    arriving = OutputRow(name="stdout", url="/out/", size_bytes=300, sha256="", events="6-8")
    elsewhere = OutputRow(name="stdout", url="/old/", size_bytes=600, sha256="ab", events="9")
    spec = JobSpec(command=["true"], events=10, keep_stdout=True)
    job = structs.replace(_detail(_attempt(0, None)), spec=spec, outputs=[there, elsewhere, arriving])
    assert outputs_lines(job) == ["stdout: 9 of 10 events in /out (900 B); more files arrive while it runs"]


def test_what_was_used_is_said_of_what_is_done() -> None:
    usage = PayloadUsage(payloads=9, wall_us=9 * S, user_us=9 * S, rss_kb=8_000)
    job = structs.replace(_detail(_attempt(0, 9)), usage=usage, waits_for=None)
    said = used_text(usage)
    assert f"what is done used {said}" in story(job, now_us=START + 9 * S)
    assert ("used", f"{said}, by what is done") in _facts(job)


@pytest.mark.parametrize(("leased", "said"), [(1, "1 is leased"), (2, "2 are leased")])
def test_one_event_is_leased_and_two_are(leased: int, said: str) -> None:
    lines = story(_detail(_attempt(0, None), leased=leased), now_us=START + S)
    assert lines[1] == f"9 of 10 events are done, {said} to the site"


APPROVE = "`tidemill app approve /s/apps/sim.toml`"
CHANGED = "application `sim`: `/opt/sim` has digest sha256:ab, approved is sha256:cd"


@pytest.mark.parametrize("is_said", [True, False])
def test_a_changed_program_is_told_once(is_said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    hint = f"it waits for a site (here: {CHANGED}; to end it: it was changed: {APPROVE} approves it)"
    waiting = structs.replace(
        _detail(waits_for="site_trouble"), waits_hint=hint if is_said else "others go first"
    )
    evidence = Evidence(
        failure=FailureClass.DISPATCH,
        message=f"{CHANGED} (it was changed: {APPROVE} approves it)",
        at_us=START,
    )
    last = FailureRow(job=1, event=None, seed=None, site="here", final=False, evidence=evidence)
    _show_failure(waiting, last, step_of(last))
    told = capsys.readouterr().out
    assert ("as above" in told, CHANGED in told, "next step" in told) == (is_said, not is_said, not is_said)


def test_an_event_of_a_job_that_waits_is_leased() -> None:
    lines = story(_detail(_attempt(0, None), waits_for="fair_share"), now_us=START + S)
    assert lines[1] == "1 of its events is leased to a site now"


def test_what_has_arrived_of_a_job_that_waits_is_said() -> None:
    spec = JobSpec(command=["true"], events=10, outputs=[Output(name="o", path="o", pack=Pack.FILES)])
    rows = [OutputRow(name="o", url="file:///out/1-o/", size_bytes=9, sha256="", events="0-8")]
    waiting = structs.replace(_detail(waits_for="assigned"), spec=spec, outputs=rows)
    said = "output o: 9 of 10 events in /out/1-o (9 B); more files arrive while it runs"
    assert said in story(waiting, now_us=START + S)


def test_equal_failures_of_a_job_are_shown_once_with_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    def failure(message: str, at_us: int) -> FailureRow:
        evidence = Evidence(failure=FailureClass.DISPATCH, message=message, at_us=at_us, stderr_tail="gone\n")
        return FailureRow(job=1, event=None, seed=None, site="here", final=False, evidence=evidence)

    others = [failure(f"m{number}", START) for number in range(6)]
    _show_failures([*(failure("no program `nope`", START + number) for number in range(6)), *others])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"failure      {FailureClass.DISPATCH} at here: no program `nope` (6 times)"
    assert lines[1:3] == ["             | gone", f"failure      {FailureClass.DISPATCH} at here: m0"]
    assert lines[-1] == "             and 2 more: `tidemill errors --job 1`"


def test_a_job_at_work_waits_for_nothing() -> None:
    running = structs.replace(_detail(), waits_hint="all its events are running")
    assert dict(_facts(running))["waits for"] == "nothing: all its events are running"
    assert dict(_facts(_detail(waits_for="fair_share")))["waits for"] == "fair_share"
