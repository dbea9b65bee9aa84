"""Jobs that are being stopped, and deliveries that are ordered again."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from pathlib import Path
from typing import cast

import msgspec
from tests.unit.site.data.test_site_pools import _Site, deliveries_of
from tests.unit.site.state.test_site_log import open_log

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.site.data.deliveries import STOP_S_MAX
from tidemill.site.data.outputs import Deliverer
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.state import site_state
from tidemill.site.state.served_site import DELIVERY_THREADS, ServedSite, open_pools
from tidemill.transfer.file import Roots


def test_a_delivery_under_way_begins_again_where_its_job_was_given_another_directory(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    log, pools, goes_on = open_log(tmp_path / "log", 1), open_pools(), threading.Event()
    state = log.pool.state
    site = cast("ServedSite", _Site(state, log, tmp_path / "fleets", pools))
    deliverer = Deliverer(tmp_path / "fleets", OwnedPlaces(Roots([tmp_path]), tmp_path / "out"), bytes_max=1)
    deliveries = deliveries_of(site, tmp_path, deliverer)
    spec = JobSpec(command=["true"], output_dir=f"{tmp_path}/full")
    job = site_state.SiteJob(
        id=1, campaign="c", seed_base=0, spec=spec, open=IntervalSet(), done=IntervalSet()
    )
    state.jobs[1], state.deliveries[1] = job, ""
    try:
        for _ in range(DELIVERY_THREADS):
            pools.deliveries.submit(goes_on.wait)
        assert not deliveries.step()
        (first,) = deliveries.under_way
        job.spec = msgspec.structs.replace(spec, output_dir=f"{tmp_path}/other", retries=7)
        deliveries.step()
        goes_on.set()
        assert not wait([first], timeout=20).not_done
        deliveries.step()
        assert 1 in state.deliveries, "what was delivered to the former directory is not reported"
        (second,) = deliveries.under_way
        assert second is not first
        job.spec = msgspec.structs.replace(job.spec, retries=8)
        assert not wait([second], timeout=20).not_done
        assert deliveries.step()
        assert 1 not in state.deliveries
    finally:
        goes_on.set()
        pools.close()
        log.close()


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
    deliveries = deliveries_of(site, tmp_path, deliverer)
    log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
    for number in (1, 2):
        state.jobs[number] = site_state.SiteJob(
            id=number, campaign="c", seed_base=0, spec=JobSpec(app="sim"), done=IntervalSet(),
            open=IntervalSet([(0, 1)]), stopping=True,
            grants={number: site_state.GrantState("f1", IntervalSet([(0, 1)]))},
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
