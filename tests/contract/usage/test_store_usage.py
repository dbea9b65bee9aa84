"""Usage that a site makes up: sums stay numbers that both databases hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.contract.server_world import SIM, Site, World, done, key_of, leases

from tidemill.model.job import JobSpec
from tidemill.server.core.settling import CLOCK_STEP_US, USAGE_MAX
from tidemill.server.database.rows import USAGE_SUM_MAX
from tidemill.server.database.store import Session
from tidemill.server.read import api_pages
from tidemill.wire.api import PayloadUsage

HUGE = {"wall_us": 2**62, "user_us": 2**62, "read_bytes": 2**62, "rss_kb": 2**62, "payloads": 2**62}


def test_each_figure_of_a_report_is_clamped(world: World) -> None:
    world.submit(SIM, SIM)
    site = Site(world)
    for lease in leases(site.sync()):
        report = done(lease)
        report.usage = PayloadUsage(**HUGE)
        site.sync(report, want=0)
    usage = api_pages.campaign(world.reader, key_of(world.reader, "c")).usage
    assert (usage.user_us, usage.read_bytes, usage.rss_kb) == (2 * USAGE_MAX, 2 * USAGE_MAX, USAGE_MAX)
    assert world.state(1) == world.state(2) == "COMPLETED"


def test_sums_of_many_huge_reports_end_below_what_a_database_holds(world: World) -> None:
    world.submit(JobSpec(app="sim", events=400))
    site = Site(world)
    (lease,) = leases(site.sync())
    for some in range(0, 400, 100):
        reports = [done(lease, event, 1) for event in range(some, some + 100)]
        for report in reports:
            report.usage = PayloadUsage(**HUGE)
        site.sync(*reports, want=0)
    detail = world.job(1)
    assert detail.row.state == "COMPLETED"
    assert detail.usage.user_us == USAGE_SUM_MAX
    assert USAGE_SUM_MAX <= api_pages.campaign(world.reader, key_of(world.reader, "c")).usage.user_us < 2**63


@pytest.mark.parametrize("count", [1, 5])
def test_events_were_at_work_for_no_longer_than_they_were_leased(world: World, count: int) -> None:
    """Else one site could use up an owner's share at all others, for years."""
    world.submit(JobSpec(app="sim", events=10))
    site = Site(world)
    (lease,) = leases(site.sync())
    honest, forged = done(lease, 0, count), done(lease, count, count)
    honest.usage = PayloadUsage(wall_us=count * 60_000_000)
    forged.usage = PayloadUsage(wall_us=2**62)
    site.sync(honest, want=0)
    assert world.job(1).usage.wall_us == count * 60_000_000
    site.sync(forged, want=0)
    assert world.job(1).usage.wall_us < 10 * 2 * CLOCK_STEP_US


def test_the_usage_of_many_pieces_may_come_with_the_first(world: World) -> None:
    """As sites send it: pieces of a poll that do not touch each other, and their usage with the first of them."""
    world.submit(JobSpec(app="sim", events=1000))
    site = Site(world)
    (lease,) = leases(site.sync())
    first, later = done(lease, 0, 1), done(lease, 2, 1)
    first.usage, later.usage = PayloadUsage(wall_us=300 * CLOCK_STEP_US), PayloadUsage()
    site.sync(first, later, want=0)
    assert world.job(1).usage.wall_us == 300 * CLOCK_STEP_US


class Between:
    """A reader at whose side the last report arrives between the queries of one answer."""

    def __init__(self, session: Session, act: Callable[[], object]) -> None:
        self._session, self._act = session, act
        self.left = 0

    def rows(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Those of the session. The act runs before the query in question."""
        if self.left == 0:
            self._act()
        self.left -= 1
        return self._session.rows(name, **parameters)


@pytest.mark.parametrize("queries", range(4))
def test_a_campaign_whose_jobs_have_all_ended_has_all_its_events(world: World, queries: int) -> None:
    world.submit(JobSpec(app="sim", events=10))
    site = Site(world)
    (lease,) = leases(site.sync())
    key = key_of(world.reader, "c")
    reader = Between(world.reader, lambda: site.sync(done(lease), want=0))
    reader.left = queries
    found = api_pages.campaign(cast(Session, reader), key)
    assert found.states in ({"COMPLETED": 1}, {"RUNNING": 1})
    if "COMPLETED" in found.states:
        assert found.events_done == 10
