"""One Slurm for all tests of the group; `start_slurm` gives a test one of its own where it breaks it."""

from __future__ import annotations

from tests.worlds.batch.slurm_cluster import slurm_cluster, slurm_session, start_slurm

__all__ = ["slurm_cluster", "slurm_session", "start_slurm"]
