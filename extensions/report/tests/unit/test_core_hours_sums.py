"""Core-hours of allocations, summed up by campaign and application."""

from __future__ import annotations

import pytest

from tidemill.wire.core_hours import AllocationUse, CoreUse
from tidemill_report.core_hours import UNUSED, core_hours

HOUR_US = 3_600_000_000


def allocation(name: str, *uses: CoreUse, gpu_us: int = 0) -> AllocationUse:
    return AllocationUse(
        site="here", name=name, batch_id=f"b-{name}", nodes=2, cores=20, gpus=4, started_us=0, ended_us=HOUR_US,
        elapsed_us=HOUR_US, held_core_us=20 * HOUR_US, held_gpu_us=gpu_us, uses=list(uses),
    )  # fmt: skip


def use(owner: str, core_us: int, held_core_us: int, held_gpu_us: int) -> CoreUse:
    return CoreUse(
        owner=owner, campaign=f"of-{owner}", app="sim", core_us=core_us, held_core_us=held_core_us,
        held_gpu_us=held_gpu_us,
    )  # fmt: skip


def test_sums_by_campaign_and_by_application_are_the_total_and_what_is_unused_comes_last() -> None:
    ann = use("ann", 6 * HOUR_US, 12 * HOUR_US, 3 * HOUR_US)
    bob = use("bob", 4 * HOUR_US, 8 * HOUR_US, HOUR_US)
    found = [allocation("a1", ann, bob, gpu_us=4 * HOUR_US), allocation("a2")]
    report = core_hours(found)
    total = report.total
    assert (total.held_h, total.gpu_h, total.allocations) == (40, 4, 2)
    unused = report.campaigns[-1]
    assert (unused.name, unused.held_h, unused.allocations, unused.idle) == (UNUSED, 20, 1, 1.0)
    for sums in (report.campaigns, report.apps):
        assert sum(each.held_h for each in sums) == pytest.approx(total.held_h)
        assert sum(each.used_h for each in sums) == pytest.approx(total.used_h)
        assert sum(each.gpu_h for each in sums) == pytest.approx(total.gpu_h)
    for name in ("of-ann", "ann/of-ann"):
        of_ann = core_hours(found, campaign=name)
        assert (of_ann.total.held_h, of_ann.total.used_h, of_ann.total.allocations) == (12, 6, 1)
