"""The API of a real server process on a Unix socket and on TCP: routes, limits, errors, access, the feed, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.services.ports import free_port
from tests.worlds.services.server_process import (
    DEADLINE_S,
    Server,
    TcpServer,
    jobs,
    until,
)

from tidemill.wire.api import (
    REQUEST_BYTES_MAX,
    AppOffer,
    Capacity,
    DoneReport,
    PayloadUsage,
    SyncReply,
    SyncRequest,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "server"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder).ready()
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def sync(**changes: Any) -> SyncRequest:
    capacity = Capacity(
        want_core_s=1e6, want_ranges_max=5000, slot_cores_max=1, slot_memory_mb_max=4000, devices={}, event_s={},
        nodes=1, busy_cores=0, adhoc=False,
    )  # fmt: skip
    offer = AppOffer(
        name="sim",
        version="1",
        digest="",
        mode="command",
        parameters={},
        outputs=[],
        cores=1,
        memory_mb=1,
        event_s=1.0,
    )
    fields: dict[str, Any] = {
        "site": "s", "epoch": 1, "host": "h", "version": "1", "reports": [], "have": 0, "offers": [offer],
        "capacity": capacity, **changes,
    }  # fmt: skip
    return SyncRequest(**fields)


def test_a_job_goes_its_way_through_every_route(server: Server) -> None:
    status, reply = server.call("POST", "/v1/jobs", jobs({"app": "sim"}))
    assert (status, reply["first_job"], reply["count"]) == (200, 1, 1)
    _, answer = server.call("POST", "/v1/sync", sync())
    (order,) = answer["orders"]
    report = DoneReport(
        n=1, lease=order["lease"], job=1, first=0, count=1, outputs=False, usage=PayloadUsage(payloads=1)
    )
    assert server.call("POST", "/v1/sync", sync(reports=[report], have=1))[1]["acked"] == 1
    assert server.call("GET", "/v1/jobs/1")[1]["row"]["state"] == "COMPLETED"
    assert server.call("GET", "/v1/jobs?campaign=c&state=COMPLETED&limit=10")[1]["jobs"][0]["id"] == 1
    assert server.call("GET", "/v1/campaigns/c")[1]["states"] == {"COMPLETED": 1}
    assert server.call("POST", "/v1/cancel", {"jobs": [1]})[1] == {"changed": 0, "unchanged": 1}
    assert server.call("POST", "/v1/retry", {"campaign": "c"})[1] == {"changed": 0, "unchanged": 0}
    for route in (
        "campaigns",
        "failures",
        "outputs?job=1",
        "counts",
        "sites",
        "applications",
        "allocations?site=s",
    ):
        assert server.call("GET", f"/v1/{route}")[0] == 200, route


def test_the_document_describes_every_route_and_message(server: Server) -> None:
    status, document = server.call("GET", "/schema/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert set(document["paths"]) >= {
        "/v1/jobs",
        "/v1/jobs/{job}",
        "/v1/sync",
        "/v1/changes",
        "/v1/campaigns/{name}",
    }
    assert {"SubmitRequest", "SyncReply", "LeaseOrder", "ErrorReply"} <= set(
        document["components"]["schemas"]
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error", "hint"),
    [
        (
            "POST",
            "/v1/jobs",
            jobs({"app": "a", "resources": {"core": 1}}),
            400,
            "unknown field `core`",
            "`cores`",
        ),
        (
            "POST",
            "/v1/jobs",
            {**jobs({"app": "a"}), "campain": "x"},
            400,
            "unknown field `campain`",
            "`campaign`",
        ),
        ("POST", "/v1/jobs", jobs({"app": "a", "events": "3"}), 400, "Expected `int`", None),
        ("POST", "/v1/jobs", jobs({"app": "a"}, repeat=[10_001]), 400, "at most 10000", "several requests"),
        ("POST", "/v1/jobs", jobs({"app": "a b"}), 400, "is not a valid name of an app", None),
        ("POST", "/v1/cancel", {}, 400, "either jobs or a campaign", None),
        ("GET", "/v1/jobs?stat=FAILED", None, 400, "unknown field `stat`", "`state`"),
        ("GET", "/v1/jobs?limit=1001", None, 400, "legal is 1 to 1000", None),
        ("GET", "/v1/jobs?state=FALED", None, 400, "is not a state of a job", "`FAILED`"),
        ("GET", f"/v1/jobs?before={2**70}", None, 400, "legal is 0 to", None),
        ("GET", "/v1/jobs/7", None, 404, "no job 7", None),
        ("GET", "/v1/campaigns/nope", None, 404, "no campaign `nope`", "known: none"),
        ("GET", "/v1/nothing", None, 404, "/v1/nothing", None),
        ("DELETE", "/v1/jobs", None, 405, "/v1/jobs", None),
    ],
)
def test_bad_input_gets_a_clear_error(
    server: Server, method: str, path: str, body: Any, status: int, error: str, hint: str | None
) -> None:
    found, reply = server.call(method, path, body)
    assert (found, set(reply)) == (status, {"error", "hint"})
    assert error in reply["error"]
    assert hint is None or hint in reply["hint"]
    assert "Traceback" not in json.dumps(reply)
    assert server.call("GET", "/v1/counts")[1]["jobs"] == 0


def test_broken_bytes_and_conflicts_are_told_apart(server: Server) -> None:
    assert server.call("POST", "/v1/jobs", raw=b"{nonsense")[0] == 400
    assert server.call("POST", "/v1/sync", raw=b'"\xff"')[0] == 400
    assert server.call("POST", "/v1/jobs", jobs({"app": "a"}))[0] == 200
    assert server.call("POST", "/v1/jobs", jobs({"app": "b"}))[0] == 409
    assert server.call("POST", "/v1/sync", sync(epoch=2))[0] == 200
    status, reply = server.call("POST", "/v1/sync", sync())
    assert (status, "belongs to epoch 2" in reply["error"]) == (409, True)


def test_a_request_that_is_too_large_is_refused(server: Server) -> None:
    status, reply = server.call("POST", "/v1/jobs", raw=b" " * (REQUEST_BYTES_MAX + 1))
    assert (status, "error" in reply) == (413, True)


def test_a_sync_of_5000_reports_and_5000_leases_is_quick(server: Server) -> None:
    for key in ("a", "b"):
        server.call("POST", "/v1/jobs", jobs({"app": "sim"}, key=key, repeat=[5000]))
    _, first = server.call("POST", "/v1/sync", sync())
    reports = [
        DoneReport(
            n=n,
            lease=order["lease"],
            job=order["job"],
            first=0,
            count=1,
            outputs=False,
            usage=PayloadUsage(payloads=1),
        )
        for n, order in enumerate(first["orders"], 1)
    ]
    assert len(reports) == 5000
    body = msgspec.json.encode(sync(reports=reports, have=5000))
    connection = server.connect()
    connection.request("POST", "/v1/sync", body)
    reply = msgspec.json.decode(connection.getresponse().read(), type=SyncReply)
    connection.close()
    assert (reply.acked, len(reply.orders)) == (5000, 10_000)  # 5000 leases, 5000 to forget


def test_the_feed_tells_changes_as_they_come_and_ends_with_the_server(server: Server) -> None:
    server.call("POST", "/v1/jobs", jobs({"app": "sim"}))
    connection = server.connect()
    connection.request("GET", "/v1/changes?campaign=c")
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    server.call("POST", "/v1/sync", sync())
    data = next(line for line in iter(response.readline, b"") if line.startswith(b"data: "))
    change = json.loads(data[6:])
    assert (change["job"], change["state"], change["campaign"]) == (1, "RUNNING", "c")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    response.close()
    connection.close()


def test_a_server_that_is_ended_while_it_starts_takes_its_socket_along(tmp_path: Path) -> None:
    """Otherwise clients would take it for a running server's socket, and would not start a server."""
    starting = Server(tmp_path / "server")
    path = starting.folder / "api.sock"
    until(path.is_socket)  # the server does not answer yet, and uvicorn does not handle signals yet
    starting.process.send_signal(signal.SIGTERM)
    assert starting.process.wait(DEADLINE_S) == 0, starting.log.read_text()
    assert not path.exists()


