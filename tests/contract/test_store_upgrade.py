"""A database with the first schema, filled and in the middle of its work, is upgraded and goes on; both databases."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.server_world import SIM, World, done, key_of, leases
from tests.contract.server_world import Site as OldSite

from tidemill.errors import ConfigError
from tidemill.model.job import JobSpec
from tidemill.server.core import campaign_names
from tidemill.server.database import store as database
from tidemill.server.database.queries import Dialect, Migration, migrations, statements
from tidemill.server.database.store import Store
from tidemill.server.database.upgrade import copy_database, copy_of
from tidemill.server.errors import RequestError
from tidemill.server.read import api_pages, feed
from tidemill.server.read.job_search import Filter
from tidemill.wire.api import ActionRequest, DoneReport, LeaseOrder, PayloadUsage

FILLED = Path(__file__).parents[1] / "fixtures" / "schemas" / "filled.sql"
FIRST = 1
NEXT_LEASE = "SELECT value FROM meta WHERE name = 'next_lease'"
UPGRADES = 6
LATER = Migration(
    len(migrations(Dialect.SQLITE)) + 1,
    """CREATE TABLE lost_trial (
  site BIGINT NOT NULL, job BIGINT NOT NULL, done TEXT NOT NULL, trial TEXT, PRIMARY KEY (site, job)
);
INSERT INTO lost_trial (site, job, done) SELECT site, job, done FROM lost_results;
DROP TABLE lost_results;
ALTER TABLE lost_trial RENAME TO lost_results;
CREATE INDEX jobs_trial ON jobs (created_us);
UPDATE meta SET value = value + 1 WHERE name = 'next_lease';
""",
    "A trial.",
)
A_LATER_VERSION = f"""
import sys
from tidemill.cli.main import main
from tidemill.server.database import store
from tidemill.server.database.queries import Migration, migrations
store.migrations = lambda dialect: [*migrations(dialect), Migration(*{tuple(LATER)!r})]
sys.exit(main(sys.argv[1:]))
"""
ODD_OWNER = 'o\'brien \\ "☃" %s'


def rows_of(dialect: Dialect) -> list[str]:
    """The statements that fill a database of the first schema."""
    return [
        re.sub(r"<<(.*?)>>", lambda found: _bytes(found[1], dialect), each)
        for each in statements(FILLED.read_text(encoding="utf-8"))
    ]


def _bytes(text: str, dialect: Dialect) -> str:
    hexadecimal = text.encode().hex()
    return f"X'{hexadecimal}'" if dialect is Dialect.SQLITE else f"'\\x{hexadecimal}'::bytea"


def fill(store: Store) -> None:
    """Make the database of a server in the middle of its work, with the first schema."""
    session: Any = store.writer()
    first = migrations(store.dialect)[0]
    with database.transaction(session):
        database._migrate(session, first.number, first.text)
        for statement in rows_of(store.dialect):
            session._execute(statement)
    session.close()


def table(store: Store, query: str) -> list[tuple[Any, ...]]:
    reader: Any = store.reader()
    try:
        return sorted(reader._connection.execute(query).fetchall())
    finally:
        reader.close()


@pytest.fixture
def old(store: Store) -> Store:
    fill(store)
    return store


def later(store: Store) -> Store:
    """The store as a later version of Tidemill has it, with one migration more."""
    store.migrations.append(LATER)
    return store


def upgrade_command(home: Path, *words: str, verb: str = "upgrade") -> list[str]:
    """A command of the later version, for the server in a directory."""
    config = home / "server.toml"
    config.touch()
    return [
        sys.executable, "-c", A_LATER_VERSION, "server", verb, "--config", str(config), "--home", str(home), *words,
    ]  # fmt: skip


def run_upgrade(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = upgrade_command(home, *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def upgraded(old: Store) -> Iterator[World]:
    assert later(old).upgrade() == (FIRST, LATER.number)
    world = World(old)
    yield world
    world.reader.close()
    world.dispatcher.close()


def test_what_was_there_is_shown(upgraded: World) -> None:
    rows = api_pages.jobs(upgraded.reader, Filter(), before=None, limit=100).jobs
    states = {row.id: row.state for row in rows}
    assert states == {
        1: "WAITING", 2: "RUNNING", 3: "COMPLETED", 4: "RUNNING", 5: "WAITING", 6: "PARTIAL", 7: "FAILED",
        8: "CANCELED", 9: "WAITING", 10: "RUNNING", 11: "WAITING",
    }  # fmt: skip
    details = {number: upgraded.job(number) for number in states}
    assert details[5].row.name == "o'brien \\ ☃"
    assert details[8].row.reason == 'canceled: "why" \\ ☃ %s :name'
    assert details[11].spec.command == ["/bin/echo", 'a\\b"c☃']
    assert [each.url for each in details[6].outputs] == ["file:///data/a%20b/☃.root"]
    assert api_pages.campaign(upgraded.reader, key_of(upgraded.reader, "odd.3+")).owner == ODD_OWNER
    (failure,) = [each for each in api_pages.failures(upgraded.reader, limit=9).failures if each.job == 6]
    assert failure.evidence.stderr_tail.endswith("☃ \\ end")
    changes, reached = feed.changes(upgraded.reader, 0, None)
    assert ([each.job for each in changes], reached) == ([2, 7], 4)
    for site in api_pages.sites(upgraded.reader):
        assert (site.name, site.lost) in {("s", 0), ("gone-site", 1), ("named.only", 0)}


def test_names_are_their_owners_after_the_upgrade(upgraded: World) -> None:
    before = key_of(upgraded.reader, "odd.3+")
    upgraded.submit(SIM, campaign="odd.3+", owner="another")
    mine = campaign_names.find(upgraded.reader, "another/odd.3+", None)
    assert mine.number not in (before.number, 0)
    assert campaign_names.find(upgraded.reader, f"{ODD_OWNER}/odd.3+", None) == before
    with pytest.raises(RequestError, match="several owners"):
        key_of(upgraded.reader, "odd.3+")


def test_an_old_site_goes_on_where_it_was(upgraded: World) -> None:
    site = OldSite(upgraded, "s")
    site.epoch, site.n, site.have = 3, 7, 3
    (order,) = [each for each in site.sync(want=0) if isinstance(each, LeaseOrder)]
    assert (order.n, order.lease, order.job) == (4, 1, 2)
    site.sync(done(order), want=0)
    assert upgraded.state(2) == "COMPLETED"
    late = DoneReport(n=0, lease=1, job=2, first=0, count=10, outputs=False, usage=PayloadUsage(payloads=1))
    site.sync(late, want=0)
    assert upgraded.job(2).row.events_done == 10
    more = {each.job: each for each in leases(site.sync())}
    assert {1, 10} <= more.keys()
    assert min(each.lease for each in more.values()) >= 9
    site.sync(done(more[1]))
    assert upgraded.state(1) == "COMPLETED"
    assert {each.job for each in leases(site.sync())} | more.keys() >= {1, 5, 10}


def test_a_lost_site_that_comes_back_gets_its_results_back(upgraded: World) -> None:
    site = OldSite(upgraded, "gone-site")
    site.epoch, site.n, site.have = 9, 20, 11
    site.sync(want=0)
    assert not next(each for each in api_pages.sites(upgraded.reader) if each.name == "gone-site").lost


def test_ended_jobs_are_retried_and_new_ones_submitted(upgraded: World) -> None:
    reply = upgraded.dispatcher.handle_retry(ActionRequest(jobs=[7, 8], key="again"))
    assert (reply.changed, upgraded.state(7), upgraded.state(8)) == (2, "RUNNING", "WAITING")
    assert upgraded.job(7).row.events_done == 9
    assert upgraded.submit(JobSpec(app="sim"), JobSpec(app="new"), campaign="fresh") == [12, 13]
    site = OldSite(upgraded, "s", outputs={"sim": [], "new": []})
    site.epoch, site.n, site.have = 3, 7, 4
    assert {7, 8, 12, 13} <= {each.job for each in leases(site.sync())}


def test_sums_agree_with_the_rows_that_they_sum(upgraded: World) -> None:
    upgraded.dispatcher.handle_retry(ActionRequest(campaign="old_2", key="again"))
    store = upgraded.store
    counted = table(store, "SELECT kind, state, site, COUNT(*) FROM jobs GROUP BY kind, state, site")
    assert [row for row in table(store, "SELECT kind, state, site, jobs FROM counts") if row[3]] == counted
    owners = {name for (name,) in table(store, "SELECT name FROM owners")}
    assert owners == {"ada", "bob", ODD_OWNER}
    assert {owner for (owner,) in table(store, "SELECT owner FROM stored")} == owners
    keys = table(store, "SELECT owner, key, first_job FROM submits")
    assert keys == [("ada", "key 1 ☃", 1), ("bob", "key-2", 7), (ODD_OWNER, "key-3", 11)]


def test_a_later_migration_is_applied_once_however_many_upgrades_begin_at_once(old: Store) -> None:
    """On PostgreSQL one upgrade refuses the others while it holds the lock, and they try again."""
    leases = table(old, NEXT_LEASE)[0][0]
    together = threading.Barrier(UPGRADES)
    reached: list[int] = []

    def upgrade() -> None:
        store, ends_s = later(Store(path=old.path, url=old.url)), time.monotonic() + 60
        together.wait()
        while time.monotonic() < ends_s:
            try:
                reached.append(store.upgrade()[1])
            except ConfigError:
                time.sleep(0.01)
            else:
                return

    threads = [threading.Thread(target=upgrade) for _ in range(UPGRADES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reached == [LATER.number] * UPGRADES
    assert (old.version(), table(old, NEXT_LEASE)) == (LATER.number, [(leases + 1,)])


def test_a_migration_that_fails_changes_nothing(old: Store) -> None:
    broken = LATER._replace(text=LATER.text + "INSERT INTO no_such_table VALUES (1);\n")
    old.migrations.append(broken)
    before = table(old, NEXT_LEASE)
    with pytest.raises(Exception, match="no_such_table"):
        old.upgrade()
    assert (old.version(), table(old, NEXT_LEASE)) == (FIRST, before)


def test_a_plan_names_the_rows_and_changes_nothing(old: Store) -> None:
    plan = later(old).plan_upgrade()
    assert old.version() == FIRST
    assert [(step.schema, step.purpose) for step in plan.steps] == [(LATER.number, LATER.purpose)]
    assert (plan.rows["jobs"], plan.rows["leases"]) == (11, 7)
    assert plan.seconds > 0
    work = {(each.act, each.table): each.rows for step in plan.steps for each in step.work}
    assert work == {
        ("copy", "lost_results"): 1,
        ("index", "jobs"): 11,
        ("rewrite", "meta"): plan.rows["meta"],
    }
    old.upgrade()
    after = old.plan_upgrade()
    assert (after.steps, after.before, after.seconds) == ([], LATER.number, 0)


def test_the_command_line_shows_the_plan_and_copies_before_it_upgrades(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    store = Store(path=tmp_path / "tidemill.db")
    fill(store)
    shown = run_upgrade(tmp_path, "--dry-run")
    assert shown.returncode == 0
    assert f"schema {FIRST} -> {LATER.number}" in shown.stdout
    assert "copy 1 rows of lost_results" in shown.stdout
    assert f"tidemill.db.schema{FIRST}" in shown.stdout
    assert store.version() == FIRST
    done = run_upgrade(tmp_path)
    assert (done.returncode, "to go back" in done.stderr) == (0, True), done.stderr
    copy = Store(path=tmp_path / f"tidemill.db.schema{FIRST}")
    assert (store.version(), copy.version()) == (LATER.number, FIRST)
    assert run_upgrade(tmp_path, "--dry-run").returncode == 0
    again = run_upgrade(tmp_path)
    assert (again.returncode, "already" in again.stderr) == (0, True), again.stderr


def test_a_server_upgrades_its_database_at_the_start_only_if_it_is_told_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    store = Store(path=tmp_path / "tidemill.db")
    fill(store)
    command = upgrade_command(tmp_path, verb="run")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, store.version()) == (2, FIRST)
    assert "tidemill server upgrade" in refused.stderr
    with subprocess.Popen([*command, "--upgrade"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert any("server.started" in line for line in server.stderr)
        server.terminate()
    assert store.version() == LATER.number


def test_a_copy_that_is_there_is_not_overwritten_and_no_upgrade_begins(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    store = Store(path=tmp_path / "tidemill.db")
    fill(store)
    copy = tmp_path / f"tidemill.db.schema{FIRST}"
    copy.write_text("precious")
    refused = run_upgrade(tmp_path)
    assert (refused.returncode, copy.name in refused.stderr) == (2, True), refused.stderr
    assert (store.version(), copy.read_text()) == (FIRST, "precious")
    newer = copy_database(
        tmp_path / "tidemill.db", FIRST, replace=True
    )  # as a server does that upgrades itself
    assert Store(path=newer).version() == FIRST
    assert run_upgrade(tmp_path, "--no-copy").returncode == 0
    assert store.version() == LATER.number


def test_the_copy_made_before_is_the_database_as_it_was(tmp_path: Path) -> None:
    store = later(Store(path=tmp_path / "t.db"))
    fill(store)
    before = table(store, "SELECT * FROM jobs")
    copy = copy_database(tmp_path / "t.db", FIRST)
    assert copy == copy_of(tmp_path / "t.db", FIRST)
    assert copy.stat().st_mode & 0o777 == 0o600
    store.upgrade()
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"t.db{end}").unlink(missing_ok=True)
    copy.rename(tmp_path / "t.db")  # as docs/operations.md says
    assert store.version() == FIRST
    assert table(store, "SELECT * FROM jobs") == before
    with sqlite3.connect(tmp_path / "t.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert store.upgrade() == (FIRST, LATER.number)
