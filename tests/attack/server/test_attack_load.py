"""One submitter cannot slow the others: kinds, bodies, campaigns, sites, half-sent requests, refusals, floods.

A real server process with https; what is asserted are counts, sizes and answers. Times stand there only as guards.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.timing import timing
from tests.worlds.services.access_world import Certs, World, submission, sync
from tests.worlds.services.token_issuer import Issuer

from tidemill.server.errors import FIXED
from tidemill.transfer.program import size_of

pytestmark = pytest.mark.timeout(120)
HANGS_S = 60.0
MB = 1024 * 1024
QUOTAS = {"open_jobs_max": 30_000}
TIMING = {
    "OPEN_KINDS_MAX": 50, "SITES_NAMED_MAX": 3, "HEAD_S": 5, "STALL_S": 4, "CONNECTIONS_MAX": 12,
    "REQUESTS_PER_S": 1000, "TIME_SHARE": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("load")
    with timing(server=TIMING):
        made = World(folder, Certs(folder / "certs"), Issuer(folder), quotas=QUOTAS)
    yield made
    assert made.stop() == 0
    assert made.events("request.failed") == []


def peak_mb(world: World) -> float:
    status = Path(f"/proc/{world.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1e3


def database_mb(world: World) -> float:
    return sum(map(size_of, (world.folder / "server").glob("tidemill.db*"))) / 1e6


def opened(world: World, who: str) -> ssl.SSLSocket:
    made = socket.create_connection(("127.0.0.1", world.port), HANGS_S)
    return world.context(world.certs.pair(who)).wrap_socket(made, server_hostname="127.0.0.1")


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def until_end(connection: ssl.SSLSocket) -> bytes:
    """All that comes until the server ends the connection. A reset raises."""
    whole = b""
    while piece := connection.recv(65536):
        whole += piece
    return whole


def send(world: World, who: str, body: bytes, path: str = "/v1/jobs") -> tuple[int, Any]:
    """As most clients do: they read the answer once all of the body is sent, though it was refused at its beginning."""
    with opened(world, who) as connection:
        connection.sendall(head(path, len(body), "Connection: close") + body)
        top, _, text = until_end(connection).partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(text)


# ---- bodies -------------------------------------------------------------------------------------------------------


def listed(start: bytes, each: bytes, count: int, end: bytes) -> bytes:
    return start + b",".join([each] * count) + end


ONE = b'{"key":"k","campaign":"c","jobs":['


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/jobs", (ONE, b'{"app":"a"}', 2_000_000, b"]}"), "values"),
        ("/v1/jobs", (ONE, b'{"app":"a"}', 900_000, b"]}"), "900000 jobs in one request"),
        ("/v1/jobs", (ONE + b'{"app":"a","after":[', b"1", 9_000_000, b"]}]}"), "values"),
        ("/v1/cancel", (b'{"jobs":[', b"1000000", 3_000_000, b"]}"), "values"),
        ("/v1/jobs", (ONE + b'{"app":"a"}],"repeat":[', b"1", 9_000_000, b"]}"), "values"),
    ],
    ids=["jobs", "fewer", "after", "numbers", "repeat"],
)
def test_a_body_is_refused_before_it_takes_memory(
    world: World, path: str, body: tuple[bytes, bytes, int, bytes], why: str
) -> None:
    """Before: 4.7 GB for 22 MB."""
    status, told = send(world, "eve", listed(*body), path)
    assert status == 400
    assert why in told["error"]
    assert peak_mb(world) < 400


def test_a_repeat_of_a_million_is_not_written_out(world: World) -> None:
    asked = submission("repeat", "repeat") | {"repeat": [10**9]}
    status, told = world.call("eve", "POST", "/v1/jobs", asked)
    assert (status, "1000000000 jobs in one request" in told["error"]) == (400, True)
    assert peak_mb(world) < 400


# ---- kinds, campaigns, sites --------------------------------------------------------------------------------------


def test_kinds_campaigns_and_unknown_sites_are_bounded_and_a_bound_says_which(world: World) -> None:
    """Before: 100,000 kinds, and others waited 17 s, after a cancel too."""
    many = [{"app": "sim", "resources": {"memory_mb": each}} for each in range(1, 10_001)]
    status, told = world.call("eve", "POST", "/v1/jobs", {"key": "kinds", "campaign": "kinds", "jobs": many})
    assert status == 403
    assert f"there may be 50 ({FIXED})" in told["error"]
    assert "round cores and memory" in told["hint"]
    refused = 0
    for each in range(60):
        status, told = world.call("eve", "POST", "/v1/jobs", submission(f"many-{each}", f"many-{each}"))
        refused += status == 403
    assert refused == 10
    status, _ = world.call("eve", "POST", "/v1/cancel", {"campaign": "many-0"})
    assert status == 200
    named = [{"app": "sim", "site": f"nowhere-{each}"} for each in range(4)]
    status, told = world.call(
        "eve", "POST", "/v1/jobs", {"key": "sites", "campaign": "many-1", "jobs": named}
    )
    assert (status, f"there may be 3 ({FIXED})" in told["error"]) == (403, True)
    status, told = world.call("eve", "POST", "/v1/jobs", submission("many-1", "jobs") | {"repeat": [10_000]})
    status, told = world.call("eve", "POST", "/v1/jobs", submission("many-1", "jobs2") | {"repeat": [10_000]})
    status, told = world.call("eve", "POST", "/v1/jobs", submission("many-1", "jobs3") | {"repeat": [10_000]})
    assert (status, "there may be 30,000 (`quotas.open_jobs_max`)" in told["error"]) == (403, True)
    assert world.call("bob", "POST", "/v1/jobs", submission("bob", "bob"))[0] == 200  # the others have theirs
    assert world.events("quota.refused")


def test_refused_requests_store_nothing(world: World) -> None:
    """Before: what a refused request had read was read again, each time; four accepted ones stored 131 MB."""
    before_mb = database_mb(world)
    jobs = [{"app": "sim", "params": {"a": each, "b": "x" * 1_000}} for each in range(5_000)]
    for each in range(5):
        asked = {"key": f"w{each}", "campaign": "many-1", "jobs": [*jobs, {"app": "sim", "after": [10**9]}]}
        status, told = world.call("eve", "POST", "/v1/jobs", asked)
        assert (status, "does not exist" in told["error"]) == (400, True)
    assert database_mb(world) - before_mb < 8
    assert peak_mb(world) < 400


# ---- half-sent requests -------------------------------------------------------------------------------------------


def test_requests_that_stop_half_way_are_ended(world: World) -> None:
    """Before: open after 150 s."""
    sent = {
        b"": b"",
        b"POST /v1/jobs HTT": b"408",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nX-": b"408",
        head("/v1/jobs", 100_000) + b'{"key"': b"408",
        head("/v1/jobs", 100_000)[:-2] + b"Transfer-Encoding: identity\r\n\r\n": b"400",
    }
    connections = [opened(world, "ada") for _ in sent]
    for connection, piece in zip(connections, sent, strict=True):
        connection.sendall(piece)
    for connection, answered in zip(connections, sent.values(), strict=True):
        with connection:
            assert until_end(connection)[9:12] == answered


def test_a_second_half_request_on_a_connection_that_was_used_is_ended_too(world: World) -> None:
    with opened(world, "ada") as connection:
        connection.sendall(b"GET /v1/counts HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /v1/co")
        answer = until_end(connection)
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_slow_upload_that_makes_progress_comes_through(world: World) -> None:
    """It takes twice as long as a stall may."""
    body = json.dumps(submission("slow", "slow", params={"a": "x" * 12_000})).encode()
    with opened(world, "ada") as connection:
        connection.sendall(head("/v1/jobs", len(body), "Connection: close"))
        step = len(body) // 12 + 1
        for at in range(0, len(body), step):
            connection.sendall(body[at : at + step])
            time.sleep(0.7)
        answer = until_end(connection)
    assert answer.startswith(b"HTTP/1.1 200"), answer


def test_a_handshake_that_stops_holds_up_nobody(world: World) -> None:
    strangers = [socket.create_connection(("127.0.0.1", world.port), HANGS_S) for _ in range(40)]
    try:
        assert world.call("bob", "GET", "/v1/counts")[0] == 200
    finally:
        for each in strangers:
            each.close()


def test_one_certificate_has_few_connections(world: World) -> None:
    held = [opened(world, "olga") for _ in range(12)]
    try:
        answer = b""
        with suppress(OSError), opened(world, "olga") as one_more:  # it is ended at once, by a reset
            one_more.sendall(b"GET /v1/counts HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = one_more.recv(100)
        assert answer == b""
        assert world.call("bob", "GET", "/v1/counts")[0] == 200
    finally:
        for each in held:
            each.close()


# ---- refusals before the body -------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("Connection: close",)], ids=["kept", "closed"])
def test_a_refusal_reaches_a_client_that_still_sends(world: World, more: tuple[str, ...]) -> None:
    """Before: the connection was closed at once, and the client met a reset instead of the 403."""
    length = 120_000
    with opened(world, "ada") as connection:  # a submitter does not sync: refused before the body is read
        connection.sendall(head("/v1/sync", length, *more))
        for _ in range(12):
            connection.sendall(b" " * (length // 12))
            time.sleep(0.05)
        answer = until_end(connection)
    assert answer.startswith(b"HTTP/1.1 403"), answer
    assert b"may not speak for this site" in answer


def test_a_refusal_does_not_wait_for_a_body_that_never_comes(world: World) -> None:
    with opened(world, "ada") as connection:
        connection.sendall(head("/v1/sync", 500_000, "Connection: close"))
        answer = until_end(connection)
    assert answer.startswith(b"HTTP/1.1 403")


def test_a_large_body_that_is_not_wanted_is_not_sent(world: World) -> None:
    with opened(world, "ada") as connection:
        connection.sendall(head("/v1/sync", 20 * MB, "Expect: 100-continue"))
        answer = until_end(connection)
    assert answer.startswith(b"HTTP/1.1 403")


def test_a_refusal_for_want_of_room_is_logged_with_who_asked_and_both_figures(tmp_path: Path) -> None:
    """As those by the submitter's own quotas are."""
    world = World(
        tmp_path, Certs(tmp_path / "certs"), Issuer(tmp_path), quotas={"all_stored_bytes_max": 20_000}
    )
    try:
        status, told = world.call("eve", "POST", "/v1/jobs", submission("k", "c") | {"repeat": [100]})
        assert status == 507
        assert "30.4 kB of jobs would be stored" in told["error"]
        assert "may store 20 kB" in told["error"]
    finally:
        assert world.stop() == 0
    (line,) = world.events("quota.refused")
    assert (line["who"], line["path"], line["why"]) == ("eve", "/v1/jobs", told["error"])


# ---- floods -------------------------------------------------------------------------------------------------------


def test_a_flood_of_one_submitter_is_paced_and_others_are_not(tmp_path: Path) -> None:
    with timing(server={"REQUESTS_PER_S": 0.5}):
        world = World(tmp_path, Certs(tmp_path / "certs"), Issuer(tmp_path))
    try:
        with ThreadPoolExecutor(16) as flood:
            answers = list(flood.map(lambda _: world.call("eve", "GET", "/v1/counts"), range(16)))
        refused = [told for status, told in answers if status == 429]
        assert refused
        assert all("send 0.5 requests a second" in told["error"] for told in refused)
        assert all(FIXED in told["error"] for told in refused)
        assert world.call("bob", "POST", "/v1/jobs", submission("b", "b"))[0] == 200
        assert world.call("lrz", "POST", "/v1/sync", sync("lrz"))[0] == 200
        assert world.call("olga", "GET", "/v1/counts")[0] == 200
    finally:
        assert world.stop() == 0
