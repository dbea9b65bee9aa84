"""Two Grid Engines for all tests of the group: one of two nodes with networks of their own, one of this host."""

from __future__ import annotations

from extensions.gridengine.tests.sge.batch_gridengine import gridengine, gridengine_here

__all__ = ["gridengine", "gridengine_here"]
