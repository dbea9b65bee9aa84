"""How much can one submitter who does the worst slow the others? Prints one JSON object.

    bench/worst.py --json [--seconds N]

Two server processes with https and their own CA run side by side, so that the noise of the machine, and of an attacker
who would be on another one, is in both. At each a submitter sends a request of 100 jobs every 0.2 s and asks for the
campaigns as often; two sites sync every 0.5 s and finish what they are leased. The second server is attacked by one
submitter with a valid certificate, from a process of its own with `nice 10`: requests of 10,000 jobs of which each is a
kind or has a long specification of its own, or of which the last is wrong; bodies of 22 MB with 2,000,000 jobs; a
campaign for each request; keys used again; expensive listings; heads and bodies that stop half way. The attacker asks
again at once, whatever the answer.

`ratio`: the worst of the medians of the others, attacked to quiet (at most 1.5 is promised); `quiet_ms`, `attacked_ms`:
these medians, each call counted from when it was due; `slowest_ms`: the slowest call; `cpu_s`: of the servers;
`rss_mb`: the attacked server's peak (less than 1000 is promised); `database_mb`: its database; `answers`: the
attacker's, by status, 0 = the connection was ended.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worlds.services.ports import free_port

from tidemill.client.authority import Authority, Wanted
from tidemill.errors import TidemillError
from tidemill.model.job import JobSpec
from tidemill.wire.api import (
    AppOffer,
    CampaignRow,
    Capacity,
    DoneReport,
    LeaseOrder,
    PayloadUsage,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import Connection

SERVER = "import sys; from tidemill.server.run import entry; sys.exit(entry(__import__('json').loads(sys.argv[1])))"
SECONDS = 60.0
READY_S = 60.0
SUBMIT_EVERY_S = 0.2
SYNC_EVERY_S = 0.5
HALF_SENT = 30
PATIENCE_S = 120.0
Times = dict[str, list[float]]


class Place(NamedTuple):
    """A server that runs, and the files of those who come to it."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key."""
        return self.folder / "ca" / f"{name}.pem", self.folder / "ca" / f"{name}.key"

    def connect(self, name: str) -> Connection:
        """A client of the API."""
        certificate, key = self.pair(name)
        own = Credentials(ca=self.folder / "ca" / "ca.pem", certificate=certificate, key=key)
        return Connection(f"https://127.0.0.1:{self.port}", credentials=own, timeout_s=PATIENCE_S)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Place]:
    """A server with its own CA, two submitters and two sites."""
    folder.mkdir()
    authority = Authority.create(folder / "ca", name="bench", days=1)
    wanted = [("server", "server"), ("submitter", "ada"), ("submitter", "eve"), ("site", "s"), ("site", "t")]
    for role, name in wanted:
        alias = "127.0.0.1" if role == "server" else name
        authority.issue(Wanted(role=role, name=alias, days=1), folder / "ca")
    port = free_port()
    config = {
        "dir": str(folder / "server"), "listen": f"127.0.0.1:{port}",
        "tls": {
            "certificate": str(folder / "ca" / "127.0.0.1.pem"), "key": str(folder / "ca" / "127.0.0.1.key"),
            "ca": str(authority.certificate_path),
        },
    }  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVER, json.dumps(config)], stdout=log, stderr=log)
    place = Place(process, port, folder)
    try:
        end = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(TidemillError):
                place.connect("ada").text("/v1/health")
                break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit((folder / "server.log").read_text())
            time.sleep(0.1)
        yield place
    finally:
        process.terminate()
        process.wait(60)


# ---- the others ---------------------------------------------------------------------------------------------------


def steadily(every_s: float, stop: threading.Event) -> Iterator[float]:
    """The times at which something is due. One that comes late does not put off the next: waiting is counted."""
    due = time.monotonic() + random.random() * every_s
    while not stop.wait(max(0.0, due - time.monotonic())):
        yield due
        due += every_s


def submitter(place: Place, times: Times, stop: threading.Event, run: str) -> None:
    """Submits."""
    connection = place.connect("ada")
    for number, due in enumerate(steadily(SUBMIT_EVERY_S, stop)):
        request = SubmitRequest(key=f"{run}-{number}", campaign=run, jobs=[JobSpec(app="sim")], repeat=[100])
        connection.call("POST", "/v1/jobs", SubmitReply, body=request)
        times["submit"].append(time.monotonic() - due)


def reader(place: Place, times: Times, stop: threading.Event, run: str) -> None:
    """Asks for the campaign."""
    connection = place.connect("ada")
    for due in steadily(SUBMIT_EVERY_S, stop):
        connection.call("GET", "/v1/campaigns", list[CampaignRow])
        times["read"].append(time.monotonic() - due)


