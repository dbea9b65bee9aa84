"""Whether to believe a reply of the batch system: by another query, by the pilots, and by the effect of cancels."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from tidemill.batch.contract import Answer, PlainReply, Status
from tidemill.model.machine import Running, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site.nodes.belief import (
    HINTS,
    QUEUED_LAG_S,
    WORD_EVERY_S,
    Belief,
    Doubt,
    ReplySeen,
    believed,
    expected,
    judge,
    lasts,
    surveyed,
)
from tidemill.site.nodes.evictions import Recancels
from tidemill.site.state.site_state import Allocation

WORD_S = 60.0
US = 1_000_000
FOUND = Status(answer=Answer.FOUND, state=AllocationState.ACTIVE)
GONE = Status(answer=Answer.GONE)


def seen(
    running: str = "",
    shown: str = "",
    *,
    at_s: float = 0.0,
    waiting: str = "",
    plain: Mapping[str, str] | None = None,
    heard_s: Mapping[str, float] | None = None,
    survey: str | None = None,
    futile: Collection[str] = (),
    word_s: float = WORD_S,
) -> ReplySeen:
    """A reply at a time; names are words."""
    told = (
        None
        if plain is None
        else PlainReply(shown=dict(plain), command="scontrol show job 31", usual="squeue --me -t all")
    )
    return ReplySeen(
        at_s=at_s, running=frozenset(running.split()), waiting=frozenset(waiting.split()),
        shown=frozenset(shown.split()), surveyed=None if survey is None else frozenset(survey.split()),
        plain=told, heard_s=heard_s or {}, futile=tuple(futile), word_s=word_s,
    )  # fmt: skip


def allocation(name: str, state: AllocationState = AllocationState.ACTIVE, **more: object) -> Allocation:
    return Allocation(name=name, fleet="f", nodes=1, cores=1, state=state, intended_us=US, **more)  # type: ignore[arg-type]


def test_a_reply_that_shows_what_runs_is_believed() -> None:
    assert judge(Belief(), seen("a b", "a b")).doubt is Doubt.NONE


def test_a_job_that_only_the_plain_query_shows_speaks_against_the_reply_at_once() -> None:
    found = judge(Belief(), seen("a b", "b", plain={"a": "31"}))
    assert (found.doubt, found.alive) == (Doubt.QUERY, ("a",))
    assert (
        found.why
        == "`squeue --me -t all` does not show 1 job of Tidemill that `scontrol show job 31` shows: `a`"
    )
    assert "compare what both commands print" in found.hint


def test_a_plain_query_that_fails_takes_nothing_back() -> None:
    """Else one slow reply of the controller makes allocations lost that run, and their events run twice."""
    first = judge(Belief(), seen("a b", at_s=0, waiting="q", plain={"a": "31", "b": "32"}))
    failed = judge(first, seen("a b", at_s=30, waiting="q", plain=None))
    assert (failed.doubt, failed.why, failed.since_s) == (Doubt.QUERY, first.why, 0.0)
    assert believed({"a": GONE, "b": GONE}, failed) == {}
    again = judge(failed, seen("a b", at_s=60, plain=None))
    assert (again.doubt, again.alive) == (Doubt.QUERY, ("a", "b"))
    ended = judge(again, seen("a b", at_s=90, plain={"b": "32"}))
    assert (ended.doubt, ended.alive) == (Doubt.QUERY, ("b",))
    shown = judge(failed, seen("a b", "a b", at_s=60, plain=None))
    assert (shown.doubt, shown.alive) == (Doubt.NONE, ())


def test_while_the_plain_query_fails_a_silent_pilot_is_let_go_and_one_that_is_heard_is_not() -> None:
    """Else two pilots that died with their node, and a slow controller, stop the site."""
    found = judge(Belief(), seen("a b", at_s=0, plain={"a": "31", "b": "32"}))
    for at_s in (30, 60, 90, 120, 150):
        found = judge(found, seen("a b", at_s=at_s, plain=None, heard_s={"a": at_s - 10.0}))
        assert found.alive == ("a", "b")
    found = judge(found, seen("a b", at_s=180, plain=None, heard_s={"a": 170.0}))
    assert (found.doubt, found.alive) == (Doubt.QUERY, ("a",))


def test_pilots_that_are_heard_after_the_reply_speak_against_both_queries() -> None:
    first = judge(Belief(), seen("a b", at_s=100, plain={}, heard_s={"a": 99.0}))
    assert first.doubt is Doubt.UNCHECKED, "words from before the reply say nothing"
    early = judge(first, seen("a b", at_s=130, plain={}, heard_s={"a": 100 + WORD_S - 1}))
    assert early.doubt is Doubt.UNCHECKED, "it may have been written before, and was read late"
    found = judge(early, seen("a b", at_s=165, plain={}, heard_s={"a": 100 + WORD_S}))
    assert (found.doubt, found.alive) == (Doubt.PILOTS, ("a",))
    assert found.why == (
        "the batch system does not show 1 job of Tidemill whose pilots are at work, `a`: "
        "neither `squeue --me -t all` nor `scontrol show job 31` does"
    )


def test_silent_pilots_end_the_check_and_the_jobs_count_as_ended() -> None:
    first = judge(Belief(), seen("a", at_s=100, plain={}))
    assert first.doubt is Doubt.UNCHECKED
    assert not first.is_sure
    assert judge(first, seen("a", at_s=100 + WORD_S + WORD_EVERY_S, plain={})).doubt is Doubt.NONE


def test_one_job_of_several_that_vanishes_while_its_pilot_is_silent_is_an_ordinary_end() -> None:
    found = judge(Belief(), seen("a b c", "b c", plain={}, heard_s={"b": 0.0}))
    assert (found.doubt, found.alive) == (Doubt.NONE, ())


def test_one_pilot_that_outlives_its_job_is_kept_and_the_reply_is_believed() -> None:
    first = judge(Belief(), seen("a b c d", "b c d", at_s=0, plain={}))
    found = judge(first, seen("a b c d", "b c d", at_s=90, plain={}, heard_s={"a": 80.0}))
    assert (found.doubt, found.alive) == (Doubt.NONE, ("a",))
    assert believed({"a": GONE, "b": GONE}, found) == {"b": GONE}


def test_half_of_the_living_jobs_missing_is_too_much() -> None:
    first = judge(Belief(), seen("a b", "b", at_s=0, plain={}))
    assert judge(first, seen("a b", "b", at_s=90, plain={}, heard_s={"a": 80.0})).doubt is Doubt.PILOTS


def test_a_pilot_that_has_fallen_silent_since_is_no_witness_any_more() -> None:
    first = judge(Belief(), seen("a", at_s=0, plain={}))
    found = judge(first, seen("a", at_s=90, plain={}, heard_s={"a": 80.0}))
    assert found.doubt is Doubt.PILOTS
    assert judge(found, seen("a", at_s=81 + WORD_EVERY_S, plain={}, heard_s={"a": 80.0})).doubt is Doubt.NONE


def test_what_waits_is_missed_a_minute_after_its_submission_and_only_by_the_plain_query() -> None:
    first = judge(Belief(), seen(waiting="q", at_s=0, plain={"q": "7"}))
    assert first.doubt is Doubt.NONE, "a cached reply may be older than the job"
    assert judge(first, seen(waiting="q", at_s=QUEUED_LAG_S, plain={})).doubt is Doubt.NONE
    assert judge(first, seen(waiting="q", at_s=QUEUED_LAG_S, plain={"q": "7"})).doubt is Doubt.QUERY


def test_a_survey_without_our_jobs_is_doubted_the_second_time() -> None:
    first = judge(Belief(), seen("a", "a", survey=""))
    assert first.doubt is Doubt.NONE, "it may have begun or ended between the two queries"
    assert judge(first, seen("a", "a", survey="")).doubt is Doubt.SURVEY
    assert judge(first, seen("a", "a", survey="a")).doubt is Doubt.NONE


def test_cancels_that_end_nothing_are_doubted() -> None:
    found = judge(Belief(), seen("b", "b", futile=["a"]))
    assert found.doubt is Doubt.CANCEL
    assert found.why == "2 cancels that the batch system confirmed did not end 1 job: `a`"


def test_nothing_is_gone_by_a_doubted_reply_and_what_it_shows_counts() -> None:
    doubt = judge(Belief(), seen("a", plain={"a": "31"}))
    assert believed({"a": GONE, "b": GONE, "c": FOUND}, doubt) == {"c": FOUND}
    assert believed({"a": GONE}, Belief()) == {"a": GONE}


def test_the_site_stops_when_doubt_lasts_and_a_check_does_not_count() -> None:
    check = judge(Belief(), seen("a", at_s=0, plain={}))
    assert not lasts(check, 10_000, doubt_s=300)
    doubt = judge(check, seen("a", at_s=50, plain={"a": "31"}))
    again = judge(doubt, seen("a", at_s=200, plain={"a": "31"}))
    assert not lasts(again, 349, doubt_s=300)
    assert lasts(again, 350, doubt_s=300)
    over = judge(again, seen("a", "a", at_s=360))
    assert not lasts(over, 10_000, doubt_s=300)
    anew = judge(over, seen("a", at_s=400, plain={"a": "31"}))
    assert not lasts(anew, 699, doubt_s=300)


def test_where_the_plain_query_is_the_last_word_nothing_is_left_to_check() -> None:
    assert judge(Belief(), seen("a", plain={}, word_s=0.0)).doubt is Doubt.NONE


def test_troubleshooting_quotes_what_is_said() -> None:
    page = (Path(__file__).parents[4] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    table = page.partition("### Replies that are not believed")[2].partition("\n##")[0]
    rows = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)
    quoted = [
        row.removeprefix("`` ").removesuffix(" ``") if row.startswith("``") else row.strip("`")
        for row in rows
    ]
    check = judge(Belief(), seen("a b", plain={}))
    survey = judge(Belief(), seen("a b", "a b", survey=""))
    said = [
        judge(Belief(), seen("a b", plain={"a": "31", "b": "32"})).why,
        judge(check, seen("a b", at_s=90, plain={}, heard_s={"a": 80.0, "b": 80.0})).why,
        judge(survey, seen("a b", "a b", survey="")).why,
        judge(Belief(), seen("b", "b", futile=["a"])).why,
        "a reply is being checked: ",  # tests of doubts read it
    ]
    assert [why[: len(quote)] for quote, why in zip(quoted, said, strict=True)] == quoted


def test_every_doubt_has_its_hint() -> None:
    assert set(HINTS) == set(Doubt) - {Doubt.NONE}


def test_expected_are_those_whose_end_nobody_ordered_or_saw() -> None:
    now_us = 1000 * US
    running, waiting = expected(
        [
            allocation("runs", pilots=1),
            allocation("canceled", canceled_us=1, pilots=1),
            allocation("left", pilots=1, pilots_ended=1),
            allocation("over", ends_us=now_us),
            allocation("shortened", started_us=1, ends_us=2 * now_us, shortened_us=now_us),
            allocation("queued", AllocationState.QUEUED),
            allocation("at-work", AllocationState.QUEUED, pilots=1),
            allocation("intended", AllocationState.INTENDED),
            allocation("lost", AllocationState.LOST),
        ],
        now_us,
    )
    assert (set(running), set(waiting)) == ({"runs", "at-work"}, {"queued"})


def test_a_survey_counts_where_something_of_ours_runs() -> None:
    run = Running(id="1", nodes=("n1",), started_s=0.0, ends_s=9.0, ours=True, user="u", width=1, name="a")
    snapshot = Snapshot(at_s=0.0, nodes=[], running=[run], queued=[])
    assert surveyed(snapshot, {"a": FOUND}) == frozenset({"a"})
    assert surveyed(None, {"a": FOUND}) is None
    assert surveyed(snapshot, {"a": Status(answer=Answer.FOUND, state=AllocationState.QUEUED)}) is None
    assert (
        surveyed(snapshot, {"a": Status(answer=Answer.FOUND, state=AllocationState.ACTIVE, suspended=True)})
        is None
    )


@pytest.mark.parametrize("state", [AllocationState.ACTIVE, AllocationState.QUEUED])
def test_cancels_are_futile_after_two_confirmed_ones_if_a_pilot_works_or_the_job_waits(
    state: AllocationState,
) -> None:
    told, mine = Recancels([]), allocation("a", state, canceled_us=1)
    told.sent(["a"], 1 * US, is_confirmed=True, now_s=1.0)
    told.sent(["a"], 2 * US, is_confirmed=False, now_s=2.0)
    assert told.futile([mine], lambda name, at_s: True) == []
    told.sent(["a"], 3 * US, is_confirmed=True, now_s=3.0)
    assert told.futile([mine], lambda name, at_s: at_s == 3.0) == ["a"]
    ends_slowly = told.futile([mine], lambda name, at_s: False)
    assert ends_slowly == (["a"] if state is AllocationState.QUEUED else [])
    assert told.futile([], lambda name, at_s: True) == []
