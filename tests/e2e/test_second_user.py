"""Another user of the machine tries every socket and listener with valid messages: all refused and logged."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.strangers import STRANGER, as_stranger, open_of, own_processes, probed
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


CONNECT_UNIX = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    s.sendall(b"GET /v1/jobs HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print("ANSWER", s.recv(100))
except PermissionError:
    print("REFUSED")
"""

READ = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read()
        print("READ", path)
    except OSError as error:
        print("REFUSED", path)
"""


def test_nothing_of_the_home_can_be_read_or_connected_to() -> None:
    with world() as it:
        answer = as_stranger(CONNECT_UNIX, str(it.home / "server" / "api.sock"))
        assert answer.stdout.split() == ["REFUSED"], answer.stderr
        paths = [
            str(it.home),
            str(it.home / "site"),
            str(it.home / "server" / "tidemill.db"),
            str(it.home / "up.json"),
        ]
        answer = as_stranger(READ, *paths)
        assert answer.stdout.count("REFUSED") == len(paths), answer.stdout


def test_the_socket_refuses_other_users_even_if_its_directory_is_opened() -> None:
    with world() as it:
        for directory in (it.home, it.home / "server"):
            directory.chmod(0o755)
        (it.home / "server" / "api.sock").chmod(0o777)
        answer = as_stranger(CONNECT_UNIX, str(it.home / "server" / "api.sock"))
        assert "ANSWER b'HTTP/1.1 2" not in answer.stdout, answer.stdout
        assert str(STRANGER) in (it.home / "server.log").read_text(), "the refusal is logged with the uid"


def lead_of(it: World) -> tuple[str, int, Path]:
    it.submit("c", JobSpec(app="pi", events=100_000, params={"darts": 60_000}))
    it.wait_for(lambda: list(it.home.glob("site/fleets/*/lead.json")), "a lead listens")
    (path,) = it.home.glob("site/fleets/*/lead.json")
    address = json.loads(path.read_bytes())
    return address["host"], address["port"], path.parent


JOIN_LEAD = """
import hashlib, hmac, json, socket, sys
host, port, pilot = sys.argv[1], int(sys.argv[2]), "tm-here-e1-1.r0.i1"
s = socket.create_connection((host, port), 10)
f = s.makefile("rwb")
challenge = json.loads(f.readline())
proof = hmac.new(b"0" * 64, f"pilot:{challenge['nonce']}:{'1' * 32}:{pilot}".encode(), hashlib.sha256).hexdigest()
hello = {"m": "hello", "pilot": pilot, "allocation": "tm-here-e1-1", "rank": 0, "node": "n", "version": "0.1.0",
         "nonce": "1" * 32, "proof": proof, "held": []}
ask = {"m": "ask", "cores": 64, "memory_mb": 64000, "devices": {}, "remaining_s": None, "queued_s": 0.0}
f.write(json.dumps(hello).encode() + b"\\n" + json.dumps(ask).encode() + b"\\n")
f.flush()
s.settimeout(10)
try:
    print("ANSWER", f.readline())
except (ConnectionError, TimeoutError):
    print("ANSWER b''")
"""


def test_the_lead_refuses_who_does_not_know_the_secret_and_logs_it() -> None:
    with world() as it:
        host, port, fleet = lead_of(it)
        answer = as_stranger(JOIN_LEAD, host, str(port))
        assert answer.stdout.strip() == "ANSWER b''", answer.stdout + answer.stderr
        it.wait_for(
            lambda: any("refused" in log.read_text() for log in it.home.rglob("*.log") if log.is_file()),
            "log",
        )
        assert as_stranger(READ, str(fleet / "secret")).stdout.startswith("REFUSED")


def test_the_same_words_with_the_secret_are_welcome() -> None:
    """The refusals above are refusals of the stranger, not of a malformed message."""
    with world() as it:
        host, port, fleet = lead_of(it)
        secret = (fleet / "secret").read_text().strip().encode()
        with socket.create_connection((host, port), 10) as connection, connection.makefile("rwb") as lines:
            challenge = json.loads(lines.readline())
            pilot = "tm-here-e1-999.r0.i1"
            text = f"pilot:{challenge['nonce']}:{'1' * 32}:{pilot}".encode()
            hello = {
                "m": "hello", "pilot": pilot, "allocation": "tm-here-e1-999", "rank": 0, "node": "n",
                "version": "0.1.0", "nonce": "1" * 32, "held": [],
                "proof": hmac.new(secret, text, hashlib.sha256).hexdigest(),
            }  # fmt: skip
            lines.write(json.dumps(hello).encode() + b"\n")
            lines.flush()
            assert json.loads(lines.readline())["m"] == "welcome"


REST = """
import http.client, sys
for headers in ({}, {"Authorization": "Bearer " + "0" * 64}):
    c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
    c.request("GET", "/v1/jobs", headers=headers)
    print(c.getresponse().status)
