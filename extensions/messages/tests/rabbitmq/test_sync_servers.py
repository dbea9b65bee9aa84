"""A real server, reached by HTTPS and by messages with the same certificates: the ways differ in nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.worlds.services.access_world import START
from tests.worlds.services.amqp_world import TIMING, VHOST, BrokerWorld, until
from tests.worlds.services.ports import free_port
from tests.worlds.services.sync_ways import Site, broker_at

from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.model.job import JobSpec
from tidemill.site.link.transport import HttpTransport
from tidemill.wire.api import CampaignRow, SyncReply, SyncRequest
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import ConflictError, Connection
from tidemill.wire.transports import Transport
from tidemill_messages.transport import AmqpTransport

pytestmark = pytest.mark.timing(messages=TIMING)

JOBS, EVENTS = 4, 9
WAYS = ("https", "amqp")


class Server:
    """A server process at the broker, with https on a port."""

    def __init__(self, rabbitmq: BrokerWorld, folder: Path) -> None:
        rabbitmq.vhost()
        self.rabbitmq, self.folder = rabbitmq, folder
        self.port = free_port()
        place = rabbitmq.certificates
        key = folder / "server.key"
        shutil.copyfile(place / "broker.key", key)  # the broker's own belongs to the broker's user
        key.chmod(0o600)
        self._config = {
            "dir": str(folder / "server"), "listen": f"127.0.0.1:{self.port}",
            "tls": {"certificate": str(place / "broker.pem"), "key": str(key), "ca": str(place / "ca.pem")},
            "amqp": msgspec.to_builtins(rabbitmq.amqp(VHOST), enc_hook=str),
        }  # fmt: skip
        self.client = Client(f"unix:{folder}/server/api.sock", retry_s=30)
        self._open: list[Transport] = []
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(self._config)], stderr=log
            )
        until((self.folder / "server" / "api.sock").exists, "the server starts")
        self.client.sites()  # asked until it answers: then its port listens, too

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        (self.folder / "server" / "api.sock").unlink()

    def transport(self, way: str, user: str = "lrz") -> Transport:
        if way == "amqp":
            made: Transport = AmqpTransport(broker_at(self.rabbitmq, VHOST, user=user), timeout_s=10)
        else:
            place = self.rabbitmq.certificates
            shown = Credentials(
                certificate=place / f"{user}.pem", key=place / f"{user}.key", ca=place / "ca.pem"
            )
            address = f"https://127.0.0.1:{self.port}"
            made = HttpTransport(Connection(address, credentials=shown, timeout_s=10))
        self._open.append(made)
        return made

    def submit(self) -> None:
        self.client.submit([JobSpec(app="sim", events=EVENTS)], repeat=[JOBS], campaign="c")

    def finish(self, site: Site) -> CampaignRow:
        """Exchange until all is done; the campaign."""

        def is_done() -> bool:
            site.step()
            return self.client.campaign("c").states == {"COMPLETED": JOBS} and not site.reports

        until(is_done, "the campaign ends")
        return self.client.campaign("c")

    def close(self) -> None:
        for each in self._open:
            each.close()
        self._process.terminate()
        assert self._process.wait(20) == 0, (self.folder / "log").read_text()


@pytest.fixture
def server(rabbitmq: BrokerWorld, tmp_path: Path) -> Iterator[Server]:
    made = Server(rabbitmq, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_killed_counts_every_event_once(server: Server, way: str) -> None:
    server.submit()
    site = Site(server.transport(way))
    until(site.step, "the first answer")
    site.step()
    server.kill()
    server.start()
    row = server.finish(site)
    assert (row.events_done, row.events_failed) == (JOBS * EVENTS, 0)
    assert site.orders == sorted(set(site.orders))


class Both:
    """Each exchange goes the other way than the one before."""

    def __init__(self, ways: list[Transport]) -> None:
        self._ways = ways
        self.answered = [0 for _ in ways]
        self._next = 0

    def sync(self, request: SyncRequest) -> SyncReply:
        at, self._next = self._next, (self._next + 1) % len(self._ways)
        reply = self._ways[at].sync(request)
        self.answered[at] += 1
        return reply

    def close(self) -> None:
        """They are the server's to close."""


def test_a_site_may_change_its_way_at_any_time(server: Server) -> None:
    server.submit()
    both = Both([server.transport(way) for way in WAYS])
    row = server.finish(Site(both))
    assert (row.events_done, row.events_failed) == (JOBS * EVENTS, 0)
    assert min(both.answered) > 0


def test_on_both_ways_the_same_is_refused_and_nothing_changes(server: Server) -> None:
    for way in WAYS:
        site = Site(server.transport(way))
        newer = site.request()
        newer.epoch = 2
        server.transport(way).sync(newer)
        with pytest.raises(ConflictError, match="belongs to epoch 2"):
            site.transport.sync(site.request())
        for user in ("nersc", "cms", "ops"):  # another site, and other roles
            with pytest.raises(TidemillError) as refused:
                server.transport(way, user).sync(newer)
            words = ("may not", "ACCESS_REFUSED")  # the server's, and the broker's
            assert any(word in refused.value.message for word in words), refused.value.message
        with pytest.raises(TidemillError):
            server.transport(way, "stray").sync(newer)
    assert [row.name for row in server.client.sites()] == ["lrz"]
