"""What every batch system must do, on a real Slurm."""

from __future__ import annotations

import pytest
from tests.worlds.batch.batch_contract import *  # noqa: F403  # the tests themselves
from tests.worlds.batch.batch_contract import bench_on, shown
from tests.worlds.batch.batch_slurm import TIMING, world
from tests.worlds.batch.batch_world import Bench

pytestmark = pytest.mark.timing(**TIMING)

bench = bench_on("slurm", world)


def test_a_glance_shows_an_ordinary_user_that_a_strangers_job_has_come(bench: Bench) -> None:
    bench.until(lambda: shown(bench) == shown(bench), "the jobs of an earlier test have gone")
    before = shown(bench)
    bench.world.plant(name="other", comment="", stranger=True)
    bench.until(lambda: before != shown(bench), "the arrival shows")
