"""The hospital for real: a server, two sites and an XCache in processes of their own, and a home that goes down."""

from __future__ import annotations

import hashlib
import html
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.timing import Values, passed_on
from tests.worlds.home.world import namespace_command
from tests.worlds.services.cache_world import CacheWorld, cache_world

from tidemill.client import Client
from tidemill.model.job import Input, JobSpec, ReadAs, Resources

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
DEADLINE_S = 240.0  # the machine may be shared
QUEUED, NEW = 500, 10
FILES, FILE_BYTES = 5, 1_000_000
RTT_MS = 50.0
CHECKED = 'xrdcp --silent --force "$TIDEMILL_INPUT_IN" - | sha256sum | grep -q "^$0"'
SERVER = """[[wards]]
name = "away"
home_down = true
sites = ["away"]
cure = { read = "cache", memory_factor = 1.5 }
"""
SITE = """name = "{name}"
server = "unix:{home}/server/api.sock"
data_roots = ["/"]
allow_adhoc = true
nodes_max = 1
network = "open"
[local]
nodes = 1
[node]
cores = 4
[[endpoints]]
url = "{origin}"
"""
TIMING: Values = {
    "server": {"SITE_LOST_S": 5},
    "site": {
        "SYNC_INTERVAL_S": 0.2, "SYNC_INTERVAL_MAX_S": 1, "LOCAL_POLL_S": 0.1, "HEARTBEAT_S": 0.5, "DEAD_AGENT_S": 3,
        "IDLE_S": 20, "QUEUE_S": 0.5, "LEASE_AHEAD_S": 20,
    },
}  # fmt: skip
CACHE = """[[caches]]
name = "beside-away"
url = "{url}"
"""


