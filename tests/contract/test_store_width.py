"""One suite over both databases: payloads that span nodes go where there are nodes and a launcher, and say why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, leases

from tidemill.model.job import JobSpec, Resources
from tidemill.server.errors import RequestError
from tidemill.wire.api import Capacity, Order

WIDE = JobSpec(app="sim", resources=Resources(nodes=2, ranks=8, event_s=10.0))


def capacity(**changes: Any) -> Capacity:
    known = Capacity(
        want_core_s=0, want_ranges_max=100, slot_cores_max=4, slot_memory_mb_max=4000, devices={}, event_s={},
        nodes=4, busy_cores=0, adhoc=False, wide_core_s=0.0, wide_nodes_max=4, launcher="srun",
    )  # fmt: skip
    return msgspec.structs.replace(known, **changes)


def site(world: World, nodes_max: int = 4, ranks_max: int = 16) -> Site:
    made = Site(world)
    for offer in made.offers:
        offer.nodes_max, offer.ranks_max = nodes_max, ranks_max
    return made


def jobs_of(orders: list[Order]) -> list[int]:
    return [each.job for each in leases(orders)]


def test_wide_and_ordinary_work_have_budgets_of_their_own(world: World) -> None:
    wide, plain = world.submit(WIDE, SIM)
    here = site(world)
    assert jobs_of(here.sync(capacity=capacity(want_core_s=1e6))) == [plain]
    assert jobs_of(here.sync(capacity=capacity(want_core_s=1e6))) == []
    got = leases(here.sync(capacity=capacity(wide_core_s=1.0)))
    assert [each.job for each in got] == [wide]
    assert got[0].spec is not None
    assert got[0].spec.resources.width == (2, 8)


def test_a_wide_event_costs_all_cores_of_its_nodes(world: World) -> None:
    many = msgspec.structs.replace(WIDE, events=100)
    world.submit(many)
    (lease,) = leases(site(world).sync(capacity=capacity(wide_core_s=240.0)))
    assert lease.count == 3  # 2 nodes x 4 cores x 10 s each


@pytest.mark.parametrize(
    ("build", "cause", "told"),
    [
        (lambda w: (site(w), capacity(launcher="", wide_core_s=1.0)), "no_launcher", "cluster.launcher"),
        (lambda w: (site(w), capacity(wide_nodes_max=1, wide_core_s=1.0)), "too_few_nodes", "spans 2 nodes"),
        (
            lambda w: (site(w), capacity(slot_cores_max=3, wide_core_s=1.0)),
            "too_few_nodes",
            "4 ranks of 1 core on",
        ),
        (
            lambda w: (site(w, nodes_max=1, ranks_max=0), capacity(wide_core_s=1.0)),
            "width_not_allowed",
            "approved",
        ),
        (lambda w: (site(w), capacity(want_core_s=1e6)), "site_wants_nothing", "s"),
    ],
)
def test_a_wide_job_that_waits_names_what_it_waits_for(
    world: World, build: Callable[[World], tuple[Site, Capacity]], cause: str, told: str
) -> None:
    (job,) = world.submit(WIDE)
    here, there = build(world)
    assert jobs_of(here.sync(capacity=there)) == []
    detail = world.job(job)
    assert detail.waits_for == cause
    assert told in str(detail.waits_hint)


def test_a_pinned_wide_job_says_what_its_site_lacks(world: World) -> None:
    (job,) = world.submit(msgspec.structs.replace(WIDE, site="s"))
    site(world).sync(capacity=capacity(wide_nodes_max=1, wide_core_s=1.0))
    detail = world.job(job)
    assert detail.waits_for == "site_pinned_unfit"
    assert "the job spans 2 nodes, this site gives it at most 1" in str(detail.waits_hint)


@pytest.mark.parametrize("asked", [Resources(nodes=0), Resources(nodes=2, ranks=3), Resources(ranks=-4)])
def test_wrong_figures_are_refused_at_submit(world: World, asked: Resources) -> None:
    with pytest.raises(RequestError, match=r"ranks|nodes"):
        world.submit(JobSpec(app="sim", resources=asked))
