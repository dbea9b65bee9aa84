"""What a site with many payloads leaves of a job: a set with a gap for each. Work is counted in lines of Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.server_world import Site, World, done, leases, release_of
from tests.effort import lines_run

from tidemill.model.job import JobSpec
from tidemill.server.database.parsed_sets import ParsedSets
from tidemill.server.database.store import Store
from tidemill.wire.api import DoneReport, LeaseOrder, ReleaseReport

FEW, MANY = 400, 4_000
REPORTS = 50


class Gapped:
    """A job of which every other event of one lease is done, and then some."""

    def __init__(
        self, folder: Path, gaps: int, report: Callable[[LeaseOrder, int, int], object] = done
    ) -> None:
        store = Store(path=folder / f"{gaps}.db")
        store.init()
        self.world, self.gaps = World(store), gaps
        self.site = Site(self.world)
        self.site.sync(want=0)
        (self.job,) = self.world.submit(JobSpec(app="sim", events=4 * gaps))
        (self.lease,) = leases(self.site.sync(want=2.0 * gaps))
        self.site.sync(*[report(self.lease, at, 1) for at in range(0, 2 * gaps, 2)], want=0)

    def close(self) -> None:
        self.world.dispatcher.close()
        self.world.reader.close()

    def cost(self, *reports: DoneReport | ReleaseReport) -> int:
        return lines_run(lambda: self.site.sync(*reports, want=0))

    def cost_of_each(self, report: Callable[[LeaseOrder, int, int], DoneReport | ReleaseReport]) -> float:
        """Lines of a report more, over the whole width of the lease."""
        step = 2 * self.gaps // (REPORTS + 1) // 2 * 2
        first, *others = [report(self.lease, 1 + k * step, 1) for k in range(REPORTS + 1)]
        alone = self.cost(first)
        return (self.cost(*others) - alone) / (REPORTS - 1)


@pytest.mark.parametrize("report", [done, release_of])
@pytest.mark.parametrize("before", [done, release_of])
def test_a_report_costs_the_same_however_many_gaps_its_lease_has(
    tmp_path: Path,
    before: Callable[[LeaseOrder, int, int], object],
    report: Callable[[LeaseOrder, int, int], DoneReport | ReleaseReport],
) -> None:
    costs = []
    for gaps in (FEW, MANY):
        job = Gapped(tmp_path, gaps, before)
        costs.append(job.cost_of_each(report))
        job.close()

    assert costs[1] < 1.2 * costs[0]


def test_a_late_report_of_a_lost_lease_costs_the_same_however_many_gaps_it_has(tmp_path: Path) -> None:
    costs = []
    for gaps in (FEW, MANY):
        job = Gapped(tmp_path, gaps)
        job.world.now_s += 700
        assert job.world.dispatcher.check_sites() == ["s"]
        other = Site(job.world, "other")
        other.sync(want=1.0)  # it has some of the events, so that the lease does not come back
        costs.append(job.cost_of_each(done))
        job.close()

    assert costs[1] < 1.2 * costs[0]


@pytest.mark.parametrize("before", [done, release_of])
def test_sets_are_parsed_once_and_not_in_each_transaction(
    tmp_path: Path, before: Callable[[LeaseOrder, int, int], object]
) -> None:
    job = Gapped(tmp_path, MANY, before)
    first, second, third = (done(job.lease, at, 1) for at in (1, 3, 5))
    warm = job.cost(first)
    job.world.dispatcher.writer.memory.parsed = ParsedSets()  # as in a server that starts now
    cold = job.cost(second)
    again = job.cost(third)

    assert cold - warm > 10 * MANY, "two sets of that many intervals are parsed"
    assert abs(again - warm) < 100
    job.close()


def test_events_are_leased_without_reading_the_sets_again(tmp_path: Path) -> None:
    job = Gapped(tmp_path, MANY)
    job.cost(done(job.lease, 1, 1))

    assert lines_run(lambda: job.site.sync(want=10.0)) < 8 * MANY, "less than it takes to parse one set"
    job.close()
