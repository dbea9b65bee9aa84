"""Jobs in and state changes out by message, on a real RabbitMQ and the real store."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.worlds.services.amqp_world import CONSUMER_TIMEOUT_S, QUEUE_MAX, TIMING, BrokerWorld, Person, until

from tidemill.model.metrics import wrong
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Session, Store
from tidemill.server.database.unit_of_work import FeedRetention
from tidemill.server.transports import TransportHost
from tidemill.wire.api import REQUEST_BYTES_MAX, ActionRequest
from tidemill_messages.server.gateway import Gateway

pytestmark = pytest.mark.timing(messages=TIMING)

pika = pytest.importorskip("pika")

JOBS = {"campaign": "c", "jobs": [{"app": "sim", "events": 10}]}
REPLIES, STATES, DEAD = "tidemill.replies.cms", "tidemill.states.cms", "tidemill.dead"


class World:
    """A server's inside, a gateway, and people at the broker."""

    def __init__(self, rabbitmq: BrokerWorld, folder: Path) -> None:
        self.broker = rabbitmq
        self.vhost = rabbitmq.vhost()
        self.store = Store(path=folder / "t.db")
        self.store.init()
        self.dispatcher = Dispatcher(self.store)
        self.dispatcher.start()
        self.reader: Session = self.store.reader()
        self.people: list[Person] = []
        self.revoked: set[str] = set()
        self.refused: list[tuple[str, str]] = []
        self.gateway: Gateway | None = None

    def open(self, **more: Any) -> Gateway:
        """A gateway that is up."""
        self.gateway = Gateway(
            self.broker.amqp(self.vhost, **more),
            TransportHost(
                self.store, self.dispatcher,
                judge=lambda identity: "name" if identity.name in self.revoked else None,
                on_refused=lambda who, why: self.refused.append((who, why)),
            ),
        )  # fmt: skip
        self.gateway.start()
        assert self.gateway.link.wait_up(20), self.gateway.link.fault
        return self.gateway

    def shut(self) -> None:
        if self.gateway is not None:
            self.gateway.close()
            self.dispatcher.writer.listeners.clear()
            self.gateway = None

    def person(self, user: str, **more: Any) -> Person:
        self.people.append(Person(self.broker, user, self.vhost, **more))
        return self.people[-1]

    @property
    def jobs(self) -> int:
        totals: dict[str, int] = dict(self.reader.rows("totals"))
        return int(totals.get("jobs", 0))

    def close(self) -> None:
        for each in self.people:
            each.close()
        self.shut()
        self.reader.close()
        self.dispatcher.close()


@pytest.fixture
def world(rabbitmq: BrokerWorld, tmp_path: Path) -> Iterator[World]:
    made = World(rabbitmq, tmp_path)
    yield made
    made.close()


def test_a_message_is_a_submission_and_its_jobs_states_come_back_in_order(world: World) -> None:
    world.open()
    cms = world.person("cms")
    cms.send({"key": "k1", **JOBS}, message_id="m1")
    ((properties, reply),) = cms.get(REPLIES)
    assert (properties.type, properties.correlation_id, properties.user_id) == (
        "submitted",
        "m1",
        "tm-server",
    )
    assert (reply["campaign"], reply["first_job"], reply["count"], reply["repeated"]) == ("c", 1, 1, False)
    cms.send({"jobs": [1], "reason": "enough"}, type="cancel", message_id="m2")
    ((properties, reply),) = cms.get(REPLIES)
    assert (properties.type, reply) == ("acted", {"changed": 1, "unchanged": 0})
    ((properties, change),) = cms.get(STATES)
    assert properties.type == "change"
    assert (change["job"], change["state"], str(change["number"])) == (1, "CANCELED", properties.message_id)
    assert [row[1] for row in world.reader.rows("campaigns_named", name="c", limit=9)] == ["cms"]
    until(lambda: {("in", "done"), ("out", "done")} <= counted(world), "messages of both ways are counted")


def counted(world: World) -> set[tuple[str, ...]]:
    """Direction and outcome of messages, as the metrics have them."""
    name = "tidemill_server_gateway_messages_total"
    found = [each for each in world.dispatcher.meters.samples() if each.name == name]
    assert wrong(found) == []
    return {tuple(value for _, value in each.labels) for each in found}


def test_a_message_that_comes_again_is_answered_as_the_first_time_and_adds_nothing(world: World) -> None:
    world.open()
    cms = world.person("cms")
    for _ in range(3):
        cms.send({"key": "k1", **JOBS})
    replies = [reply for _, reply in cms.get(REPLIES, 3)]
    assert [reply["first_job"] for reply in replies] == [1, 1, 1]
    assert [reply["repeated"] for reply in replies] == [False, True, True]
    assert world.jobs == 1


