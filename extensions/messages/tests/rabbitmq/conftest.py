"""One RabbitMQ for all tests of the group."""

from __future__ import annotations

from tests.worlds.services.amqp_world import rabbitmq

__all__ = ["rabbitmq"]