"""


def test_the_tcp_listener_wants_the_secret_and_logs_refusals(short_path: Path) -> None:
    secret = short_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("ab" * 32 + "\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tidemill.cli.main", "server", "run", "--home", str(short_path)]
    config = short_path / "server" / "server.toml"
    config.parent.mkdir(mode=0o700)
    config.write_text(f'listen = "127.0.0.1:{port}"\nsecret_file = "{secret}"\n')
    log = short_path / "log"
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as server:
        try:
            for _ in range(600):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except ConnectionRefusedError:
                    assert server.poll() is None, log.read_text()
                    time.sleep(0.05)
            answer = as_stranger(REST, str(port))
            assert answer.stdout.split() == ["401", "401"], answer.stderr + log.read_text()
            assert log.read_text().count("refused") >= 2
            argv = Path(f"/proc/{server.pid}/cmdline").read_bytes()
            environment = Path(f"/proc/{server.pid}/environ").read_bytes()
            assert b"abab" not in argv + environment
        finally:
            server.terminate()


CONNECT_TCP = """
import http.client, sys
try:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
    connection.request("GET", sys.argv[2])
    print("ANSWER", connection.getresponse().status)
except OSError:
    print("REFUSED")
"""


def test_the_port_of_the_pages_gives_another_user_nothing_even_with_the_url() -> None:
    with world() as it, it.running("web", "--home", str(it.home)) as pages:
        assert pages.stdout is not None
        url = urlsplit(pages.stdout.readline().strip())
        for path in ("/", "/v1/health", "/v1/jobs", url.path):
            assert as_stranger(CONNECT_TCP, str(url.port), path).stdout.split() == ["REFUSED"]
        with closing(http.client.HTTPConnection("127.0.0.1", url.port or 0, timeout=60)) as connection:
            connection.request("GET", url.path)
            assert connection.getresponse().status == 200, "what the stranger tried has not used the URL up"


def test_no_port_socket_or_file_of_a_person_who_works_answers_another_user() -> None:
    """Server, site, lead, pilots and pages: whatever they listen on and hold open."""
    with world() as it, it.running("web", "--home", str(it.home)) as pages:
        assert pages.stdout is not None
        page_port = urlsplit(pages.stdout.readline().strip()).port
        _, lead_port, _ = lead_of(it)
        ports, sockets, paths = open_of(own_processes(it, pages.pid))
        assert {page_port, lead_port} <= set(ports)
        assert any(path.endswith("api.sock") for path in sockets)
        said, opened = probed(ports, sockets, [*paths, str(it.home)])
        assert len(said) == 2 * len(ports)
        everybodys = {*map(str, it.home.parents), str(Path(sys.executable).with_name("tidemill-node"))}
        assert opened <= everybodys, opened
        for port, words in said:  # a lead says a challenge, which says nothing of anybody
            assert port == lead_port or words == "", (port, words)
            assert not words or set(json.loads(words.splitlines()[0])) <= {"m", "nonce", "incarnation"}, words
        before = it.client.campaign("c").events_done
        it.wait_for(lambda: it.client.campaign("c").events_done > before, "it works on")
