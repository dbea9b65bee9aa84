"""The store's own rules: named SQL, refused file systems, a full disk, group commit, clocks."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import tidemill.server
from tidemill.errors import ConfigError, SiteError
from tidemill.model.job import JobSpec
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database import rows
from tidemill.server.database.mounts import refuse_network
from tidemill.server.database.queries import Dialect, load, migrations, parse, statements
from tidemill.server.database.rows import SELECTED
from tidemill.server.database.store import Store
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import RequestError
from tidemill.wire.api import Capacity, PayloadUsage, SubmitRequest, SyncRequest

SOURCE = Path(tidemill.server.__file__).parent


def jobs_of(dispatcher: Dispatcher) -> int:
    totals: dict[str, int] = dict(dispatcher.writer.write(lambda work: work.session.rows("totals")))
    return totals["jobs"]


def test_both_databases_know_the_same_statements_and_all_are_used() -> None:
    of_sqlite, of_postgresql = (load(dialect, SELECTED) for dialect in Dialect)
    assert set(of_sqlite) == set(of_postgresql)
    code = "".join(file.read_text() for file in SOURCE.rglob("*.py"))
    assert [name for name in of_sqlite if f'"{name}"' not in code] == []
    assert all(query.purpose.endswith(".") for query in of_sqlite.values())
    assert all(re.fullmatch(r"[A-Z].*[a-z)]\.", each.purpose) for each in migrations(Dialect.SQLITE))


def test_statements_are_spelled_for_each_database() -> None:
    text = "-- name: x many(id bigint, s text)\n-- Why.\nUPDATE t SET s = v.s FROM v WHERE t.id = v.id;\n"
    assert parse(text, Dialect.SQLITE)[0].text == "UPDATE t SET s = ?2 WHERE t.id = ?1"
    assert parse(text, Dialect.POSTGRESQL)[0].text == (
        "UPDATE t SET s = v.s FROM unnest(%s::bigint[], %s::text[]) AS v(id, s) WHERE t.id = v.id"
    )
    text = "-- name: y\n-- Why.\nSELECT 1 FROM t WHERE id {in:ids} AND a = (:a);\n"
    assert parse(text, Dialect.SQLITE)[0].text.endswith(
        "id IN (SELECT value FROM json_each(:ids)) AND a = (:a)"
    )
    assert parse(text, Dialect.POSTGRESQL)[0].text.endswith("id = ANY(%(ids)s) AND a = (%(a)s)")
    with pytest.raises(ValueError, match="does not start an SQL block"):
        parse("-- name: z and more\nSELECT 1", Dialect.SQLITE)


def test_migrations_are_numbered_and_split_into_statements() -> None:
    found = migrations(Dialect.SQLITE)
    assert [each.number for each in found] == list(range(1, 1 + len(found)))
    assert statements("-- a;\nCREATE TABLE a (\n x TEXT); \nINSERT INTO a VALUES (';x');") == [
        "CREATE TABLE a (\n x TEXT)",
        "INSERT INTO a VALUES (';x')",
    ]


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "cifs", "fuse", "fuse.sshfs"])
def test_a_database_on_a_network_file_system_is_refused(kind: str, tmp_path: Path) -> None:
    home = tmp_path / "a b"
    home.mkdir()
    point = str(home).replace(" ", "\\040")
    table = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:9 / {point} rw shared:1 - {kind} server:/x rw\n"
        "3 1 0:8 / /ab rw - tmpfs t rw\n"
    )
    with pytest.raises(ConfigError, match=f"network file system: `{kind}`"):
        refuse_network(home, table)
    refuse_network(tmp_path, table)


def test_an_unknown_database_url_is_refused_without_telling_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        Store(url="mysql://me:secret@host/db")
    assert "secret" not in str(caught.value)


@pytest.fixture
def dispatcher(tmp_path: Path) -> Dispatcher:
    store = Store(path=tmp_path / "t.db")
    store.init()
    return Dispatcher(store)


def submit(key: str, jobs: int = 1, *, after: list[int | str] | None = None) -> SubmitRequest:
    return SubmitRequest(key=key, campaign="c", jobs=[JobSpec(app="sim", after=after or [])], repeat=[jobs])


def test_a_full_disk_refuses_changes_nothing_and_recovers(dispatcher: Dispatcher) -> None:
    dispatcher.handle_submit(submit("a"))
    session = dispatcher.writer._session
    (pages,) = session._connection.execute("PRAGMA page_count").fetchone()  # type: ignore[attr-defined]
    session._connection.execute(f"PRAGMA max_page_count = {pages + 5}")  # type: ignore[attr-defined]
    with pytest.raises(SiteError, match="full"):
        dispatcher.handle_submit(submit("b", 10_000))
    full_then = dispatcher.writer.full
    assert full_then
    assert jobs_of(dispatcher) == 1
    session._connection.execute("PRAGMA max_page_count = 1000000")  # type: ignore[attr-defined]
    assert dispatcher.handle_submit(submit("b", 10_000)).first_job == 2
    full_now = dispatcher.writer.full
    assert not full_now
    dispatcher.close()


def test_requests_that_wait_together_are_committed_together_and_refused_alone(dispatcher: Dispatcher) -> None:
    gate, inside = threading.Event(), threading.Event()
    dispatcher.start()

    def hold(work: UnitOfWork) -> bool:
        inside.set()
        return gate.wait(10)

    first = dispatcher.writer.submit(hold)
    assert inside.wait(10)  # the writer has begun its first group, which holds nothing else
    commits = []
    dispatcher.writer.listeners.append(lambda: commits.append(1))
    results: dict[str, object] = {}

    def one(key: str, after: list[int | str]) -> None:
        try:
            results[key] = dispatcher.handle_submit(submit(key, after=after)).count
        except RequestError as error:
            results[key] = error.message

    threads = [threading.Thread(target=one, args=each) for each in (("a", []), ("b", [99]), ("c", []))]
    for thread in threads:
        thread.start()
    while dispatcher.writer._queue.qsize() < 3:
        pass
    gate.set()
    for thread in threads:
        thread.join()
    assert first.result() is True
    assert (results["a"], results["c"]) == (1, 1)
    assert "job 99, which does not exist" in str(results["b"])
    assert jobs_of(dispatcher) == 2
    dispatcher.close()
    assert len(commits) <= 3


def test_a_damaged_database_is_an_error_of_the_site_not_a_bug(dispatcher: Dispatcher, tmp_path: Path) -> None:
    dispatcher.handle_submit(submit("a", 5_000))
    dispatcher.close()
    file = tmp_path / "t.db"
    whole = file.read_bytes()
    assert len(whole) > 40 * 4096
    session = Store(path=file).reader()
    with file.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(bytes(range(256)) * ((len(whole) - 4096) // 256))
    with pytest.raises(SiteError, match=r"malformed|not a database") as caught:
        session.rows("totals")
    session.close()
    assert "damaged" in (caught.value.hint or "")


def test_a_bug_in_one_request_is_its_own_only(dispatcher: Dispatcher) -> None:
    dispatcher.start()
    with pytest.raises(ZeroDivisionError):
        dispatcher.writer.write(lambda work: 1 // 0)
    assert dispatcher.handle_submit(submit("a")).count == 1
    dispatcher.close()


def test_a_wall_clock_that_jumps_loses_no_site(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    now = {"wall": 1_000_000_000_000_000, "monotonic": 0.0}
    dispatcher = Dispatcher(
        store,
        DispatchRules(site_lost_s=600),
        server_clock=ServerClock(monotonic_s=lambda: now["monotonic"], wall_us=lambda: int(now["wall"])),
    )
    capacity = Capacity(
        want_core_s=0, want_ranges_max=0, slot_cores_max=1, slot_memory_mb_max=1, devices={}, event_s={}, nodes=1,
        busy_cores=0, adhoc=False,
    )  # fmt: skip
    request = SyncRequest(
        site="s", epoch=1, host="h", version="1", reports=[], have=0, offers=None, capacity=capacity
    )
    at = [dispatcher.handle_sync(request).now_us]
    for jump in (10**15, -2 * 10**15):
        now["wall"] += jump
        assert dispatcher.check_sites() == []
        at.append(dispatcher.handle_sync(request).now_us)
    assert at == [10**15, 10**15 + 10_000_000, 10**15 + 10_000_000]  # bounded forwards, never backwards
    now["monotonic"] = 601.0
    assert dispatcher.check_sites() == ["s"]
    dispatcher.close()


def test_usage_adds_up_and_keeps_the_largest_memory() -> None:
    text = rows.add_usage("", PayloadUsage(payloads=1, wall_us=5, rss_kb=7))
    text = rows.add_usage(text, PayloadUsage(payloads=2, wall_us=6, rss_kb=3))
    assert re.fullmatch(r"[\d ]+", text)
    assert rows.usage_of(text) == PayloadUsage(payloads=3, wall_us=11, rss_kb=7)
