"""One suite for every way of a `sync`: whatever happens to messages, every event counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.worlds.services.amqp_world import TIMING, BrokerWorld, Person, until
from tests.worlds.services.sync_ways import FAULTS, WAYS, Office, Server, Site, broker_at

from tidemill.errors import SiteError
from tidemill.server.database.rows import COMPLETED
from tidemill.wire.server_connection import ConflictError
from tidemill.wire.transports import Transport
from tidemill_messages.server.gateway import Gateway
from tidemill_messages.transport import AmqpTransport

pytestmark = pytest.mark.timing(messages=TIMING)

JOBS, EVENTS = 5, 9


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest, server: Server) -> Iterator[tuple[Transport, Office]]:
    broker: BrokerWorld | None = request.getfixturevalue("rabbitmq") if request.param == "amqp" else None
    office = Office(server)
    with WAYS[request.param](office, broker) as transport:
        yield transport, office


def finish(site: Site, server: Server, exchanges: int = 120) -> None:
    """Exchange until everything is done and acknowledged."""
    for _ in range(exchanges):
        site.step()
        if server.states() == {COMPLETED} and not site.reports:
            break
    assert server.states() == {COMPLETED}
    assert server.done == JOBS * EVENTS
    assert site.orders == sorted(set(site.orders))


def test_a_campaign_is_done_and_counted_once(way: tuple[Transport, Office], server: Server) -> None:
    server.submit(JOBS, EVENTS)
    finish(Site(way[0]), server)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_to_messages_every_event_counts_once(
    way: tuple[Transport, Office], server: Server, seed: int
) -> None:
    transport, office = way
    rng = random.Random(seed)
    plan = [*FAULTS, *FAULTS]
    rng.shuffle(plan)
    office.plan = iter(plan)
    server.submit(JOBS, EVENTS)
    site = Site(transport)
    for _ in plan:
        site.step()
    assert set(office.met) == set(FAULTS), f"seed {seed}"
    assert site.failures > 0
    finish(site, server)
    if isinstance(transport, AmqpTransport):
        assert transport.dropped > 0  # doubled and late replies


def test_an_old_epoch_is_a_conflict_on_every_way(rabbitmq: BrokerWorld, server: Server) -> None:
    """By the gateway itself; over HTTP and by call the suites of server and agent test it."""
    vhost = rabbitmq.vhost()
    refused: list[tuple[str, str]] = []
    gateway = Gateway(
        rabbitmq.amqp(vhost),
        server.host(lambda who, why: refused.append((who, why))),
    )
    gateway.start()
    transport = AmqpTransport(broker_at(rabbitmq, vhost), timeout_s=20)
    try:
        site = Site(transport)
        newer = site.request()
        newer.epoch = 2
        transport.sync(newer)
        with pytest.raises(ConflictError, match="belongs to epoch 2"):
            transport.sync(site.request())
        stranger = site.request()
        stranger.site = "nersc"
        with pytest.raises(SiteError, match=r"access to exchange 'tidemill\.sync\.nersc'"):
            transport.sync(stranger)  # the broker knows which exchange is whose
        lrz = Person(rabbitmq, "lrz", vhost)
        lrz.send(stranger, exchange="tidemill.sync.lrz", type="sync")
        until(lambda: bool(refused), "the server refuses the same by the exchange that is allowed")
        lrz.close()
        assert refused == [("lrz", "message `sync`: site `lrz` may not speak for this site: it is another's")]
        assert [row[1] for row in server.reader.rows("sites")] == ["lrz"]
    finally:
        transport.close()
        gateway.close()


def test_an_answer_that_is_too_long_is_not_read_and_the_site_asks_again(
    rabbitmq: BrokerWorld, server: Server
) -> None:
    """The library would keep all of it, whatever the header promises."""
    vhost = rabbitmq.vhost()
    gateway = Gateway(rabbitmq.amqp(vhost), server.host())
    gateway.start()
    short = msgspec.structs.replace(broker_at(rabbitmq, vhost), body_bytes_max=200)
    transport = AmqpTransport(short, timeout_s=20)
    try:
        site = Site(transport)
        assert site.step()
        server.submit(JOBS, EVENTS)
        with pytest.raises(SiteError, match="bytes came, at most 200 are read"):
            transport.sync(site.request())
        until(lambda: transport.link.connects == 2, "it connects again")
    finally:
        transport.close()
    transport = AmqpTransport(broker_at(rabbitmq, vhost), timeout_s=20)
    try:
        finish(Site(transport), server)
    finally:
        transport.close()
        gateway.close()


def test_a_site_does_not_choose_where_the_server_writes_to(rabbitmq: BrokerWorld, server: Server) -> None:
    """`reply_to` is written to by the server's right: only a name that the broker made for one channel is answered."""
    vhost = rabbitmq.vhost()
    gateway = Gateway(rabbitmq.amqp(vhost), server.host())
    gateway.start()
    lrz, cms, ops = (Person(rabbitmq, user, vhost) for user in ("lrz", "cms", "ops"))
    try:
        request = Site(AmqpTransport.__new__(AmqpTransport)).request()
        for reply_to in ("tidemill.states.cms", "tidemill.dead", "amq.rabbitmq.reply-toX"):
            lrz.send(request, exchange="tidemill.sync.lrz", type="sync", reply_to=reply_to)
        transport = AmqpTransport(broker_at(rabbitmq, vhost), timeout_s=20)
        transport.sync(request)  # those before it were handled
        transport.close()
        until(lambda: gateway.status().synced == 4, "all four were handled")
        assert cms.is_empty("tidemill.states.cms")
        assert ops.is_empty("tidemill.dead")
    finally:
        for each in (lrz, cms, ops):
            each.close()
        gateway.close()


def test_without_a_server_or_a_broker_the_site_hears_so_in_time(rabbitmq: BrokerWorld) -> None:
    transport = AmqpTransport(broker_at(rabbitmq, rabbitmq.vhost()), timeout_s=0.5)
    try:
        assert transport.link.wait_up(20)
        with pytest.raises(SiteError, match="no answer to a sync within") as nobody:
            transport.sync(Site(transport).request())
        assert nobody.value.transient
    finally:
        transport.close()
    away = AmqpTransport(broker_at(rabbitmq, "tests", port=1), timeout_s=0.5)
    try:
        with pytest.raises(SiteError, match=r"amqps://127.0.0.1:1/tests") as refused:
            away.sync(Site(away).request())
        assert refused.value.transient
    finally:
        away.close()
