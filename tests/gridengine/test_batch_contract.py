"""What every batch system must do, on a real Grid Engine."""

from __future__ import annotations

from tests.worlds.batch.batch_contract import *  # noqa: F403  # the tests themselves
from tests.worlds.batch.batch_contract import bench_on
from tests.worlds.batch.batch_gridengine import world

bench = bench_on("gridengine", world)
