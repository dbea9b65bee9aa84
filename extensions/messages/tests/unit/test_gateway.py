"""What a broker must hold for a configuration, what may be under way together, what a message is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import loads
from tidemill.config.server import ServerConfig
from tidemill.errors import ConfigError
from tidemill.server.core import actions
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.transports import Judge, TransportHost
from tidemill.wire.api import ActionReply, Change, ErrorReply
from tidemill.wire.credentials import Credentials
from tidemill_messages.broker import broker_of, is_broker, place_of
from tidemill_messages.names import REPLIES, STATES, SUBMIT, SYNC
from tidemill_messages.server.feed import windows
from tidemill_messages.server.intake import IncomingMessage, MessageAnswer, SubmitterIntake, SyncIntake
from tidemill_messages.server.setup import check, commands, definitions, rights
from tidemill_messages.settings import SERVER_USER, Amqp

CONFIG = Amqp(
    url="amqps://srv@h/v",
    users={"cms": "submitter", "CN=a b": "submitter a.b", "lrz": "site", "ops": "operator ops"},
)


# ---- setup ------------------------------------------------------------------------------------------------------


def test_every_binding_joins_what_is_declared_and_names_are_there_once() -> None:
    made = definitions(CONFIG, "v")
    queues = [each["name"] for each in made["queues"]]
    exchanges = {each["name"] for each in made["exchanges"]}
    assert len(queues) == len(set(queues)) == 1 + len(CONFIG.sites) + 3 * len(CONFIG.submitters)
    assert {each["destination"] for each in made["bindings"]} == set(queues)
    assert {each["source"] for each in made["bindings"]} == exchanges
    assert all(each["durable"] for each in [*made["queues"], *made["exchanges"]])


def test_rights_are_the_least_a_name_with_a_dot_is_no_pattern() -> None:
    found = rights(CONFIG)
    assert set(found) == {"srv", "cms", "CN=a b", "lrz", "ops"}
    write, read = found["CN=a b"]
    assert re.search(read, "tidemill.states.a.b")
    assert not any(
        re.search(read, name)
        for name in ("tidemill.states.axb", "tidemill.states.cms", "xtidemill.states.a.b")
    )
    assert re.search(write, "tidemill.submit.a.b")
    others = (SUBMIT, "tidemill.submit.axb", "tidemill.submit.cms", STATES, REPLIES, SYNC, "amq.default", "")
    assert not any(re.search(write, name) for name in others)
    assert found["lrz"] == (r"^tidemill\.sync\.lrz$", "^$")
    assert all(each["configure"] == "^$" for each in definitions(CONFIG, "v")["permissions"])


def test_every_queue_is_bounded_by_a_policy() -> None:
    made = definitions(CONFIG, "v")
    for queue in made["queues"]:
        (policy,) = [each for each in made["policies"] if re.search(each["pattern"], queue["name"])]
        assert policy["definition"]["max-length"] > 0


def test_the_commands_quote_what_users_are_called() -> None:
    lines = commands(CONFIG, "v", ctl="sudo rabbitmqctl")
    assert "sudo rabbitmqctl clear_password 'CN=a b'  # only its certificate logs in" in lines
    assert sum("set_permissions" in line for line in lines) == 5
    assert msgspec.json.decode(lines[-2]).keys() == {"exchanges", "queues", "bindings"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"users": {"srv": "site x"}}, "the broker's user `srv` is the server already"),
        ({"users": {"u": "submitter a/b"}}, "`a/b`, the submitter that `u` is, is not a valid name"),
        ({"users": {"*": "submitter"}}, "is not a valid name"),
    ],
)
def test_names_and_users_that_do_not_go_together_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        check(msgspec.structs.replace(CONFIG, **changes))


@pytest.mark.parametrize(
    "address", ["amqp://h/v", "amqps:///v", "https://h", "amqps://h:x/v", "amqps://h/v?x=1"]
)
def test_an_address_without_tls_or_host_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a broker's address"):
        place_of(address)


def test_an_address_may_leave_out_port_and_virtual_host() -> None:
    assert place_of("amqps://h") == ("h", 5671, "tidemill")
    assert (is_broker("AMQPS://h"), place_of("AMQPS://h")) == (True, place_of("amqps://h"))
    assert place_of("amqps://h:1/a%2Fb") == ("h", 1, "a/b")
    with pytest.raises(ConfigError, match="wants a client certificate"):
        broker_of("amqps://h", Credentials())


@pytest.mark.parametrize("url", ["amqps://user:word@h/v", "amqps://:word@h/v"])
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    for read in (
        lambda: place_of(url),
        lambda: loads(f'amqp.url = "{url}"', ServerConfig, source=Path("server.toml")),
    ):
        with pytest.raises(ConfigError, match="holds a password") as caught:
            read()
        assert "word@" not in f"{caught.value.message} {caught.value.hint}"


def test_the_user_of_the_broker_is_in_its_url() -> None:
    assert place_of("amqps://CN%3Da%20b@h/v") == ("h", 5671, "v")
    assert Amqp(url="amqps://CN%3Da%20b@h/v").user == "CN=a b"
    assert Amqp(url="amqps://h/v").user == SERVER_USER


@pytest.mark.parametrize(
    ("users", "why"),
    [
        ({"cms": ""}, "`cms` is ``, expected"),
        ({"cms": "cms"}, "`cms` is `cms`, expected"),
        ({"cms": "root cms"}, "a role of submitter, site, operator"),
        ({"a": "site lrz", "b": "site lrz"}, "two of `users` are `site lrz`"),
        ({"lrz": "site", "b": "site lrz"}, "two of `users` are `site lrz`"),
    ],
)
def test_a_user_of_the_broker_is_one_role_and_one_name(users: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Amqp(users=users)


# ---- feed -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), max_size=60))
def test_windows_keep_the_order_and_hold_no_job_twice(jobs: list[int]) -> None:
    changes = [
        Change(number=number, at_us=0, campaign="c", job=job, state="RUNNING", events_done=0, events_failed=0)
        for number, job in enumerate(jobs)
    ]
    found = list(windows(changes))
    assert [each for window in found for each in window] == changes
    assert all(len({each.job for each in window}) == len(window) > 0 for window in found)


# ---- intake -----------------------------------------------------------------------------------------------------


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    store = Store(path=tmp_path / "t.db")
    store.init()
    made = Dispatcher(store)
    yield made
    made.close()


def host_of(dispatcher: Any, judge: Judge = lambda _identity: None) -> TransportHost:
    """The server as messages see it, no one revoked; without a store, since nothing is followed."""
    store: Any = None
    return TransportHost(store, dispatcher, judge=judge)


def refused(answer: MessageAnswer) -> tuple[int, str]:
    assert msgspec.json.decode(answer.body, type=ErrorReply) == answer.refused
    assert answer.refused is not None
    return answer.status, answer.refused.error


@given(body=st.binary(max_size=200), kind=st.sampled_from(["submit", "sync", "", "SUBMIT", "x" * 300]))
def test_no_message_whatever_it_holds_is_answered_but_with_a_refusal(body: bytes, kind: str) -> None:
    """It never reaches the dispatcher: there is none."""
    intake = SubmitterIntake(host_of(None), {"cms": "cms"})
    status, _ = refused(intake.handle(IncomingMessage("cms", kind, "", body)))
    assert status == 400
    sync = SyncIntake(host_of(None), {"lrz": "lrz"})
    assert refused(sync.handle(IncomingMessage("lrz", "sync", "", body)))[0] == 400


def test_who_is_nobody_here_is_told_so(dispatcher: Dispatcher) -> None:
    letter = IncomingMessage("eve", "submit", "", b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}]}')
    answer = SubmitterIntake(host_of(dispatcher), {"cms": "cms"}).handle(letter)
    assert (answer.to, *refused(answer)) == (None, 403, "the broker's user `eve` is not a submitter here")
    assert answer.refused is not None
    assert "`[amqp.users]`" in (answer.refused.hint or "")


def test_the_owner_is_the_name_not_the_user_and_not_what_is_claimed(dispatcher: Dispatcher) -> None:
    intake = SubmitterIntake(host_of(dispatcher), {"CN=cms": "cms"})
    body = b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}],"owner":"%s"}'
    for claimed in (b"atlas", b"", b"cms"):
        assert intake.handle(IncomingMessage("CN=cms", "submit", "", body % claimed)).refused is None
    rows = dispatcher.writer.write(lambda work: work.session.rows("campaigns_named", name="c", limit=9))
    assert [row[1] for row in rows] == ["cms"]


def test_a_cancel_or_retry_that_comes_again_changes_nothing(dispatcher: Dispatcher) -> None:
    """After a restart of the broker the whole queue may come again: cancel, retry, cancel."""
    intake = SubmitterIntake(host_of(dispatcher), {"cms": "cms"})
    intake.handle(
        IncomingMessage(
            "cms", "submit", "", b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}],"repeat":[7]}'
        )
    )
    cancel = IncomingMessage("cms", "cancel", "", b'{"campaign":"c"}', id="m1")
    retry = IncomingMessage("cms", "retry", "", b'{"campaign":"c"}', id="m2")
    first = [msgspec.json.decode(intake.handle(each).body, type=ActionReply) for each in (cancel, retry)]
    assert [(each.changed, each.repeated) for each in first] == [(7, False), (7, False)]
    for each, before in zip((cancel, retry, cancel), [*first, first[0]], strict=True):
        answer = intake.handle(each)
        assert answer.outcome == "repeated"
        found = msgspec.json.decode(answer.body, type=ActionReply)
        assert (found.changed, found.unchanged, found.repeated) == (before.changed, before.unchanged, True)
    totals = dispatcher.writer.write(lambda work: work.session.rows("totals"))
    assert {name for name, number in totals if name.startswith("state/") and number} == {"state/0"}
    other = refused(intake.handle(cancel._replace(body=b'{"jobs":[1]}')))
    assert other == (409, "key `m1` was used for another cancel or retry")
    assert refused(intake.handle(retry._replace(type="cancel")))[0] == 409
    for _ in range(2):  # without an id it cannot be known that it came before
        found = msgspec.json.decode(intake.handle(retry._replace(id="")).body, type=ActionReply)
        assert (found.changed, found.repeated) == (0, False)
    assert refused(intake.handle(cancel._replace(id="x" * 201)))[0] == 400


def test_a_key_is_its_senders_own_and_stands_for_all_pieces_of_an_action(dispatcher: Dispatcher) -> None:
    number = actions.PIECE + 1
    for name in ("cms", "atlas"):
        body = b'{"key":"k-%s","campaign":"%s","jobs":[{"app":"sim"}],"repeat":[%d]}'
        request = body.replace(b"%s", name.encode()).replace(b"%d", b"%d" % number)
        assert (
            SubmitterIntake(host_of(dispatcher), {name: name})
            .handle(IncomingMessage(name, "submit", "", request))
            .refused
            is None
        )
        for what in (b'{"campaign":"%s"}' % name.encode(), b'{"jobs":[%d,%d,%d]}' % (1, 2, 3)):
            key = "same" if what.startswith(b'{"c') else "other"
            answer = SubmitterIntake(host_of(dispatcher), {name: name}).handle(
                IncomingMessage(name, "cancel", "", what, id=key)
            )
            if name == "cms" or key == "same":
                found = msgspec.json.decode(answer.body, type=ActionReply)
                assert (found.changed, found.unchanged) == ((number, 0) if key == "same" else (0, 3))
            else:
                assert answer.status == 404
    rows = dispatcher.writer.write(lambda work: work.session.rows("act_by_key", key="submitter/cms/same"))
    assert [row[1:] for row in rows] == [(number, 0)]


def test_who_is_revoked_is_refused_whatever_the_broker_lets_in(dispatcher: Dispatcher) -> None:
    intake = SubmitterIntake(
        host_of(dispatcher, judge=lambda identity: f"name {identity.name}"), {"cms": "cms"}
    )
    letter = IncomingMessage("cms", "submit", "", b'{"key":"k","campaign":"c","jobs":[{"app":"sim"}]}')
    assert refused(intake.handle(letter)) == (403, "the submitter `cms` is revoked: `name cms`")
