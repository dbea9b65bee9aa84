"""A connection to PostgreSQL by psycopg 3; imported by `store.py` alone, and only when it is used."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidemill.errors import SiteError
from tidemill.server.database.queries import Dialect, RowShapes, Statement
from tidemill.server.database.store import not_text, too_large

ADVISORY_LOCK = 0x7469_6465  #: "tide": held by the server that writes
PRESENCE_LOCK = (
    0x7469_6466  #: shared by all servers that run, also one that only reads; an upgrade wants it alone
)
SESSION_NAME = "tidemill "  #: how the names of a server's sessions begin
CONNECT_TIMEOUT_S = 10
#: of TCP: a host that has gone away is noticed within 11 s, not within the kernel's two hours (libpq 15, 34.1.2)
_ALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}


class Postgresql:
    """Connects at once, and again before a transaction if the connection was lost."""

    dialect = Dialect.POSTGRESQL

    def __init__(self, url: str, queries: dict[str, Statement], *, reads: bool) -> None:
        self._url, self._queries, self._reads = url, queries, reads
        self._shapes = RowShapes(queries)
        self._connection = self._connect()
        self._locked = False

    def _connect(self) -> psycopg.Connection[Any]:
        with errors_of("connect"):
            connection = connect(self._url)
            connection.prepare_threshold = 2
            # Statements read few rows through indexes. The default, 4, is for spinning disks: with it, pages of a
            # database with some thousand campaigns read whole tables, and only those of a larger one use the indexes
            connection.execute("SET random_page_cost = 1.1")
            # Compiling a statement of milliseconds costs up to a second where a table has grown since its statistics
            connection.execute("SET jit = off")
            if self._reads:
                connection.execute("SET default_transaction_read_only = on")
            else:
                _compress_quickly(connection)
            return connection

    def _ready(self) -> psycopg.Connection[Any]:
        if self._connection.closed:
            self._connection = self._connect()
            if self._locked and not self.lock():
                self._connection.close()
                raise SiteError("another server has taken the database over", hint="stop one of them")
        return self._connection

    def _execute(self, text: str) -> None:
        with errors_of(text.split(None, 1)[0].lower()):
            self._connection.execute(text)  # without parameters psycopg leaves `%` alone

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection as it is, lost or not."""
        return self._connection

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed or lost."""
        return bool(self._connection.closed)

    def lock(self) -> bool:
        """Whether this connection now is the only one that holds the server's lock."""
        with errors_of("lock"):
            self._locked = try_lock(self._connection)
        return self._locked

    def lock_holder(self) -> str:
        """Which session holds the server's lock."""
        with errors_of("lock"):
            return lock_holder(self._connection)

    def lock_alone(self) -> str:
        """Hold the lock while no server runs at all: empty, or which one is in the way."""
        if not self.lock():
            return "another server writes to this database"
        with errors_of("lock"):
            found = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (PRESENCE_LOCK,)).fetchone()
        return "" if found and found[0] else "a standby server reads this database"

    def rows(self, name: str, /, **parameters: Any) -> list[Any]:
        """All rows of a named statement."""
        with errors_of(name):
            connection = self._ready() if self._reads else self._connection
            cursor = connection.execute(self._queries[name].text, parameters)
            return self._shapes.shape(name, cursor.fetchall(), cursor.description)

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run a named statement that returns nothing."""
        with errors_of(name):
            self._connection.execute(self._queries[name].text, parameters)

    def many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement declared `many` (over `unnest`) or a COPY for all rows."""
        if not rows:
            return
        query = self._queries[name]
        with errors_of(name):
            if query.text.startswith("COPY"):
                with self._connection.cursor() as cursor, cursor.copy(query.text) as copy:
                    copy.write("\n".join(map(_copy_line, rows)) + "\n")
                return
            columns = zip(zip(*rows, strict=True), query.types, strict=True)
            self._connection.execute(query.text, [_array(values, kind) for values, kind in columns])

    def begin(self) -> None:
        """Start a transaction, on a new connection if the last was lost."""
        with errors_of("begin"):
            self._ready().execute("BEGIN")

    def begin_here(self) -> None:
        """Start a transaction on this very connection."""
        with errors_of("begin"):
            self._connection.execute("BEGIN")

    def commit(self) -> None:
        """Make the transaction durable."""
        with errors_of("commit"):
            self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo it; harmless when the connection was lost."""
        if not self._connection.closed:
            with errors_of("rollback"):
                self._connection.execute("ROLLBACK")

    def savepoint(self) -> None:
        """A place inside the transaction to return to."""
        self._execute("SAVEPOINT one")

    def release(self) -> None:
        """Forget the place."""
        self._execute("RELEASE SAVEPOINT one")

    def undo(self) -> None:
        """Return to the place."""
        if not self._connection.closed:
            self._execute("ROLLBACK TO SAVEPOINT one")
            self._execute("RELEASE SAVEPOINT one")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection that commits each statement by itself. Raises psycopg's errors.

    Its name begins with `SESSION_NAME` in any case, so that servers know each other's sessions; then comes the URL's
    `application_name`, or this process.
    """
    told = conninfo_to_dict(url)
    more: dict[str, Any] = {key: value for key, value in _ALIVE.items() if key not in told}
    name = told.get("application_name") or f"{socket.gethostname()[:40]}:{os.getpid()}"
    more["application_name"] = f"{SESSION_NAME}{name}"
    return psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, **more)


