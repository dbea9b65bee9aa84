"""The opportunity page of unusual pasts: no idle node, no wait, hours that never were, a share above one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import msgspec
import pytest

from tidemill.harvest.account.promise import Promise, PromiseState, WaitBound
from tidemill.harvest.account.waits import MeanDelay, RelativeChange
from tidemill.model.figures.job_classes import SIZES
from tidemill_study.accounting.history import Machine
from tidemill_study.accounting.idle import EDGES_S, STEPS, HoleClass, Idle
from tidemill_study.report import opportunity_figures as figures
from tidemill_study.report.opportunity import NO_CLOCK, Harvestable, Opportunity, Price
from tidemill_study.report.opportunity_page import page, wait_text
from tidemill_study.simulation.experiment import ClassResult

HOURS: list[float | None] = [float(k) for k in range(24)]
NIGHT: list[float | None] = [None] * 8


def idle(*, node_h: Sequence[float] = (5.0,) * len(EDGES_S), by_hour: list[float | None] = HOURS) -> Idle:
    classes = [
        HoleClass(
            from_s=edge, to_s=None if k == len(EDGES_S) - 1 else EDGES_S[k + 1], holes=3, node_h=node_h[k]
        )
        for k, edge in enumerate(EDGES_S)
    ]
    return Idle(
        start_s=0, end_s=86_400 * 30, nodes=64, idle_node_h=sum(node_h), capacity_node_h=1e5, outage_h=0, holes=classes,
        by_hour=by_hour, by_weekday=by_hour * 7, course=[sum(node_h)] * STEPS,
    )  # fmt: skip


CLASS_BOUND = WaitBound(change=0.02, delay_s=15.0)


def found(
    useful: float | None = 0.9, *, policy: str = "yield", event_s: float = 300.0, sizes: int = 2
) -> Harvestable:
    no_change = RelativeChange(mean=None, low=None, high=None)
    change = RelativeChange(mean=0.02, low=-0.01, high=0.05) if sizes else no_change
    by_size = [
        ClassResult(
            nodes_min=4**k, nodes=4 ** (k + 1) - 1, jobs=9, wait_s=5, wait_without_s=4, wait_change=0.02, low=-0.01,
            high=0.05, slowdown=1, slowdown_without=1, slowdown_change=no_change, name=SIZES[k], over_s=0.0,
            up_to_s=None, delay_s=MeanDelay(mean=1.0, low=0.5, high=1.5), bound=CLASS_BOUND,
            verdict=PromiseState.KEPT,
        )
        for k in range(sizes)
    ]  # fmt: skip
    return Harvestable(
        policy=policy, event_s=event_s, useful=useful, useful_low=None if useful is None else useful - 0.02,
        useful_high=None if useful is None else useful + 0.02, occupied=0.9, node_h_month=100.0, core_h_month=None,
        money_month=None, wait_change=change, wait_s=5, wait_without_s=4, by_size=by_size, starts_per_h=1,
        cancels_per_h=1, pairs=2, by_length=by_size[:1], mean_bound=CLASS_BOUND,
        promise=Promise(verdict=PromiseState.UNSURE, mean=PromiseState.UNSURE, broken=[], unsure=["all"]),
    )  # fmt: skip


def opportunity(past: Idle, *each: Harvestable, hours_are: str = "hours of UTC") -> Opportunity:
    return Opportunity(
        log="<log>", kind="sacct", made_us=0, jobs=10, jobs_simulated=10, days_simulated=30.0,
        machine=Machine(nodes=64, nodes_from="--nodes", outages=[], is_trusted=True, note=""),
        price=Price(per_core_h=0.01, currency="EUR", cores_per_node=None), idle=past, idle_from="the log",
        hours_are=hours_are, idle_share=past.share, idle_node_h_month=1.0, found=list(each), remarks=[], parameters={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "drawn"),
    [
        (opportunity(idle(), found(), found(policy="preempt")), 5),
        (opportunity(idle(), found(sizes=0)), 4),
        (opportunity(idle(node_h=(0.0,) * len(EDGES_S)), found(None)), 5),
        (opportunity(idle(by_hour=NIGHT + HOURS[8:]), found(1.4), hours_are=NO_CLOCK), 5),
    ],
    ids=["usual", "no job waits", "nothing idle", "closed at night"],
)
def test_the_page_of_any_past_is_whole(data: Opportunity, drawn: int) -> None:
    text = page(data)

    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(svgs) == text.count("<figcaption>") == drawn
    for svg in svgs:
        ElementTree.fromstring(svg)
    assert not re.search(r"\b(nan|inf|NaN|None)\b", text.partition("</style>")[2])
    assert "&lt;log&gt;" in text
    assert [int(k) for k in re.findall(r"<b>Figure (\d+)\.</b>", text)] == list(range(1, drawn + 1))


def test_hours_without_a_value_are_a_gap_and_weekends_stand_apart_where_days_are_known() -> None:
    night = NIGHT + HOURS[8:]
    known = figures.hours(opportunity(idle(by_hour=night), found()))
    unknown = figures.hours(opportunity(idle(by_hour=night), found(), hours_are=NO_CLOCK))

    assert known.count('class="step') == 3 + 3, "three lines, and each in the key"
    assert "weekend" not in unknown
    (path,) = re.findall(r'class="step s4" d="M([\d.]+)', unknown)
    assert float(path) > 86 + 420 / 3 - 1, "it begins at eight o'clock"


def test_a_share_above_one_is_within_its_figure() -> None:
    text = figures.harvested([found(1.4)])

    assert "140 %" in text or "150 %" in text


def test_marks_of_policies_stand_beside_each_other() -> None:
    text = figures.harvested([found(policy="yield"), found(policy="preempt")])

    xs = re.findall(r'class="dot f\d" d="M([\d.]+) ', text)[-2:]
    assert float(xs[1]) - float(xs[0]) > 20


def test_names_of_lengths_are_in_their_largest_unit() -> None:
    assert [figures.span(each) for each in (90, 300, 3600, 86_400)] == ["90 s", "5 min", "1 h", "1 d"]
    assert [figures.nodes_text(*each) for each in ((1, 1), (2, 1_024))] == ["1", "2 to 1,024"]
    assert msgspec.json.encode(opportunity(idle(), found()))


def test_short_waits_are_written_in_seconds() -> None:
    assert [wait_text(seconds) for seconds in (16.0, 185.0, 1800.0, 36_000.0)] == [
        "16 s",
        "3 m 05 s",
        "0.50 h",
        "10.00 h",
    ]
