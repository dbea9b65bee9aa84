"""The metrics file is what its page says, and a start costs what pilots' records tell."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.model.state import AllocationState
from tidemill.site.costs import Costs
from tidemill.site.metrics import METRICS, Sample, render
from tidemill.site.state import Allocation
from tidemill.wire.node import Done, Started

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_tells_every_metric_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(tidemill_\w+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: (kind, text) for name, kind, text in rows} == METRICS


def test_samples_are_written_as_prometheus_reads_them() -> None:
    text = render(
        [
            Sample("tidemill_nodes", 3, (("state", "idle"),)),
            Sample("tidemill_drained", 0.0),
            Sample("tidemill_grant_node_hours", 1.5, (("account", 'a"b\\c'), ("kind", "left"))),
            Sample("tidemill_nodes", 13, (("state", "ours"),)),
        ]
    )
    lines = text.splitlines()
    assert 'tidemill_nodes{state="idle"} 3' in lines
    assert lines[lines.index('tidemill_nodes{state="idle"} 3') + 1] == 'tidemill_nodes{state="ours"} 13'
    assert "tidemill_drained 0" in lines
    assert 'tidemill_grant_node_hours{account="a\\"b\\\\c",kind="left"} 1.5' in lines
    assert lines.count("# TYPE tidemill_nodes gauge") == 1
    assert text.endswith("\n")


def test_metrics_are_named_after_their_unit_and_kind() -> None:
    for name, (kind, text) in METRICS.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert text[0].isupper(), text


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
    costs.heard([started(103), done(0, 105, 120)], {"a": mine})
    assert costs.startup_s == 6.0
    assert costs.tally("a") == (1, 0)


def test_ending_an_allocation_loses_what_its_slots_have_in_flight_within_bounds() -> None:
    costs, mine = Costs(10.0), running()
    costs.heard([started(103), done(0, 105, 120), done(1, 105, 130)], {"a": mine})
    assert costs.loss_s(mine, 140 * SECOND, 60) == (20 + 10) / 2
    assert costs.loss_s(mine, 1000 * SECOND, 60) == 120
    costs.forget("a")
    assert costs.loss_s(mine, 140 * SECOND, 60) == costs.startup_s


def test_a_start_on_a_node_with_another_clock_is_not_believed() -> None:
    costs, mine = Costs(10.0), running()
    costs.heard([started(3), done(0, 0, 20)], {"a": mine})
    assert costs.startup_s == 10.0
