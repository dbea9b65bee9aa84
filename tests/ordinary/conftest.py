"""One ordinary cluster for all tests of the group."""

from __future__ import annotations

from tests.worlds.batch.ordinary_cluster import ordinary_cluster, ordinary_session

__all__ = ["ordinary_cluster", "ordinary_session"]
