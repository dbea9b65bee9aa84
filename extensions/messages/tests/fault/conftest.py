"""The broker that fault tests kill."""

from __future__ import annotations

from tests.worlds.services.amqp_world import rabbitmq

__all__ = ["rabbitmq"]
