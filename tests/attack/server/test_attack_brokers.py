"""PostgreSQL with least rights, as `docs/operations.md` gives them.

RabbitMQ, where a broker runs already, in `extensions/messages/tests/rabbitmq`: a stolen site credential in
`test_amqp_stolen.py`, least rights in `test_amqp_gateway.py`, where a site is answered in `test_sync_transports.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import postgresql_url
from tests.contract.server_world import SIM, Site, World, done, leases, release_of
from tests.worlds.services.server_process import until

from tidemill.errors import ConfigError
from tidemill.model.job import JobSpec
from tidemill.server.archive.archiver import Archiver
from tidemill.server.archive.parquet import Archive
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.paired import PairedSession
from tidemill.server.database.queries import Dialect, load
from tidemill.server.database.rows import SELECTED
from tidemill.server.database.store import Store
from tidemill.server.errors import StandbyError
from tidemill.server.read import archived
from tidemill.server.read.job_search import Filter
from tidemill.wire.api import ActionRequest, SubmitRequest

__all__ = ["postgresql_url"]
DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"


def documented() -> tuple[list[str], list[str]]:
    """The statements that the documentation gives to the database's administrator, and those that are its owner's."""
    blocks = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    (rights,) = [each for each in blocks if "CREATE ROLE" in each]
    return _split(rights), [each for block in blocks if block is not rights for each in _split(block)]


def _split(block: str) -> list[str]:
    return [each.strip() for each in block.split(";") if each.strip()]


@pytest.fixture(scope="module")
def places(postgresql_url: str) -> list[str]:
    """URLs of a database as documented: of its owner, of the server, and of a third role."""
    import psycopg

    host, own = postgresql_url.partition("?")[2], documented()[0]
    at = next(k for k, each in enumerate(own) if each.startswith("\\connect"))
    inside = [own[at].partition("\n")[2], *own[at + 1 :]]
    for database, told in (("postgres", [*own[:at], "CREATE ROLE other LOGIN"]), ("tidemill", inside)):
        with psycopg.connect(f"postgresql://tidemill@/{database}?{host}", autocommit=True) as administrator:
            for statement in told:
                administrator.execute(statement.encode())
    return [
        f"postgresql://{role}@/tidemill?{host}" for role in ("tidemill_owner", "tidemill_server", "other")
    ]


def archive_all(world: World, directory: Path) -> None:
    """Archive every campaign that has ended, by the server's own connections."""
    archiver = Archiver(world.store, world.dispatcher.writer.write, Archive(directory), keep_s=0)
    archiver.rests = False
    while archiver.step(world.reader):
        pass


def in_the_way(url: str) -> str:
    """What keeps an upgrade by this role away; empty = nothing."""
    session: Any = Store(url=url).writer()
    try:
        return str(session.lock_alone())
    finally:
        session.close()


