"""What every batch system must do, on a real Grid Engine."""

from __future__ import annotations

import pytest
from extensions.gridengine.tests.sge.batch_gridengine import TIMING, world
from tests.worlds.batch.batch_contract import *  # noqa: F403  # the tests themselves
from tests.worlds.batch.batch_contract import bench_on

pytestmark = pytest.mark.timing(**TIMING)

bench = bench_on("gridengine", world)
