"""Services that several files of integration tests share: a broker, and a server that shows pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.amqp_world import BrokerWorld, broker_world
from tests.integration.web_world import opens, web, web_browser

__all__ = ["opens", "rabbitmq", "web", "web_browser"]


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[BrokerWorld]:
    """A real RabbitMQ, up when the test begins."""
    with broker_world() as world:
        yield world
