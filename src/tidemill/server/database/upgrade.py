"""What an upgrade of the database would do and how long it may take, and a copy of the database as it was.

Reads the migrations as data: which tables they copy, index or rewrite. Changes nothing.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import msgspec

from tidemill.errors import ConfigError, SiteError
from tidemill.files import replaced
from tidemill.server.database.queries import Migration, statements

#: Seconds per row. Measured with 500,000 rows of `submits` on a 2-core machine, busy with other work: SQLite 2.9,
#: 1.0 and 1.6 us a row, PostgreSQL 15 23, 1.2 and 51 us a row. The greater of both, rounded; an idle machine is faster.
ROW_S = {"copy": 25e-6, "index": 2e-6, "rewrite": 50e-6}
STEP_S = 0.05  #: of a migration besides its rows: locks, one durable commit
_COPY = re.compile(r"^INSERT INTO (\w+).*\bFROM (\w+)\b(?! WHERE name)", re.DOTALL)
_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)")
_REWRITE = re.compile(r"^(?:UPDATE|DELETE FROM) (\w+)")
_RENAME = re.compile(r"^ALTER TABLE (\w+) RENAME TO (\w+)")
_CREATE = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)")


class RowWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration does with the rows of a table: `copy`, `index` or `rewrite`."""

    act: str
    table: str
    rows: int
    seconds: float


class UpgradeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One migration."""

    schema: int
    purpose: str
    work: list[RowWork]
    seconds: float


class UpgradePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `server upgrade` would do. `rows`: of each table now; `seconds`: an estimate, of all steps."""

    before: int
    after: int
    size_bytes: int
    rows: dict[str, int]
    steps: list[UpgradeStep]
    seconds: float


class Found(NamedTuple):
    """What is in the database: its schema, its size, and how to count the rows of a table."""

    version: int
    size_bytes: int
    tables: list[str]
    count: Callable[[str], int]


def plan(found: Found, missing: list[Migration]) -> UpgradePlan:
    """The steps of the missing migrations. Cost: counts the rows of every table once."""
    rows = {table: found.count(table) for table in sorted(found.tables)}
    now = dict(rows)
    steps = []
    for each in missing:
        work = [
            RowWork(act=act, table=table, rows=count, seconds=round(count * ROW_S[act], 3))
            for act, table, count in _work(each.text, now)
        ]
        seconds = round(STEP_S + sum(one.seconds for one in work), 3)
        steps.append(UpgradeStep(schema=each.number, purpose=each.purpose, work=work, seconds=seconds))
    return UpgradePlan(
        before=found.version, after=found.version + len(missing), size_bytes=found.size_bytes, rows=rows, steps=steps,
        seconds=round(sum(step.seconds for step in steps), 1),
    )  # fmt: skip


def _work(script: str, now: dict[str, int]) -> Iterator[tuple[str, str, int]]:
    """What is done, to which table, of how many rows. `now`: rows of each table, kept up to date."""
    for statement in statements(script):
        if match := _COPY.match(statement):
            into, source = match.groups()
            count = now.get(source, 0)
            now[into] = now.get(into, 0) + count
            if count:
                yield "copy", source, count
        elif match := _INDEX.match(statement):
            if now.get(match[1], 0):
                yield "index", match[1], now[match[1]]
        elif match := _REWRITE.match(statement):
            if now.get(match[1], 0):
                yield "rewrite", match[1], now[match[1]]
        elif match := _RENAME.match(statement):
            now[match[2]] = now.pop(match[1], 0)
        elif match := _CREATE.match(statement):
            now[match[1]] = 0


def copy_of(path: Path, version: int) -> Path:
    """Where the copy of a database file is before it is upgraded from that schema."""
    return path.with_name(f"{path.name}.schema{version}")


def copy_database(path: Path, version: int, *, replace: bool = False) -> Path:
    """Make a durable copy of a database file that has no writer; its path. Raises ConfigError if there is one already,
    unless `replace`, or not enough free space."""
    to = copy_of(path, version)
    if to.exists() and not replace:
        raise ConfigError(
            f"there is a copy `{to}` already",
            hint="move it away, or, if it is good, `tidemill server upgrade --no-copy`",
        )
    size_bytes, free_bytes = path.stat().st_size, shutil.disk_usage(path.parent).free
    if free_bytes < size_bytes * 11 // 10:
        raise ConfigError(
            f"a copy of `{path}` needs {size_bytes} bytes, {free_bytes} are free",
            hint="free space, or copy it elsewhere yourself, then `tidemill server upgrade --no-copy`",
        )
    try:
        with replaced(to) as file, closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("VACUUM INTO ?", (file.name,))
    except (OSError, sqlite3.Error) as error:
        raise SiteError(f"a copy of `{path}` cannot be made: {error}", transient=False) from error
    return to


def dump_command(url: str, version: int) -> str:
    """What copies a PostgreSQL database, for a person; without the password that a URL may hold."""
    parts = urlsplit(url)
    if parts.password is not None:
        host = parts.netloc.rpartition("@")[2]
        parts = parts._replace(netloc=f"{parts.username}@{host}")
    return f"pg_dump --format=custom --file=tidemill-schema{version}.dump '{urlunsplit(parts)}'"
