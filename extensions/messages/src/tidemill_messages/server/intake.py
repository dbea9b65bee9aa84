"""What a message asks for, who asks, and what it is answered: the same verbs and checks as the HTTP API.

A message counts when its transaction is committed, and once only, by its submission's key; who sent it is the broker's
user, never what the message says. Knows no broker: a message comes as a record, the answer goes as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from tidemill import log
from tidemill.errors import SiteError, TidemillError
from tidemill.model.identity import Identity, Role, Via
from tidemill.server.errors import ForbiddenError, RequestError
from tidemill.server.transports import KEY_MAX, TransportHost
from tidemill.wire.api import ErrorReply
from tidemill_messages.names import CONTENT_TYPE, Type

_LOG = log.Log("gateway")
_ENCODER = msgspec.json.Encoder()


class IncomingMessage(NamedTuple):
    """What came: the broker's user (checked by the broker; empty = the message has none), and the message."""

    user: str
    type: str
    content_type: str
    body: bytes
    id: str = ""  #: as the sender calls it


class MessageAnswer(NamedTuple):
    """What goes back. `refused` None = it was done, else why not; `to`: whose it is, None = an unknown user."""

    to: str | None
    type: Type
    body: bytes
    status: int = 200
    refused: ErrorReply | None = None
    repeated: bool = False

    @property
    def outcome(self) -> str:
        """The outcome by which metrics count the message."""
        if self.refused is not None:
            return "failed" if self.status >= 500 else "refused"
        return "repeated" if self.repeated else "done"


class SubmitterIntake:
    """Takes messages of submitters. `users`: names of submitters by the broker's users."""

    def __init__(self, host: TransportHost, users: Mapping[str, str]) -> None:
        self._host, self._users = host, users
        self._verbs: dict[str, Callable[[Identity, IncomingMessage], tuple[Type, Any]]] = {
            Type.SUBMIT: self._submit,
            Type.CANCEL: lambda identity, letter: (
                Type.ACTED,
                host.cancel(_body(letter), identity, key=letter.id),
            ),
            Type.RETRY: lambda identity, letter: (
                Type.ACTED,
                host.retry(_body(letter), identity, key=letter.id),
            ),
        }

    def handle(self, letter: IncomingMessage) -> MessageAnswer:
        """Do what a message asks for. Raises SiteError when the database is not there: to be tried again."""
        name = self._users.get(letter.user)
        try:
            identity = _known(Role.SUBMITTER, letter.user, name)
            self._host.refuse_revoked(identity)  # first: the audit log notes refusals of this kind only
            kind, reply = self._verb(letter)(identity, letter)
        except SiteError:
            raise
        except TidemillError as error:
            return _refusal(name, error, self._host)
        except Exception as error:  # noqa: BLE001 - top of a message: it must not stop those behind it
            _LOG.error("message.failed", user=letter.user, type=letter.type, error=repr(error))
            return _refusal(name, error, self._host)
        return MessageAnswer(name, kind, _ENCODER.encode(reply), repeated=getattr(reply, "repeated", False))

    def _verb(self, letter: IncomingMessage) -> Callable[[Identity, IncomingMessage], tuple[Type, Any]]:
        verb = self._verbs.get(letter.type)
        if verb is None:
            raise RequestError(
                f"a message of type `{letter.type[:50]}` is not known",
                hint="its property `type` is one of " + ", ".join(f"`{each}`" for each in self._verbs),
            )
        return verb

    def _submit(self, identity: Identity, letter: IncomingMessage) -> tuple[Type, Any]:
        key, reply = self._host.submit(_body(letter), identity)
        _LOG.info(
            "submit.message", submitter=identity.name, key=key[:KEY_MAX], campaign=reply.campaign,
            first_job=reply.first_job, count=reply.count, repeated=reply.repeated,
        )  # fmt: skip
        return Type.SUBMITTED, reply


class SyncIntake:
    """Takes requests of sites. `users`: names of sites by the broker's users."""

    def __init__(self, host: TransportHost, users: Mapping[str, str]) -> None:
        self._host, self._users = host, users

    def handle(self, letter: IncomingMessage) -> MessageAnswer:
        """The answer to one `sync`, as HTTP would give it; it never raises: the site asks again by itself."""
        name = self._users.get(letter.user)
        try:
            identity = _known(Role.SITE, letter.user, name)
            reply = self._host.sync(_body(letter), identity)
        except TidemillError as error:
            return _refusal(name, error, self._host)
        except Exception as error:  # noqa: BLE001 - top of a message: it must not stop those behind it
            _LOG.error("message.failed", user=letter.user, type=letter.type, error=repr(error))
            return _refusal(name, error, self._host)
        return MessageAnswer(name, Type.SYNCED, _ENCODER.encode(reply))


def identity_of(role: Role, name: str, user: str) -> Identity:
    """Who the broker's user is. The broker has checked the certificate, and that `user_id` is the connection's user."""
    return Identity(role=role, name=name, via=Via.CERTIFICATE, subject=user)


def _known(role: Role, user: str, name: str | None) -> Identity:
    if not user:
        raise ForbiddenError(
            "the message does not say who sent it",
            hint="set its property `user_id` to your user at the broker",
        )
    if name is None:
        raise ForbiddenError(
            f"the broker's user `{user[:100]}` is not a {role} here",
            hint="the server's staff name it in server.toml, `[amqp.users]`",
        )
    return identity_of(role, name, user)


def _body(letter: IncomingMessage) -> bytes:
    if letter.content_type not in ("", CONTENT_TYPE):
        raise RequestError(
            f"content type `{letter.content_type[:50]}` is not known", hint=f"send `{CONTENT_TYPE}`"
        )
    return letter.body


def _refusal(name: str | None, error: Exception, host: TransportHost) -> MessageAnswer:
    status, reply = host.refusal(error)
    return MessageAnswer(name, Type.REFUSED, _ENCODER.encode(reply), status, reply)
