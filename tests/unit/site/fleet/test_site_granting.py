"""From backlog to grants: what cannot be told just now waits, and is not refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.unit.site.applications.test_site_applications import HICCUP, preparer
from tests.unit.site.state.test_site_log import open_log

from tidemill.config.site import SiteConfig
from tidemill.model.job import JobSpec
from tidemill.site.applications.launching import Launching
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.fleets import Fleets
from tidemill.site.fleet.granting import Granting
from tidemill.site.state import site_state as s
from tidemill.transfer.file import Roots
from tidemill.wire.api import LeaseOrder, ReleaseReport

CONFIG = SiteConfig(name="here", server="unix:/x")


def test_a_job_whose_application_cannot_be_read_just_now_waits_and_is_granted_later(tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    apps = tmp_path / "apps"
    apps.mkdir()
    (apps / "sim.toml").write_text(f'name = "sim"\nexecutable = "{program}"\n')
    log = open_log(tmp_path / "log", 1)
    fleets = Fleets(tmp_path / "fleets", CONFIG, binary=tmp_path / "tidemill-node")
    log.apply(s.FleetOpened(fleet="f1", at_us=1))
    fleet = fleets.create(log.pool.state.fleets["f1"])
    spec = JobSpec(app="sim", events=3)
    order = LeaseOrder(n=1, lease=1, job=1, first=0, count=3, campaign="c", seed_base=0, spec=spec)
    log.apply(s.Replied(acked=0, orders=[order], at_us=0))
    with ThreadPoolExecutor(1) as executor:
        granting = Granting(
            log, preparer(apps), Stage(tmp_path / "stage", CONFIG, OwnedPlaces(Roots([]))), fleets, executor
        )
        program.rename(tmp_path / "kept")
        program.symlink_to(HICCUP)
        assert not granting.plan(fleet, Launching())
        assert list(log.pool.settlement.backlog) == [1]
        (tmp_path / "kept").rename(program)
        assert granting.plan(fleet, Launching())
        program.unlink()
        log.apply(
            s.Replied(acked=0, orders=[LeaseOrder(n=2, lease=2, job=2, first=0, count=3, campaign="c",
                                                  seed_base=0, spec=spec)], at_us=0)
        )  # fmt: skip
        assert not granting.plan(fleet, Launching())
        assert [report.job for report in log.pool.state.reports if isinstance(report, ReleaseReport)] == [2]
    log.close()
