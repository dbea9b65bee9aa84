"""Migration 0010 on a database that has history: its running sums are what is stored, and numbers go on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tidemill.model.job import JobSpec
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.queries import Dialect, migrations, statements
from tidemill.server.database.store import Store
from tidemill.server.read import api_pages
from tidemill.wire.api import SubmitRequest

SCHEMA = 9  #: the last before there were sums
ROWS = """
CREATE TABLE tidemill_schema (version BIGINT NOT NULL);
INSERT INTO tidemill_schema (version) VALUES (9);
INSERT INTO campaigns (id, name, owner, shares, created_us, jobs, events, events_done, events_failed)
VALUES (1, 'a', 'ada', 1, 1, 3, 30, 19, 1), (2, 'b', 'bob', 1, 1, 1, 5, 0, 0);
INSERT INTO kinds (id, campaign, app, cores, memory_mb, devices, nodes, ranks)
VALUES (1, 1, 'sim', 0, 0, '{}', 0, 0), (2, 2, 'sim', 0, 0, '{}', 0, 0);
INSERT INTO counts (kind, state, site, jobs) VALUES (1, 0, 0, 0), (1, 2, 7, 2), (1, 4, 7, 1), (2, 0, 0, 1);
INSERT INTO failure_counts (campaign, class, failures) VALUES (1, 'payload', 4);
INSERT INTO specs (id, hash, body) VALUES (12, x'00', CAST('{"app":"sim"}' AS BLOB));
INSERT INTO jobs (id, kind, spec, state, site, pin, place, ready, rank, events, seed_base, created_us, name, blocked)
VALUES (1, 2, 12, 0, 0, 0, 0, 1, 0, 5, 1, 77, '', 0);
INSERT INTO submits (owner, key, digest, campaign, first_job, count) VALUES ('bob', 'k', x'00', 'b', 1, 1);
UPDATE meta SET value = 2 WHERE name = 'next_job';
"""


def test_a_database_with_history_gets_its_sums(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    old = sqlite3.connect(path)
    for each in migrations(Dialect.SQLITE)[:SCHEMA]:
        for statement in statements(each.text):
            old.execute(statement)
    old.executescript(ROWS)
    old.commit()
    old.close()
    store = Store(path=path)

    assert store.upgrade()[0] == SCHEMA

    session = store.reader()
    totals: dict[str, int] = dict(session.rows("totals"))
    assert {name: number for name, number in totals.items() if number} == {
        "campaigns": 2, "jobs": 4, "events": 35, "events_done": 19, "events_failed": 1, "state/0": 1, "state/2": 2,
        "state/4": 1, "site/7/2": 2, "site/7/4": 1, "failures/payload": 4,
    }  # fmt: skip
    of_ada: dict[str, int] = dict(session.rows("totals_of_owner", owner="ada"))
    assert (of_ada["jobs"], of_ada["state/4"]) == (3, 1)
    dispatcher = Dispatcher(store)
    request = SubmitRequest(key="n", campaign="c", jobs=[JobSpec(app="sim", params={"x": 1})], owner="ada")
    assert dispatcher.handle_submit(request).first_job == 2
    assert api_pages.job(session, 2, cache={}, silent=set()).spec.params == {"x": 1}
    assert session.rows("jobs_by_id", ids=[2])[0][2] == 13, "numbers of specifications go on"
    assert api_pages.counts(session).jobs == 5
    dispatcher.close()
    session.close()
