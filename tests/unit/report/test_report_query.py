"""Reports: grouping, timelines, text, figures and the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tidemill.charts.bars import Bar, bars
from tidemill.charts.time import area, nice_ceiling
from tidemill.cli.jobs.errors import amount_text, example_lines
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.figures.activity import Changes, Span, activity, add, course
from tidemill.model.quantities import bytes_text, duration_text, percent_text, rate_text
from tidemill.report.html import page
from tidemill.report.query import ReportData, Timeline, group_failures
from tidemill.report.tables import text_table
from tidemill.wire.api import AllocationRow, CampaignRow, FailureRow, PayloadUsage, SiteRow
from tidemill.wire.far import CacheFigures, CacheView

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


def _campaign(name: str) -> CampaignRow:
    return CampaignRow(
        name=name, owner="me", shares=1, created_us=NOW - 100, jobs=2, states={"COMPLETED": 1, "FAILED": 1}, events=20,
        events_done=17, events_failed=3,
        usage=PayloadUsage(payloads=2, wall_us=10_000_000, user_us=8_000_000, setup_us=500_000),
        failures={"payload": 3}, first_started_us=NOW - 60_000_000, last_ended_us=NOW,
    )  # fmt: skip


def _data(**changed: object) -> ReportData:
    values: dict[str, object] = {
        "title": "c", "made_us": NOW, "since_us": None, "until_us": None, "server_version": "0.1.0",
        "campaigns": [_campaign("c")], "failures": [], "timeline": None, "allocations": [], "sites": [],
    }  # fmt: skip
    return ReportData(**{**values, **changed})  # type: ignore[arg-type]


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


def _timeline(*ends_s: float, events: int | None = None) -> Timeline:
    changes: Changes = {}
    for end_s in ends_s:
        end_us = NOW + int(end_s * 1_000_000)
        add(changes, Span(end_us - 500_000, end_us, 500_000, 400_000), done=1)
    drawn = course([activity(changes, 1)], bins_max=20)
    return Timeline(course=drawn, known=len(ends_s), events=events or len(ends_s), partial=False)


def test_an_idle_gap_is_a_gap_and_the_sum_stays_at_its_end() -> None:
    text = page(_data(timeline=_timeline(*(k / 10 for k in range(6, 50)), *(15 + k / 10 for k in range(50)))))
    rates = re.search(r"events per second over time.*?</svg>", text, re.DOTALL)
    assert rates is not None
    values = [float(each) for each in re.findall(r"UTC: ([\d.]+)", rates[0])]
    assert values[6:15] == [0] * 9
    assert set(values[1:5] + values[16:19]) == {10}
    sums = re.search(r"events done over time.*?</svg>", text, re.DOTALL)
    assert sums is not None
    found = [int(each) for each in re.findall(r"UTC: ([\d,]+)<", sums[0])]
    assert found[-1] == 94
    assert found == sorted(found)


def test_a_page_says_of_how_many_events_it_does_not_know_the_time() -> None:
    assert "Times are known of 2 of 7 events" in page(_data(timeline=_timeline(1, 2, events=7)))
    assert "Times are known of" not in page(_data(timeline=_timeline(1, 2)))


def test_axes_of_counts_have_whole_numbers() -> None:
    for top in (1, 2, 3, 5, 7, 12, 45, 99, 130):
        ticks = re.findall(
            r'text-anchor="end"[^>]*>([^<]+)<',
            area([top], start_us=NOW, bin_s=1, title="t", text=str),
        )
        assert all(float(each) == int(float(each)) for each in ticks if ":" not in each), ticks


def test_the_page_is_self_contained_and_escapes_what_payloads_wrote() -> None:
    failures = group_failures([_failure(1, "<script>alert(1)</script>", tail="</pre><b>")])
    text = page(_data(failures=failures))
    assert "<script" not in text
    assert "</pre><b>" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_the_page_of_everything_names_its_parts() -> None:
    allocation = AllocationRow(
        site="here", name="tm-here-e1-1", batch_id="1", state="COMPLETED", nodes=1, cores=2, at_us=NOW, reason="idle",
        busy_us=99, slot_us=100,
    )  # fmt: skip
    line = _timeline(1, 2, 3)
    text = page(
        _data(
            allocations=[allocation], timeline=line, failures=group_failures([_failure(1, "x", final=True)])
        )
    )
    for part in ("Jobs and events", "Campaigns", "Efficiency", "Failures", "Allocations", "99 %", "80 %"):
        assert part in text


def _site(*caches: CacheView) -> SiteRow:
    return SiteRow(
        name="here", state="UP", epoch=1, host="h", version="0.1.0", seen_us=NOW, capacity={}, allocations={},
        applications=[], leased_events=0, caches=list(caches),
    )  # fmt: skip


def test_the_page_shows_what_caches_did_and_which_figure_to_believe() -> None:
    total = CacheFigures(
        opens=12_000,
        served=4 * 10**12,
        known=3 * 10**12,
        hit=39 * 10**11,
        fetched=10**12,
        bypass=10**12,
        again=5 * 10**9,
    )
    works = CacheView(name="dtn", state="running", total=total, wire_origin=21 * 10**11)
    odd = CacheView(name="<b>", state="dead", believe="believe the connections & not <i>")
    text = page(_data(sites=[_site(works, odd, CacheView(name="theirs", state="other"))]))
    for part in (
        "<h2>Caches", "12,000", bytes_text(4 * 10**12), bytes_text(2 * 10**12), bytes_text(21 * 10**11),
        "75 %", ">0.50<", bytes_text(5 * 10**9), "&lt;b&gt; at here: believe the connections &amp; not &lt;i&gt;",
    ):  # fmt: skip
        assert part in text, part
    assert "theirs" not in text  # its own site reports it
    assert "4000000000000" not in text
    assert "Caches" not in page(_data(sites=[_site()]))


def test_figures_are_well_formed_and_named() -> None:
    drawn = [
        area([0.0, 3.0, 2.0], start_us=NOW, bin_s=60, title="a & b", text=str),
        bars([Bar("<x>", 0.0, "0"), Bar("y", 2.0, "2")], title="bars"),
    ]
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (0.07, 0.08), (1, 1), (3, 3), (183, 200), (999, 1000), (1001, 1200), (1.086, 1.2)],
)
def test_axes_end_at_short_numbers(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)


def test_numbers_as_people_read_them() -> None:
    assert [duration_text(s) for s in (None, 0.44, 12, 185, 7620, 273600)] == [
        "-", "0.4 s", "12 s", "3 m 05 s", "2 h 07 m", "3 d 04 h",
    ]  # fmt: skip
    assert [bytes_text(n) for n in (0, 512, 1500, 20_000_000, 999_600)] == [
        "0 B",
        "512 B",
        "1.5 kB",
        "20 MB",
        "1 MB",
    ]
    assert [percent_text(s) for s in (None, 0.5, 0.994, 1.0)] == ["-", "50 %", "99.4 %", "100 %"]
    assert [rate_text(r) for r in (None, 0.1234, 1234.5)] == ["-", "0.123", "1,234"]


def test_tables_align_numbers_right_and_are_cut_at_the_width() -> None:
    text = text_table(["N", "NAME"], [[1, "a"], [100, "long name"]], right=(0,), width=10)
    assert text.splitlines() == ["  N  NAME", "  1  a", "100  long…"]
