"""What every batch system must do, on the embedded batch system."""

from __future__ import annotations

import pytest
from tests.worlds.batch.batch_contract import *  # noqa: F403  # the tests themselves
from tests.worlds.batch.batch_contract import bench_on
from tests.worlds.batch.batch_local import TIMING, world

pytestmark = pytest.mark.timing(**TIMING)

bench = bench_on("local", world)
