"""What a hostile user of the broker, or a stolen credential, may do there: what that user may, nothing of others."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.amqp_world import TIMING, VHOST, BrokerWorld, Person, until
from tests.worlds.services.sync_ways import Server, broker_at

from tidemill.model.job import JobSpec
from tidemill_messages.messenger import Messenger
from tidemill_messages.server.gateway import Gateway
from tidemill_messages.server.setup import CONNECTIONS_MAX

pytestmark = pytest.mark.timing(messages=TIMING)

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
    refused("basic_publish", "tidemill.sync.lrz", "", b"x", properties=forged)
    for exchange, key in (
        ("tidemill.sync.nersc", ""), ("tidemill.submit.cms", ""), ("tidemill.replies", "cms"),
        ("", "tidemill.sync.nersc"), ("", "amq.rabbitmq.reply-to.g1h2AA5yZXBseQ"), ("amq.fanout", ""),
        ("amq.topic", "lrz"), ("tidemill.dead", ""),
    ):  # fmt: skip
        refused("basic_publish", exchange, key, b"x", mandatory=True)
    for queue in ("tidemill.sync.nersc", "tidemill.sync.lrz", "tidemill.submit.cms", "tidemill.states.cms"):
        refused("basic_get", queue)
        refused("basic_consume", queue, lambda *_: None)
        refused("queue_purge", queue)
        refused("queue_bind", queue, "amq.topic", "#")
    refused("exchange_bind", "tidemill.sync.lrz", "tidemill.submit.cms")
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


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_keys_that_a_message_adds_reach_no_queue_of_others(rabbitmq: BrokerWorld, header: str) -> None:
    """RabbitMQ 3.10 checks the right to a topic for the key of the message, not for those of these headers."""
    vhost = rabbitmq.vhost()
    with ExitStack() as held:
        eve, watcher = (Person(rabbitmq, user, vhost) for user in ("cms", "tester"))
        for each in (eve, watcher):
            held.callback(each.close)
        others = ("tidemill.submit.atlas", "tidemill.sync.lrz", "tidemill.replies.atlas", "tidemill.dead")
        eve.send(b"{}", headers={header: ["atlas", "lrz", "#", *others]})
        for queue in others:
            assert watcher.is_empty(queue), queue
        assert not watcher.is_empty("tidemill.submit.cms")


@pytest.fixture
def gateway(rabbitmq: BrokerWorld, tmp_path: Path) -> Iterator[Gateway]:
    """A server with its gateway at the broker."""
    rabbitmq.vhost()
    server = Server(tmp_path)
    made = Gateway(rabbitmq.amqp(VHOST), server.host())
    made.start()
    assert made.link.wait_up(20)
    yield made
    made.close()
    server.close()


@pytest.mark.parametrize("kind", ["submit", "sync"])
@pytest.mark.parametrize(
    "name",
    [
        "g2dkAA==.x", "AAAA.AAAA", "!!!!.eA==", ".", "aaaa", "\0.\0",
        # of no process of this broker, and well-formed
        base64.b64encode(b"\x83Xw\x07reply@1" + bytes(12)).decode() + ".AAAAAAAAAAAAAAAAAAAAAA==",
    ],
)  # fmt: skip
def test_a_reply_address_that_the_broker_did_not_make_concerns_nobody_else(
    rabbitmq: BrokerWorld, gateway: Gateway, kind: str, name: str
) -> None:
    """RabbitMQ 3.10 ends the connection of who writes to one; and before it was acknowledged the message came again."""
    user = {"submit": "atlas", "sync": "nersc"}[kind]
    eve = Person(rabbitmq, user, VHOST)
    eve.send(b"{}", exchange=f"tidemill.{kind}.{user}", type=kind, reply_to=f"amq.rabbitmq.reply-to.{name}")
    ada = Messenger(broker_at(rabbitmq, VHOST, user="cms"), "cms")
    try:
        assert ada.submit([JobSpec(app="sim")], campaign="c", key="k").jobs == [1]
        until(lambda: gateway.status().refused + gateway.status().synced == 1, "the other was handled")
    finally:
        ada.close()
        eve.close()
    assert gateway.link.connects == 1
