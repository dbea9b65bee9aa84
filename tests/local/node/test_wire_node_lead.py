"""The lead as a process: a pilot in Python joins it; a full disk, signals, strangers and bad fleets."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.wire_values import settings

from tidemill import clock
from tidemill.node.binary import find_binary
from tidemill.wire import node

PATIENCE_S = 15.0
SECRET = "5ec2e7" * 10 + "5ec2"

SETTINGS = settings(record_flush_ms=20, queue_s=2, idle_s=60, dead_after_s=30, drain_s=30, pilot_grace_s=1)
MANIFEST = node.Manifest(
    format=node.FORMAT,
    fleet="e1-1",
    site="here",
    epoch=1,
    created_us=1,
    lead="beside",
    listen="127.0.0.1:0",
    settings=SETTINGS,
)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = clock.monotonic_s() + PATIENCE_S
    while not (found := condition()):
        assert clock.monotonic_s() < deadline, f"not in time: {what}"
        clock.sleep_s(0.01)
    return found


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    for name in ("work", "journal", "bundle"):
        (tmp_path / name).mkdir()
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(MANIFEST))
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET + "\n")
    return tmp_path


class Lead:
    """A lead process; its log is read from a file."""

    def __init__(self, fleet: Path, *, before: str = "") -> None:
        self.fleet = fleet
        self.log = fleet / "lead.err"
        binary = find_binary()
        command = [str(binary), "lead", "--fleet", str(fleet)]
        if before:
            script = f'{before}; exec "$@"'
            command = ["unshare", "--mount", *user_namespace(), "sh", "-ec", script, "sh", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    def events(self, name: str) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]  # the last line may be half written
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if line["event"] == name]

    def address(self) -> node.LeadAddress:
        path = self.fleet / "lead.json"

        def told() -> node.LeadAddress | None:
            assert self.process.poll() is None, self.log.read_text()
            if not path.exists():
                return None
            address = msgspec.json.decode(path.read_bytes(), type=node.LeadAddress)
            return address if address.pid == self.process.pid else None

        found: node.LeadAddress = until(told, "lead.json")
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def user_namespace() -> list[str]:
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


@pytest.fixture
def start(fleet: Path) -> Iterator[Callable[..., Lead]]:
    started: list[Lead] = []

    def start_one(**options: str) -> Lead:
        started.append(Lead(fleet, **options))
        return started[-1]

    yield start_one
    for lead in started:
        lead.end()


def proof(*parts: str, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), ":".join(parts).encode(), hashlib.sha256).hexdigest()


class Pilot:
    """A pilot's side of a connection; raises EOFError where the lead closes it."""

    def __init__(self, address: node.LeadAddress, name: str = "a.r0.i1", *, secret: str = SECRET) -> None:
        self.name = name
        self.socket = socket.create_connection((address.host, address.port), timeout=PATIENCE_S)
        self.file = self.socket.makefile("rb")
        try:
            self.acked = self.number = self._join(secret)
        except (EOFError, OSError):
            self.close()
            raise

    def _join(self, secret: str) -> int:
        challenge = self.receive()
        assert isinstance(challenge, node.Challenge)
        nonce = secrets.token_hex(16)
        self.send(
            node.Hello(
                pilot=self.name,
                allocation=self.name.split(".")[0],
                rank=0,
                node="here",
                version="0",
                nonce=nonce,
                proof=proof("pilot", challenge.nonce, nonce, self.name, secret=secret),
                held=[],
                serves=None,
            )
        )
        welcome = self.receive()
        assert isinstance(welcome, node.Welcome)
        assert welcome.proof == proof("lead", nonce, challenge.nonce, self.name, secret=secret)
        return welcome.acked

    def receive(self) -> node.LeadMessage:
        line = self.file.readline()
        if not line:
            raise EOFError
        message: node.LeadMessage = msgspec.json.decode(line, type=node.LeadMessage)
        return message

    def send(self, message: msgspec.Struct) -> None:
        self.socket.sendall(msgspec.json.encode(message) + b"\n")

    def record(self, message: str = "") -> int:
        self.number += 1
        record = node.Ended(
            p=self.name, s=self.number, reason="idle", message=message, busy_us=0, slot_us=0, at_us=1
        )
        text = msgspec.json.encode(record)
        self.socket.sendall(b"%08x %s\n" % (zlib.crc32(text), text))
        return self.number

    def wait_acked(self, number: int) -> None:
        while self.acked < number:
            message = self.receive()
            if isinstance(message, node.Ack):
                self.acked = message.acked

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def journal_numbers(directory: Path) -> list[int]:
    numbers = []
    for path in sorted(directory.glob("lead-*.log")):
        for line in path.read_bytes().splitlines():
            checksum, _, text = line.partition(b" ")
            assert int(checksum, 16) == zlib.crc32(text)
            numbers.append(msgspec.json.decode(text, type=node.Record).s)
    return numbers


