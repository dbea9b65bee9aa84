"""The metrics file is what its page says, and a start costs what pilots' records tell."""

from __future__ import annotations

import re
from pathlib import Path

import draw_metrics
import msgspec

from tidemill.model.figures.job_classes import LENGTHS, SIZES
from tidemill.model.metrics import AGENT, ALL, Sample, render, wrong
from tidemill.model.state import AllocationState
from tidemill.site.nodes.costs import Costs
from tidemill.site.state.site_state import Allocation
from tidemill.site.state.status import AreaFigures, HarmFigures, SiteStatus
from tidemill.site.watch.metrics import of_waits, samples_of
from tidemill.site.watch.record_totals import RecordTotals
from tidemill.wire.monitoring import BadNode, RegularWaits
from tidemill.wire.node import Done, Ended, Failed, Started

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


def test_the_page_tells_every_metric_as_the_table_has_it() -> None:
    assert PAGE.read_text() == draw_metrics.drawn()


def test_samples_are_written_as_prometheus_reads_them() -> None:
    text = render(
        [
            Sample("tidemill_nodes", 3, (("state", "idle"),)),
            Sample("tidemill_drained", 0.0),
            Sample("tidemill_grant_node_seconds", 1.5, (("account", 'a"b\\c'), ("kind", "left"))),
            Sample("tidemill_nodes", 13, (("state", "ours"),)),
        ]
    )
    lines = text.splitlines()
    assert 'tidemill_nodes{state="idle"} 3' in lines
    assert lines[lines.index('tidemill_nodes{state="idle"} 3') + 1] == 'tidemill_nodes{state="ours"} 13'
    assert "tidemill_drained 0" in lines
    assert 'tidemill_grant_node_seconds{account="a\\"b\\\\c",kind="left"} 1.5' in lines
    assert lines.count("# TYPE tidemill_nodes gauge") == 1
    assert text.endswith("\n")


def test_metrics_are_named_after_their_unit_and_kind() -> None:
    for name, metric in ALL.items():
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not re.search(r"_(hours|minutes|days|ms|us|kb|mb|percent)(_|$)", name), name
        assert bool(metric.buckets) == (metric.kind == "histogram"), name
        assert metric.help[0].isupper(), metric.help
        assert all(label.values or label.most for label in metric.labels.values()), name


def test_what_breaks_the_contract_is_named() -> None:
    samples = [
        Sample("tidemill_nodes", 1, (("state", "lazy"),)),
        Sample("tidemill_nodes", 1),
        Sample("tidemill_invented", 1),
        *(Sample("tidemill_info", 1, (("version", str(n)),)) for n in range(2)),
        Sample("tidemill_nodes", 1, (("state", "idle"),)),
    ]

    found = wrong(samples)

    assert len(found) == 4
    assert "lazy" in found[0]


def test_sums_over_pilots_keep_the_contract() -> None:
    summary = RecordTotals()
    failed = Failed(
        p="a.r0.i1", s=3, grant=1, job=1, first=4, count=1, event=4, failure="payload", message="", exit_status=1,
        signal=None, stderr_tail="", slot=0, at_us=0, wall_us=0, user_us=0, system_us=0,
    )  # fmt: skip
    ended = Ended(
        p="a.r0.i1", s=4, reason="idle", message="", busy_us=3 * SECOND, slot_us=4 * SECOND, at_us=0
    )

    summary.add([started(1), done(0, 1, 2), failed, ended])

    samples = list(summary.samples())
    values = {(each.name, *(value for _, value in each.labels)): each.value for each in samples}
    assert wrong(samples) == []
    assert values["tidemill_events_total", "kept"] == values["tidemill_events_total", "failed"] == 1
    assert values["tidemill_slot_seconds_total", "busy"] == 3
    assert values["tidemill_pilots_ended_total", "idle"] == 1
    assert values["tidemill_failures_total", "payload"] == 1
    assert set(values)
    assert {name for name, *_ in values} <= set(AGENT)


SECOND = 1_000_000


def started(at_s: int) -> Started:
    return Started(
        p="a.r0.i1", s=1, allocation="a", node="n", rank=0, cores=2, memory_mb=1, isolation="namespaces",
        note="", version="1", at_us=at_s * SECOND,
    )  # fmt: skip


