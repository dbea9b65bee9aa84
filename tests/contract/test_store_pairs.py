"""Two servers on one PostgreSQL: which of them may write, and what a paused or cut-off one can still do."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.server_world import SIM
from tests.worlds.services.pair_world import Database

from tidemill.config.server import ServerConfig
from tidemill.errors import ConfigError, SiteError
from tidemill.server.audit.audit_log import FOLDER, AuditLog
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.paired import PairedSession
from tidemill.server.database.store import Store
from tidemill.server.errors import StandbyError
from tidemill.server.identity.access import Authenticator
from tidemill.server.pair import ActiveParts, PairedRole
from tidemill.wire.api import SubmitRequest

pytestmark = pytest.mark.postgresql


@pytest.fixture
def url(postgresql_store: Store) -> str:
    postgresql_store.init()
    assert postgresql_store.url is not None
    return postgresql_store.url


@pytest.fixture
def server(url: str) -> Iterator[Callable[[], Dispatcher]]:
    """Makes servers of a pair, without their HTTP."""
    made: list[Dispatcher] = []

    def make() -> Dispatcher:
        made.append(Dispatcher(Store(url=url, paired=True)))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close()


def session(server: Dispatcher) -> PairedSession:
    found = server.writer.session
    assert isinstance(found, PairedSession)
    return found


def takes(server: Dispatcher) -> bool:
    """Whether a server becomes the active one: PostgreSQL frees a lock some time after its connection was closed."""
    until_s = time.monotonic() + 15
    while not session(server).become_active():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


def submit(server: Dispatcher, key: str) -> int:
    return server.handle_submit(SubmitRequest(key=key, campaign="c", jobs=[SIM])).first_job


def end_backend(server: Dispatcher) -> None:
    """What PostgreSQL does to a session that is silent for too long."""
    import psycopg

    connection = session(server)._inner.connection
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))


def test_one_of_two_servers_writes_and_the_other_refuses_until_the_first_resigns(
    server: Callable[[], Dispatcher],
) -> None:
    one, two = server(), server()
    with pytest.raises(StandbyError):
        submit(one, "k")
    assert session(one).become_active()
    assert not session(two).become_active()
    submit(one, "k")
    with pytest.raises(StandbyError):
        submit(two, "l")
    assert not two.writer.full
    session(one).resign()
    assert takes(two)
    assert submit(two, "l") == 2
    assert session(two).term == 2


def test_a_server_that_lost_its_session_within_a_transaction_has_committed_nothing_of_it(
    server: Callable[[], Dispatcher],
) -> None:
    one, two = server(), server()
    assert session(one).become_active()
    inside, taken = threading.Event(), threading.Event()

    def late() -> None:
        def act(work: object) -> None:
            one.writer.memory  # noqa: B018
            inside.set()
            taken.wait(20)
            work.session.run("set_follower", name="follower/late", position=1)  # type: ignore[attr-defined]

        with pytest.raises(SiteError):
            one.writer.write(act)

    paused = threading.Thread(target=late)
    paused.start()
    inside.wait(20)
    end_backend(one)  # the server sleeps through it
    assert session(two).become_active()
    submit(two, "k")
    taken.set()
    paused.join(20)
    assert not session(one).may_write
    reader = Store(url=session(one)._url).reader()
    assert reader.rows("followers") == []
    reader.close()
    with pytest.raises(StandbyError):
        submit(one, "l")


def test_what_the_writer_remembers_is_read_again_after_the_other_server_wrote(
    server: Callable[[], Dispatcher],
) -> None:
    one, two = server(), server()
    assert session(one).become_active()
    submit(one, "k")
    end_backend(one)
    assert not session(one).beat()
    assert session(two).become_active()
    submit(two, "l")
    session(two).resign()
    assert takes(one)
    submit(one, "m")
    assert sum(one.writer.memory.open.of_kind[1].values()) == 3


def test_a_take_over_by_whom_the_lock_did_not_stop_ends_the_writing_of_the_first(
    server: Callable[[], Dispatcher], url: str
) -> None:
    """As a pooler that hands one session's lock to another would allow."""
    import psycopg

    one = server()
    assert session(one).become_active()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE meta SET value = value + 1 WHERE name = 'server_term'")
    with pytest.raises(StandbyError):
        submit(one, "k")
    assert not session(one).may_write


