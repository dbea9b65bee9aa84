"""Jobs that are being stopped: what is left of them is given back once nothing more comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tests.unit.site.applications.test_site_applications import preparer
from tests.unit.site.data.test_site_pools import _Site
from tests.unit.site.state.test_site_log import open_log

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.site.data.deliveries import STOP_S_MAX, Deliveries
from tidemill.site.data.outputs import Deliverer
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.state import site_state as s
from tidemill.site.state.served_site import ServedSite, open_pools
from tidemill.transfer.file import Roots


def test_a_job_that_is_stopped_twice_has_its_whole_time_both_times(tmp_path: Path) -> None:
    """While another job was being stopped, the time of the first stop was kept and the second one was over at once."""
    (tmp_path / "apps").mkdir()
    log, pools = open_log(tmp_path / "log", 1), open_pools()
    state = log.pool.state
    site = cast("ServedSite", _Site(state, log, tmp_path / "fleets", pools))
    deliverer = Deliverer(
        tmp_path / "fleets",
        OwnedPlaces(Roots([tmp_path]), tmp_path / "out"),
        bytes_max=1,
    )
    deliveries = Deliveries(site, preparer(tmp_path / "apps"), deliverer)
    log.apply(s.FleetOpened(fleet="f1", at_us=1))
    for number in (1, 2):
        state.jobs[number] = s.SiteJob(
            id=number, campaign="c", seed_base=0, spec=JobSpec(app="sim"), done=IntervalSet(),
            open=IntervalSet([(0, 1)]), grants={number: s.GrantState("f1", IntervalSet([(0, 1)]))}, stopping=True,
        )  # fmt: skip
    try:
        state.stopping.extend([1, 2])
        assert not deliveries.step()
        state.stopping.remove(1)  # it is retried
        assert not deliveries.step()
        assert list(deliveries._stops) == [2]
        state.stopping.append(1)
        assert not deliveries.step()
        deliveries._stops[2].began_s -= 2 * STOP_S_MAX
        assert deliveries.step()
        assert state.stopping == [1]
    finally:
        pools.close()
        log.close()
