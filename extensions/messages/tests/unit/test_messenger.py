"""A submitter at a message broker, as its client.toml describes it: who it is there, and what is refused."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tidemill.client.authority import Authority, Wanted
from tidemill.client.home import ClientConfig
from tidemill.config import loads
from tidemill.errors import ConfigError, SiteError
from tidemill.wire.api import ErrorReply
from tidemill.wire.server_connection import Connection
from tidemill_messages.broker import library
from tidemill_messages.cli import message
from tidemill_messages.link import Delivery, Link
from tidemill_messages.messenger import _submitted, open_messenger
from tidemill_messages.names import Header, Type


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, Any]:
    """A certificate and its key."""
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    issued = authority.issue(Wanted(role="submitter", name="cms", days=5), tmp_path / "pairs")
    return {"certificate": issued.certificate, "key": issued.key}


def client(server: str, shown: dict[str, Any], name: str = "") -> ClientConfig:
    """A client.toml, as it is read."""
    lines = [f'server = "{server}"', *(f'{key} = "{path}"' for key, path in shown.items())]
    lines += ["[message]", f'name = "{name}"'] if name else []
    return loads("\n".join(lines), ClientConfig, source=Path("/h/client.toml"))


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
    made = open_messenger(client(server, shown, name))
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
        open_messenger(client(server, shown))


def test_other_commands_say_that_a_broker_answers_no_requests() -> None:
    with pytest.raises(ConfigError, match="answers no requests") as caught:
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


def test_a_list_of_a_job_file_is_read_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\xff\n")
    job = tmp_path / "job.toml"
    job.write_text(
        f'[[job]]\napp = "sim"\ninputs = [{{ name = "l", url = "{tmp_path}/lines", kind = "each" }}]'
    )
    with pytest.raises(ConfigError, match=r"job.toml: `job\[0\]`: input `l`: "):
        message.submit(Namespace(file=job, campaign=None))
