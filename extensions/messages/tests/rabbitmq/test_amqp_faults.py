"""A TCP cut and a killed broker between server, site and submitter: they recover by themselves, with nothing lost.

`make cut` cuts for 60 s; here it is for a few, with shorter heartbeats.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.worlds.services.amqp_world import TIMING, VHOST, BrokerWorld, until
from tests.worlds.services.relay import Relay
from tests.worlds.services.sync_ways import Server, Site, broker_at

from tidemill.model.job import JobSpec
from tidemill.server.database.rows import COMPLETED
from tidemill.wire.api import Change
from tidemill_messages.messenger import Messenger
from tidemill_messages.server.gateway import Gateway
from tidemill_messages.transport import AmqpTransport

pytestmark = pytest.mark.timing(messages=TIMING)

CUT_S = float(os.environ.get("TIDEMILL_CUT_S", "4"))
JOBS, EVENTS = 30, 10


class Campaign:
    """A server's gateway, a site that works in a thread, and a submitter, each at the broker by a port of its own."""

    def __init__(self, rabbitmq: BrokerWorld, server: Server, *, ports: dict[str, int]) -> None:
        self.server = server
        self.gateway = Gateway(rabbitmq.amqp(VHOST, port=ports.get("server")), server.host())
        self.gateway.start()
        self.transport = AmqpTransport(broker_at(rabbitmq, VHOST, port=ports.get("site")), timeout_s=2.0)
        self.site = Site(self.transport)
        self.messenger = Messenger(
            broker_at(rabbitmq, VHOST, port=ports.get("submitter"), user="cms"), "cms", retry_s=CUT_S + 60
        )
        self._ending = threading.Event()
        self._working = threading.Thread(target=self._work, daemon=True)
        self._working.start()

    def _work(self) -> None:
        while not self._ending.is_set():
            self.site.step()
            self._ending.wait(0.02)

    def is_done(self) -> bool:
        return self.server.states() == {COMPLETED} and not self.site.reports

    def check(self, jobs: int) -> None:
        """Everything is done, counted once, and reported in order."""
        until(self.is_done, "the campaign ends", 60)
        assert self.server.done == jobs * EVENTS
        assert self.site.orders == sorted(set(self.site.orders))
        states: dict[int, list[str]] = {}
        for change in self.messenger.changes(timeout_s=20):
            assert isinstance(change, Change)
            states.setdefault(change.job, []).append(change.state)
            if len(states) == jobs and all(each[-1] == "COMPLETED" for each in states.values()):
                break
        assert list(states.values()) == [["RUNNING", "COMPLETED"]] * jobs

    def close(self) -> None:
        self._ending.set()
        self.messenger.close()
        self.transport.close()
        self._working.join(10)
        self.gateway.close()


@contextmanager
def campaign(rabbitmq: BrokerWorld, folder: Path, **ports: int) -> Iterator[Campaign]:
    rabbitmq.vhost()
    server = Server(folder)
    it = Campaign(rabbitmq, server, ports=ports)
    try:
        yield it
    finally:
        it.close()
        server.close()


@pytest.mark.timeout(180 + 2 * CUT_S)
def test_a_cut_between_each_and_the_broker_is_survived_without_hands(
    rabbitmq: BrokerWorld, tmp_path: Path
) -> None:
    """The cut is not announced: no reset, no end, only silence, which heartbeats notice."""
    cables = {who: Relay(rabbitmq.port) for who in ("server", "site", "submitter")}
    try:
        with campaign(rabbitmq, tmp_path, **{who: cable.port for who, cable in cables.items()}) as it:
            it.messenger.submit([JobSpec(app="sim", events=EVENTS)], repeat=[JOBS], campaign="c", key="first")
            until(lambda: it.server.done > 0, "the first events are done")
            for cable in cables.values():
                cable.cut(reset=False)
            began = time.monotonic()
            for cable in cables.values():
                time.sleep(max(0.0, began + CUT_S - time.monotonic()))
                cable.heal()
            it.messenger.submit(JobSpec(app="sim", events=EVENTS), campaign="c", key="second")
            it.check(JOBS + 1)
    finally:
        for cable in cables.values():
            cable.close()


@pytest.mark.timeout(180)
def test_a_broker_killed_and_started_again_loses_and_doubles_nothing(
    rabbitmq: BrokerWorld, tmp_path: Path
) -> None:
    with campaign(rabbitmq, tmp_path) as it:
        it.messenger.submit([JobSpec(app="sim", events=EVENTS)], repeat=[JOBS], campaign="c", key="first")
        until(lambda: it.server.done > 0, "the first events are done")
        rabbitmq.crash()
        late = threading.Thread(
            target=it.messenger.submit,
            args=(JobSpec(app="sim", events=EVENTS),),
            kwargs={"campaign": "c", "key": "2"},
        )
        late.start()
        rabbitmq.restart()
        late.join(60)
        it.check(JOBS + 1)
        assert it.gateway.link.connects == 2


@pytest.mark.timeout(180)
def test_a_server_waits_for_a_broker_that_hangs_once_and_not_for_each_asker(
    rabbitmq: BrokerWorld, tmp_path: Path
) -> None:
    """A standby takes over only then. Each asker has a connection of its own, and each waits for the broker's word: one
    after the other, the first would have ended when the last begins."""
    rabbitmq.vhost()
    server = Server(tmp_path)
    cable = Relay(rabbitmq.port)
    amqp = rabbitmq.amqp(VHOST, port=cable.port)
    gateway = Gateway(amqp, server.host())
    gateway.start()
    with ExitStack() as held:
        held.callback(server.close)
        held.callback(cable.close)
        for name in ("cms", "atlas"):
            messenger = Messenger(broker_at(rabbitmq, VHOST, user=name), name)
            held.callback(messenger.close)
            messenger.submit(JobSpec(app="sim"), campaign="c", key="k")
        for name in ("lrz", "nersc"):
            transport = AmqpTransport(broker_at(rabbitmq, VHOST, user=name), timeout_s=20.0)
            held.callback(transport.close)
            until(Site(transport, name).step, "the site is answered")
        links = [gateway.link, *(way.link for way in gateway.direct._ways.values())]
        cable.cut(reset=False)
        closing = threading.Thread(target=gateway.close, daemon=True)
        closing.start()
        try:
            until(lambda: all(each._closing.is_set() for each in links), "all connections begin to end")
            assert [bool(each._thread and each._thread.is_alive()) for each in links] == [True] * 5
        finally:
            cable.heal()
            closing.join(30)
    assert not closing.is_alive()
