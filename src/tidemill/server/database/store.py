"""The database: SQLite or PostgreSQL behind one small interface. The only module that imports a database driver.

One connection writes, any number read; a statement is named (`sql/*.sql`). Knows no table but the schema's version.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tidemill.errors import ConfigError, JobError, SiteError, install_hint
from tidemill.files import make_directories
from tidemill.server.database.mounts import refuse_network
from tidemill.server.database.queries import Dialect, RowShapes, Statement, load, migrations, statements
from tidemill.server.database.rows import SELECTED
from tidemill.server.database.upgrade import Found, UpgradePlan, plan

Row: TypeAlias = Any  #: the record that the statement names, else a named tuple of its columns
READER_CACHE_KB = 16_384
WRITER_CACHE_KB = 131_072
BUSY_MS = 10_000
CHECKPOINT_PAGES = 4_000  #: 16 MB of write-ahead log, then it is copied into the database


class Session(Protocol):
    """A connection that runs named statements."""

    dialect: Dialect

    def rows(self, name: str, /, **parameters: Any) -> list[Row]:
        """All rows of a named statement."""

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run a named statement that returns nothing."""

    def many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement declared `many` for all rows."""

    def begin(self) -> None:
        """Start a transaction."""

    def commit(self) -> None:
        """Make the transaction durable."""

    def rollback(self) -> None:
        """Undo it; harmless when there is none."""

    def savepoint(self) -> None:
        """A place inside the transaction to return to."""

    def release(self) -> None:
        """Forget the place."""

    def undo(self) -> None:
        """Return to the place."""

    def close(self) -> None:
        """Close the connection."""


def row(session: Session, name: str, /, **parameters: Any) -> Row | None:
    """The first row of a named statement, or None."""
    found = session.rows(name, **parameters)
    return found[0] if found else None


def values(session: Session, name: str, /, **parameters: Any) -> list[Any]:
    """The column of a named statement that has one."""
    return [each for (each,) in session.rows(name, **parameters)]


def value(session: Session, name: str, /, **parameters: Any) -> Any:
    """The only value of the only row that a named statement returns, or None without a row."""
    found = values(session, name, **parameters)
    return found[0] if found else None


@contextmanager
def transaction(session: Session) -> Iterator[None]:
    """Commit at the end, undo everything on an error."""
    session.begin()
    try:
        yield
        session.commit()
    except BaseException:
        session.rollback()
        raise


class Store:
    """A database at a path (SQLite) or a URL (`postgresql://...`)."""

    def __init__(self, *, path: Path | None = None, url: str | None = None, paired: bool = False) -> None:
        if (path is None) == (url is None):
            raise ConfigError("a store is either a file or a database URL")
        if paired and url is None:
            raise ConfigError(
                "two servers need one PostgreSQL database: SQLite serves one process",
                hint="set `database`, or remove `pair`",
            )
        self._paired = paired
        if url is not None and not url.startswith(("postgresql://", "postgres://")):
            raise ConfigError(
                f"database URL `{url.split(':', 1)[0]}:...` is not known",
                hint="write `postgresql://USER@HOST/DATABASE`, or none for SQLite",
            )
        self.path, self.url = path, url
        self.dialect = Dialect.SQLITE if path is not None else Dialect.POSTGRESQL
        self._queries = load(self.dialect, SELECTED)
        self.migrations = migrations(self.dialect)  #: all steps to the schema of this version

    def init(self) -> None:
        """Create the schema, or bring it up to date. Raises ConfigError for a database on a network file system."""
        if self.path is not None:
            refuse_network(self.path.parent)
        self.upgrade()

    @property
    def newest(self) -> int:
        """The schema that this version of Tidemill wants."""
        return len(self.migrations)

    def version(self) -> int:
        """The schema's version in the database; 0 = none."""
        session = self._alone()
        try:
            return _version(session)
        finally:
            session.close()

    def check(self) -> None:
        """Refuse a database on a network file system, from a newer version, or that wants an upgrade."""
        if self.path is not None:
            refuse_network(self.path.parent)
            if not self.path.exists():
                raise ConfigError(
                    f"there is no database `{self.path}`", hint="`tidemill server init` makes one"
                )
        known, found = len(self.migrations), self.version()
        if found == 0:
            raise ConfigError(f"database {self} is empty", hint="`tidemill server upgrade` fills it")
        if found > known:
            raise _newer(self, found, known)
        if found < known:
            raise ConfigError(
                f"database {self} has schema {found}, this version of tidemill wants {known}",
                hint="stop the server, copy the database, then `tidemill server upgrade`",
            )

    def upgrade(self) -> tuple[int, int]:
        """Apply the migrations that are missing, each in a transaction; the schema's version before and after."""
        session = self._alone()
        try:
            before = at = _version(session)
            if before > len(self.migrations):
                raise _newer(self, before, len(self.migrations))
            if before == len(self.migrations):
                return before, at
            in_the_way = getattr(session, "lock_alone", str)()  # of SQLite, the directory's lock is held
            if in_the_way:
                raise ConfigError(
                    f"{in_the_way}: an upgrade from schema {before} needs it alone",
                    hint="stop every server of this database, then try again",
                )
            for each in self.migrations[before:]:
                with transaction(session):
                    if _version(session) < each.number:  # else another upgrade was quicker
                        _migrate(session, each.number, each.text)
                at = each.number
            return before, at
        finally:
            session.close()

    def plan_upgrade(self) -> UpgradePlan:
        """What `upgrade` would do; changes nothing, also under a running server."""
        session = self.reader()
        try:
            before, known = _version(session), self.migrations
            if before > len(known):
                raise _newer(self, before, len(known))
            size_bytes = int(value(session, "database_bytes"))
            tables = [str(name) for name in values(session, "table_names")]
            found = Found(before, size_bytes, tables, partial(_count, session))
            return plan(found, known[before:])
        finally:
            session.close()

    def writer(self) -> Session:
        """The connection that writes. There must be one only; of a pair it writes while its server is active."""
        if self._paired:
            return _paired(str(self.url), self._queries)
        return self._alone()

    def _alone(self) -> Session:
        if self.path is not None:
            return _Sqlite(self.path, self._queries, reads=False)
        return _postgresql(str(self.url), self._queries, reads=False)

    def reader(self) -> Session:
        """A connection that reads."""
        if self.path is not None:
            return _Sqlite(self.path, self._queries, reads=True)
        return _postgresql(str(self.url), self._queries, reads=True)

    def __str__(self) -> str:
        return f"`{self.path}`" if self.path is not None else "on PostgreSQL"


