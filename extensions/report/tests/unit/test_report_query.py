"""A report asked from the server: its page."""

from __future__ import annotations

import re

from tidemill.client.causes import group_failures
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.figures.activity import Changes, Span, activity, add, course
from tidemill.model.quantities import bytes_text
from tidemill.wire.api import AllocationRow, CampaignRow, FailureRow, PayloadUsage, SiteRow
from tidemill.wire.far import CacheFigures, CacheView
from tidemill_report.page import page
from tidemill_report.query import ReportData, Timeline

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
