"""Stores of both databases."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.contract.server_world import SCRIPT, World

from tidemill.server.database.store import Store

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A real server; without its programs a failure in CI, else a skip."""
    pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory(prefix="tm-pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        options = {**os.environ, "POSTGRESQL_OPTIONS": "-c fsync=off"}
        started = subprocess.run(
            [SCRIPT, "start", f"{folder}/d"], env=options, capture_output=True, text=True, check=False
        )
        if started.returncode:
            reason = f"PostgreSQL does not start: {started.stderr.strip()}"
            pytest.skip(reason)
        yield started.stdout.strip()
        subprocess.run([SCRIPT, "stop", f"{folder}/d"], check=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return Store(path=tmp_path / "t.db")
    return Store(url=_schema_url(request.getfixturevalue("postgresql_url")))


@pytest.fixture
def postgresql_store(postgresql_url: str) -> Store:
    """For what SQLite does not have."""
    return Store(url=_schema_url(postgresql_url))


def _schema_url(url: str) -> str:
    """Of a schema of its own in the server."""
    schema = f"t{next(_NUMBERS)}"
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{url}&options={quote(f'-csearch_path={schema}')}"


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    store.init()
    made = World(store)
    yield made
    made.reader.close()
    made.dispatcher.close()
