"""Bad nodes are left alone, good ones are not; what is nobody's fault counts for nobody."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.batch.contract import Ending
from tidemill.harvest.snapshot.quarantine import (
    FAILED_ENDINGS,
    AllocationEnd,
    Outcome,
    Quarantine,
    QuarantineSettings,
    State,
    outcome_of,
)

SETTINGS = QuarantineSettings(starts=3, quarantine_s=1000, fast_failure_s=60, backoff_s=2, backoff_max_s=100)
CRASH = AllocationEnd(ending="failed", lived_s=2, did_work=False, evidence="no such file: /opt/lib.so")
MACHINE = [f"n{k:02}" for k in range(16)]


def test_one_black_hole_among_16_nodes_loses_at_most_5_starts() -> None:
    bad, lost = Quarantine(SETTINGS), 0
    bad.started(MACHINE, 100)
    now_s = 100.0
    # Pilots on good nodes run for an hour; the bad one takes a start every 2 s, and two wait in the queue for it.
    waiting = 2
    while waiting:
        now_s += 2
        lost += 1
        bad.ended(["n07"], CRASH, now_s)
        verdict = bad.judge(now_s)
        if "n07" in verdict.exclude:
            waiting -= 1
        bad.started(["n07"], now_s)
        assert lost < 50
    assert lost <= 5
    assert verdict.exclude == ("n07",)
    assert verdict.pause_s == 0


def test_a_sentence_tells_why_since_and_until_when() -> None:
    bad = Quarantine(SETTINGS)
    bad.started(["n00", "n01"], 100)
    for at_s in (110, 120, 130):
        bad.ended(["n00"], CRASH, at_s)
    (sentence,) = bad.judge(131).new
    assert (sentence.node, sentence.since_s, sentence.until_s) == ("n00", 131, 1131)
    assert sentence.why == "starts failed fast 3 times in a row while others worked (1)"
    assert sentence.evidence == ["after 2.0 s: no such file: /opt/lib.so"] * 3
    assert bad.judge(132).new == []
    assert bad.state.trail == [sentence]


def test_work_in_between_forgives() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(["n01", "n02"], 100)
    for at_s in (110, 120):
        bad.ended(["n00"], CRASH, at_s)
    bad.ended(["n00"], AllocationEnd(ending="failed", lived_s=2, did_work=True), 125)
    bad.ended(["n00"], CRASH, 130)
    assert bad.judge(131).exclude == ()


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (CRASH, Outcome.FAILED_FAST),
        (AllocationEnd(ending="launch", lived_s=0, did_work=False), Outcome.FAILED_FAST),
        (AllocationEnd(ending="done", lived_s=9, did_work=False, payloads_failed=3), Outcome.FAILED_FAST),
        (AllocationEnd(ending="done", lived_s=9, did_work=False), Outcome.NOTHING),
        (AllocationEnd(ending="done", lived_s=9, did_work=True, payloads_failed=3), Outcome.WORKED),
        (AllocationEnd(ending="failed", lived_s=61, did_work=False), Outcome.NOTHING),
        (AllocationEnd(ending="failed", lived_s=2, did_work=False, ordered=True), Outcome.NOTHING),
        (AllocationEnd(ending="canceled", lived_s=2, did_work=False), Outcome.NOTHING),
        (AllocationEnd(ending="preempted", lived_s=2, did_work=False), Outcome.NOTHING),
        (AllocationEnd(ending="walltime", lived_s=2, did_work=False), Outcome.NOTHING),
        (AllocationEnd(ending="deadline", lived_s=2, did_work=False), Outcome.NOTHING),
    ],
)
def test_only_fast_failures_before_any_work_count(end: AllocationEnd, outcome: Outcome) -> None:
    assert outcome_of(end, SETTINGS) is outcome


def test_the_failed_endings_are_those_of_the_batch_contract() -> None:
    assert {str(Ending.FAILED), str(Ending.LAUNCH)} == FAILED_ENDINGS


def test_when_all_nodes_fail_alike_none_is_bad_and_starts_get_rarer() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(MACHINE, 50)  # yesterday's work is no excuse: each node's last news counts
    pauses = []
    for number in range(9):
        for name in MACHINE:
            bad.ended([name], CRASH, 100 + number)
        verdict = bad.judge(100 + number)
        assert verdict.exclude == ()
        assert verdict.tries == 1
        pauses.append(verdict.pause_s)
    assert max(pauses) == 100  # never for ever
    assert "fail on 16 nodes and work on 0" in verdict.why
    assert "no such file" in verdict.why
    assert bad.judge(108 + 100).pause_s == 0

    bad.worked(["n03"], 300)
    bad.ended(["n04"], CRASH, 301)
    assert bad.judge(301).pause_s == 2


def test_one_failure_on_one_node_is_told_in_the_singular_and_work_tells_that_it_forgave() -> None:
    bad = Quarantine(SETTINGS)
    bad.ended(["n00"], CRASH, 100)
    assert bad.judge(100).why.startswith(
        "starts fail on 1 node and work on 0: no fault of single nodes; 1 failure "
    )
    assert bad.worked(["n01"], 101), "something failed anywhere"
    assert bad.worked(["n00"], 102), "something failed there"
    assert not bad.worked(["n00"], 103)


def test_the_only_node_of_a_site_is_never_in_quarantine() -> None:
    bad = Quarantine(SETTINGS)
    for at_s in range(100, 120):
        bad.ended(["n00"], CRASH, at_s)
    verdict = bad.judge(120)
    assert verdict.exclude == ()
    assert verdict.pause_s > 0


def test_at_most_half_of_the_nodes_are_in_quarantine() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(MACHINE[:8], 100)
    for name in MACHINE[8:]:
        for _ in range(3):
            bad.ended([name], CRASH, 101)
        assert len(bad.judge(101).exclude) <= 8
    for _ in range(3):
        bad.ended(["n00"], CRASH, 102)
    verdict = bad.judge(102)
    assert verdict.exclude == tuple(MACHINE[8:])
    assert verdict.pause_s > 0


def test_after_its_time_a_node_is_tried_again_with_one_start() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(["n01"], 100)
    for _ in range(3):
        bad.ended(["n00"], CRASH, 101)
    assert bad.judge(102).exclude == ("n00",)
    assert bad.judge(1101).exclude == ("n00",)
    assert bad.judge(1102).exclude == ()

    bad.worked(["n01"], 1105)
    bad.ended(["n00"], CRASH, 1110)
    verdict = bad.judge(1110)
    assert verdict.exclude == ("n00",)
    assert verdict.new[0].why == "starts failed fast once more after its quarantine while others worked (1)"


def test_a_node_that_works_on_trial_is_like_any_other() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(["n01"], 100)
    for _ in range(3):
        bad.ended(["n00"], CRASH, 101)
    bad.judge(102)
    bad.judge(1200)
    bad.worked(["n00", "n01"], 1205)
    bad.ended(["n00"], CRASH, 1210)
    assert bad.judge(1210).exclude == ()


def test_an_operator_may_pardon_a_node() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(["n01"], 100)
    for _ in range(3):
        bad.ended(["n00"], CRASH, 101)
    assert bad.judge(102).exclude == ("n00",)
    bad.pardon("n00")
    assert bad.judge(103).exclude == ()


def test_the_next_agent_takes_up_the_state() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(["n01"], 100)
    for _ in range(3):
        bad.ended(["n00"], CRASH, 101)
    before = bad.judge(102)
    again = Quarantine(SETTINGS, msgspec.json.decode(msgspec.json.encode(bad.state), type=State))
    assert again.judge(103).exclude == before.exclude == ("n00",)
    assert len(again.state.trail) == 1


def test_nodes_of_which_nothing_bad_is_known_are_forgotten() -> None:
    bad = Quarantine(SETTINGS)
    bad.worked(MACHINE, 100)
    bad.judge(100 + 2 * SETTINGS.quarantine_s)
    assert bad.state.nodes == {}


def test_one_owners_failing_payloads_cost_others_no_node_and_no_pause() -> None:
    """Where nobody else has work they count as before: a node may be bad."""
    bad = Quarantine(SETTINGS)
    bad.worked(["n01", "n02"], 100)
    eves = AllocationEnd(ending="done", lived_s=2, did_work=False, payloads_failed=3, owners={"eve"})
    for at_s in (110, 120, 130):
        bad.ended(["n00"], eves, at_s)
    assert bad.judge(131, {"eve"}).exclude == ("n00",)
    assert bad.judge(131, {"eve", "ada"}).exclude == ()
    (sentence,) = bad.state.trail
    assert sentence.owner == "eve"
    for name in ("n01", "n02"):
        bad.ended([name], eves, 140)
    assert bad.judge(141, {"eve"}).pause_s > 0
    verdict = bad.judge(141, {"ada", "eve"})
    assert (verdict.pause_s, verdict.exclude) == (0, ())
    bad.ended(["n00"], msgspec.structs.replace(eves, owners={"ada"}), 150)
    assert bad.judge(151, {"ada", "eve"}).exclude == ("n00",), "two of them: it is the node"
