"""The writing connection of a server of a pair: it writes from `become_active` on, and never again once it was lost.

PostgreSQL's advisory lock belongs to the very session that commits, so a server that lost the lock has lost its
transaction too. PostgreSQL ends a session that is silent for `SILENT_S`: of a server that is stopped, or cut off. Each
transaction also holds the row with the number of the take-over, which stays the same as long as this server is active.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from tidemill import clock
from tidemill.errors import ConfigError, SiteError
from tidemill.server.database.postgresql import SESSION_NAME, Postgresql, errors_of, lock_holder, try_lock
from tidemill.server.database.queries import Dialect, Statement
from tidemill.server.database.store import value
from tidemill.server.errors import StandbyError

SILENT_S = 8.0
HUNG_S = 30.0  #: a statement without an answer: the connection is given up
BEAT_HUNG_S = 8.0
VERSION_MIN = (
    14  #: of PostgreSQL: `idle_session_timeout` and `client_connection_check_interval` (its release notes)
)
_WATCHED = (
    f"SET idle_session_timeout = '{int(SILENT_S)}s'",
    f"SET idle_in_transaction_session_timeout = '{int(SILENT_S)}s'",
    "SET client_connection_check_interval = '1s'",
    "SET lock_timeout = '3s'",
)
#: PostgreSQL does not count a client as silent while it sends to it: a server that stops in the middle of a large
#: answer would keep its lock. Over TCP these settings end such a session, and that of a standby whose machine is gone;
#: Unix sockets ignore them (manual 20.3.2)
_BY_TCP = (
    f"SET tcp_user_timeout = '{int(SILENT_S)}s'",
    "SET tcp_keepalives_idle = '5s'",
    "SET tcp_keepalives_interval = '2s'",
    "SET tcp_keepalives_count = 3",
)


class PairedSession:
    """A session whose transactions begin only while this server is the active one of its pair.

    One thread writes. `become_active`, `beat` and `resign` are for another one, which keeps the server in its role.
    """

    dialect = Dialect.POSTGRESQL
    is_paired = True

    def __init__(self, url: str, queries: dict[str, Statement]) -> None:
        self._url, self._queries = url, queries
        self._inner = Postgresql(url, queries, reads=False)
        self._use = threading.Lock()  #: held by a transaction, and by what asks between transactions
        self._is_inside = False
        self._watched: psycopg.Connection[Any] | None = None  #: the one that PostgreSQL is to watch
        self._schema = 0
        self._asked_s: tuple[float, float] | None = None
        self.holder = (
            ""  #: the session that kept this server from becoming the active one, when it last tried
        )
        self.term = 0  #: number of the take-over by which this server is active; 0 = it is not
        found = self._inner.connection.info.server_version // 10_000
        if found < VERSION_MIN:
            self._inner.close()
            raise ConfigError(
                f"PostgreSQL {found} cannot serve a pair", hint=f"use PostgreSQL {VERSION_MIN} or newer"
            )

    # ---- the role ----------------------------------------------------------------------------------------------------

    @property
    def may_write(self) -> bool:
        """Whether this server is the active one, as far as is known."""
        return self.term > 0

    @property
    def is_locked_out(self) -> bool:
        """Whether a session of another program keeps this server from becoming the active one."""
        return bool(self.holder) and not self.holder.startswith(SESSION_NAME)

    def become_active(self) -> bool:
        """Become the active server, unless another one is; whether it worked. Raises SiteError."""
        with self._use, errors_of("take"):
            if self._inner.is_closed:
                self._inner = Postgresql(self._url, self._queries, reads=False)
            connection = self._inner.connection
            with self._limited(BEAT_HUNG_S):
                self._check_schema(connection)
                self._watch_connection(connection)
                if not try_lock(connection):
                    self.holder = lock_holder(connection)
                    return False
                for each in _WATCHED:
                    connection.execute(each.encode())
                ((term,),) = connection.execute(self._queries["take_over"].text).fetchall()
            self.term = int(term)
            return True

    def _check_schema(self, connection: psycopg.Connection[Any]) -> None:
        """Raises SiteError when the database was upgraded under a standby."""
        ((version,),) = connection.execute(self._queries["schema_version"].text).fetchall()
        found = int(version)
        self._schema = self._schema or found
        if found != self._schema:
            raise SiteError(
                f"the database has schema {found} now, it had {self._schema}",
                hint="install the version of tidemill that upgraded it, and start this server again",
            )

    def _watch_connection(self, connection: psycopg.Connection[Any]) -> None:
        if self._watched is not connection:
            for each in _BY_TCP:
                connection.execute(each.encode())
            self._watched = connection

    def beat(self) -> bool:
        """Show PostgreSQL that this server lives; whether it still is the active one."""
        if self.term and self._use.acquire(blocking=False):  # else a transaction is under way: a sign of life
            try:
                with self._limited(BEAT_HUNG_S), suppress(psycopg.Error):
                    self._inner.connection.execute("SELECT 1")
            finally:
                self._leave()
        return self.may_write

    def resign(self) -> None:
        """Let the other server take over."""
        with self._use:
            self.term = 0
            self._inner.close()

    def cut_hung(self) -> bool:
        """Give the connection up if PostgreSQL owes an answer for too long; whether it did. From any thread."""
        asked = self._asked_s
        if asked is None or clock.monotonic_s() < asked[0] + asked[1]:
            return False
        with suppress(OSError, psycopg.Error):
            handle = socket.socket(fileno=os.dup(self._inner.connection.pgconn.socket))
            try:
                handle.shutdown(socket.SHUT_RDWR)  # the thread that waits finds the end of the connection
            finally:
                handle.close()
        return True

    # ---- transactions ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a transaction. Raises StandbyError unless this server is the active one."""
        self._use.acquire()
        self._is_inside = True
        try:
            self._begin()
        except BaseException:
            if not self._inner.is_closed:
                with suppress(SiteError):
                    self._inner.rollback()
            self._leave()
            raise

    def _begin(self) -> None:
        if not self.term:
            raise StandbyError
        with self._limited(HUNG_S):
            self._inner.begin_here()
            term = value(self._inner, "hold_term")
        if term is None or term != self.term:
            self._inner.close()
            raise StandbyError

    def commit(self) -> None:
        """Make the transaction durable."""
        with self._limited(HUNG_S):
            self._inner.commit()
        self._leave()

    def rollback(self) -> None:
        """Undo it; harmless when there is none, or the connection was lost."""
        if self._is_inside:
            try:
                with self._limited(HUNG_S):
                    self._inner.rollback()
            finally:
                self._leave()

    def _leave(self) -> None:
        if self._inner.is_closed:
            self.term = 0
        self._is_inside = False
        self._use.release()

    @contextmanager
    def _limited(self, limit_s: float) -> Iterator[None]:
        self._asked_s = clock.monotonic_s(), limit_s
        try:
            yield
        finally:
            self._asked_s = None

    # ---- statements --------------------------------------------------------------------------------------------------

    def rows(self, name: str, /, **parameters: Any) -> list[Any]:
        """All rows of a named statement."""
        with self._limited(HUNG_S):
            return self._inner.rows(name, **parameters)

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run a named statement that returns nothing."""
        with self._limited(HUNG_S):
            self._inner.run(name, **parameters)

    def many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement declared `many` for all rows."""
        with self._limited(HUNG_S):
            self._inner.many(name, rows)

    def savepoint(self) -> None:
        """A place inside the transaction to return to."""
        self._inner.savepoint()

    def release(self) -> None:
        """Forget the place."""
        self._inner.release()

    def undo(self) -> None:
        """Return to the place."""
        self._inner.undo()

    def close(self) -> None:
        """Close the connection: the other server of the pair may take over."""
        self.resign()