def _count(session: Session, table: str) -> int:
    connection = session._connection  # type: ignore[attr-defined]  # of both classes below
    (found,) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
    return int(found)


def _newer(store: Store, found: int, known: int) -> ConfigError:
    return ConfigError(
        f"database {store} has schema {found}, made by a newer tidemill; this one knows {known}",
        hint="install that version again, or put the copy from before the upgrade back: docs/operations.md",
    )


def _version(session: Session) -> int:
    if not session.rows("has_schema"):
        return 0
    return int(value(session, "schema_version"))


def _migrate(session: Session, number: int, script: str) -> None:
    execute = session._execute  # type: ignore[attr-defined]  # of both classes below
    if number == 1:
        execute("CREATE TABLE tidemill_schema (version BIGINT NOT NULL)")
        execute("INSERT INTO tidemill_schema (version) VALUES (0)")
    for statement in statements(script):
        execute(statement)
    session.run("set_schema_version", version=number)


class _Sqlite:
    dialect = Dialect.SQLITE

    def __init__(self, path: Path, queries: dict[str, Statement], *, reads: bool) -> None:
        self._queries, self._shapes = queries, RowShapes(queries)
        try:
            if not reads:
                make_directories(path.parent, 0o077)
                path.touch(mode=0o600, exist_ok=True)
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            self._execute("PRAGMA journal_mode = WAL")
            self._execute("PRAGMA synchronous = FULL")
            self._execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            self._execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._execute("PRAGMA temp_store = MEMORY")
            self._execute(f"PRAGMA cache_size = -{READER_CACHE_KB if reads else WRITER_CACHE_KB}")
            if reads:
                self._execute("PRAGMA query_only = ON")
        except (sqlite3.Error, OSError) as error:
            raise SiteError(f"database `{path}` cannot be opened: {error}", transient=False) from error

    def _execute(self, text: str) -> None:
        self._connection.execute(text)

    def rows(self, name: str, /, **parameters: Any) -> list[Row]:
        cursor = self._execute_named(name, parameters)
        return self._shapes.shape(name, cursor.fetchall(), cursor.description)

    def run(self, name: str, /, **parameters: Any) -> None:
        self._execute_named(name, parameters)

    def _execute_named(self, name: str, parameters: dict[str, Any]) -> sqlite3.Cursor:
        query = self._queries[name]
        for each in query.lists:
            parameters[each] = json.dumps(parameters[each])
        with _sqlite_errors(name):
            return self._connection.execute(query.text, parameters)

    def many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            with _sqlite_errors(name):
                self._connection.executemany(self._queries[name].text, rows)

    def begin(self) -> None:
        with _sqlite_errors("begin"):
            self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        with _sqlite_errors("commit"):
            self._execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            with _sqlite_errors("rollback"):
                self._execute("ROLLBACK")

    def savepoint(self) -> None:
        with _sqlite_errors("savepoint"):
            self._execute("SAVEPOINT one")

    def release(self) -> None:
        with _sqlite_errors("release"):
            self._execute("RELEASE one")

    def undo(self) -> None:
        if (
            self._connection.in_transaction
        ):  # SQLite itself rolls back all on some errors, such as a full disk
            with _sqlite_errors("undo"):
                self._execute("ROLLBACK TO one")
                self._execute("RELEASE one")

    def close(self) -> None:
        self._connection.close()