def done(slot: int, began_s: int, ended_s: int) -> Done:
    return Done(
        p="a.r0.i1", s=2, grant=1, job=1, first=0, count=1, payloads=1, slot=slot, started_us=began_s * SECOND,
        ended_us=ended_s * SECOND, wall_us=SECOND, setup_us=SECOND, user_us=0, system_us=0, rss_kb=0, read_bytes=None,
        write_bytes=None, outputs=[],
    )  # fmt: skip


def running() -> Allocation:
    return Allocation(
        name="a",
        fleet="f",
        nodes=1,
        cores=2,
        state=AllocationState.ACTIVE,
        intended_us=0,
        started_us=100 * SECOND,
    )


def test_a_start_costs_from_the_batch_systems_start_to_the_first_payloads_work() -> None:
    costs, mine = Costs(10.0), running()
    assert costs.loss_s(mine, 105 * SECOND, 60) == 10.0
    costs.on_records([started(103), done(0, 105, 120)], {"a": mine})
    assert costs.startup_s == 6.0
    assert costs.outcomes("a") == (1, 0)


def test_ending_an_allocation_loses_what_its_slots_have_in_flight_within_bounds() -> None:
    costs, mine = Costs(10.0), running()
    costs.on_records([started(103), done(0, 105, 120), done(1, 105, 130)], {"a": mine})
    assert costs.loss_s(mine, 140 * SECOND, 60) == (20 + 10) / 2
    assert costs.loss_s(mine, 1000 * SECOND, 60) == 120
    costs.forget("a")
    assert costs.loss_s(mine, 140 * SECOND, 60) == costs.startup_s


def test_a_start_on_a_node_with_another_clock_is_not_believed() -> None:
    costs, mine = Costs(10.0), running()
    costs.on_records([started(3), done(0, 0, 20)], {"a": mine})
    assert costs.startup_s == 10.0


def test_waits_of_regular_jobs_are_exported_by_class_and_only_by_classes_that_exist() -> None:
    classes = [
        RegularWaits(size="1/64", length="5min", jobs=3, delayed=2, wait_s=90.0, share_s=20.0),
        RegularWaits(size="unknown", length="unknown", jobs=9, delayed=0, wait_s=0.0, share_s=0.0),
    ]
    samples = list(of_waits(classes))
    text = render(samples)

    assert 'tidemill_regular_today_jobs{size="1/64",length="5min"} 3' in text
    assert 'tidemill_regular_today_wait_seconds{size="1/64",length="5min"} 90' in text
    assert 'tidemill_regular_today_harm_seconds{size="1/64",length="5min"} 20' in text
    assert 'tidemill_regular_today_jobs{size="1",length="longer"} 0' in text
    assert len(samples) == 3 * len(SIZES) * len(LENGTHS)


def test_a_status_says_the_same_as_metrics_after_it_was_written_and_read() -> None:
    status = SiteStatus(
        at_us=1, causes=["idle"], is_drained=True, polled_s=7.0, nodes={"idle": 3}, left_node_s=5.0,
        bad_nodes=[BadNode(node="n1", since_us=0, until_us=9, why="", evidence=[])], bad_nodes_total=1,
        areas=[AreaFigures(area="scratch", ops=1.0, bytes=2.0, ops_over=3, bytes_over=0, ops_per_s=4.0)],
        harm=HarmFigures(all_s=9.0, today_s=1.0, low_s=0.5, high_s=2.0, jobs=1),
        figures=[Sample("tidemill_noted_total", 2, (("topic", "memory"), ("mode", "no_fit")))],
    )  # fmt: skip
    samples = samples_of(status)
    assert wrong(samples) == []
    assert samples_of(msgspec.json.decode(msgspec.json.encode(status), type=SiteStatus)) == samples
    values = {(each.name, *(value for _, value in each.labels)): each.value for each in samples}
    assert values["tidemill_nodes", "idle"] == 3
    assert values["tidemill_io_over_total", "scratch", "ops"] == 3
    assert values["tidemill_noted_total", "memory", "no_fit"] == 2
    assert values["tidemill_quarantined_nodes",] == values["tidemill_drained",] == 1
    assert {each.name for each in samples_of(SiteStatus())}.isdisjoint(
        {"tidemill_nodes", "tidemill_left_node_seconds", "tidemill_harm_today_seconds"}
    ), "nothing is known of these"