def test_a_log_comes_from_the_site_while_the_client_waits(server: Server) -> None:
    server.call("POST", "/v1/jobs", jobs({"app": "sim"}))
    server.call("POST", "/v1/sync", sync())
    connection = server.connect()
    connection.request("GET", "/v1/jobs/1/log?event=0")
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        found[:] = [
            each
            for each in server.call("POST", "/v1/sync", sync(have=1))[1]["orders"]
            if each["t"] == "fetch_log"
        ]
        return bool(found)

    until(asked)
    report = {
        "t": "log",
        "n": 1,
        "request": found[0]["request"],
        "found": True,
        "stdout": "hello",
        "stderr": "",
    }
    server.call("POST", "/v1/sync", {**msgspec.to_builtins(sync(have=2)), "reports": [report]})
    reply = json.loads(connection.getresponse().read())
    assert (reply["found"], reply["pending"], reply["stdout"]) == (True, False, "hello")
    connection.close()


def test_jobs_are_there_after_a_kill(server: Server, folder: Path) -> None:
    server.call("POST", "/v1/jobs", jobs({"app": "sim"}))
    server.process.kill()
    server.process.wait()
    again = Server(folder).ready()
    assert again.call("POST", "/v1/jobs", jobs({"app": "sim"}))[1]["repeated"] is True
    assert again.stop() == 0
    assert not (folder / "api.sock").exists()


def test_a_second_server_on_the_directory_is_refused(server: Server, folder: Path) -> None:
    second = Server(folder)
    assert second.process.wait(DEADLINE_S) == 1
    assert f"another server runs in `{folder}`: process {server.process.pid}" in second.log.read_text()
    assert server.call("GET", "/v1/health")[0] == 200


