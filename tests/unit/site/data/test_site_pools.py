"""Threads beside the agent's loop: one kind of work does not wait for another."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.unit.site.applications.test_site_applications import preparer
from tests.unit.site.state.test_site_log import open_log

from tidemill.config.site import SiteConfig
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.site.data.deliveries import Deliveries
from tidemill.site.data.outputs import Deliverer
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.payload_logs import LogFetches
from tidemill.site.data.placed.arrivals import Arrivals
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.site.state.served_site import HelperPools, ServedSite, open_pools
from tidemill.transfer.file import Roots
from tidemill.wire.api import FetchLogOrder

SLOW = 10


class _Site(NamedTuple):
    """What deliveries and log searches ask of the site."""

    state: site_state.SiteState
    log: SiteLog
    fleets_dir: Path
    pools: HelperPools
    config: SiteConfig = SiteConfig(name="s", server="unix:/x")


def deliveries_of(site: ServedSite, directory: Path, deliverer: Deliverer) -> Deliveries:
    """The deliveries of a site whose applications are below a directory."""
    prepared = preparer(directory / "apps")
    return Deliveries(site, prepared, deliverer, Arrivals(site, prepared, deliverer))


def test_ten_slow_inputs_hold_up_no_delivery_no_log_and_no_mail(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    (tmp_path / "prog").chmod(0o755)
    (tmp_path / "apps" / "sim.toml").write_text(f'name = "sim"\nexecutable = "{tmp_path}/prog"\n')
    log, pools, goes_on = open_log(tmp_path / "log", 1), open_pools(), threading.Event()
    site = cast("ServedSite", _Site(log.pool.state, log, tmp_path / "fleets", pools))
    spec = JobSpec(app="sim", events=1)
    log.pool.state.jobs[1] = site_state.SiteJob(
        id=1, campaign="c", seed_base=0, spec=spec, open=IntervalSet(), done=IntervalSet()
    )
    log.pool.state.deliveries[1] = ""
    log.pool.state.fetches.append(FetchLogOrder(n=1, request=1, job=1, event=0))
    deliverer = Deliverer(
        tmp_path / "fleets",
        OwnedPlaces(Roots([tmp_path]), tmp_path / "out"),
        bytes_max=1,
    )
    deliveries, logs = deliveries_of(site, tmp_path, deliverer), LogFetches(site)
    try:
        for pool in (pools.stage_in, pools.copies):
            for _ in range(SLOW):
                pool.submit(goes_on.wait)
        deliveries.step()
        logs.step()
        mail = pools.mail.submit(lambda: None)
        awaited: list[Future[Any]] = [*deliveries.under_way, *logs.under_way, mail]
        assert len(awaited) == 3
        assert not wait(awaited, timeout=20).not_done
    finally:
        goes_on.set()
        pools.close()
        log.close()