def test_pilot_in_python_is_welcomed_and_its_records_are_kept(
    fleet: Path, start: Callable[..., Lead]
) -> None:
    pilot = Pilot(start().address())
    for _ in range(100):
        last = pilot.record()
    pilot.wait_acked(last)
    assert journal_numbers(fleet / "journal") == list(range(1, 101))
    pilot.close()


def test_wrong_proof_is_refused_and_logged_with_the_peers_address(start: Callable[..., Lead]) -> None:
    lead = start()
    with pytest.raises((EOFError, ConnectionResetError)):
        Pilot(lead.address(), secret="0" * 64)
    (event,) = until(lambda: lead.events("connection.refused"), "a log line")
    assert event["level"] == "warning"
    assert event["peer"].startswith("127.0.0.1:")
    assert "proof" in event["reason"]
    assert SECRET not in lead.log.read_text()


def test_sigterm_keeps_what_was_received_and_exits_0(fleet: Path, start: Callable[..., Lead]) -> None:
    lead = start()
    pilot = Pilot(lead.address())
    pilot.wait_acked(pilot.record())
    lead.process.send_signal(signal.SIGTERM)
    assert lead.process.wait(PATIENCE_S) == 0
    assert journal_numbers(fleet / "journal") == [1]
    assert lead.events("lead.left")[0]["reason"] == "asked"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(
            ("127.0.0.1", msgspec.json.decode((fleet / "lead.json").read_bytes())["port"])
        )
    pilot.close()


def test_successor_of_a_killed_lead_knows_what_was_acknowledged(
    fleet: Path, start: Callable[..., Lead]
) -> None:
    for incarnation in range(1, 5):
        lead = start()
        address = lead.address()
        assert address.incarnation == incarnation
        pilot = Pilot(address)
        assert pilot.acked == 5 * (incarnation - 1)
        for _ in range(5):
            last = pilot.record()
        pilot.wait_acked(last)
        lead.process.kill()
        lead.process.wait()
        pilot.close()
    assert journal_numbers(fleet / "journal") == list(range(1, 21))


def test_full_disk_stops_acknowledgements_and_loses_nothing(fleet: Path, start: Callable[..., Lead]) -> None:
    journal = fleet / "journal"
    lead = start(
        before=f"mount -t tmpfs -o size=1m none '{journal}'; head -c 1000000 /dev/zero >'{journal}/filler'"
    )
    pilot = Pilot(lead.address())
    for k in range(200):
        last = pilot.record(message=f"{k}" + "x" * 1000)
    until(lambda: lead.events("journal.failed"), "an error in the log")
    inside = Path(f"/proc/{lead.process.pid}/root{journal}")
    (inside / "filler").unlink()
    pilot.wait_acked(last)
    until(lambda: lead.events("journal.works_again"), "a line in the log")
    assert len(lead.events("journal.failed")) == 1
    assert journal_numbers(inside) == list(range(1, 201))
    pilot.close()


@pytest.mark.parametrize(
    ("spoil", "code", "complaint"),
    [
        (lambda fleet: (fleet / "manifest.json").unlink(), 3, "manifest.json"),
        (lambda fleet: (fleet / "manifest.json").write_text("{}"), 2, "missing field"),
        (lambda fleet: (fleet / "secret").chmod(0o644), 3, "0644"),
        (lambda fleet: (fleet / "secret").unlink(), 3, "secret"),
        (lambda fleet: (fleet / "journal").rmdir(), 3, "journal"),
        (
            lambda fleet: (fleet / "manifest.json").write_bytes(
                msgspec.json.encode(msgspec.structs.replace(MANIFEST, listen="localhost:0"))
            ),
            2,
            "127.0.0.1:0",
        ),
    ],
)
def test_fleet_that_cannot_be_used_is_refused_with_the_reason(
    fleet: Path, spoil: Callable[[Path], None], code: int, complaint: str
) -> None:
    spoil(fleet)
    done = subprocess.run(
        [find_binary(), "lead", "--fleet", fleet], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == code
    assert complaint in json.loads(done.stderr)["error"]
    assert not (fleet / "lead.json").exists()