@pytest.mark.parametrize(
    ("body", "properties", "status", "reason"),
    [
        (b'{"key": "a", "campaign": "c", "jobz": []}', {}, 400, "unknown field `jobz`"),
        (b"\xff not JSON", {}, 400, "cannot be read"),
        (
            b'{"key": "a", "campaign": "../c", "jobs": [{"app": "sim"}]}',
            {},
            400,
            "not a valid name of a campaign",
        ),
        (b'{"campaign": "a"}', {"type": "cancel"}, 404, "there is no campaign `a`"),
        (b'{"jobs": [1]}', {"type": "retry"}, 404, "there is no job 1"),
        (
            b'{"key": "old", "campaign": "c", "jobs": [{"app": "altered"}]}',
            {},
            409,
            "was used for other content",
        ),
        (b"{}", {"type": "explode"}, 400, "type `explode` is not known"),
        (b"{}", {"content_type": "application/x-python-pickle"}, 400, "content type"),
    ],
)
def test_what_is_refused_is_answered_with_the_reason_and_becomes_a_dead_letter(
    world: World, body: bytes, properties: dict[str, Any], status: int, reason: str
) -> None:
    world.open()
    cms, ops = world.person("cms"), world.person("ops")
    world.dispatcher.handle_submit(b'{"key":"x","campaign":"a","jobs":[{"app":"sim"}],"owner":"atlas"}')
    cms.send({"key": "old", **JOBS})
    cms.get(REPLIES)
    cms.send(body, message_id="bad", **properties)
    ((told, reply),) = cms.get(REPLIES)
    assert (told.type, told.correlation_id, told.headers["status"]) == ("refused", "bad", status)
    assert reason in reply["error"]
    ((letter, kept),) = ops.get(DEAD)
    assert (letter.headers["user"], letter.headers["status"], letter.message_id) == ("cms", status, "bad")
    assert reason in letter.headers["reason"]
    assert kept == body or isinstance(kept, dict)
    assert world.refused == ([("cms", f"message `{letter.type}`: {reply['error']}")] if status == 403 else [])
    assert world.jobs == 2
    cms.send({"key": "new", **JOBS})  # what stands behind it is served
    assert cms.get(REPLIES)[0][1]["first_job"] == 3


def test_who_sent_a_message_is_what_the_broker_says(world: World) -> None:
    world.open()
    cms, ops = world.person("cms"), world.person("ops")
    cms.send({"key": "k", **JOBS}, user_id=None)
    ((letter, _),) = ops.get(DEAD)
    assert "does not say who sent it" in letter.headers["reason"]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id property set to 'atlas'"):
        cms.send({"key": "k", **JOBS}, user_id="atlas")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
        world.person("atlas").send(
            {"key": "k", **JOBS}, exchange="tidemill.submit.cms"
        )  # into another's queue
    atlas = world.person("atlas")
    atlas.send({"key": "k", **JOBS}, reply_to="tidemill.submit.cms")  # to be answered in another's queue
    assert atlas.get("tidemill.replies.atlas")[0][1]["count"] == 1
    assert [row[1] for row in world.reader.rows("campaigns_named", name="c", limit=9)] == ["atlas"]
    assert world.person("cms").is_empty(REPLIES)


def test_a_message_that_is_too_long_is_refused_and_cut_and_those_behind_it_are_served(world: World) -> None:
    world.open()
    cms, ops = world.person("cms"), world.person("ops")
    long = b'{"key": "k", "campaign": "' + b"c" * REQUEST_BYTES_MAX + b'"}'
    cms.send(long, message_id="long")
    cms.send({"key": "k", **JOBS})
    (_, refused), (_, taken) = cms.get(REPLIES, 2)
    assert refused["error"] == f"request of {len(long)} bytes, at most {REQUEST_BYTES_MAX}"
    assert taken["first_job"] == 1
    ((letter, kept),) = ops.get(DEAD, raw=True)
    assert (letter.headers["status"], kept) == (400, long[:1_000_000])


class Wild(pika.BasicProperties):  # type: ignore[misc, name-defined]
    """Properties with a header that pika cannot read: a time of 2**64 - 1 s, which the broker passes on."""

    def encode(self) -> list[bytes]:
        self.headers = {"x": "12345678"}
        whole = b"".join(super().encode())
        table, wild = b"\0\0\0\x0f\x01xS\0\0\0\x0812345678", b"\0\0\0\x0b\x01xT" + b"\xff" * 8
        assert table in whole
        return [whole.replace(table, wild)]