@pytest.mark.postgresql
def test_a_server_with_the_documented_rights_runs_and_may_nothing_more(
    places: list[str], tmp_path: Path
) -> None:
    import psycopg

    pytest.importorskip("pyarrow")
    owner, server, other = places
    Store(url=owner).upgrade()
    with psycopg.connect(owner, autocommit=True) as connection:
        for statement in documented()[1]:
            connection.execute(statement.encode())
        missing = connection.execute(
            "SELECT tablename, privilege FROM pg_tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'])"
            " AS privilege WHERE schemaname = 'public'"
            " AND NOT has_table_privilege('tidemill_server', tablename, privilege)"
        ).fetchall()
    assert missing == []
    world = World(Store(url=server))
    try:
        world.store.check()
        site = Site(world)
        numbers = world.submit(SIM, JobSpec(app="sim", events=3), JobSpec(app="reco"))
        given = leases(site.sync())
        site.sync(*[done(lease) for lease in given[:2]])
        world.dispatcher.handle_cancel(ActionRequest(jobs=[numbers[2]]))
        site.sync(
            release_of(given[2], 0, 1), want=0
        )  # as the site answers the order to cancel a job that has outputs
        assert world.state(numbers[0]) == "COMPLETED"
        assert world.state(numbers[2]) == "CANCELED"
        archive_all(world, tmp_path / "archive")
        page = archived.jobs(world.reader, Archive(tmp_path / "archive"), Filter(), before=None, limit=10)
        assert {each.id for each in page.jobs} >= set(numbers)
        assert world.reader.rows("jobs_oldest", after=0, limit=10) == []
    finally:
        world.reader.close()
        world.dispatcher.close()
    for statement in (
        "CREATE TABLE mine (a int)", "DROP TABLE jobs", "ALTER TABLE jobs ADD a int", "TRUNCATE jobs", "CREATE ROLE x",
        "SELECT pg_read_file('/etc/passwd')", "COPY jobs TO PROGRAM 'id'", "CREATE TEMP TABLE x (a int)",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "SET ROLE tidemill_owner",
    ):  # fmt: skip
        with (
            psycopg.connect(server, autocommit=True) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(statement.encode())
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(other)  # it could hold the server's lock


@pytest.mark.postgresql
def test_two_servers_of_a_pair_run_with_the_documented_rights(places: list[str]) -> None:
    owner, server, _ = places
    Store(url=owner).upgrade()
    pair = [Dispatcher(Store(url=server, paired=True)) for _ in range(2)]
    try:
        for each in pair:
            each.start()
        sessions = [each.writer.session for each in pair]
        assert all(isinstance(each, PairedSession) for each in sessions)
        assert [each.become_active() for each in sessions if isinstance(each, PairedSession)] == [True, False]
        request = SubmitRequest(key="of a pair", campaign="pair", jobs=[SIM])
        reply = pair[0].handle_submit(request)
        assert reply.count == 1
        pair[0].handle_cancel(ActionRequest(jobs=[reply.first_job]))  # the other test shares the database
        with pytest.raises(StandbyError):
            pair[1].handle_submit(request)
        # The locks of a role that owns nothing keep the owner away all the same
        assert in_the_way(owner) == "another server writes to this database"
        pair[0].close()
        assert in_the_way(owner) == "a standby server reads this database"
        pair[1].close()
        assert in_the_way(owner) == ""
    finally:
        for each in pair:
            each.close()


@pytest.mark.postgresql
def test_a_session_that_keeps_the_lock_of_the_active_server_is_named(places: list[str]) -> None:
    """A careless neighbour who has the password: else a pair stays two standbys, and says nothing."""
    import psycopg

    from tidemill.server.database.postgresql import ADVISORY_LOCK

    owner, server, _ = places
    Store(url=owner).upgrade()
    one = PairedSession(server, load(Dialect.POSTGRESQL, SELECTED))
    try:
        with psycopg.connect(server, autocommit=True, application_name="psql") as neighbour:
            neighbour.execute("SELECT pg_advisory_lock(%s)", (ADVISORY_LOCK,))
            name = f"psql (role tidemill_server, PID {neighbour.info.backend_pid})"
            assert not one.become_active()
            assert (one.holder, one.is_locked_out) == (name, True)
            with pytest.raises(ConfigError, match=re.escape(name)):
                Dispatcher(Store(url=server))
        until(one.become_active)  # PostgreSQL has ended the neighbour's session
        two = PairedSession(server, load(Dialect.POSTGRESQL, SELECTED))
        assert not two.become_active()
        assert (two.holder.split()[0], two.is_locked_out) == ("tidemill", False)
        two.close()
    finally:
        one.close()


@pytest.mark.postgresql
@pytest.mark.parametrize("name", ["prod-a", "psql", ""])
def test_the_active_server_is_known_as_one_whatever_its_url_names_it(places: list[str], name: str) -> None:
    """Else the standby calls it another program's session, and advises to end it."""
    owner, server, _ = places
    Store(url=owner).upgrade()
    pair = [
        PairedSession(f"{server}&application_name={name}", load(Dialect.POSTGRESQL, SELECTED))
        for name in (name, "b")
    ]
    try:
        until(pair[0].become_active)  # PostgreSQL has ended the sessions of the test before
        assert not pair[1].become_active()
        assert pair[1].holder.startswith(f"tidemill {name}")
        assert not pair[1].is_locked_out
    finally:
        for each in pair:
            each.close()


def test_no_statement_of_the_server_needs_more_than_rows() -> None:
    for name, each in load(Dialect.POSTGRESQL, SELECTED).items():
        assert re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH|COPY \w+ \([\w, ]+\) FROM STDIN$)", each.text), (
            name
        )