class Site:
    """Syncs steadily, and finishes at once what it is leased."""

    def __init__(self, place: Place, name: str) -> None:
        self._connection, self._name = place.connect(name), name
        self._reports: list[DoneReport] = []
        self._have = self._number = 0

    def run(self, times: Times, stop: threading.Event) -> None:
        """For a turn."""
        for due in steadily(SYNC_EVERY_S, stop):
            self._sync()
            times["sync"].append(time.monotonic() - due)

    def _sync(self) -> None:
        capacity = Capacity(
            want_core_s=100.0, want_ranges_max=100, slot_cores_max=4, slot_memory_mb_max=10**7, devices={},
            event_s={"sim": 1.0}, nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        offer = AppOffer(
            name="sim", version="1", digest="", mode="command", parameters={}, outputs=[], cores=1, memory_mb=100,
            event_s=1.0,
        )  # fmt: skip
        request = SyncRequest(
            site=self._name, epoch=1, host="h", version="1", reports=list(self._reports), have=self._have,
            capacity=capacity, offers=[offer],
        )  # fmt: skip
        reply = self._connection.call("POST", "/v1/sync", SyncReply, body=request)
        self._have = max([self._have, *(order.n for order in reply.orders)])
        leases = [order for order in reply.orders if isinstance(order, LeaseOrder)]
        usage = PayloadUsage(payloads=1, wall_us=1_000_000)
        self._reports = [
            DoneReport(
                n=n,
                lease=each.lease,
                job=each.job,
                first=each.first,
                count=each.count,
                outputs=False,
                usage=usage,
            )
            for n, each in enumerate(leases, self._number + 1)
        ]
        self._number += len(self._reports)


class Others:
    """The other clients of a server."""

    def __init__(self, place: Place) -> None:
        self.place, self.times = place, defaultdict[str, list[float]](list)
        self.cpu_s = 0.0
        self._sites = [Site(place, name) for name in ("s", "t")]

    def turn(self, run: str, seconds: float) -> None:
        """Work as usual for a while, in a campaign of its own."""
        stop, before_s = threading.Event(), cpu_s(self.place)
        threads = [threading.Thread(target=each.run, args=(self.times, stop)) for each in self._sites]
        for act in (submitter, reader):
            threads.append(threading.Thread(target=act, args=(self.place, self.times, stop, run)))
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join()
        self.cpu_s += cpu_s(self.place) - before_s


def figures(times: Times) -> dict[str, dict[str, float]]:
    """Median and slowest in ms."""
    return {
        what: {
            "median": round(1e3 * statistics.median(found), 2), "slowest": round(1e3 * max(found), 1),
            "calls": len(found),
        }
        for what, found in sorted(times.items())
    }  # fmt: skip


# ---- the attacker -------------------------------------------------------------------------------------------------


class Attacker:
    """One who sends whatever costs much, without waiting for anything."""

    def __init__(self, port: int, folder: Path, until_s: float) -> None:
        self.port, self.until_s = port, until_s
        self.answers: Counter[str] = Counter()
        self._context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.pem"))
        self._context.load_cert_chain(folder / "ca" / "eve.pem", folder / "ca" / "eve.key")

    def run(self) -> None:
        """All of it at once."""
        ways = [
            self.kinds, self.kinds, self.long_specs, self.last_wrong, self.bodies, self.campaigns, self.keys,
            self.listings, self.listings, self.missing, self.half_sent, self.numbers,
        ]  # fmt: skip
        threads = [threading.Thread(target=self._repeat, args=(each,)) for each in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, way: Callable[[Callable[..., None], int], None]) -> None:
        number = random.randrange(10**9)
        while time.monotonic() < self.until_s:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=30, context=self._context
            )
            try:
                while time.monotonic() < self.until_s:
                    number += 1
                    way(lambda *asked: self._ask(connection, *asked), number)  # noqa: B023
            except (OSError, http.client.HTTPException):
                self.answers["0"] += 1
            finally:
                connection.close()

    def _ask(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None
    ) -> None:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        self.answers[str(answer.status)] += 1

    def kinds(self, ask: Callable[..., None], number: int) -> None:
        """Each job another amount of memory."""
        first = random.randrange(10**6)
        jobs = [{"app": "sim", "resources": {"memory_mb": first + each}} for each in range(10_000)]
        ask("POST", "/v1/jobs", submission(f"kinds-{number % 100}", number, jobs))
        few = jobs[: random.choice((100, 400, 900))]
        ask("POST", "/v1/jobs", submission(f"few-{number}", number + 10**9, few))
        ask("POST", "/v1/cancel", json.dumps({"campaign": f"few-{number}"}).encode())

    def long_specs(self, ask: Callable[..., None], number: int) -> None:
        """Each job another specification of 3 kB."""
        text = random.randbytes(1_400).hex()
        jobs = [{"app": "sim", "params": {"a": each, "b": text}} for each in range(10_000)]
        ask("POST", "/v1/jobs", submission(f"long-{number % 10}", number, jobs))

    def last_wrong(self, ask: Callable[..., None], number: int) -> None:
        """All of it is worked out before the last is refused."""
        jobs = [{"app": "sim", "params": {"a": each}} for each in range(9_999)]
        ask("POST", "/v1/jobs", submission("wrong", number, [*jobs, {"app": "sim", "after": [10**9]}]))
        ask("POST", "/v1/jobs", submission("wrong", number, [*jobs, {"app": "sim", "events": 0}]))

    def bodies(self, ask: Callable[..., None], number: int) -> None:
        """22 MB, 2,000,000 jobs."""
        body = (
            b'{"key":"%d","campaign":"body","jobs":[' % number
            + b",".join([b'{"app":"a"}'] * 2_000_000)
            + b"]}"
        )
        ask("POST", "/v1/jobs", body[: 31 * 1024 * 1024])

    def numbers(self, ask: Callable[..., None], number: int) -> None:
        """Lists of numbers, which take eight times their text."""
        body = b'{"reason":"%d","jobs":[' % number + b",".join([b"1000000"] * 3_000_000) + b"]}"
        ask("POST", "/v1/cancel", body)

    def campaigns(self, ask: Callable[..., None], number: int) -> None:
        """A campaign for each request, at a site that there is not."""
        jobs = [{"app": "sim", "site": f"nowhere{number}"}]
        ask("POST", "/v1/jobs", submission(f"campaign-{number}", number, jobs))
        ask("POST", "/v1/jobs", submission(f"campaign-{number}", number + 10**9, [{"app": "sim"}]))

    def keys(self, ask: Callable[..., None], number: int) -> None:
        """One key for other content."""
        ask("POST", "/v1/jobs", submission("keys", 1, [{"app": "sim", "params": {"a": number}}]))
        ask("POST", "/v1/cancel", b'{"campaign":"nosuch"}')
        ask("POST", "/v1/jobs", b"{" * 1000)

    def listings(self, ask: Callable[..., None], number: int) -> None:
        """Whole pages, by a filter that fits next to nothing."""
        ask("GET", "/v1/jobs?state=FAILED&limit=1000", None)
        ask("GET", "/v1/jobs?limit=1000", None)
        ask("GET", "/v1/campaigns?limit=1000", None)

    def missing(self, ask: Callable[..., None], number: int) -> None:
        """Names that are compared with all others."""
        ask("GET", f"/v1/campaigns/campaign-{number}x", None)

    def half_sent(self, ask: Callable[..., None], number: int) -> None:
        """Heads and bodies that stop."""
        opened = []
        for each in range(HALF_SENT):
            made = self._context.wrap_socket(
                socket.create_connection(("127.0.0.1", self.port), 30), server_hostname="127.0.0.1"
            )
            made.sendall(
                b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n"
                + (b"Content-Length: 900000\r\n\r\n{" if each % 2 else b"")
            )
            opened.append(made)
        time.sleep(max(0.0, min(10.0, self.until_s - time.monotonic())))
        for made in opened:
            made.close()