def test_properties_of_one_message_silence_nobody(world: World) -> None:
    gateway = world.open()
    cms, atlas, ops = world.person("cms"), world.person("atlas"), world.person("ops")
    cms.channel.basic_publish(
        "tidemill.submit.cms", "", msgspec.json.encode({"key": "wild", **JOBS}),
        Wild(type="submit", user_id="cms", content_type="application/json", message_id="wild"), mandatory=True,
    )  # fmt: skip
    cms.send(b"{}", reply_to=b"\xff", type=b"\xff", message_id=b"\xfe")
    atlas.send({"key": "k", **JOBS, "campaign": "other"})
    assert atlas.get("tidemill.replies.atlas")[0][1]["count"] == 1
    (told, taken), (_, refused) = cms.get(REPLIES, 2)
    assert (told.correlation_id, taken["count"]) == ("wild", 1)
    assert "is not known" in refused["error"]
    ((letter, _),) = ops.get(DEAD)
    assert letter.headers["user"] == "cms"
    assert gateway.link.connects == 1


def test_who_is_revoked_is_refused_and_told_nothing_more(world: World) -> None:
    world.open()
    cms, ops = world.person("cms"), world.person("ops")
    cms.send({"key": "k", **JOBS})
    cms.get(REPLIES)
    world.revoked.add("cms")
    cms.send({"key": "k2", **JOBS})
    cms.send({"jobs": [1]}, type="cancel")
    for _, reply in cms.get(REPLIES, 2):
        assert reply["error"] == "the submitter `cms` is revoked: `name`"
    assert [letter.headers["status"] for letter, _ in ops.get(DEAD, 2)] == [403, 403]
    assert world.jobs == 1
    until(lambda: len(world.refused) >= 2, "both are noted, which is done after the answer")
    assert [who for who, _ in world.refused] == ["cms", "cms"]
    world.dispatcher.handle_cancel(ActionRequest(jobs=[1]))
    world.dispatcher.handle_submit(b'{"key":"a","campaign":"a","jobs":[{"app":"sim"}],"owner":"atlas"}')
    world.dispatcher.handle_cancel(ActionRequest(jobs=[2]))
    assert world.person("atlas").get("tidemill.states.atlas")[0][1]["job"] == 2  # sent after that of job 1
    assert cms.is_empty(STATES)
    world.revoked.clear()
    assert cms.get(STATES)[0][1]["state"] == "CANCELED"  # it goes on where it stopped


def test_nobody_may_more_than_its_part(world: World) -> None:
    """Least rights: no user declares, reads or writes what is not its own; a stranger does not get past TLS."""
    refused = pika.exceptions.ChannelClosedByBroker

    def cannot(user: str, act: str, *words: Any, **more: Any) -> None:
        person = world.person(user)
        with pytest.raises(refused, match="ACCESS_REFUSED"):
            getattr(person.channel, act)(*words, **more)

    for user in ("cms", "lrz", "ops", "tm-server"):
        cannot(user, "queue_declare", f"mine-{user}", durable=True)
        cannot(user, "queue_delete", "tidemill.dead")
        cannot(user, "exchange_declare", f"mine-{user}")
        cannot(user, "queue_bind", STATES, "tidemill.states", "atlas")
    for user, queue in (
        ("atlas", STATES),
        ("cms", "tidemill.submit.cms"),
        ("lrz", "tidemill.sync.lrz"),
        ("cms", DEAD),
    ):
        cannot(user, "basic_get", queue)
    for user, exchange in (
        ("cms", "tidemill.states"),
        ("lrz", "tidemill.submit.cms"),
        ("cms", ""),
        ("ops", "tidemill.submit.cms"),
    ):
        cannot(user, "basic_publish", exchange, "cms", b"x", mandatory=True)
    expire(world.broker.certificates, "cms")
    for certificate in ("", "stray", "expired"):
        with pytest.raises(pika.exceptions.AMQPError):
            world.broker.connect("cms", world.vhost, certificate=certificate)
    with pytest.raises(pika.exceptions.AMQPError, match=r"ACCESS_REFUSED|NOT_ALLOWED|refused"):
        world.broker.connect("ghost", world.vhost)  # of our authority, but not of a user


