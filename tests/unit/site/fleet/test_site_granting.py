"""From backlog to grants: what cannot be told just now waits, and is not refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.unit.site.applications.test_site_applications import HICCUP, preparer
from tests.unit.site.state.test_site_log import open_log

from tidemill.config.site import SiteConfig
from tidemill.model.job import JobSpec, Resources
from tidemill.site.applications.launching import Launching
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.fleets import Fleets
from tidemill.site.fleet.granting import Granting
from tidemill.site.state import site_state
from tidemill.transfer.file import Roots
from tidemill.wire.api import LeaseOrder, ReleaseReport
from tidemill.wire.node import Returned

CONFIG = SiteConfig(name="here", server="unix:/x")


class OneJob:
    """Job 1 at a site whose nodes have 8,000 MB; nothing of it is granted yet."""

    def __init__(self, directory: Path, executor: ThreadPoolExecutor, spec: JobSpec) -> None:
        self.program = directory / "prog"
        self.program.write_text("#!/bin/sh\n")
        self.program.chmod(0o755)
        apps = directory / "apps"
        apps.mkdir()
        (apps / "sim.toml").write_text(f'name = "sim"\nexecutable = "{self.program}"\n')
        self.log = open_log(directory / "log", 1)
        fleets = Fleets(directory / "fleets", CONFIG, binary=directory / "tidemill-node")
        self.log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
        self.fleet = fleets.create(self.log.pool.state.fleets["f1"])
        self._spec = spec
        self.lease(1)
        stage = Stage(directory / "stage", CONFIG, OwnedPlaces(Roots([])))
        self.granting = Granting(self.log, preparer(apps), stage, fleets, executor)

    def lease(self, job: int) -> None:
        order = LeaseOrder(
            n=job, lease=job, job=job, first=0, count=self._spec.events, campaign="c", seed_base=0, spec=self._spec
        )  # fmt: skip
        self.log.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    @property
    def job(self) -> site_state.SiteJob:
        return self.log.pool.state.jobs[1]

    def plan(self) -> bool:
        return self.granting.plan(self.fleet, Launching())

    @property
    def released(self) -> list[ReleaseReport]:
        return [each for each in self.log.pool.state.reports if isinstance(each, ReleaseReport)]


def test_a_job_whose_application_cannot_be_read_just_now_waits_and_is_granted_later(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        it = OneJob(tmp_path, executor, JobSpec(app="sim", events=3))
        it.program.rename(tmp_path / "kept")
        it.program.symlink_to(HICCUP)
        assert not it.plan()
        assert list(it.log.pool.settlement.backlog) == [1]
        (tmp_path / "kept").rename(it.program)
        assert it.plan()
        it.program.unlink()
        it.lease(2)
        assert not it.plan()
        assert [report.job for report in it.released] == [2]
        it.log.close()


def growing(most_mb: int) -> JobSpec:
    """A job of four events that grow up to a maximum."""
    return JobSpec(
        app="sim", events=4, resources=Resources(memory_mb=10, memory_mb_max=most_mb, scratch_mb=500)
    )


def test_a_job_that_would_not_fit_a_node_once_it_has_grown_is_not_begun(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        it = OneJob(tmp_path, executor, growing(7900))
        assert not it.plan()
        assert [(each.first, each.count) for each in it.released] == [(0, 4)]
        assert "a slot needs 7900 MB of memory, its work directory 500 MB" in it.released[0].reason
        it.log.close()


def test_a_job_goes_back_whole_where_a_later_form_of_it_is_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        it = OneJob(tmp_path, executor, growing(7000))
        it.job.forms[1] = site_state.JobForm(memory_mb=9000)  # of an agent whose nodes had more
        it.job.ready[:] = [site_state.UndonePiece(0, 3), site_state.UndonePiece(3, 1, None, 1)]
        assert not it.plan()
        assert [(each.first, each.count) for each in it.released] == [(0, 3), (3, 1)]
        assert (it.job.grants, it.job.ready) == ({}, [])
        assert not it.plan()
        it.log.close()


def sized(memory_mb: int) -> JobSpec:
    return JobSpec(app="sim", events=4, resources=Resources(memory_mb=memory_mb))


def test_work_that_fits_no_allocation_goes_back_once_pilots_say_what_they_have(tmp_path: Path) -> None:
    """The nodes have 8,000 MB; allocations get 7,600 of them."""
    with ThreadPoolExecutor(1) as executor:
        it = OneJob(tmp_path, executor, sized(7900))
        it.granting.refit(8000)
        assert it.plan()
        it.granting.refit(8000)
        assert not it.released, "it fits, as far as is known"
        it.granting.refit(7600)
        assert [(each.first, each.count) for each in it.released] == [(0, 4)]
        assert "7900 MB of memory and 50 MB for its work directory" in it.released[0].reason
        assert "an allocation has 7600 MB on a node here" in it.released[0].reason
        assert (it.job.grants, it.log.pool.state.fleets["f1"].cancels) == ({}, [1])
        it.lease(2)
        assert not it.plan(), "no more of it is granted"
        assert [report.job for report in it.released] == [1, 2]
        it.log.close()


def test_work_that_still_fits_runs_on(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        it = OneJob(tmp_path, executor, sized(7500))
        it.granting.refit(8000)
        assert it.plan()
        it.granting.refit(7600)
        assert not it.released
        it.log.close()


def test_work_that_pilots_in_turn_have_no_room_for_goes_back(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        it = OneJob(tmp_path, executor, sized(1000))
        it.granting.refit(8000)
        assert it.plan()
        (grant,) = it.job.grants
        for number in (1, 2, 2, 3):
            assert not it.released
            returned = Returned(
                p=f"a{number}.0.i1", s=1, grant=grant, job=1, first=0, count=4, reason="no_fit"
            )
            it.granting.on_records([returned])
        assert [(each.first, each.count) for each in it.released] == [(0, 4)]
        assert it.released[0].reason == "3 pilots in turn have no room for it"
        it.log.close()
