"""How far a campaign is, in words and charts: rates of late, a forecast, and an edge that is no fall."""

from __future__ import annotations

from tidemill.harvest.plan.sentences import in_words
from tidemill.harvest.plan.waves import Binding
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.figures.activity import REPORTED_S, Activity, Changes, Span, activity, add
from tidemill.server.read.web_pages import alike
from tidemill.server.web.progress import ProgressCounts, view
from tidemill.wire.api import FailureRow, PayloadUsage

START_S = 1_700_000_000


def steady(seconds: int, *, per_s: int = 4, long_us: int = 500_000) -> Activity:
    changes: Changes = {}
    for k in range(seconds * per_s):
        end = START_S * 1_000_000 + (k + 1) * 1_000_000 // per_s - 1
        add(changes, Span(end - long_us, end, long_us, long_us), done=1)
    return activity(changes, 1)


def counts(done: int, events: int, *, ended_s: int | None = None) -> ProgressCounts:
    usage = PayloadUsage(payloads=done, wall_us=done * 1_000, user_us=done * 800)
    ended_us = None if ended_s is None else (START_S + ended_s) * 1_000_000
    return ProgressCounts(events, done, 0, START_S * 1_000_000, ended_us, usage)


def test_what_runs_has_a_rate_a_forecast_and_an_edge_that_does_not_fall() -> None:
    now_us = int((START_S + 200 + REPORTED_S) * 1e6)
    found = view(steady(200), counts(800, 2_000), now_us)
    assert found.rate == ("4", "in the last 1 min")
    assert found.forecast is not None
    assert found.forecast[0] == "in 5 min"
    assert found.cpu[0] == "80 %"
    assert [each.now for each in found.charts] == ["796", "4", "2", "2"], "the last interval that is over"


def test_without_a_node_at_work_there_is_no_forecast() -> None:
    now_us = int((START_S + 200 + REPORTED_S) * 1e6)
    found = view(steady(200), counts(800, 2_000)._replace(is_idle=True), now_us)
    assert found.forecast == ("not known", "no node is at work for it now")


def test_the_number_that_runs_ends_where_it_is_known() -> None:
    now_us = int((START_S + 200 + REPORTED_S) * 1e6)
    shown = view(steady(200, per_s=1, long_us=50_000_000), counts(200, 400), now_us)
    charts = {each.title: each for each in shown.charts}
    assert "each reports when it ends" in charts["Payloads running"].about
    assert charts["Payloads running"].now == "50"


def test_what_has_ended_has_no_forecast_and_its_rate_from_start_to_end() -> None:
    found = view(steady(100), counts(400, 400, ended_s=100), (START_S + 9_000) * 1_000_000)
    assert found.forecast is None
    assert found.rate == ("4", "from start to end")
    assert found.charts[0].now == "400"


def test_nothing_known_of_when_is_no_chart_and_a_part_is_said() -> None:
    assert view(Activity(), counts(40, 50), (START_S + 20) * 1_000_000).charts == []
    found = view(steady(10), counts(100, 100, ended_s=10), (START_S + 20) * 1_000_000)
    assert "60 of 100 events are not known" in found.remark


def test_failures_of_one_cause_are_one_group() -> None:
    rows = [
        FailureRow(
            job=1, event=k, seed=k, site="s", final=True,
            evidence=Evidence(failure=FailureClass.PAYLOAD, message=f"event {k}", exit_status=3),
        )
        for k in range(10, 14)
    ]  # fmt: skip
    (group,) = alike(rows)
    assert (group.newest.event, [each.event for each in group.others]) == (10, [11, 12, 13])


def test_causes_that_sites_say_in_a_word_are_sentences() -> None:
    assert in_words(str(Binding.BACKLOG)) == "there is no work for more nodes"
    assert in_words("backlog; the batch system does not answer") == (
        "there is no work for more nodes; the batch system does not answer"
    )
