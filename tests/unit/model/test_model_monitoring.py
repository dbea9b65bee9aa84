"""Quantities of nodes: each is made, named, documented and drawn."""

from __future__ import annotations

from pathlib import Path

from tidemill.model.metrics import AGENT
from tidemill.model.metrics.nodes import FAMILIES, QUANTITIES
from tidemill.node.monitor import _FORMULAS
from tidemill.server.web.allocation import CHARTS, OF_REQUESTS, RARE, SHARED

PAGE = Path(__file__).parents[3] / "docs" / "monitoring.md"


def test_every_quantity_has_a_formula_a_metric_and_a_row_of_its_own_in_the_documentation() -> None:
    names = [each.name for each in QUANTITIES]
    assert len(set(names)) == len(names)
    assert set(_FORMULAS) == set(names)
    assert len({(each.metric, each.labels) for each in QUANTITIES}) == len(names)
    text = PAGE.read_text()
    for each in QUANTITIES:
        labels = ",".join(f'{name}="{value}"' for name, value in each.labels)
        metric = each.metric.removeprefix("tidemill_node_") + (f"{{{labels}}}" if labels else "")
        assert f"| `{each.name}` | {each.unit or 'number'} | {each.help} |" in text, each.name
        assert f"| `{metric}` |" in text, metric


def test_metrics_have_base_units_and_those_of_several_quantities_have_labels() -> None:
    ends = {
        "ratio": "_ratio",
        "bytes": "_bytes",
        "bytes/s": "_bytes_per_second",
        "1/s": "_per_second",
        "s": "_seconds",
    }
    for each in QUANTITIES:
        assert each.metric.endswith(ends.get(each.unit, "")), each.name
        assert bool(each.labels) == (each.metric in FAMILIES), each.name
        assert AGENT[each.metric].kind == "gauge"


def test_every_chart_is_of_quantities_of_one_unit_and_what_is_shown_at_times_is_the_first_of_one() -> None:
    units = {each.name: each.unit for each in QUANTITIES}
    for panel in CHARTS:
        assert len({units[name] for name in panel.quantities}) == 1, panel.title
    assert {panel.quantities[0] for panel in CHARTS} >= RARE | OF_REQUESTS.keys() | SHARED
    drawn = {name for panel in CHARTS for name in panel.quantities}
    assert set(units) - drawn == {
        "cpu_idle", "cores", "memory", "swap_used", "major_faults", "disk_ops", "pressure_memory_full",
        "pressure_io_full",
    }  # fmt: skip
