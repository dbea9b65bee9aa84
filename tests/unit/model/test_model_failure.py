"""Every failure class has a policy that tells people what it means and what to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import draw_failures
import msgspec
import pytest

import tidemill
from tidemill import extensions
from tidemill.cli.main import VERBS, load, parser_of
from tidemill.model.failure import (
    JOBS_OWN,
    POLICY,
    Against,
    BackOff,
    Evidence,
    FailureClass,
    FailurePolicy,
    FaultKind,
    fault_of,
    is_jobs_own,
    next_step,
    step_after,
)
from tidemill.model.job import Resources
from tidemill.site.state.failures import decide
from tidemill.site.state.site_state import UndonePiece


def test_every_class_has_a_policy_and_no_policy_lacks_its_class() -> None:
    assert set(POLICY) == set(FailureClass)


def test_every_policy_tells_a_meaning_and_a_next_step() -> None:
    for failure, policy in POLICY.items():
        assert policy.meaning, failure
        assert policy.next_step, failure
        assert not policy.meaning.endswith("."), failure


def test_every_class_has_every_column() -> None:
    for failure, policy in POLICY.items():
        assert isinstance(policy, FailurePolicy), failure
        found = msgspec.convert(msgspec.to_builtins(policy), FailurePolicy)  # types of all columns
        assert found == policy, failure
        assert set(msgspec.to_builtins(policy)) == set(FailurePolicy.__struct_fields__), failure
        assert policy.against_job <= (policy.fault in JOBS_OWN), (
            f"{failure}: only its own fault counts against a job"
        )


def test_there_is_no_second_table() -> None:
    """No other module lists several classes: such a list decides by itself, and comes to disagree with the table."""
    offenders: list[str] = []
    root = Path(tidemill.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path == root / "model" / "failure.py" or "FailureClass" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Set | ast.List | ast.Tuple | ast.Dict):
                continue
            named = [
                each
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "FailureClass"
            ]
            if len(named) > 1:
                offenders.append(f"{path.relative_to(root)}:{node.lineno}")
    assert offenders == []


def test_pilots_name_classes_of_the_table_only() -> None:
    """They decide nothing by a class: the site does, by what they name."""
    crates = Path(__file__).parents[3] / "crates"
    named = {
        word
        for path in crates.rglob("*.rs")
        for word in re.findall(r'(?:failure: |cx\.fail\([^;]{0,60}\(|Err\(\()"([a-z_]+)"', path.read_text())
    }
    assert {"disk", "payload"} <= named
    assert named <= set(FailureClass)


def test_a_job_is_blamed_for_its_own_fault_only_whatever_the_evidence_says() -> None:
    for failure in FailureClass:
        said = {fault: Evidence(failure=failure, message="x", fault=fault.value) for fault in FaultKind}
        assert {fault: fault_of(each) for fault, each in said.items()} == {
            fault: fault for fault in FaultKind
        }
        blamed = {fault for fault, each in said.items() if is_jobs_own(each)}
        assert blamed in (set(JOBS_OWN), set())
        for unknown in ("", "a fault of a newer version"):
            assert fault_of(Evidence(failure=failure, message="x", fault=unknown)) is POLICY[failure].fault


def test_pauses_grow_from_seconds_to_an_hour() -> None:
    assert [BackOff().pause_s(tries) for tries in (0, 1, 2, 3, 4, 13, 14, 10_000)] == [
        0,
        0,
        1,
        2,
        4,
        2048,
        3600,
        3600,
    ]


def test_the_page_is_as_drawn() -> None:
    page = Path(__file__).parents[3] / "docs" / "failures.md"
    assert page.read_text() == draw_failures.drawn(), "hint: make gen"


# ---- next steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", FailureClass)
def test_every_key_command_and_option_of_a_next_step_exists(failure: FailureClass) -> None:
    for text in re.findall(r"`([^`]*)`", next_step(failure, job=17, event=3)):
        words = text.split()
        if words[0] != "tidemill":
            assert text in Resources.__struct_fields__, text
            continue
        pair = " ".join(words[1:3])
        verb = next((each for each in (pair, words[1]) if each in VERBS), None)
        if verb is None:  # an extension's, whose tests are run where it is installed
            assert extensions.missing(extensions.VERBS, pair) is not None, text
            continue
        parser = parser_of(verb, load(verb))
        known = {option for action in parser._actions for option in action.option_strings}
        assert {word for word in words if word.startswith("--")} <= known, text


def test_a_next_step_names_its_job_and_event() -> None:
    assert "`tidemill job logs 17 --event 3`" in next_step(FailureClass.PAYLOAD, job=17, event=3)
    assert "`tidemill job logs 17`" in next_step("payload", job=17)
    assert "`tidemill job logs JOB`" in next_step("payload")
    for failure in FailureClass:
        text = next_step(failure, job=17, event=3)
        assert "ID" not in text.split("`")
        assert "{" not in text, "every place is filled in"


def test_what_is_not_the_jobs_fault_uses_up_no_retry() -> None:
    innocent = {
        FailureClass.PREEMPTED,
        FailureClass.NODE,
        FailureClass.LOST,
        FailureClass.BATCH,
        FailureClass.DISPATCH,
        FailureClass.IMAGE,
        FailureClass.CREDENTIAL,
    }

    assert not [failure for failure in innocent if POLICY[failure].counts]


def test_a_failing_payload_uses_up_a_retry() -> None:
    guilty = {FailureClass.PAYLOAD, FailureClass.MEMORY, FailureClass.WALLTIME, FailureClass.PAYLOAD_SETUP}

    assert all(POLICY[failure].counts for failure in guilty)


def test_an_image_that_cannot_be_shown_counts_against_the_node_and_its_events_run_again_as_they_were() -> (
    None
):
    policy = POLICY[FailureClass.IMAGE]
    assert (policy.against, policy.counts, policy.against_job) == (Against.NODE, False, False)
    verdict = decide(FailureClass.IMAGE, [(0, 5)], culprit=2, failures={2: 1}, retries=0)
    assert (verdict.again, verdict.failed, verdict.counted) == ([UndonePiece(0, 5)], [], [])


@pytest.mark.parametrize(
    "tail",
    [
        "cat: data/in1.dat: No such file or directory\n",
        "Traceback (most recent call last):\nFileNotFoundError: [Errno 2] No such file or directory: 'data/in1.dat'",
    ],
)
def test_where_a_file_was_not_found_the_next_step_names_how_files_are_brought(tail: str) -> None:
    evidence = Evidence(
        failure=FailureClass.PAYLOAD, message="exit status 1", exit_status=1, stderr_tail=tail
    )
    step = step_after(evidence, job=17, event=3)
    assert step.startswith("read its stderr: `tidemill job logs 17 --event 3`")
    assert "if an `--input` brings it, or an absolute path names it" in step
    other = msgspec.structs.replace(evidence, stderr_tail="no convergence")
    assert "--input" not in step_after(other, job=17, event=3)


@pytest.mark.parametrize(
    "message",
    [
        "line of event 0 cannot become an argument: it is `-c`: letters are allowed",
        "column 1 of event 12 cannot become an argument: it has 300 bytes, and this application takes at most 255",
        "the line of event 3 has no column 1",
        "no input line for event 7",
        "no input named `cards`",
    ],
)
def test_where_no_argument_could_be_made_the_next_step_is_to_correct_the_line(message: str) -> None:
    evidence = Evidence(failure=FailureClass.PAYLOAD_SETUP, message=message)
    assert step_after(evidence, job=1, event=0) == (
        "correct the line or input that the reason names, and submit again"
    )
    ran = msgspec.structs.replace(evidence, exit_status=1)
    assert "its stderr is empty" in step_after(ran, job=1, event=0)
    printed = Evidence(failure=FailureClass.PAYLOAD_SETUP, message=f"the payload said: {message}")
    assert "its stderr is empty" in step_after(printed, job=1, event=0)
