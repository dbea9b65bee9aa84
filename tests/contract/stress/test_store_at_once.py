"""One suite over both databases: a job with `at_once` is leased whole, to one site that keeps to it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.server_world import SIM, Site, World, done, leases

from tidemill.model.job import JobSpec
from tidemill.server.errors import RequestError
from tidemill.wire.api import Capacity, SyncReply

LIMITED = JobSpec(app="sim", events=10_000, at_once=4)


class LimitingSite(Site):
    """An agent that keeps to `at_once`."""

    def exchange(self, *reports: Any, want: float = 1e6, ranges: int = 5000, **changes: Any) -> SyncReply:
        capacity = Capacity(
            want_core_s=want, want_ranges_max=ranges, slot_cores_max=4, slot_memory_mb_max=4000, devices={},
            event_s={}, nodes=1, busy_cores=0, adhoc=False, limits=True,
        )  # fmt: skip
        return super().exchange(*reports, **{"capacity": capacity, **changes})


def test_it_is_leased_whole_at_the_price_of_what_may_run_and_to_one_site(world: World) -> None:
    world.submit(LIMITED)
    one, other = LimitingSite(world, "one"), LimitingSite(world, "other")
    reply = one.exchange(want=100.0)
    (lease,) = leases(reply.orders)
    assert (lease.count, lease.spec.at_once if lease.spec else 0) == (10_000, 4)
    assert not reply.more, "the site needs no more nodes for it"
    one.sync(done(lease, 0, 10), want=0)
    assert leases(other.sync()) == []


def test_what_comes_back_goes_to_its_site_again_while_that_runs_some_of_it(world: World) -> None:
    world.submit(LIMITED)
    one, other = LimitingSite(world, "one"), LimitingSite(world, "other")
    (lease,) = leases(one.sync(want=0.5))
    assert lease.count < 10_000
    assert leases(other.sync()) == []
    assert sum(each.count for each in leases(one.sync())) == 10_000 - lease.count


def test_it_leaves_the_rest_of_what_a_site_wants_to_other_jobs(world: World) -> None:
    world.submit(LIMITED, SIM)
    assert {each.job for each in leases(LimitingSite(world).sync(want=100.0))} == {1, 2}


def test_an_agent_of_an_older_version_gets_none_and_one_that_is_no_limit_goes_anywhere(world: World) -> None:
    world.submit(LIMITED)
    (free,) = world.submit(JobSpec(app="sim", events=4, at_once=4))
    (lease,) = leases(Site(world).sync())
    assert lease.job == free
    assert lease.spec is not None
    assert "at_once" not in lease.spec.__struct_fields__ or not isinstance(lease.spec.at_once, int)


@pytest.mark.parametrize("wrong", [0, -1, 2**40])
def test_a_limit_that_is_none_is_refused(world: World, wrong: int) -> None:
    with pytest.raises(RequestError, match=r"`at_once` is -?\d+, legal is 1 to"):
        world.submit(JobSpec(app="sim", events=10, at_once=wrong))
