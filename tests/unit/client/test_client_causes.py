"""Failures grouped by class and cause."""

from __future__ import annotations

import pytest

from tidemill.cli.jobs.errors import amount_text, example_lines
from tidemill.client.causes import group_failures
from tidemill.model.failure import Evidence, FailureClass
from tidemill.wire.api import FailureRow

NOW = 1_800_000_000_000_000


def _failure(
    event: int, message: str, *, final: bool = False, tail: str = "", status: int | None = None
) -> FailureRow:
    evidence = Evidence(
        failure=FailureClass.PAYLOAD,
        message=message,
        stderr_tail=tail,
        exit_status=status,
        at_us=NOW,
        node="n1",
    )
    return FailureRow(job=1, event=event, seed=event + 1, site="here", final=final, evidence=evidence)


def test_equal_failures_are_one_line_with_their_number() -> None:
    lines = example_lines(
        [_failure(7, "exit status 1"), _failure(7, "exit status 1"), _failure(8, "exit status 1")]
    )
    assert lines == [
        "job 1 event 7 seed 8 at here on n1: exit status 1 (2 times)",
        "job 1 event 8 seed 9 at here on n1: exit status 1",
    ]


def test_failures_that_differ_in_numbers_only_are_one_cause() -> None:
    rows = [_failure(k, f"event {k} at 0x7f{k}a", tail=f"bad value {k}.5") for k in range(5)]
    (group,) = group_failures([*rows, None])
    assert (group.count, group.cause) == (5, "event N at N: bad value N")


def test_a_digest_is_left_out_of_a_cause_as_a_whole() -> None:
    rows = [
        _failure(k, f"has digest sha256:{str(k) * 2}ce{'1f' * 30}, approved is sha256:0") for k in range(3)
    ]
    rows = [*rows, _failure(3, "has digest sha256:3, approved is sha256:4", tail="found sha256:" + "d0" * 32)]
    causes = [group.cause for group in group_failures(rows)]
    told = "has digest sha256:..., approved is sha256:..."
    assert causes == [told, f"{told}: found sha256:..."]


def test_exit_statuses_tell_causes_apart_whatever_the_event() -> None:
    rows = [_failure(k, f"exit status {k % 2 + 3}", status=k % 2 + 3, tail=f"event {k}") for k in range(8)]
    assert {group.cause for group in group_failures(rows)} == {
        "exit status 3: event N",
        "exit status 4: event N",
    }


def test_an_event_whose_number_is_the_exit_status_has_the_cause_of_the_others() -> None:
    rows = [_failure(k, f"output `plot`: `plot-{k}.txt` is missing", status=0) for k in range(3)]
    (group,) = group_failures(rows)
    assert group.cause == "output `plot`: `plot-N.txt` is missing"


def test_files_that_lie_where_an_output_is_missing_do_not_tell_causes_apart() -> None:
    has = "; the work directory has "
    rows = [_failure(k, f"output `h`: `h.dat` is missing{has}`{name}`") for k, name in enumerate("ab")]
    assert [each.cause for each in group_failures(rows)] == ["output `h`: `h.dat` is missing"]
    rows = [
        _failure(k, "exit status 125", tail=f"tidemill: CMD left nothing{has}`{name}`")
        for k, name in enumerate("ab")
    ]
    assert [each.cause for each in group_failures(rows)] == ["exit status N: tidemill: CMD left nothing"]


def test_the_most_frequent_cause_is_first_and_shows_a_final_failure_first() -> None:
    rows = [_failure(0, "rare"), _failure(1, "often"), _failure(2, "often", final=True)]
    first, second = group_failures(rows)
    assert (first.cause, first.final, first.examples[0].event, second.cause) == ("often", 1, 2, "rare")


def test_where_stderr_is_empty_the_next_step_is_to_read_stdout() -> None:
    (quiet,) = group_failures([_failure(3, "output `plot` is missing", tail=" \n")])
    assert "its stderr is empty, read its stdout, if any: `tidemill job logs 1 --event 3`" in quiet.next_step
    (loud,) = group_failures([_failure(3, "exit status 1", tail="no such file")])
    assert "read its stderr: `tidemill job logs 1 --event 3`" in loud.next_step


@pytest.mark.parametrize(
    ("failures", "final", "text"),
    [
        (3, 1, "3 failures, 1 final"),
        (1, 1, "1 failure, 1 final"),
        (2, 0, "2 failures, none final: they ran again"),
        (1, 0, "1 failure, none final: it ran again"),
    ],
)
def test_how_often_something_failed_does_not_sound_good(failures: int, final: int, text: str) -> None:
    assert amount_text(failures, final) == text
