"""PostgreSQL with least rights, as `docs/operations.md` gives them.

RabbitMQ, where a broker runs already: a stolen site credential in `tests/rabbitmq/test_amqp_stolen.py`, least rights in
`test_amqp_gateway.py`, where the server answers a site in `test_sync_transports.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.contract.conftest import postgresql_url
from tests.contract.server_world import SIM, Site, World, done, leases

from tidemill.model.job import JobSpec
from tidemill.server.database.queries import Dialect, load
from tidemill.server.database.store import Store
from tidemill.wire.api import ActionRequest

__all__ = ["postgresql_url"]
DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"


def documented() -> list[str]:
    """The statements that the documentation gives to the database's administrator."""
    text = DOCUMENT.read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", text, flags=re.DOTALL)
    return [each.strip() for each in block.split(";") if each.strip()]


@pytest.fixture(scope="module")
def places(postgresql_url: str) -> list[str]:
    """URLs of a database as documented: of its owner, of the server, and of a third role."""
    import psycopg

    host, own = postgresql_url.partition("?")[2], documented()
    at = next(k for k, each in enumerate(own) if each.startswith("\\connect"))
    inside = [own[at].partition("\n")[2], *own[at + 1 :]]
    for database, told in (("postgres", [*own[:at], "CREATE ROLE other LOGIN"]), ("tidemill", inside)):
        with psycopg.connect(f"postgresql://tidemill@/{database}?{host}", autocommit=True) as administrator:
            for statement in told:
                administrator.execute(statement.encode())
    return [
        f"postgresql://{role}@/tidemill?{host}" for role in ("tidemill_owner", "tidemill_server", "other")
    ]


@pytest.mark.postgresql
def test_a_server_with_the_documented_rights_runs_and_may_nothing_more(places: list[str]) -> None:
    import psycopg

    owner, server, other = places
    Store(url=owner).upgrade()
    world = World(Store(url=server))
    try:
        world.store.check()
        site = Site(world)
        numbers = world.submit(SIM, JobSpec(app="sim", events=3), JobSpec(app="reco"))
        given = leases(site.sync())
        site.sync(*[done(lease) for lease in given[:2]])
        world.dispatcher.handle_cancel(ActionRequest(jobs=[numbers[2]]))
        assert world.state(numbers[0]) == "COMPLETED"
        assert world.state(numbers[2]) == "CANCELED"
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


def test_no_statement_of_the_server_needs_more_than_rows() -> None:
    for name, each in load(Dialect.POSTGRESQL).items():
        assert re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH|COPY \w+ \([\w, ]+\) FROM STDIN$)", each.text), (
            name
        )
