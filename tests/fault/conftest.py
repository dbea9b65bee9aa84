"""Services that fault tests kill."""

from __future__ import annotations

from tests.worlds.batch.slurm_cluster import start_slurm
from tests.worlds.services.amqp_world import rabbitmq

__all__ = ["rabbitmq", "start_slurm"]
