"""What a stolen site credential may do at the broker: what that site may, and nothing of others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from tests.worlds.services.amqp_world import BrokerWorld, until

from tidemill.server.gateway.setup import CONNECTIONS_MAX

THIEF = "atlas"
"""No later test connects as this user, whose closed connections the broker goes on counting for a while."""


def test_a_stolen_site_credential_speaks_for_no_other_site_and_reaches_no_queue_of_others(
    rabbitmq: BrokerWorld,
) -> None:
    import pika

    vhost = rabbitmq.vhost()

    # One connection, and a channel for each try: the broker goes on counting a closed connection for a while.
    connection = rabbitmq.connect("lrz", vhost)

    def refused(act: str, *words: Any, **more: Any) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker, match=r"ACCESS_REFUSED|PRECONDITION_FAILED"
        ):
            getattr(channel, act)(*words, **more)

    forged = pika.BasicProperties(type="sync", user_id="nersc")
    refused("basic_publish", "tidemill.sync", "lrz", b"x", properties=forged)
    for exchange, key in (
        ("tidemill.sync", "nersc"), ("tidemill.sync", "#"), ("tidemill.sync", "lrz.x"), ("tidemill.submit", "cms"),
        ("", "tidemill.sync.nersc"), ("", "amq.rabbitmq.reply-to.g1h2AA5yZXBseQ"), ("amq.fanout", ""),
        ("amq.topic", "lrz"), ("tidemill.dead", ""),
    ):  # fmt: skip
        refused("basic_publish", exchange, key, b"x", mandatory=True)
    for queue in ("tidemill.sync.nersc", "tidemill.sync.lrz", "tidemill.submit.cms", "tidemill.states.cms"):
        refused("basic_get", queue)
        refused("basic_consume", queue, lambda *_: None)
        refused("queue_purge", queue)
        refused("queue_bind", queue, "amq.topic", "#")
    refused("exchange_bind", "tidemill.sync", "tidemill.submit")
    connection.close()


def test_a_stolen_credential_takes_no_more_connections_than_its_share(rabbitmq: BrokerWorld) -> None:
    import pika

    vhost = rabbitmq.vhost()
    with ExitStack() as held:
        refused = ""

        def is_refused() -> bool:
            nonlocal refused
            try:
                held.callback(rabbitmq.connect(THIEF, vhost).close)
            except pika.exceptions.AMQPError as error:
                refused = str(error)
            return bool(refused)

        # fewer where the broker still counts those of an earlier test
        if not any(is_refused() for _ in range(CONNECTIONS_MAX)):
            # not at once: the broker counts a connection a moment after it let it in
            until(is_refused, "one more is refused")
        assert "connection limit" in refused
        rabbitmq.connect("lrz", vhost).close()