_UNSERVED = {
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
}  # fmt: skip


_IO_HINT = "check the server's file system"
_HINTS = {
    sqlite3.SQLITE_FULL: "free space on the server's file system",
    sqlite3.SQLITE_BUSY: "another program holds the database",
    sqlite3.SQLITE_LOCKED: "another program holds the database",
    sqlite3.SQLITE_NOMEM: "the server's machine is out of memory",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: stop the server and restore it from a copy",
    sqlite3.SQLITE_NOTADB: "the file is damaged: stop the server and restore it from a copy",
}


def too_large(name: str) -> JobError:
    """For a number or text that does not fit the column that it is for."""
    return JobError(
        f"a number or text of the request is too large for the database (`{name}`)", hint="was it meant?"
    )


def not_text(name: str) -> JobError:
    """For a text with the character NUL, which PostgreSQL does not take."""
    return JobError(f"a text of the request holds the character NUL (`{name}`)", hint="leave it out")


@contextmanager
def _sqlite_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OverflowError as error:  # an integer of more than 64 bits
        raise too_large(name) from error
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _UNSERVED:
            raise  # wrong SQL: a bug
        raise SiteError(
            f"database refused `{name}`: {error}",
            hint=_HINTS.get(error.sqlite_errorcode & 0xFF, _IO_HINT) + "; nothing was changed, try again",
        ) from error


def _postgresql(url: str, queries: dict[str, Statement], *, reads: bool) -> Session:
    try:
        from tidemill.server.database.postgresql import Postgresql
    except ImportError as error:
        raise ConfigError(
            f"PostgreSQL needs the package `psycopg`: {error}", hint=install_hint("postgresql")
        ) from error
    return Postgresql(url, queries, reads=reads)


def _paired(url: str, queries: dict[str, Statement]) -> Session:
    _postgresql(url, queries, reads=True).close()  # raises if the package is missing
    from tidemill.server.database.paired import PairedSession

    return PairedSession(url, queries)


def chunks(rows: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """The sequence in pieces."""
    return (rows[at : at + size] for at in range(0, len(rows), size))
