"""A pair of server processes as browsers and clients see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.server_process import Server, jobs, until

from tidemill.client import Client
from tidemill.server.database.store import Store

pytestmark = pytest.mark.postgresql


@pytest.fixture
def pair(postgresql_store: Store, short_path: Path) -> Iterator[list[Server]]:
    """The active server and the standby."""
    postgresql_store.init()
    for folder in (short_path / "a", short_path / "b"):
        folder.mkdir(mode=0o700)
        (folder / "session.key").write_text("k" * 32)
        (folder / "session.key").chmod(0o600)
    config = {"database": postgresql_store.url, "pair": True}
    running = [Server(short_path / "a", **config).ready()]
    until(lambda: role(running[0]) == "active")
    running.append(Server(short_path / "b", **config).ready())
    yield running
    for server in running:
        server.process.kill()
        server.process.wait()


def role(server: Server) -> str:
    return str(server.call("GET", "/v1/health")[1]["role"])


def asked(server: Server, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], str]:
    connection = server.connect()
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_the_standby_answers_reads_marks_its_pages_and_refuses_changes(pair: list[Server]) -> None:
    active, standby = pair
    assert role(standby) == "standby"
    assert active.call("POST", "/v1/jobs", jobs({"app": "sim"}))[0] == 200
    assert standby.call("GET", "/v1/jobs/1")[1]["row"]["state"] == "WAITING"
    status, headers, body = asked(standby, "POST", "/v1/cancel", {"jobs": [1]})
    assert (status, int(headers["retry-after"]) > 0) == (503, True)
    told = json.loads(body)
    assert told["standby"] is True
    assert "standby" in told["error"]
    assert "other address" in told["hint"]
    assert asked(standby, "GET", "/v1/jobs/1/log")[0] in (200, 503)
    for server, marked in ((active, False), (standby, True)):
        status, _, page = asked(server, "GET", "/jobs")
        assert (status, "standby of a pair" in page) == (200, marked)
    assert asked(standby, "GET", "/health")[0] == 200
    assert "tidemill_server_active 0" in asked(standby, "GET", "/metrics")[2]
    assert "tidemill_server_active 1" in asked(active, "GET", "/metrics")[2]
    assert active.call("GET", "/v1/jobs/1")[1]["row"]["state"] == "WAITING"


def test_a_feed_of_the_standby_tells_what_the_active_server_commits(pair: list[Server]) -> None:
    active, standby = pair
    client = Client(f"unix:{standby.folder}/api.sock")
    changes = client.changes()
    active.call("POST", "/v1/jobs", jobs({"app": "sim", "site": "nowhere"}))
    active.call("POST", "/v1/cancel", {"jobs": [1]})
    assert next(changes).state == "CANCELED"


def test_a_client_of_both_goes_on_when_the_active_server_is_killed(pair: list[Server]) -> None:
    active, standby = pair
    client = Client(f"unix:{active.folder}/api.sock,unix:{standby.folder}/api.sock", retry_s=60)
    first = client.connection.call("POST", "/v1/jobs", dict[str, Any], body=jobs({"app": "sim"}))
    active.process.kill()
    assert client.cancel([first["first_job"]]).changed == 1
    assert role(standby) == "active"


def test_a_stop_hands_over_at_once(pair: list[Server]) -> None:
    active, standby = pair
    assert active.stop() == 0
    until(lambda: role(standby) == "active")


def test_a_server_without_the_list_of_what_is_revoked_does_not_join_the_pair(pair: list[Server]) -> None:
    active, standby = pair
    (active.folder / "revoked.txt").write_text("name ada\n")
    store = Store(url=str(active.config["database"]))
    until(lambda: known_revoked(store))
    standby.stop()
    again = Server(standby.folder, **standby.config)
    pair.append(again)
    assert again.process.wait(60) != 0
    assert f"the list of what is revoked is missing, `{standby.folder}/revoked.txt`" in again.log.read_text()
    (standby.folder / "revoked.txt").write_text("name ada\n")
    pair.append(Server(standby.folder, **standby.config).ready())


def known_revoked(store: Store) -> bool:
    session = store.reader()
    try:
        return bool(session.rows("revoked_known"))
    finally:
        session.close()
