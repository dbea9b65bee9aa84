"""What a message asks for, who asks, and what it is answered: the same verbs and checks as the HTTP API.

A message counts when its transaction is committed, and once only, by its submission's key; who sent it is the broker's
user, never what the message says. Knows no broker: a message comes as a record, the answer goes as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from tidemill import log
from tidemill.errors import UNDECODABLE, SiteError, TidemillError
from tidemill.model.identity import Identity, Role, Via
from tidemill.server.api.refusal import reply_of, status_of
from tidemill.server.core import submission, sync
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.errors import ForbiddenError, RequestError
from tidemill.wire.amqp import CONTENT_TYPE, Type
from tidemill.wire.api import REQUEST_BYTES_MAX, ActionRequest, ErrorReply

_LOG = log.Log("gateway")
_ENCODER = msgspec.json.Encoder()
_ACTION = msgspec.json.Decoder(ActionRequest)


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
        """As metrics count it."""
        if self.refused is not None:
            return "failed" if self.status >= 500 else "refused"
        return "repeated" if self.repeated else "done"


#: What revokes an identity, or None.
Judge = Callable[[Identity], str | None]


def believe_all(identity: Identity) -> str | None:
    """None: no identity is revoked."""
    return None


class SubmitterIntake:
    """Takes messages of submitters. `users`: names of submitters by the broker's users."""

    def __init__(self, dispatcher: Dispatcher, users: Mapping[str, str], judge: Judge = believe_all) -> None:
        self._dispatcher, self._users, self._judge = dispatcher, users, judge
        self._verbs: dict[str, Callable[[Identity, IncomingMessage], tuple[Type, Any]]] = {
            Type.SUBMIT: self._submit,
            Type.CANCEL: lambda identity, letter: (
                Type.ACTED,
                dispatcher.handle_cancel(_action(letter), identity),
            ),
            Type.RETRY: lambda identity, letter: (
                Type.ACTED,
                dispatcher.handle_retry(_action(letter), identity),
            ),
        }

    def take(self, letter: IncomingMessage) -> MessageAnswer:
        """Do what a message asks for. Raises SiteError when the database is not there: to be tried again."""
        name = self._users.get(letter.user)
        try:
            identity = _believed(Role.SUBMITTER, letter.user, name, self._judge)
            kind, reply = self._verb(letter)(identity, letter)
        except SiteError:
            raise
        except TidemillError as error:
            return _refusal(name, error)
        except Exception as error:  # noqa: BLE001 - top of a message: it must not stop those behind it
            _LOG.error("message.failed", user=letter.user, type=letter.type, error=repr(error))
            return _refusal(name, error)
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
        request = submission.decode(_body(letter))
        reply = self._dispatcher.handle_submit(request, identity)
        _LOG.info(
            "submit.message", submitter=identity.name, key=request.key[: submission.KEY_MAX], campaign=reply.campaign,
            first_job=reply.first_job, count=reply.count, repeated=reply.repeated,
        )  # fmt: skip
        return Type.SUBMITTED, reply


class SyncIntake:
    """Takes requests of sites. `users`: names of sites by the broker's users."""

    def __init__(self, dispatcher: Dispatcher, users: Mapping[str, str], judge: Judge = believe_all) -> None:
        self._dispatcher, self._users, self._judge = dispatcher, users, judge

    def take(self, letter: IncomingMessage) -> MessageAnswer:
        """The answer to one `sync`, as HTTP would give it; it never raises: the site asks again by itself."""
        name = self._users.get(letter.user)
        try:
            identity = _believed(Role.SITE, letter.user, name, self._judge)
            request = sync.decode(_body(letter))
            reply = self._dispatcher.handle_sync(request, identity)
        except TidemillError as error:
            return _refusal(name, error)
        except Exception as error:  # noqa: BLE001 - top of a message: it must not stop those behind it
            _LOG.error("message.failed", user=letter.user, type=letter.type, error=repr(error))
            return _refusal(name, error)
        return MessageAnswer(name, Type.SYNCED, _ENCODER.encode(reply))


def identity_of(role: Role, name: str, user: str) -> Identity:
    """Who the broker's user is. The broker has checked the certificate, and that `user_id` is the connection's user."""
    return Identity(role=role, name=name, via=Via.CERTIFICATE, subject=user)


def _believed(role: Role, user: str, name: str | None, judge: Judge) -> Identity:
    if not user:
        raise ForbiddenError(
            "the message does not say who sent it",
            hint="set its property `user_id` to your user at the broker",
        )
    if name is None:
        raise ForbiddenError(
            f"the broker's user `{user[:100]}` is not a {role} here",
            hint=f"the server's staff name it in server.toml, `[amqp.{role}s]`",
        )
    identity = identity_of(role, name, user)
    revoked = judge(identity)
    if revoked is not None:
        raise ForbiddenError(f"the {role} `{name}` is revoked: `{revoked}`", hint="ask the server's operator")
    return identity


def _action(letter: IncomingMessage) -> ActionRequest:
    """A message that comes twice has the same id, which is its key if it has no other."""
    body = _body(letter)
    try:
        request = _ACTION.decode(body)
    except UNDECODABLE as error:
        raise RequestError(
            f"ActionRequest cannot be read: {error}", hint=submission.hint(str(error), ActionRequest)
        ) from error
    request.key = request.key or letter.id
    return request


def _body(letter: IncomingMessage) -> bytes:
    if letter.content_type not in ("", CONTENT_TYPE):
        raise RequestError(
            f"content type `{letter.content_type[:50]}` is not known", hint=f"send `{CONTENT_TYPE}`"
        )
    if len(letter.body) > REQUEST_BYTES_MAX:
        raise RequestError(
            f"message of {len(letter.body)} bytes, at most {REQUEST_BYTES_MAX}", hint="send several"
        )
    return letter.body


def _refusal(name: str | None, error: Exception) -> MessageAnswer:
    reply = reply_of(error)
    return MessageAnswer(name, Type.REFUSED, _ENCODER.encode(reply), status_of(error), reply)
