"""A submitter at a message broker, as its client.toml describes it: who it is there, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tidemill.client.authority import Authority, Wanted
from tidemill.client.home import ClientConfig
from tidemill.client.messages import _submitted, open_messenger
from tidemill.errors import ConfigError, SiteError
from tidemill.wire.amqp import Header, Type
from tidemill.wire.api import ErrorReply
from tidemill.wire.broker import library
from tidemill.wire.http import Connection
from tidemill.wire.link import Delivery, Link


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, Any]:
    """A certificate and its key."""
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    issued = authority.issue(Wanted(role="submitter", name="cms", days=5), tmp_path / "pairs")
    return {"certificate": issued.certificate, "key": issued.key}


@pytest.mark.parametrize(
    ("server", "name", "user", "called"),
    [
        ("amqps://h/v", "cms", "cms", "cms"),
        ("amqps://cms@h/v", "", "cms", "cms"),
        ("amqps://CN%3Dcms%20prod@h/v", "cms", "CN=cms prod", "cms"),
    ],
)
def test_the_user_is_in_the_url_and_the_name_may_differ(
    shown: dict[str, Any], server: str, name: str, user: str, called: str
) -> None:
    made = open_messenger(ClientConfig(server=server, name=name, **shown))
    assert (made.broker.user, made.name, made.broker.address) == (user, called, "amqps://h:5671/v")


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("https://h", "is not a message broker"),
        ("amqps://h/v", "names no user"),
    ],
)
def test_a_server_that_is_no_broker_or_names_nobody_is_refused(
    shown: dict[str, Any], server: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        open_messenger(ClientConfig(server=server, **shown))


@pytest.mark.parametrize(
    "address", ["https://cms:word@h:1", "amqps://cms:word@h/v", "amqp+tls://cms:word@h/v", "cms:word@h"]
)
def test_a_password_in_the_address_of_an_option_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="holds a password") as caught:
        Connection(address)
    assert "word@" not in f"{caught.value.message} {caught.value.hint}"


def test_other_commands_say_that_a_broker_answers_no_requests() -> None:
    with pytest.raises(ConfigError, match="is a message broker") as caught:
        Connection("amqps://cms@h/v")
    assert "tidemill message submit" in (caught.value.hint or "")


@pytest.mark.parametrize(("status", "again"), [(507, False), (500, True), (503, True)])
def test_a_submission_is_not_sent_again_to_a_server_without_room(status: int, again: bool) -> None:
    """Each refusal makes a dead letter of the whole message."""
    spec = library().spec
    delivery = Delivery(
        cast("Link", None),
        SimpleNamespace(is_open=True),
        (
            spec.Basic.Deliver(exchange="", delivery_tag=1),
            spec.BasicProperties(type=Type.REFUSED.value, headers={Header.STATUS.value: status}),
            msgspec.json.encode(ErrorReply(error="no room", hint="cancel")),
        ),
    )
    with pytest.raises(SiteError, match="no room") as caught:
        _submitted(delivery)
    assert (caught.value.transient, caught.value.hint) == (again, "cancel")