def expire(place: Path, name: str) -> None:
    """Write `expired.pem`: as this name's certificate, by the same authority, but it ended yesterday."""
    theirs = x509.load_pem_x509_certificate((place / f"{name}.pem").read_bytes())
    signer = serialization.load_pem_private_key((place / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(theirs.subject)
        .issuer_name(theirs.issuer)
        .public_key(theirs.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=3))
        .not_valid_after(now - timedelta(days=1))
    )
    made = builder.sign(signer, hashes.SHA256())
    (place / "expired.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    shutil.copy(place / f"{name}.key", place / "expired.key")


def test_messages_that_met_no_server_are_taken_by_the_next_one(world: World) -> None:
    cms = world.person("cms")
    world.open()
    world.shut()
    for number in range(20):
        cms.send({"key": f"k{number}", **JOBS})
    world.open()
    assert [reply["first_job"] for _, reply in cms.get(REPLIES, 20)] == list(range(1, 21))
    world.shut()
    world.dispatcher.handle_cancel(ActionRequest(campaign="c"))
    world.open()
    assert sorted(change["job"] for _, change in cms.get(STATES, 20)) == list(range(1, 21))
    assert cms.is_empty(STATES)


def test_a_message_is_acknowledged_only_when_its_jobs_are_stored_however_long_that_takes(
    world: World,
) -> None:
    """The writer does nothing for longer than the broker lets a consumer hold a message (consumer_timeout): the channel
    is closed, the message comes again, and counts once."""
    gateway = world.open()
    cms = world.person("cms")
    go_on = threading.Event()
    world.dispatcher.writer.submit(lambda _: go_on.wait(60))
    cms.send({"key": "k", **JOBS})
    until(lambda: gateway.link.connects > 1, "the broker closes the channel", 4 * CONSUMER_TIMEOUT_S + 10)
    assert world.jobs == 0
    go_on.set()
    assert cms.get(REPLIES)[0][1]["first_job"] == 1
    until(lambda: cms.is_empty(REPLIES), "no more replies", 5)
    assert world.jobs == 1


def test_a_submitter_whose_queue_is_full_holds_up_nobody_and_loses_nothing(world: World) -> None:
    gateway = world.open()
    cms, atlas = world.person("cms"), world.person("atlas")
    number = QUEUE_MAX + 100
    cms.send({"key": "k", "campaign": "c", "jobs": [{"app": "sim"}], "repeat": [number]})
    cms.get(REPLIES)
    world.dispatcher.handle_cancel(ActionRequest(campaign="c"))
    world.dispatcher.handle_retry(ActionRequest(campaign="c"))
    until(lambda: any(each.last_error for each in gateway._feed.followers), "the queue is full")  # type: ignore[union-attr]
    atlas.send({"key": "a", "campaign": "a", "jobs": [{"app": "sim"}]})
    first = atlas.get("tidemill.replies.atlas")[0][1]["first_job"]
    world.dispatcher.handle_cancel(ActionRequest(jobs=[first]))
    assert atlas.get("tidemill.states.atlas")[0][1]["state"] == "CANCELED"
    seen: dict[int, list[tuple[int, str]]] = defaultdict(list)
    while sum(len({at for at, _ in each}) for each in seen.values()) < 2 * number:
        for _, change in cms.get(STATES):
            seen[change["job"]].append((change["number"], change["state"]))
    for job, told in seen.items():
        assert told == sorted(told), f"job {job} out of order: {told}"
        assert [state for _, state in dict(told).items()] == ["CANCELED", "WAITING"]
    assert len(seen) == number


def test_changes_that_waited_too_long_are_told_as_a_gap(world: World) -> None:
    world.dispatcher.writer.kept = FeedRetention(always=3, most=5)
    world.open()
    world.shut()
    cms = world.person("cms")
    world.dispatcher.handle_submit(
        b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}],"repeat":[9],"owner":"cms"}'
    )
    for job in range(1, 10):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    world.open()
    ((properties, gap), *rest) = cms.get(STATES, 6)
    assert (properties.type, gap) == ("gap", {"first": 1, "last": 4})
    assert [change["number"] for _, change in rest] == [5, 6, 7, 8, 9]


def test_the_feed_is_kept_for_who_has_not_been_told(world: World) -> None:
    world.dispatcher.writer.kept = FeedRetention(always=1)
    world.open()
    world.shut()
    world.dispatcher.handle_submit(
        b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}],"repeat":[9],"owner":"cms"}'
    )
    for job in range(1, 10):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    world.open()
    cms = world.person("cms")
    assert [change["number"] for _, change in cms.get(STATES, 9)] == list(range(1, 10))
