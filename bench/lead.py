"""What do a thousand one-node allocations cost one lead, and the shared file system? Prints one JSON object.

    bench/lead.py --json [--connections N] [--seconds S] [--rate R] [--journals N]

Simulated pilots speak the real protocol: each proves that it knows the secret, asks for work, sends a record of what
it was given at its share of the rate, one line at a time, and asks again. `records_per_s` (acknowledged, that is
fsynced), `cpu_share` (of one core, the lead with its fsync thread), `ack_ms` (median and 99 % from sending to
acknowledgement), `shared_fs_ops_per_s`: metadata operations in the fleet's directory by lead and pilots in the steady
state, counted by strace: those of the lead (in a second, equal run, since strace slows what it counts) plus, for each
connection, those of one real pilot at work after its start. `none`: without a lead, the agent reads `--journals`
journals: CPU time of one reading, the interval that keeps to the site's budget, operations per second of agent and of
one real pilot for each journal. Figures without strace are null.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import re
import resource
import secrets
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.wire_values import program, settings  # noqa: E402

from tidemill.node.binary import find_binary  # noqa: E402
from tidemill.node.fleet import Fleet, create_fleet  # noqa: E402
from tidemill.node.journal import FleetJournal, read_interval_s  # noqa: E402
from tidemill.site.fleet.handout import Seat  # noqa: E402
from tidemill.site.fleet.mailbox import Mailbox  # noqa: E402
from tidemill.wire.node import FORMAT, Grant, JobDef, Manifest  # noqa: E402

OPERATIONS_PER_S_MAX = 100.0
READ_S = 5.0
PATIENCE_S = 60.0
NODE_S = 8.0
"""How long the operations of one real pilot are counted, after its start."""

DONE = (
    b'{"k":"done","p":"%s","s":%d,"grant":%d,"job":1,"first":%d,"count":1,"payloads":1,"slot":0,"started_us":1,'
    b'"ended_us":2,"wall_us":100000,"setup_us":0,"user_us":1,"system_us":1,"rss_kb":1000,"read_bytes":null,'
    b'"write_bytes":null,"outputs":[]}'
)


LONG = {
    "record_flush_ms": 100, "output_flush_s": 30.0, "queue_s": 5.0, "idle_s": 600.0, "dead_after_s": 300.0,
    "top_up_s": 60.0, "stop_files": ["/tmp/tidemill-bench-stop"],
}  # fmt: skip
"""Settings of a fleet that nothing ends."""

SLEEP = program(app="bench", executable="/bin/sleep", memory_mb=16, scratch_mb=16, event_s=0.1, range_s=1.0)


def make_fleet(folder: Path, lead: str, **changes: Any) -> Fleet:
    manifest = Manifest(
        format=FORMAT,
        fleet=folder.name,
        site="bench",
        epoch=1,
        created_us=1,
        lead=lead,
        listen="127.0.0.1:0",
        settings=settings(**(LONG | changes)),
    )
    return create_fleet(folder, manifest)


def job(events: int) -> JobDef:
    return JobDef(job=1, program=1, argv=["0.1"], env={}, params="{}", seed_base=0, events=events, inputs=[])


def grants(events: int) -> list[Grant]:
    return [Grant(grant=1, job=1, first=0, count=events, chunk_max=None)]


class Pilot:
    """One simulated pilot."""

    def __init__(self, name: str, secret: bytes, address: tuple[str, int]) -> None:
        self.name = name.encode()
        self.queue: list[list[int]] = []
        self.queued = 0
        self.number = 0
        self.acked = 0
        self.sent_s: dict[int, float] = {}
        self.waits: list[float] = []
        self.asks = False
        self.rest = b""
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = self.socket.makefile("rb")
        challenge = json.loads(file.readline())
        mine = secrets.token_hex(16)
        text = f"pilot:{challenge['nonce']}:{mine}:{name}".encode()
        self.send(
            {
                "m": "hello",
                "pilot": name,
                "allocation": name.rsplit(".", 2)[0],
                "rank": 0,
                "node": "bench",
                "version": "0",
                "nonce": mine,
                "proof": hmac.new(secret, text, hashlib.sha256).hexdigest(),
                "held": [],
            }
        )
        assert json.loads(file.readline())["m"] == "welcome"
        self.ask()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def ask(self) -> None:
        self.asks = True
        queued_s = self.queued * 0.1
        self.send(
            {
                "m": "ask",
                "cores": 1,
                "memory_mb": 1000,
                "devices": {},
                "remaining_s": None,
                "queued_s": queued_s,
            }
        )

    def hear(self, now: float) -> None:
        data = self.rest + self.socket.recv(1 << 18)
        *lines, self.rest = data.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["m"] == "work":
                self.asks = False
                for grant in message["grants"]:
                    self.queue.append([grant["grant"], grant["first"], grant["count"]])
                    self.queued += grant["count"]
            elif message["m"] == "ack":
                for number in range(self.acked + 1, message["acked"] + 1):
                    self.waits.append(now - self.sent_s.pop(number))
                self.acked = message["acked"]

    def work(self, now: float) -> None:
        """Report one event as done."""
        if self.queue:
            self.number += 1
            head = self.queue[0]
            content = DONE % (self.name, self.number, head[0], head[1])
            head[1] += 1
            head[2] -= 1
            self.queued -= 1
            if head[2] == 0:
                del self.queue[0]
            self.sent_s[self.number] = now
            self.socket.sendall(b"%08x %s\n" % (crc32(content), content))
        if self.queued < 25 and not self.asks:
            self.ask()


def drive(pilots: list[Pilot], rate: float, seconds: float) -> tuple[float, int]:
    """Send records at the rate for `seconds`; the time that it took and the records acknowledged in it."""
    selector = selectors.DefaultSelector()
    for pilot in pilots:
        selector.register(pilot.socket, selectors.EVENT_READ, pilot)
    began, sent, acked = time.monotonic(), 0, sum(pilot.acked for pilot in pilots)
    while (now := time.monotonic()) < began + seconds:
        due = min(int((now - began) * rate), sent + 4 * len(pilots))
        while sent < due:
            pilots[sent % len(pilots)].work(now)
            sent += 1
        for key, _ in selector.select(0.002):
            key.data.hear(time.monotonic())
    selector.close()
    return time.monotonic() - began, sum(pilot.acked for pilot in pilots) - acked


def cpu_s(pid: int) -> float:
    """User and system time of a process: proc(5), fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def lead_of(fleet: Fleet) -> Iterator[tuple[int, tuple[str, int]]]:
    command = [str(find_binary()), "lead", "--fleet", str(fleet.directory)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + PATIENCE_S
        while (address := fleet.lead_address()) is None:
            assert time.monotonic() < end_s, "the lead does not listen"
            time.sleep(0.01)
        yield process.pid, (address.host, address.port)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def counted(pid: int, directory: Path, into: list[float]) -> Iterator[None]:
    """Put the metadata operations per second below `directory` of a process and its children into `into`."""
    with tempfile.NamedTemporaryFile(mode="r", prefix="tidemill-strace-") as trace:
        command = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", trace.name, "-p", str(pid)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        try:
            yield
        finally:
            process.terminate()
            process.wait()
        lines = [line for line in trace if str(directory) in line or "tidemill-bench-stop" in line]
        into.append(len(lines) / (time.monotonic() - began))


def measure_lead(folder: Path, connections: int, rate: float, seconds: float) -> dict[str, Any]:
    fleet = make_fleet(folder / "lead", "beside")
    events = int(rate * (2 * seconds + 60))
    fleet.write_work(programs=[SLEEP], jobs=[job(events)], grants=grants(events))
    secret = fleet.secret.read_bytes().strip()
    with lead_of(fleet) as (pid, address):
        pilots = [Pilot(f"tm-bench-e1-1.{k}.r0.i1", secret, address) for k in range(connections)]
        fleet.beat(1)
        drive(pilots, rate, min(5.0, seconds))
        for pilot in pilots:
            pilot.waits.clear()
        before = cpu_s(pid)
        took_s, acked = drive(pilots, rate, seconds)
        cpu = cpu_s(pid) - before
        waits = sorted(wait for pilot in pilots for wait in pilot.waits)
        operations: list[float] = []
        if shutil.which("strace"):
            with counted(pid, fleet.directory, operations):
                drive(pilots, rate, min(seconds, 10.0))
        one = real_pilot_operations(fleet, "tm-bench-e1-1.real")
        for pilot in pilots:
            pilot.socket.close()
    lead = operations[0] if operations else None
    return {
        "connections": connections,
        "records_per_s": round(acked / took_s),
        "cpu_share": round(cpu / took_s, 3),
        "ack_ms": {
            "median": round(statistics.median(waits) * 1000, 1),
            "p99": round(waits[int(len(waits) * 0.99)] * 1000, 1),
        },
        "shared_fs_ops_per_s": None if lead is None or one is None else round(lead + connections * one, 2),
        "lead_fs_ops_per_s": None if lead is None else round(lead, 2),
        "pilot_fs_ops_per_s": one,
    }


def real_pilot_operations(
    fleet: Fleet, allocation: str, *options: str, seconds: float = NODE_S
) -> float | None:
    """Metadata operations per second on the fleet's directory of one real pilot at work, its start left out."""
    if not shutil.which("strace"):
        return None
    node = [str(find_binary()), "run", "--fleet", str(fleet.directory), "--allocation", allocation]
    wrap = ["unshare", *(["-Ur"] if os.geteuid() else []), "-pf", "--mount-proc", "--kill-child"]
    command = [*wrap, *node, "--cores", "1", *options]
    with tempfile.NamedTemporaryFile(mode="r", prefix="tidemill-strace-") as trace:
        traced = ["strace", "-ff", "-ttt", "-qq", "-e", "trace=%file", "-o", trace.name, *command]
        process = subprocess.Popen(
            traced, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
        )
        began = time.time()
        time.sleep(3 + seconds)
        os.killpg(process.pid, signal.SIGKILL)  # strace itself would wait for the pilot's end
        process.wait()
        found = 0
        for path in Path(trace.name).parent.glob(Path(trace.name).name + ".*"):
            for line in path.read_text(errors="replace").splitlines():
                at = re.match(r"(\d+\.\d+) ", line)
                inside = at is not None and began + 3 <= float(at[1]) < began + 3 + seconds
                found += inside and (str(fleet.directory) in line or "tidemill-bench-stop" in line)
            path.unlink()
    return round(found / seconds, 3)


def measure_none(folder: Path, journals: int) -> dict[str, Any]:
    fleet = make_fleet(folder / "none", "none")
    name = b"tm-bench-e1-1.%d.r0.i1"
    tails = []
    for k in range(journals):
        path = fleet.journal / f"{(name % k).decode()}.log"
        tails.append(path.open("ab"))
    journal = FleetJournal(fleet.journal)
    read_s: list[float] = []
    cpu: list[float] = []
    for turn in range(3):
        for k, tail in enumerate(tails):
            for number in range(turn * 10 + 1, turn * 10 + 11):
                content = DONE % (name % k, number, 1, number)
                tail.write(b"%08x %s\n" % (crc32(content), content))
            tail.flush()
        before_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        count = sum(1 for _ in iter(journal.read, []))
        after = resource.getrusage(resource.RUSAGE_SELF)
        read_s.append(time.monotonic() - before_s)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert count
    interval_s = read_interval_s(journals, operations_per_s_max=OPERATIONS_PER_S_MAX, interval_s=READ_S)
    looks = make_fleet(folder / "looks", "none", top_up_s=2.0)
    mailbox = Mailbox(looks)
    mailbox.grant(grants(10_000), [SLEEP], [job(10_000)])
    first = mailbox.first_shares([Seat(allocation="tm-bench-e1-2", cores=20, memory_mb=1000)])
    one = real_pilot_operations(looks, "tm-bench-e1-2", "--work-from", str(first))
    return {
        "journals": journals,
        "read_s": round(statistics.median(read_s), 3),
        "interval_s": round(interval_s, 1),
        "cpu_share": round(statistics.median(cpu) / interval_s, 4),
        "agent_fs_ops_per_s": round((1 + 2 * journals) / interval_s, 1),
        "pilot_fs_ops_per_look": None if one is None else round(one * 2.0, 2),
        "pilots_fs_ops_per_s": None if one is None else round(journals * one * 2.0 / 60.0, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object (the only form there is)")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=10_000.0, help="records per second of all together")
    parser.add_argument("--journals", type=int, default=1000)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        found = measure_lead(Path(folder), given.connections, given.rate, given.seconds)
        found["none"] = measure_none(Path(folder), given.journals)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
