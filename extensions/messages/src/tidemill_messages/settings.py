"""The settings of this extension: `[amqp]` of server.toml, `[message]` of client.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import msgspec

from tidemill.config.keys import CREDENTIALS, doc
from tidemill.config.tables import SettingsTable, tables_of

if TYPE_CHECKING:  # a site that reads its site.toml imports this, too
    from tidemill.config.server import ServerConfig

SERVER_USER = "tidemill-server"
ROLES = ("submitter", "site", "operator")


class Amqp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages by RabbitMQ, beside HTTP."""

    url: Annotated[
        str | None,
        doc(
            "The broker: `amqps://USER@HOST:PORT/VHOST` (default: port 5671, virtual host `tidemill`; `USER` is the "
            "broker's user that the certificate stands for, default `tidemill-server`); none = no messages"
        ),
    ] = None
    certificate: Annotated[
        Path | None, doc("The server's client certificate (PEM): its identity at the broker")
    ] = None
    key: Annotated[Path | None, doc(CREDENTIALS["key"])] = None
    ca: Annotated[Path | None, doc(CREDENTIALS["ca"])] = None
    users: Annotated[
        dict[str, str],
        doc(
            'What each user of the broker is here: `USER = "ROLE NAME"`, such as `lrz = "site lrz"`; without a name, '
            '`"site"`, it is the user\'s. A `submitter` submits jobs, a `site` syncs, an `operator` reads dead letters'
        ),
    ] = {}

    def __post_init__(self) -> None:
        """Refuse a user without a role, a name with two users, and a password."""
        user_in(self.url or "")
        names: set[tuple[str, str]] = set()
        for user, said in self.users.items():
            named = _role_and_name(user, said)
            if named in names:
                raise ValueError(f"two of `users` are `{' '.join(named)}`: one user of the broker, one name")
            names.add(named)

    @property
    def user(self) -> str:
        """The broker's user that the server is, by its certificate."""
        return user_in(self.url or "") or SERVER_USER

    @property
    def submitters(self) -> dict[str, str]:
        """Who may submit by message, by name: the broker's user."""
        return self._of("submitter")

    @property
    def sites(self) -> dict[str, str]:
        """The sites that may sync by message, by name: the broker's user."""
        return self._of("site")

    @property
    def operators(self) -> dict[str, str]:
        """Who may read dead letters, by name: the broker's user."""
        return self._of("operator")

    def _of(self, role: str) -> dict[str, str]:
        named = {user: _role_and_name(user, said) for user, said in self.users.items()}
        return {name: user for user, (its, name) in named.items() if its == role}


class MessageClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who `tidemill message` is at a broker."""

    name: Annotated[
        str, doc("What the server calls you, a submitter; empty = as the broker's user in `server`")
    ] = ""


def _role_and_name(user: str, said: str) -> tuple[str, str]:
    role, _, name = said.strip().partition(" ")
    if role not in ROLES:
        raise ValueError(
            f'`users`: `{user}` is `{said}`, expected `"ROLE NAME"` with a role of {", ".join(ROLES)}'
        )
    return role, name.strip() or user


def user_in(url: str) -> str:
    """The user in the URL of a broker; empty = none. Raises ValueError, which does not quote it, for a password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may quote all that is before the host
        raise ValueError("the URL of the broker is not one such as `amqps://USER@HOST:PORT/VHOST`") from None
    if parts.password is not None:
        raise ValueError(
            f"the URL of the broker `{parts.hostname}` holds a password, and only certificates log in there: "
            "remove it, and change it where it is used, for it has been in a file"
        )
    return unquote(parts.username or "")


def amqp_of(config: ServerConfig) -> Amqp:
    """What `[amqp]` of server.toml says."""
    found: Amqp = tables_of(config)["amqp"]
    return found


MESSAGE = SettingsTable("client.toml", MessageClient)
AMQP = SettingsTable(
    "server.toml",
    Amqp,
    examples={
        "url": '"amqps://tidemill.example.org@broker.example.org/tidemill"',
        "certificate": '"../ca/tidemill.example.org.pem"',
        "key": '"../ca/tidemill.example.org.key"',
        "ca": '"../ca/ca.pem"',
        "users": '{ cms = "submitter", lrz = "site" }',
    },
)