class Sites:
    """A server and the sites `home` and `away`, each in a PID namespace of its own, so that nothing outlives a test."""

    def __init__(self, home: Path, far: CacheWorld) -> None:
        self.home = home
        for name in ("server", "home", "away", "me"):
            (home / name).mkdir(mode=0o700)
            if name in ("home", "away"):
                (home / name / "apps").mkdir(mode=0o700)
                (home / name / "site.toml").write_text(
                    SITE.format(name=name, home=home, origin=far.origin_url)
                    + (CACHE.format(url=f"root://127.0.0.1:{far.port}") if name == "away" else "")
                )
        (home / "server" / "server.toml").write_text(SERVER)
        self.environment = {
            **os.environ,
            "TIDEMILL_HOME": str(home),
            "HOME": str(home / "me"),
            **passed_on(TIMING),
        }
        self.client = Client(f"unix:{home}/server/api.sock", home=home, retry_s=60)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start the server or a site, and wait until it is there."""
        words = ["server", "run", "--config", f"{self.home}/server/server.toml"]
        if name != "server":
            words = ["site", "run", str(self.home / name)]
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*namespace_command(), *TIDEMILL, *words], stdout=log, stderr=log, env=self.environment
            )
        if name == "server":
            self.until((self.home / "server" / "api.sock").exists, "the server answers")
        else:
            self.until(lambda: self.state(name) == "UP", f"site {name} is up")

    def kill(self, name: str) -> None:
        """SIGKILL to all processes of the server or of a site."""
        process = self._processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)  # --kill-child ends the namespace with it
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in list(self._processes):
            self.kill(name)

    def state(self, site: str) -> str:
        """UP, SILENT, LOST, DOWN, or nothing of a site that never joined."""
        return next((row.state for row in self.client.sites() if row.name == site), "")

    def run(self, *words: str) -> str:
        """What `tidemill WORDS` prints."""
        done = subprocess.run(
            [*TIDEMILL, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(self, path: str) -> str:
        """A page of the server's, by its socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.home / "server" / "api.sock"))
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            with connection.makefile("rb") as answer:
                text = answer.read().decode()
        assert text.startswith("HTTP/1.1 200"), text[:2000] + self.logs()[-4000:]
        return html.unescape(text)

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Ask until it is so."""
        end = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < end, f"waited in vain: {what}\n{self.logs()[-6000:]}"
            time.sleep(0.2)

    def logs(self) -> str:
        """What server and agents have logged."""
        return "\n".join(path.read_text(errors="replace") for path in self.home.glob("*.log"))


@pytest.fixture
def far() -> Iterator[CacheWorld]:
    """An origin far away, and a cache in front of it."""
    with cache_world(rtt_ms=RTT_MS) as world:
        world.start()
        yield world


@pytest.fixture
def sites(far: CacheWorld) -> Iterator[Sites]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder:
        Path(folder).chmod(0o700)
        made = Sites(Path(folder), far)
        made.start("server")
        yield made
        made.stop()


def near_and_far(far: CacheWorld, number: int) -> list[JobSpec]:
    """Jobs of a home, every second with far data, whose every byte the payload compares."""
    contents = [bytes([65 + k]) * FILE_BYTES for k in range(FILES)]
    for k, content in enumerate(contents):
        far.make(f"d/f{k}", content)
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    resources = Resources(event_s=0.1, memory_mb=100)
    return [
        JobSpec(
            command=["/bin/sh", "-c", CHECKED, digests[k % FILES]],
            inputs=[Input(name="in", url=far.direct(f"d/f{k % FILES}"), read=ReadAs.URL)],
            home="home",
            resources=resources,
        )
        if k % 2
        else JobSpec(command=["/bin/true"], home="home", resources=resources)
        for k in range(number)
    ]


@pytest.mark.timeout(900)
def test_the_queue_of_a_home_that_is_down_is_cured_elsewhere_through_a_cache_and_new_jobs_go_home(
    sites: Sites, far: CacheWorld
) -> None:
    for name in ("home", "away"):
        sites.start(name)
    sites.kill("home")
    sites.client.submit(near_and_far(far, QUEUED), campaign="queued")

    def completed(campaign: str) -> int:
        return sites.client.campaign(campaign).states.get("COMPLETED", 0)

    sites.until(lambda: completed("queued") >= QUEUED // 5, "some jobs are cured")
    sites.kill("server")
    sites.start("server")
    sites.until(lambda: completed("queued") == QUEUED, "all jobs are cured")

    rows = list(sites.client.jobs(campaign="queued", limit=QUEUED))
    assert {row.site for row in rows} == {"away"}
    campaign = sites.client.campaign("queued")
    assert (campaign.events_done, campaign.usage.payloads) == (QUEUED, QUEUED), "none runs twice"
    (ward,) = sites.client.wards()
    assert (ward.ward, ward.cured, ward.there, ward.share) == ("away", QUEUED, 0, 1.0)
    numbers = sorted(row.id for row in rows)
    detail = sites.client.job(numbers[-1])
    assert [(stay.ward, stay.outcome, stay.site) for stay in detail.stays] == [("away", "cured", "away")]
    assert len(detail.attempts) == 1
    for verb in ("show", "explain"):
        assert "site home is silent" in sites.run("job", verb, str(numbers[0]))
    (route,) = detail.routes
    assert (route.way, "its ward reads through the cache" in route.why) == ("cache", True)
    read = FILES * FILE_BYTES
    assert read <= far.sent()["down"] < 1.5 * read, "the origin sends each file once, to the cache"
    shown = sites.page("/hospital")
    assert "away" in shown
    assert "100 %" in shown
    told = json.loads(sites.run("report", "--json"))
    assert told["wards"][0]["share"] == 1.0
    assert "100 %" in sites.run("report")
    assert json.loads(sites.run("report", "--campaign", "queued", "--json"))["wards"] == [], (
        "of all campaigns"
    )

    sites.start("home")
    sites.client.submit(near_and_far(far, NEW), campaign="new")
    sites.until(lambda: completed("new") == NEW, "new jobs end")
    fresh = list(sites.client.jobs(campaign="new", limit=NEW))
    assert {row.site for row in fresh} == {"home"}
    assert all(not sites.client.job(row.id).stays for row in fresh)
    stays = [len(sites.client.job(row.id).stays) for row in rows]
    assert max(stays) <= 2, "no job is moved more often than twice"