def test_a_full_disk_refuses_keeps_nothing_by_halves_and_recovers(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tidemill", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        server = Server(folder).ready()
        assert server.call("POST", "/v1/jobs", jobs({"app": "sim"}))[0] == 200
        ballast = folder / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        many = jobs({"app": "sim", "name": "n" * 90}, key="many", repeat=[10_000])
        status, reply = server.call("POST", "/v1/jobs", many)
        assert (status, "free space" in reply["error"]) == (507, True), reply
        assert server.call("GET", "/v1/health")[1]["status"] in ("degraded", "full")
        assert server.call("GET", "/v1/counts")[1]["jobs"] == 1
        status, reply = server.call("POST", "/v1/sync", sync())
        assert status in (200, 503), "a small write may still fit"
        ballast.unlink()
        status, reply = server.call("POST", "/v1/jobs", {**many, "repeat": [2_000]})
        assert (status, reply.get("count")) == (200, 2_000), reply
        assert server.call("GET", "/v1/health")[1]["status"] == "ok"
        assert server.call("GET", "/v1/counts")[1]["jobs"] == 2_001
        assert server.stop() == 0
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_site_is_drained_and_resumed(server: Server, folder: Path) -> None:
    assert server.call("POST", "/v1/sites/s/drain", {"drain": True})[0] == 404
    server.call("POST", "/v1/jobs", jobs({"app": "sim"}))
    server.call("POST", "/v1/sync", sync(capacity=msgspec.structs.replace(sync().capacity, want_core_s=0.0)))
    drain = {"drain": True, "reason": "cooling"}
    assert server.call("POST", "/v1/sites/s/drain", drain) == (200, {"changed": 1, "unchanged": 0})
    assert server.stop() == 0
    again = Server(folder).ready()
    try:
        assert again.call("POST", "/v1/sites/s/drain", drain) == (200, {"changed": 0, "unchanged": 1})
        assert again.call("GET", "/v1/sites")[1][0]["state"] == "DRAINED"
        _, reply = again.call("POST", "/v1/sync", sync())
        assert [(each["t"], each["drain"], each["reason"]) for each in reply["orders"]] == [
            ("drain", True, "cooling")
        ]
        assert again.call("GET", "/v1/jobs/1")[1]["waits_for"] == "site_drained"
        assert again.call("POST", "/v1/sites/s/drain", {"drain": False})[0] == 200
        _, reply = again.call("POST", "/v1/sync", sync(have=1))
        assert [each["t"] for each in reply["orders"]] == ["drain", "lease"]
        assert again.call("GET", "/v1/sites")[1][0]["state"] == "UP"
    finally:
        again.stop()


def test_a_directory_that_others_may_enter_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    server = Server(folder)
    assert server.process.wait(DEADLINE_S) == 1
    assert "is open to others: mode 0755" in server.log.read_text()


def test_the_socket_is_private_and_other_users_are_refused(server: Server, folder: Path) -> None:
    assert (folder.stat().st_mode & 0o777, (folder / "api.sock").stat().st_mode & 0o777) == (0o700, 0o600)
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    # root opens the doors that keep others out, to see that the server looks at the peer itself
    for each in [folder, *folder.parents]:
        if not each.stat().st_mode & 0o005:
            each.chmod(each.stat().st_mode | 0o055)
    (folder / "api.sock").chmod(0o666)
    code = (
        "import os,socket,sys; os.setgid(65534); os.setuid(65534); "
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /v1/health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); sys.exit(len(s.recv(100)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder / "api.sock"], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0 or "Connection reset" in done.stderr or "Broken pipe" in done.stderr, (
        done.stderr
    )
    until(lambda: any(each.get("why") == "user" and each["peer"] == "uid 65534" for each in server.events()))


def test_tcp_wants_the_secret_and_logs_refusals(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123\n")
    secret.chmod(0o644)
    port = free_port()
    config = {"listen": f"127.0.0.1:{port}", "secret_file": os.fspath(secret)}
    for wrong, text in (({**config, "secret_file": None}, "needs a secret"), (config, "has mode 0644")):
        refused = Server(folder, **wrong)
        assert refused.process.wait(DEADLINE_S) == 1
        assert text in refused.log.read_text()
    secret.chmod(0o600)
    server = TcpServer(folder, **config)
    server.port = port
    server.ready()
    assert server.call("GET", "/v1/jobs")[0] == 401
    assert server.call("GET", "/v1/jobs", headers={"Authorization": "Bearer 0123456789abcdef012"})[0] == 401
    assert server.call("GET", "/v1/jobs", headers={"Authorization": "Bearer 0123456789abcdef0123"})[0] == 200
    refusals = [each for each in server.events() if each["event"] == "access.refused"]
    assert [each["peer"].split(":")[0] for each in refusals] == ["127.0.0.1", "127.0.0.1"]
    assert "0123456789abcdef" not in server.log.read_text()
    assert server.stop() == 0


def test_an_older_schema_is_refused_unless_the_upgrade_is_asked_for(folder: Path) -> None:
    Server(folder).ready().stop()
    with sqlite3.connect(folder / "tidemill.db") as connection:
        connection.execute("UPDATE tidemill_schema SET version = 99")
    connection.close()
    server = Server(folder)
    assert server.process.wait(DEADLINE_S) == 1
    assert "made by a newer tidemill" in server.log.read_text()
