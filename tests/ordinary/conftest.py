"""One ordinary cluster for all tests of the group, and a person on it for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.batch.newcomer import Newcomer, newcomer_on
from tests.worlds.batch.ordinary_cluster import OrdinaryCluster, ordinary_cluster, ordinary_session

__all__ = ["ordinary_cluster", "ordinary_session"]


@pytest.fixture
def newcomer(ordinary_cluster: OrdinaryCluster) -> Iterator[Newcomer]:
    with newcomer_on(ordinary_cluster) as it:
        yield it
