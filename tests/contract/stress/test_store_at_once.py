"""One suite over both databases: a job with `at_once` goes to one site that keeps to it, for a while ahead."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, leases

from tidemill.model.job import JobSpec, Resources
from tidemill.server.core.leasing import LIMITED_AHEAD_S
from tidemill.server.errors import RequestError

AHEAD = int(LIMITED_AHEAD_S)  #: events of a second
LIMITED = JobSpec(app="sim", events=10_000, at_once=4)


def test_a_site_gets_what_it_can_do_of_it_in_a_while_and_no_other_site_any(world: World) -> None:
    world.submit(LIMITED)
    one, other = Site(world, "one"), Site(world, "other")
    reply = one.exchange(want=1e6)
    (lease,) = leases(reply.orders)
    assert (lease.count, lease.spec.at_once if lease.spec else 0) == (4 * AHEAD, 4)
    assert not reply.more, "the site needs no more nodes for it"
    assert leases(one.sync()) == []
    assert leases(other.sync()) == []
    (more,) = leases(one.sync(done(lease, 0, 10)))
    assert (more.first, more.count) == (4 * AHEAD, 10)
    assert leases(other.sync()) == []


def test_what_comes_back_goes_to_its_site_again_while_that_runs_some_of_it(world: World) -> None:
    world.submit(LIMITED)
    one, other = Site(world, "one"), Site(world, "other")
    (lease,) = leases(one.sync(want=10.0))
    assert lease.count == 10
    assert leases(other.sync()) == []
    assert sum(each.count for each in leases(one.sync())) == 4 * AHEAD - 10


def test_long_events_are_leased_as_many_as_may_run(world: World) -> None:
    world.submit(msgspec.structs.replace(LIMITED, resources=Resources(event_s=1e5)))
    assert [each.count for each in leases(Site(world).sync(want=1e9))] == [4]


def test_it_leaves_the_rest_of_what_a_site_wants_to_other_jobs(world: World) -> None:
    world.submit(LIMITED, SIM)
    assert {each.job for each in leases(Site(world).sync())} == {1, 2}


def test_limited_jobs_of_one_owner_take_no_more_of_a_site_than_those_of_another(world: World) -> None:
    """What runs for long is not leased ahead of what the other gets."""
    world.submit(*[LIMITED] * 50, campaign="greedy", owner="eve")
    world.submit(*[JobSpec(app="sim", events=1_000)] * 50, campaign="fair", owner="ann")
    got = {1: 0, 2: 0}
    site = Site(world)
    for _ in range(5):
        for each in leases(site.sync(want=1_000.0)):
            got[1 if each.job <= 50 else 2] += each.count
    assert 0.7 < got[1] / got[2] < 1.4


def test_a_job_all_of_which_may_run_at_once_goes_anywhere(world: World) -> None:
    world.submit(JobSpec(app="sim", events=4, at_once=4))
    found = leases(Site(world, "one").sync(want=2.0)) + leases(Site(world, "other").sync())
    assert [(each.first, each.count) for each in found] == [(0, 2), (2, 2)]


@pytest.mark.parametrize("wrong", [0, -1, 2**40])
def test_a_limit_that_is_none_is_refused(world: World, wrong: int) -> None:
    with pytest.raises(RequestError, match=r"`at_once` is -?\d+, legal is 1 to"):
        world.submit(JobSpec(app="sim", events=10, at_once=wrong))
