"""A real RabbitMQ, started by the project's script, with users, rights and queues as `broker-setup` makes them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill_messages.server.setup import definitions
from tidemill_messages.settings import Amqp

SCRIPT = Path(__file__).parents[3] / "scripts" / "rabbitmq.sh"
NAMES = (
    "submitter/cms submitter/atlas submitter/ghost server/tm-server site/lrz site/nersc site/here-agent "
    "operator/ops staff/tester"
)
VHOST = "tests"  # one for all: a broker takes seconds to make another
CONSUMER_TIMEOUT_S = 6
QUEUE_MAX = 150
TIMING = {"QUEUE_MESSAGES_MAX": QUEUE_MAX, "HEARTBEAT_S": 2, "RECONNECT_MAX_S": 1}
"""Of messages, in tests with a broker."""


class BrokerWorld:
    """The broker of a test session. Tests take it in turn, with empty queues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = folder / "d" / "certs"
        self.port = 0
        made = definitions(self.amqp(VHOST), VHOST)
        self._queues = [queue["name"] for queue in made["queues"]]
        made["users"].append({**made["users"][0], "name": "tester"})
        made["permissions"].append(
            {"user": "tester", "vhost": VHOST, "configure": ".*", "write": ".*", "read": ".*"}
        )
        (folder / "definitions.json").write_text(json.dumps(made))

    def script(self, *words: str, check: bool = True) -> str:
        more = f"[{{rabbit, [{{consumer_timeout, {CONSUMER_TIMEOUT_S * 1000}}}, {{channel_tick_interval, 1000}}]}}]."
        done = subprocess.run(
            [SCRIPT, words[0], str(self.folder / "d"), *words[1:]], env={**os.environ, "RABBITMQ_ADVANCED": more},
            capture_output=True, text=True, check=False, timeout=110,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"rabbitmq.sh {words}: {done.stderr}")
        return done.stdout if done.returncode == 0 else done.stderr

    def start(self) -> str:
        """Start it, the first time with everything; its complaint, or nothing."""
        words = (
            [] if self.port else ["--names", NAMES, "--definitions", str(self.folder / "definitions.json")]
        )
        said = self.script("start", *words, check=False).strip()
        if not said.startswith("amqps:"):
            return said
        self.port = int(said.rpartition(":")[2])
        return ""

    def restart(self) -> None:
        assert self.start() == ""

    def crash(self) -> None:
        """kill -9."""
        self.script("crash")

    def vhost(self) -> str:
        """The virtual host, with empty queues."""
        connection = self.connect("tester", VHOST)
        for queue in self._queues:
            connection.channel().queue_purge(queue)
        connection.close()
        return VHOST

    def amqp(self, vhost: str, *, port: int | None = None, **more: Any) -> Amqp:
        """The section of a server.toml."""
        fields: dict[str, Any] = {
            "url": f"amqps://tm-server@127.0.0.1:{port or self.port}/{vhost}",
            "certificate": self.certificates / "tm-server.pem", "key": self.certificates / "tm-server.key",
            "ca": self.certificates / "ca.pem",
            "users": {
                "cms": "submitter", "atlas": "submitter", "lrz": "site", "nersc": "site", "here-agent": "site here",
                "ops": "operator",
            },
        }  # fmt: skip
        return Amqp(**{**fields, **more})

    def connect(self, user: str, vhost: str, *, certificate: str | None = None) -> Any:
        """A connection of the library alone, as others will write it."""
        import pika

        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        name = user if certificate is None else certificate
        if name:
            context.load_cert_chain(self.certificates / f"{name}.pem", self.certificates / f"{name}.key")
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", self.port, vhost, ssl_options=pika.SSLOptions(context, "localhost"), heartbeat=60,
                credentials=pika.credentials.ExternalCredentials(), blocked_connection_timeout=30,
            )
        )  # fmt: skip


@contextlib.contextmanager
def broker_world() -> Iterator[BrokerWorld]:
    """A running broker; without RabbitMQ or the library a skip, in CI a failure."""
    pytest.importorskip("pika")
    folder = Path(tempfile.mkdtemp(prefix="tm-mq-", dir="/tmp"))
    folder.chmod(0o711)  # as root the broker runs as another user
    world = BrokerWorld(folder)
    try:
        complaint = world.start()
        if complaint:
            reason = f"RabbitMQ does not start: {complaint}"
            pytest.skip(reason)
        yield world
    finally:
        world.script("stop", check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[BrokerWorld]:
    """A real RabbitMQ, up when the test begins."""
    with broker_world() as world:
        yield world


class Person:
    """Whoever uses the queues by hand: a submitter's job manager, an operator, a hostile site."""

    def __init__(self, world: BrokerWorld, user: str, vhost: str, *, certificate: str | None = None) -> None:
        self.user = user
        self.connection = world.connect(user, vhost, certificate=certificate)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def send(self, body: Any, *, key: str = "", exchange: str = "", **properties: Any) -> None:
        """Publish, and wait for the confirmation."""
        import pika

        told = {
            "type": "submit",
            "user_id": self.user,
            "delivery_mode": 2,
            "content_type": "application/json",
        }
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.channel.basic_publish(
            exchange or f"tidemill.submit.{self.user}",
            key,
            content,
            pika.BasicProperties(**{**told, **properties}),
            mandatory=True,
        )

    def get(
        self, queue: str, number: int = 1, *, timeout_s: float = 20.0, raw: bool = False
    ) -> list[tuple[Any, Any]]:
        """So many messages, acknowledged: properties and decoded body."""
        found: list[tuple[Any, Any]] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < number:
            frame, properties, body = self.channel.basic_get(queue)
            if frame is not None:
                is_json = not raw and body[:1] in (b"{", b"[")
                found.append((properties, msgspec.json.decode(body) if is_json else body))
                self.channel.basic_ack(frame.delivery_tag)
            elif time.monotonic() > deadline:
                pytest.fail(f"{len(found)} of {number} messages in {queue} after {timeout_s} s: {found[-3:]}")
            else:
                self.connection.process_data_events(0.02)
        return found

    def is_empty(self, queue: str) -> bool:
        """Whether nothing waits there."""
        frame, _, _ = self.channel.basic_get(queue, auto_ack=True)
        return frame is None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()


def until(done: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s} s in vain: {what}")
        time.sleep(0.02)
