"""Services that fault tests kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.amqp_world import BrokerWorld, broker_world


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[BrokerWorld]:
    """A real RabbitMQ, up when the test begins."""
    with broker_world() as world:
        yield world