def try_lock(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection now holds the lock of the server that writes; that a server runs is known from then on."""
    connection.execute("SELECT pg_try_advisory_lock_shared(%s)", (PRESENCE_LOCK,))
    found = connection.execute("SELECT pg_try_advisory_lock(%s)", (ADVISORY_LOCK,)).fetchone()
    return bool(found and found[0])


def lock_holder(connection: psycopg.Connection[Any]) -> str:
    """Which session holds the lock of the server that writes, for people; empty = none does. Names of sessions are
    what their programs say: those of servers begin with `SESSION_NAME`."""
    found = connection.execute(
        "SELECT a.application_name, a.usename, a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 0 AND l.objid = %s AND l.database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())",
        (ADVISORY_LOCK,),
    ).fetchone()
    return "" if found is None else f"{found[0] or 'unnamed'} (role {found[1]}, PID {found[2]})"


def _compress_quickly(connection: psycopg.Connection[Any]) -> None:
    """Batches of orders and changes are large and short-lived: lz4 takes a fraction of pglz's time. PostgreSQL has it
    from version 14 on, if it was built with it."""
    found = connection.execute(
        "SELECT 1 FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"
    ).fetchone()
    if found:
        connection.execute("SET default_toast_compression = 'lz4'")


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _copy_line(row: Sequence[Any]) -> str:
    # text format of COPY: PostgreSQL 15 manual, COPY, "Text Format"
    return "\t".join(
        [
            str(value) if type(value) is int else "\\N" if value is None else str(value).translate(_ESCAPES)
            for value in row
        ]
    )


def _array(values: Sequence[Any], kind: str) -> str:
    """An array in PostgreSQL's text form (manual 8.15.6). psycopg's own takes ten times as long, seen with 3.3."""
    if kind == "text":
        return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"
    if kind == "bytea":
        return (
            "{" + ",".join(["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]) + "}"
        )
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """What goes wrong at PostgreSQL as errors of Tidemill: SiteError where it may work again."""
    try:
        yield
    except (psycopg.errors.NumericValueOutOfRange, psycopg.errors.ProgramLimitExceeded) as error:
        # a text that is too long for an index is one request's fault, and comes back with it
        raise too_large(name) from error
    except psycopg.DataError as error:
        if "NUL (0x00)" not in str(error):
            raise
        raise not_text(name) from error
    except (
        psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.IdleInTransactionSessionTimeout,
    ) as error:  # fmt: skip
        # OperationalError holds: connection lost (08, 57P), disk full (53100), out of memory, lock not available
        raise SiteError(
            f"PostgreSQL refused `{name}`: {str(error).strip().splitlines()[0] if str(error) else error!r}",
            hint="check that it runs and has free space; nothing was changed, try again",
        ) from error
