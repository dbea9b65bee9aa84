"""History costs nothing: a request is the same work with 1,500 and with 6,000 ended campaigns, counted in steps.

SQLite runs statements as programs for its virtual machine; how many instructions a request takes does not depend on
the machine's load.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.history import Work, fill, pages

from tidemill import clock
from tidemill.server.database.queries import Dialect
from tidemill.server.database.store import Store

STEP = 20  #: instructions between two counts
JOBS = 4  #: of each ended campaign
FEW, MANY = 1_500, 6_000
SLACK = 100  #: instructions: the counting is coarse


class Counted:
    """A database with ended campaigns, whose connections count what they do."""

    def __init__(self, path: Path, campaigns: int) -> None:
        self.store = Store(path=path)
        self.store.init()
        session: Any = self.store.writer()
        session.begin()
        fill(
            session._connection.execute, Dialect.SQLITE, campaigns=campaigns, jobs=JOBS, now_us=clock.now_us()
        )
        session.commit()
        session.close()
        self.work = Work(self.store)
        self.reader: Any = self.store.reader()
        self.steps = 0
        sessions: list[Any] = [self.work.dispatcher.writer._session, self.reader]
        for each in sessions:
            self._count(each._connection)

    def _count(self, connection: sqlite3.Connection) -> None:
        def tick() -> int:
            self.steps += STEP
            return 0

        connection.set_progress_handler(tick, STEP)

    def cost(self, act: Callable[[], object]) -> int:
        self.steps = 0
        act()
        return self.steps

    def close(self) -> None:
        self.reader.close()
        self.work.dispatcher.close()


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    return [measured(tmp_path_factory.mktemp("db") / "t.db", campaigns) for campaigns in (0, FEW, MANY)]


def measured(path: Path, campaigns: int) -> dict[str, int]:
    """Instructions of each request on a database with so many ended campaigns."""
    world = Counted(path, campaigns)
    work = world.work
    found = {"start": world.cost(lambda: work.dispatcher.check_sites())}
    work.submit(0, jobs=400)
    work.sync(50)
    work.sync(50)
    found["submit"] = world.cost(lambda: work.submit(1))
    found["sync"] = world.cost(lambda: work.sync(50))
    work.drop_memory()
    found["start again"] = world.cost(lambda: work.dispatcher.check_sites())
    for name, page in pages(world.reader).items():
        found[f"page of {name}"] = world.cost(page)
    world.close()
    return found


def test_requests_cost_what_they_cost_in_an_empty_database(costs: list[dict[str, int]]) -> None:
    none, _, many = costs
    requests = ("submit", "sync", "start again")
    dear = {name: (none[name], many[name]) for name in requests if many[name] > 1.2 * none[name] + SLACK}
    assert dear == {}


def test_pages_cost_the_same_whatever_has_ended(costs: list[dict[str, int]]) -> None:
    _, few, many = costs
    dear = {name: (few[name], many[name]) for name in few if many[name] > 1.2 * few[name] + SLACK}
    assert dear == {}
