"""Torn files, a newer or misplaced database, a full disk, a second agent or server: told, survived, unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import TIDEMILL, World, namespace_command, world

from tidemill.cli.jobs.named import known_campaign
from tidemill.client import Client
from tidemill.errors import ConfigError
from tidemill.model.job import JobSpec
from tidemill.wire.api import SubmitReply, SubmitRequest
from tidemill.wire.server_connection import Connection, RefusedRequestError

DARTS = 60_000  # about 10 ms an event
GARBAGE = (b"", b"\0" * 700, b'deadbeef {"k":"done"}\n', b"\xff\xfe{", b"\n\n")
CUT_MAX = 400
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def tear(path: Path, rng: random.Random, *, cut_max: int) -> str:
    """Cut the file somewhere in its last bytes and let rubbish follow, as a crash of the machine may; what was done."""
    content = path.read_bytes()
    cut = rng.randint(0, min(cut_max, len(content)))
    rubbish = rng.choice(GARBAGE)
    path.write_bytes(content[: len(content) - cut] + rubbish)
    return f"{path.name}: -{cut} +{rubbish[:20]!r}"


def crash_and_tear(it: World, rng: random.Random) -> list[str]:
    """Kill everything at once, tear the newest journal of the lead and the newest log of the site, start again."""
    it.stop()
    journal = max(it.home.glob("site/fleets/*/journal/lead-*.log"), key=lambda path: path.stat().st_mtime_ns)
    log = max(it.home.glob("site/log/*.log"), key=lambda path: path.stat().st_mtime_ns)
    told = [tear(journal, rng, cut_max=CUT_MAX), tear(log, rng, cut_max=CUT_MAX)]
    (it.home / "up.json").unlink(missing_ok=True)
    it.start()
    return told


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_torn_journals_lose_and_double_nothing(fault_seed: int) -> None:
    rng = random.Random(fault_seed)
    with world(nodes=2) as it:
        (job,) = it.submit("c", JobSpec(app="pi", events=300, params={"darts": DARTS}, retries=50))
        told = []
        for done in (30, 120):
            it.wait_for(
                lambda done=done: it.client.job(job).row.events_done >= done, f"{done} events are done"
            )
            told += crash_and_tear(it, rng)
        row = it.wait_campaign("c")
        detail = it.client.job(job)
        said = f"seed {fault_seed}, torn {told}\n{it.tails()}"
        assert (detail.row.state, row.events_done, row.events_failed) == ("COMPLETED", 300, 0), said
        assert output_bytes(detail) == expected_hits(detail.seed_base, 300, DARTS), said


# ---- the database ------------------------------------------------------------------------------------------------


def run(home: Path, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, *TIDEMILL, *words, "--home", str(home)], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


def test_a_database_of_a_newer_version_is_refused_and_stays_as_it_is(short_path: Path) -> None:
    assert run(short_path, "server", "init").returncode == 0
    database = short_path / "server" / "tidemill.db"
    with sqlite3.connect(database) as connection:
        (known,) = connection.execute("SELECT version FROM tidemill_schema").fetchone()
        connection.execute("UPDATE tidemill_schema SET version = 99")
    connection.close()
    before = hashlib.sha256(database.read_bytes()).digest()
    for words in (("server", "run"), ("server", "upgrade")):
        answer = run(short_path, *words)
        assert answer.returncode == 2, answer
        assert (
            f"`{database}` has schema 99, made by a newer tidemill; this one knows {known}" in answer.stderr
        )
        assert "hint: install that version again" in answer.stderr
        assert hashlib.sha256(database.read_bytes()).digest() == before


def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(short_path: Path) -> None:
    database = short_path / "server" / "tidemill.db"
    database.parent.mkdir(mode=0o700)
    database.write_bytes(b"my thesis\n" * 1000)
    answer = run(short_path, "server", "run")
    assert answer.returncode in (2, 3), answer
    assert str(database) in answer.stderr
    assert "Traceback" not in answer.stderr
    assert database.read_bytes() == b"my thesis\n" * 1000


MOUNTS = """21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
571 21 0:52 / {home} rw,relatime shared:303 - {type} {source} rw,vers=4.2,hard,proto=tcp
"""


@as_root
@pytest.mark.parametrize(
    ("kind", "source"),
    [("nfs4", "filer:/home"), ("lustre", "10.0.0.1@tcp:/scratch"), ("fuse.sshfs", "you@host:")],
)
def test_a_database_on_a_network_file_system_is_refused(kind: str, source: str, short_path: Path) -> None:
    """The process sees a recorded table of mounts, bound over its own: mounting NFS here would need a server of it."""
    table = short_path / "mountinfo"
    home = short_path / "home"
    table.write_text(MOUNTS.format(home=home, type=kind, source=source))
    bind = ("unshare", "-m", "--", "sh", "-c", f'mount --bind {table} /proc/$$/mountinfo && exec "$@"', "sh")
    for words in (("server", "run"), ("server", "init"), ("up",)):
        answer = run(home, *words, prefix=bind)
        assert answer.returncode == 2, answer
        assert f"is on a network file system: `{kind}`" in answer.stderr
        assert "PostgreSQL" in answer.stderr
        assert not list(home.rglob("tidemill.db*"))


# ---- a full disk -------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tm-test", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def server(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*namespace_command(), *TIDEMILL, "server", "run", "--home", str(home)], stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


SUBMISSION = b'{"key":"hand","campaign":"hand","jobs":[{"app":"pi","name":"%s"}]}' % (b"x" * 90)
CANCELLATION = b'{"campaign":"before","reason":"%s"}' % (b"x" * 90)


def posted_by_hand(home: Path, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and answer of a request, as any program would see them."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(f"{home}/server/api.sock")
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split()[1]), answer


@as_root
def test_a_full_disk_under_the_server_refuses_and_recovers(short_path: Path) -> None:
    home = short_path
    address = f"unix:{home}/server/api.sock"
    with small_disk(home / "server", "6m"), server(home):
        client = Client(address, retry_s=30)
        few = [JobSpec(command=["/bin/true", "x" * 500, str(number)]) for number in range(50)]
        assert len(client.submit(few, campaign="before").jobs) == 50
        ballast = home / "server" / "ballast"
        fill(ballast)
        refused = posted_by_hand(home, "/v1/jobs", SUBMISSION)
        failed = posted_by_hand(home, "/v1/cancel", CANCELLATION)
        many = home / "many.toml"
        many.write_text('campaign = "many"\n[[job]]\ncommand = ["/bin/true"]\nrepeat = 5000\n')
        answer = run(home, "submit", str(many), "--server", address)
        assert answer.returncode == 3, answer
        assert re.search(r"error: .*(full|space)", answer.stderr), answer.stderr
        assert "hint: " in answer.stderr
        assert (refused[0], b"free space" in refused[1]) == (507, True), refused
        assert (failed[0], b"full" in failed[1]) == (503, True), failed
        assert client.counts().jobs == 50, "who reads is served, and nothing is half there"
        assert [row.name for row in client.campaigns()] == ["before"]
        ballast.unlink()
        answer = run(home, "submit", str(many), "--server", address)
        assert answer.returncode == 0, answer.stderr
        assert client.counts().jobs == 5050
        assert posted_by_hand(home, "/v1/jobs", SUBMISSION)[0] == 200
    assert "Traceback" not in (home / "server.log").read_text()


# ---- two of a kind -----------------------------------------------------------------------------------------------


def test_of_two_owners_campaigns_of_one_name_a_bare_name_is_ones_own(short_path: Path) -> None:
    spec = [JobSpec(command=["/bin/true"])]
    with server(short_path):
        client = Client(f"unix:{short_path}/server/api.sock", retry_s=30)

        def submit_as(owner: str, campaign: str) -> None:
            request = SubmitRequest(key=f"{owner} {campaign}", campaign=campaign, owner=owner, jobs=spec)
            client.connection.call("POST", "/v1/jobs", SubmitReply, body=request)

        client.submit(spec, campaign="run18")
        submit_as("eve", "hers")
        assert known_campaign(client, "hers") == "hers"
        assert known_campaign(client, "run18") == "run18"
        submit_as("eve", "run18")
        assert known_campaign(client, "run18") == client.own("run18")
        submit_as("mallory", "hers")
        with pytest.raises(RefusedRequestError, match="several owners"):
            known_campaign(client, "hers")
        with pytest.raises(ConfigError, match="there is no campaign"):
            known_campaign(client, "run19")


def test_a_second_agent_and_a_second_server_are_refused_and_change_nothing() -> None:
    with world(nodes=1) as it:
        epochs = sorted(path.name for path in (it.home / "site" / "epoch").glob("*.json"))
        logs = sorted(path.name for path in (it.home / "site" / "log").iterdir())
        for words, role, hint in (
            (("site", "run", str(it.home / "site")), "agent", "--take-over"),
            (("server", "run"), "server", "stop it first"),
        ):
            (first,) = it.processes(role)
            command = it.inside([*TIDEMILL, *words, "--home", str(it.home)])
            answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert answer.returncode in (2, 3), answer
            assert f"process {it.inner_pid(first)}" in answer.stderr
            assert hint in answer.stderr
            assert [each.pid for each in it.processes(role)] == [first.pid]
        assert sorted(path.name for path in (it.home / "site" / "epoch").glob("*.json")) == epochs
        assert sorted(path.name for path in (it.home / "site" / "log").iterdir()) == logs
        Connection(f"unix:{it.home}/server/api.sock").call("GET", "/v1/sites", list[dict[str, object]])
        (job,) = it.submit("c", JobSpec(app="pi", events=5, params={"darts": 10}))
        it.wait_campaign("c")
        assert it.client.job(job).row.state == "COMPLETED"
