"""What every batch system must do, on a real Slurm."""

from __future__ import annotations

from tests.worlds.batch.batch_contract import *  # noqa: F403  # the tests themselves
from tests.worlds.batch.batch_contract import bench_on
from tests.worlds.batch.batch_slurm import world

bench = bench_on("slurm", world)
