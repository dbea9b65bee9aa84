"""A server that means harm, and a real site that is told to work for it.

`HostileServer` speaks the sync protocol by HTTP, numbers its orders and sends them again as the real one does, and can
answer with any bytes. `Site` is a site directory with a real agent, started as its operator would start it, in a PID
namespace of its own, beside files that are none of a job's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.timing import Values, passed_on
from tests.worlds.home.processes import Process, snapshot
from tests.worlds.home.world import TIDEMILL, namespace_command

from tidemill.model.job import JobSpec
from tidemill.site.link.replies import TOLD
from tidemill.wire.activity import ActivityReport
from tidemill.wire.api import DoneReport, ReleaseReport, Report, SyncRequest

DEADLINE_S = 60.0
OPEN_MAX = 200
PER_MIN_MAX = 6000
SITE = """name = "prey"
server = "http://127.0.0.1:{port}"
data_roots = ["{home}/data"]
[local]
nodes = 1
[node]
cores = 1
[[endpoints]]
url = "https://store.example.org/exp/"
access = "both"
"""
TIMING: Values = {
    "site": {
        "SYNC_INTERVAL_S": 0.1, "SYNC_INTERVAL_MAX_S": 0.2, "LOCAL_POLL_S": 0.1, "START_BACKOFF_S": 0.1,
        "LEASE_RANGES_MAX": OPEN_MAX, "IDLE_S": 60, "LEASES_PER_MIN_MAX": PER_MIN_MAX,
    },
}  # fmt: skip
APP = """name = "{name}"
executable = "{program}"
digest = "sha256:{digest}"
arguments = ["{{word}}", "{{number}}", "{{kind}}"]
inputs = ["card"]
[resources]
event_s = 0.02
[parameters.word]
default = "x"
[parameters.number]
type = "int"
min = 0
max = 10
default = 1
[parameters.kind]
type = "choice"
choices = ["a", "b"]
default = "a"
"""
PROGRAM = """#!/bin/sh
exit 0
"""
SECRET = "a private key\n"
CONTESTED = (
    b'{"error":"site `prey` belongs to epoch 999 on host `evil`","hint":"another agent has taken over"}'
)


class HostileServer:
    """`say` adds orders; `answer` puts bytes in front of everything else, once each."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.reports: list[Report] = []
        self.asked_s: list[float] = []  #: when each exchange began, of the monotonic clock
        self.requests: list[SyncRequest] = []
        self.paths: list[str] = []
        self.is_acking = True
        self.is_contesting = False  #: every exchange is answered as if a newer agent served the site
        self._answers: list[tuple[int, bytes]] = []
        self._next = 1
        self.is_successor = False
        self._lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = outer._reply(self.path, body)
                with contextlib.suppress(
                    OSError
                ):  # the agent may hang up in the middle of too long an answer
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    if status == 302:
                        self.send_header("Location", "file:///etc/passwd")
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def say(self, *orders: Any) -> None:
        """Orders for the site, numbered here: structs of `wire.api`, or dicts for what those cannot hold."""
        with self._lock:
            for order in orders:
                if isinstance(order, dict):
                    order = {**order, "n": order.get("n", self._next)}
                else:
                    order.n = self._next
                self.orders.append((self._next, order))
                self._next += 1

    def answer(self, content: bytes, *, status: int = 200) -> None:
        """The next exchange is answered so."""
        with self._lock:
            self._answers.append((status, content))

    @property
    def is_answered(self) -> bool:
        """Whether all such answers are out."""
        return not self._answers

    def restart(self) -> None:
        """An honest successor's start: its numbers begin anew, and go on from what the site says that it has."""
        with self._lock:
            self.orders.clear()
            self._next, self.is_successor = 1, True

    def forget(self) -> None:
        """Orders that are not taken are taken back."""
        with self._lock:
            self.orders.clear()

    def about(self, job: int) -> list[Report]:
        """What became of a job: reports on it but those of what its events use."""
        reports = [each for each in self.reports if not isinstance(each, ActivityReport)]
        return [each for each in reports if getattr(each, "job", None) == job]

    def _number_on(self, have: int) -> None:
        """As `server.sync` does, which tests of its own cover."""
        for _, order in self.orders:
            order["n"] = order["n"] + have
        self.orders = [(number + have, order) for number, order in self.orders]
        self._next += have

    def _reply(self, path: str, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self.asked_s.append(time.monotonic())
            self.paths.append(path)
            request = msgspec.json.decode(body, type=SyncRequest)
            self.requests = [*self.requests[-50:], request]
            last = max((report.n for report in self.reports), default=0)
            if self.is_acking:
                self.reports += [each for each in request.reports if each.n > last]
            if self._answers:
                return self._answers.pop(0)
            if self.is_contesting:
                return 409, CONTESTED
            if self.is_successor and request.have >= self._next:
                self._number_on(request.have)
            self.orders = [each for each in self.orders if each[0] > request.have]
            reply = {
                "acked": max((each.n for each in self.reports), default=0),
                "orders": [order for _, order in self.orders[:20_000]],
                "more": bool(self.orders),
                "now_us": 0,
            }
            return 200, msgspec.json.encode(reply)


class Site:
    """The prey. `private` is what nobody may read, `outside` where nothing may be written."""

    def __init__(self, home: Path, server: HostileServer) -> None:
        self.home, self.server = home, server
        self.directory, self.data, self.outside = home / "site", home / "data", home / "outside"
        for folder in (
            self.directory,
            self.directory / "apps",
            self.data,
            self.outside,
            home / "me" / ".ssh",
        ):
            folder.mkdir(mode=0o700, parents=True)
        self.private = home / "me" / ".ssh" / "id_rsa"
        self.private.write_text(SECRET)
        (self.data / "card").write_text("a card\n")
        (self.data / "leads_out").symlink_to(self.outside)
        (self.data / "key").symlink_to(self.private)
        (self.directory / "site.toml").write_text(
            SITE.format(home=home, port=server.port, open_max=OPEN_MAX, per_min=PER_MIN_MAX)
        )
        (self.directory / "site.toml").chmod(0o600)
        for name in ("good", "altered"):
            self.approve(name, PROGRAM)
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs = 0

    def approve(self, name: str, text: str) -> str:
        """An application of the site's, started as a script; its name."""
        program = self.home / f"{name}.sh"
        program.write_text(text)
        program.chmod(0o755)
        digest = hashlib.sha256(text.encode()).hexdigest()
        content = APP.format(name=name, program=program, digest=digest)
        (self.directory / "apps" / f"{name}.toml").write_text(content)
        return name

    def tidemill(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        """`tidemill site VERB WORDS`, as staff."""
        order = [*words[:1], str(self.directory), *words[1:]] if words else [str(self.directory)]
        return subprocess.run(
            [*TIDEMILL, "site", verb, *order], env=self._environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    @property
    def _environment(self) -> dict[str, str]:
        me = self.home / "me"
        return {**os.environ, "HOME": str(me), "TIDEMILL_HOME": str(self.home / "tide"), **passed_on(TIMING)}

    def start(self, *, again: bool = False) -> None:
        """Start the agent. `again`: after one that was killed; both are process 1 of their namespaces."""
        options = ["--take-over"] if again else []
        command = [*namespace_command(), *TIDEMILL, "site", "run", *options, str(self.directory)]
        with (self.home / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def sleepers(self) -> int:
        """Payloads of a script that sleeps for 1000 s, below this site's agent or pilots."""
        everything = snapshot()
        found = 0
        for each in everything.values():
            above = each
            while each.argv == ("sleep", "1000") and above.parent in everything:
                above = everything[above.parent]
                if self._process is not None and above.pid == self._process.pid:
                    found += 1
                    break
        return found

    def stop(self) -> None:
        """Kill the namespace's first process, and with it all."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def agent(self) -> Process:
        """The agent's process."""
        (found,) = [
            each
            for each in snapshot().values()
            if "run" in each.argv and each.argv[-1] == str(self.directory) and "unshare" not in each.argv[0]
        ]
        return found

    def peak_mb(self) -> float:
        """The largest memory that the agent has had."""
        for line in Path(f"/proc/{self.agent().pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmHWM")

    def log(self) -> str:
        """What the agent logged."""
        return (self.home / "agent.log").read_text(errors="replace")

    def lease(self, spec: JobSpec | dict[str, Any], **changes: Any) -> dict[str, Any]:
        """An order for a new job, as a dict: it may hold what no struct can."""
        self._jobs += 1
        order = {
            "t": "lease", "lease": self._jobs, "job": self._jobs, "first": 0, "count": 1, "campaign": "c",
            "seed_base": 7, "owner": "ada", "spec": spec if isinstance(spec, dict) else msgspec.to_builtins(spec),
        }  # fmt: skip
        return {**order, **changes}

    def files(self) -> dict[str, str]:
        """Every file of the home but the site's own and the agent's log, with its content's digest."""
        found = {}
        for path in sorted(self.home.rglob("*")):
            if path.is_relative_to(self.directory) or path.name == "agent.log":
                continue
            if path.is_symlink():
                found[str(path)] = str(path.readlink())
            elif path.is_file():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = "directory"
        return found

    def granted(self) -> set[int]:
        """Jobs that any lead or pilot was ever told of."""
        found: set[int] = set()
        for path in self.directory.glob("fleets/*/*/*.json"):
            work = msgspec.json.decode(path.read_bytes())
            if path.parent.name != "work":
                continue
            found |= {each["job"] for each in work["grants"]} | {each["job"] for each in work["jobs"]}
        return found

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Ask until it is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not in {DEADLINE_S} s\n{self.log()[-3000:]}"
            assert self._process is not None
            assert self._process.poll() is None, self.log()[-3000:]
            time.sleep(0.02)

    def wait_for_end(self) -> None:
        """The agent ends by itself."""
        assert self._process is not None
        self._process.wait(DEADLINE_S)

    def told(self, order: dict[str, Any]) -> Report:
        """The first report on an order's job."""
        self.wait_for(lambda: bool(self.server.about(order["job"])), f"job {order['job']} is told of")
        return self.server.about(order["job"])[0]

    def refused(self, order: dict[str, Any]) -> str:
        """The order goes back to the server, is logged, and no lead or pilot hears of its job; the reason."""
        report = self.told(order)
        assert isinstance(report, ReleaseReport), report
        assert report.evidence is not None, report
        assert report.job not in self.granted()
        lines = [
            line for line in self.log().splitlines() if f'"job":{report.job},' in line.replace(": ", ":")
        ]
        assert any(".refused" in line for line in lines) or self.log().count("lease.refused") >= TOLD
        return report.evidence.message

    def serves(self) -> None:
        """A good job is run."""
        order = self.lease(JobSpec(app="good", params={"word": "fine"}))
        self.server.say(order)
        report = self.told(order)
        assert isinstance(report, DoneReport), report


@contextlib.contextmanager
def prey() -> Iterator[Site]:
    """A site at the mercy of a hostile server, ended and removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="tm-"))
    server = HostileServer()
    site = Site(home, server)
    try:
        site.start()
        yield site
    finally:
        site.stop()
        server.close()
        shutil.rmtree(home, ignore_errors=True)