def test_postgresql_ends_the_session_of_a_server_that_shows_no_sign_of_life(
    server: Callable[[], Dispatcher],
) -> None:
    one, two = server(), server()
    assert session(one).become_active()
    began_s = time.monotonic()
    while not session(two).become_active():
        assert time.monotonic() < began_s + 15, "a silent server keeps its lock"
        time.sleep(0.2)
    with pytest.raises((StandbyError, SiteError)):
        submit(one, "k")
    with pytest.raises(StandbyError):
        submit(one, "k")


def test_a_server_that_stops_in_the_middle_of_a_large_answer_keeps_the_lock_no_longer(
    short_path: Path,
) -> None:
    """PostgreSQL is sending and counts it as busy, not as silent: TCP has to end the connection."""
    short_path.chmod(0o711)
    database = Database(short_path / "d")
    try:
        store = Store(url=f"postgresql://tidemill@127.0.0.1:{database.port}/postgres", paired=True)
        store.init()
        one, two = store.writer(), store.writer()
        assert isinstance(one, PairedSession)
        assert isinstance(two, PairedSession)
        assert one.become_active()
        one._inner.connection.pgconn.send_query(b"SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
        began_s = time.monotonic()
        while not two.become_active():
            assert time.monotonic() < began_s + 15, "a server that reads nothing keeps its lock"
            time.sleep(0.2)
        one.close()
        two.close()
    finally:
        database.end("stop")


def test_a_server_with_signs_of_life_keeps_the_lock(server: Callable[[], Dispatcher]) -> None:
    one, two = server(), server()
    assert session(one).become_active()
    for _ in range(12):
        assert session(one).beat()
        assert not session(two).become_active()
        time.sleep(1)
    submit(one, "k")


def test_a_standby_of_an_older_version_does_not_take_an_upgraded_database_over(
    server: Callable[[], Dispatcher], url: str
) -> None:
    import psycopg

    one = server()
    assert session(one).become_active()
    session(one).resign()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE tidemill_schema SET version = version + 1")
    with pytest.raises(SiteError, match="schema"):
        session(one).become_active()


def test_an_upgrade_is_refused_while_a_server_runs_even_a_standby(
    server: Callable[[], Dispatcher], url: str
) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE tidemill_schema SET version = version - 1")
    store = Store(url=url)
    one, two = PairedSession(url, store._queries), PairedSession(url, store._queries)
    assert one.become_active()
    with pytest.raises(ConfigError, match="another server writes"):
        store.upgrade()
    assert not two.become_active()
    one.close()
    with pytest.raises(ConfigError, match="standby"):
        store.upgrade()
    two.close()


def test_a_server_that_cannot_do_all_that_the_active_one_does_leaves_the_other_time_to_take_over(
    server: Callable[[], Dispatcher], short_path: Path
) -> None:
    """Its audit log cannot be written, say: it must not take the lock again and again each second."""
    sick, well = server(), server()
    audit = AuditLog(short_path)
    shutil.rmtree(short_path / FOLDER)
    config = ServerConfig(dir=short_path, database=session(sick)._url, pair=True)
    parts = ActiveParts(
        Store(url=session(sick)._url), sick, config, authenticator=Authenticator(), audit=audit
    )
    role = PairedRole(sick, parts, audit)
    role.start()
    try:
        time.sleep(4)
        assert takes(well)
        assert session(well).term == 2, "the sick server was active more than once in 4 s"
    finally:
        role.close()


def test_a_pair_needs_postgresql(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PostgreSQL"):
        Store(path=tmp_path / "t.db", paired=True)
