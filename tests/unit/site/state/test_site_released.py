"""Allocations that Tidemill itself ended are reported as released; those that others ended, as canceled."""

from __future__ import annotations

from tidemill.batch.contract import Ending
from tidemill.model.metrics import AGENT
from tidemill.model.state import AllocationState
from tidemill.site.state import site_state
from tidemill.site.state.pool import WorkPool
from tidemill.wire.api import AllocationReport


def test_an_allocation_that_tidemill_canceled_is_reported_as_released() -> None:
    pool = WorkPool(site_state.SiteState(site="s"))
    pool.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
    for number, name in enumerate(("ours", "theirs"), 1):
        pool.apply(
            site_state.Intended(
                allocation=name, fleet="e1-1", nodes=1, cores=4, at_us=number, walltime_s=60.0, count=1
            )
        )
        pool.apply(observed(name, AllocationState.ACTIVE))
    pool.apply(site_state.Ordered(cancel=["ours"], at_us=5))
    for name in ("ours", "theirs"):
        pool.apply(observed(name, AllocationState.CANCELED, ending=Ending.CANCELED.value))
    states: dict[str, list[str]] = {}
    for report in pool.state.reports:
        if isinstance(report, AllocationReport):
            states.setdefault(report.name, []).append(report.state)
    assert states == {"ours": ["ACTIVE", "RELEASED"], "theirs": ["ACTIVE", "CANCELED"]}
    assert [each.state for each in pool.state.allocations.values()] == [AllocationState.CANCELED] * 2
    assert {each.reported for each in pool.state.allocations.values()} <= set(
        AGENT["tidemill_allocations"].labels["state"].values
    )


def observed(name: str, state: AllocationState, *, ending: str = "") -> site_state.Observed:
    return site_state.Observed(allocation=name, state=state, batch_id="7", reason="", at_us=9, ending=ending)
