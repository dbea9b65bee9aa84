"""The server as a transport of an extension sees it: the verbs of the API, and the feed of changes with a position for
each follower (docs/extensions.md).

What HTTP may ask for, a transport may: with the same checks, quotas and errors, but without HTTP's pace and its lock,
which lets one large body be decoded at a time. Who asks, it says; so it must know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.model.identity import Identity
from tidemill.server.api.refusal import reply_of, status_of
from tidemill.server.core import submission, sync
from tidemill.server.core.body_count import BodyCount
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Session, Store, value
from tidemill.server.database.unit_of_work import FOLLOWER, UnitOfWork
from tidemill.server.errors import ForbiddenError, RequestError
from tidemill.server.read.feed import FeedRow, rows_after
from tidemill.wire.api import (
    REQUEST_BYTES_MAX,
    ActionReply,
    ActionRequest,
    ErrorReply,
    SubmitReply,
    SyncReply,
)

OWNERS_MAX = 10_000
KEY_MAX = submission.KEY_MAX  #: characters of the key of a submission

#: What revokes an identity, or None.
Judge = Callable[[Identity], str | None]


class ChangeReader:
    """Reads the feed of changes by a connection of its own, in one thread. `close` it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._owners: dict[int, str] = {}

    def rows_after(self, number: int, *, limit: int) -> list[FeedRow]:
        """The next rows with changes after a number. Raises SiteError."""
        return rows_after(self._session, number, limit=limit)

    def owner(self, campaign: int) -> str | None:
        """Whose campaign it is; None = it is not in the database any more."""
        if campaign not in self._owners:
            if len(self._owners) > OWNERS_MAX:
                self._owners.clear()
            rows = self._session.rows("campaign_owners", ids=[campaign])
            self._owners.update((row.id, row.owner) for row in rows)
        return self._owners.get(campaign)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


class TransportHost:
    """What a transport may ask of the server. From any thread; raises SiteError when the database is not there."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        *,
        judge: Judge,
        on_refused: Callable[[str, str], None] = lambda _who, _why: None,
    ) -> None:
        """`judge`: why an identity is revoked, which the verbs ask themselves, and what sends changes has to ask;
        `on_refused` gets who may not do what, for the audit log."""
        self._store, self._dispatcher = store, dispatcher
        self.why_revoked, self.note_refused = judge, on_refused

    # ---- in --------------------------------------------------------------------------------------------------

    def submit(self, body: bytes, identity: Identity) -> tuple[str, SubmitReply]:
        """Take a submission in JSON; its key and the answer. Raises TidemillError."""
        self._check(body, identity)
        request = submission.decode(body)
        return request.key, self._dispatcher.handle_submit(request, identity)

    def cancel(self, body: bytes, identity: Identity, *, key: str) -> ActionReply:
        """Cancel what a request in JSON names. `key`: its key if it names none. Raises TidemillError."""
        self._check(body, identity)
        return self._dispatcher.handle_cancel(_action(body, key), identity)

    def retry(self, body: bytes, identity: Identity, *, key: str) -> ActionReply:
        """Retry what a request in JSON names; as `cancel`."""
        self._check(body, identity)
        return self._dispatcher.handle_retry(_action(body, key), identity)

    def sync(self, body: bytes, identity: Identity) -> SyncReply:
        """The answer to a site's sync in JSON. Raises TidemillError."""
        self._check(body, identity)
        request = sync.decode(body)
        return self._dispatcher.handle_sync(request, identity)

    def refuse_revoked(self, identity: Identity) -> None:
        """Raises ForbiddenError if the identity is revoked; what takes a request asks it, too."""
        revoked = self.why_revoked(identity)
        if revoked is not None:
            raise ForbiddenError(
                f"the {identity.role} `{identity.name}` is revoked: `{revoked}`",
                hint="ask the server's operator",
            )

    def _check(self, body: bytes, identity: Identity) -> None:
        self.refuse_revoked(identity)
        if len(body) > REQUEST_BYTES_MAX:
            raise RequestError(
                f"request of {len(body)} bytes, at most {REQUEST_BYTES_MAX}", hint="send several"
            )

    def refusal(self, error: Exception) -> tuple[int, ErrorReply]:
        """How an error is answered: its status as in HTTP, and its text."""
        return status_of(error), reply_of(error)

    def count(self, *, direction: str, outcome: str) -> None:
        """Count a message, for the metrics. `direction`: `in`, `out`."""
        self._dispatcher.meters.add(
            "tidemill_server_gateway_messages_total", direction=direction, outcome=outcome
        )

    # ---- out -------------------------------------------------------------------------------------------------

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each commit, until `stop_listening`."""
        self._dispatcher.writer.listeners.append(wake)

    def stop_listening(self, wake: Callable[[], None]) -> None:
        """Call a listener no more."""
        self._dispatcher.writer.listeners.remove(wake)

    def changes(self) -> ChangeReader:
        """A reader of the feed."""
        return ChangeReader(self._store.reader())

    def positions(self, transport: str, names: list[str]) -> dict[str, int]:
        """The last change that each of these followers was sent, by name. A new one begins at the end of the feed;
        followers of this transport that are not named are forgotten. The feed is kept for all that are behind."""

        def settle(work: UnitOfWork) -> dict[str, int]:
            session = work.session
            known: dict[str, int] = dict(session.rows("followers"))
            wanted = {_key(transport, name): name for name in names}
            for key in known:
                if key.startswith(_key(transport, "")) and key not in wanted:
                    session.run("delete_follower", name=key)
            end = int(value(session, "next_change")) - 1
            for key in wanted:
                if key not in known:
                    session.run("set_follower", name=key, position=end)
            return {name: known.get(key, end) for key, name in wanted.items()}

        return self._dispatcher.writer.write(settle)

    def save(self, transport: str, positions: Mapping[str, int]) -> None:
        """Note the last change that followers were sent."""

        def save(work: UnitOfWork) -> None:
            for name, position in positions.items():
                work.session.run("set_follower", name=_key(transport, name), position=position)

        self._dispatcher.writer.write(save)


def _key(transport: str, name: str) -> str:
    """Where a follower's position is kept in the table `meta`."""
    return f"{FOLLOWER}{transport}/{name}"


def _action(body: bytes, key: str) -> ActionRequest:
    BodyCount().feed(body)
    request = submission.decode_as(body, ActionRequest)
    request.key = request.key or key
    return request