def submission(campaign: str, key: int, jobs: list[dict[str, Any]]) -> bytes:
    """A request as the attacker writes it."""
    return json.dumps({"key": f"eve-{key}", "campaign": f"eve-{campaign}", "jobs": jobs}).encode()


# ---- both ---------------------------------------------------------------------------------------------------------


def cpu_s(place: Place) -> float:
    """Seconds of a processor that the server has had."""
    fields = Path(f"/proc/{place.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(seconds: float) -> dict[str, Any]:
    """Both servers at once."""
    with (
        tempfile.TemporaryDirectory(prefix="tm-worst-") as name,
        serving(Path(name) / "quiet") as quiet_place,
        serving(Path(name) / "attacked") as attacked_place,
    ):
        quiet, attacked = Others(quiet_place), Others(attacked_place)
        asked = f"{attacked_place.port}:{seconds}:{attacked_place.folder}"
        command = ["nice", "-n", "10", sys.executable, __file__, "--attack", asked]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as attack:
            turns = [threading.Thread(target=each.turn, args=("c", seconds)) for each in (quiet, attacked)]
            for turn in turns:
                turn.start()
            for turn in turns:
                turn.join()
            answers = json.loads(attack.communicate(timeout=PATIENCE_S)[0])
        status = Path(f"/proc/{attacked_place.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        size = sum(file.stat().st_size for file in (attacked_place.folder / "server").glob("tidemill.db*"))
    before, after = figures(quiet.times), figures(attacked.times)
    ratios = {what: round(after[what]["median"] / before[what]["median"], 2) for what in before}
    return {
        "seconds": seconds, "ratio": max(ratios.values()), "ratios": ratios,
        "quiet_ms": {what: each["median"] for what, each in before.items()},
        "attacked_ms": {what: each["median"] for what, each in after.items()},
        "slowest_ms": {what: [before[what]["slowest"], after[what]["slowest"]] for what in before},
        "calls": {what: [before[what]["calls"], after[what]["calls"]] for what in before},
        "cpu_s": [round(quiet.cpu_s, 1), round(attacked.cpu_s, 1)],
        "rss_mb": round(int(peak.split()[1]) / 1e3), "database_mb": round(size / 1e6),
        "answers": answers,
    }  # fmt: skip


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (it always does)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (default: 60)")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack is not None:
        port, seconds, folder = arguments.attack.split(":", 2)
        attacker = Attacker(int(port), Path(folder), time.monotonic() + float(seconds))
        attacker.run()
        print(json.dumps(dict(sorted(attacker.answers.items()))))
        return 0
    print(json.dumps(measure(arguments.seconds), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
