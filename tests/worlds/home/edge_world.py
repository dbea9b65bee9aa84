"""What docs/edge.md shows, run as it stands: its files and commands, with names of hosts and users replaced.

The page's fenced blocks have names (```` ```sh submit ````). They run as an ordinary user in a namespace of their own,
in front of a real Slurm and real data servers.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.timing import Values
from tests.worlds.batch.slurm_cluster import UID, SlurmCluster
from tests.worlds.home.world import Options, World, namespace_command
from tests.worlds.services.mail_world import MailServer
from tests.worlds.services.ports import free_port

from tidemill.client import Client
from tidemill.wire.credentials import Credentials

PAGE = Path(__file__).parents[3] / "docs" / "edge.md"
SHELL = 'tidemill() { "$PYTHON" -m tidemill.cli.main "$@"; }\nexport -f tidemill\n'
#: the page has the pauses of production; a test has not the time
QUICK_TABLES = """
[cluster]
calls_per_min_max = 1200
"""
TIMING: Values = {
    "server": {"GATHER_S": 0.2, "DIGEST_S": 0.5, "NOTICES_LOOK_S": 0.1},
    "site": {"SYNC_INTERVAL_S": 0.2, "CYCLE_S": 1, "STARTUP_S": 0.5},
}
"""Besides that of all worlds."""


def blocks() -> dict[str, str]:
    """The page's fenced blocks by name."""
    found = re.findall(
        r"^```\w+ (\S+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len({name for name, _ in found}) == len(found), "two blocks of the page have one name"
    return dict(found)


@dataclass(frozen=True)
class Places:
    """What stands for the page's hosts: data servers by the page's URLs, a folder with the site's data keys."""

    urls: Mapping[str, str]
    data_keys: Path
    mail: MailServer


class Edge(World):
    """The page's directory, `here`; the page's machines are processes in one namespace."""

    def __init__(self, cluster: SlurmCluster, places: Places) -> None:
        home = Path(tempfile.mkdtemp(prefix="e-", dir=cluster.directory))
        environment = {"SLURM_CONF": str(cluster.conf), "PYTHON": sys.executable}
        options = Options(user=UID, timing=TIMING, environment=environment, parent=cluster.directory)
        super().__init__(home, options)
        self.here, self.port, self._mail = home / "me", free_port(), places.mail
        self._page = blocks()
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._clients: dict[str, Client] = {}
        self.words = {
            "https://tidemill.example.org:8443": f"https://127.0.0.1:{self.port}",
            "0.0.0.0:8443": f"127.0.0.1:{self.port}",
            "tidemill.example.org": "127.0.0.1",
            "issue server broker.example.org": "issue server localhost",
            "smtp.example.org:587": f"localhost:{places.mail.port}",
            "/srv/tide": str(self.here),
            **places.urls,
        }
        for name in ("server", "site", "site/apps"):
            (self.here / name).mkdir(mode=0o700)
        shutil.copytree(places.data_keys, self.here / "grid")
        self.own()

    def own(self) -> None:
        """All files here are the user's."""
        for path in (self.here, *self.here.rglob("*")):
            shutil.chown(path, UID, UID)

    def start(self) -> None:
        """Make the namespace."""
        hold = ["/bin/bash", "-c", f"touch {self.here}/ready; sleep infinity & wait"]
        self._process = subprocess.Popen(
            [*namespace_command(), *self._reachable(), *self._as_user(), *hold], env=self._environment()
        )
        self.wait_for((self.here / "ready").exists, "the namespace is there")

    def text(self, name: str) -> str:
        """A block of the page, with our names and digests."""
        text = self._page[name]
        for theirs, ours in self.words.items():
            text = text.replace(theirs, ours)
        return re.sub(r'"sha256:0{64}" # sha256sum (\S+)', self._digest, text)

    def _digest(self, match: re.Match[str]) -> str:
        return f'"sha256:{hashlib.sha256((self.here / match[1]).read_bytes()).hexdigest()}"'

    def write(self, name: str, path: str, *, tables: str = "") -> None:
        """A block as a file."""
        (self.here / path).write_text(self.text(name) + tables)
        self.own()

    def write_all(self, way: str) -> None:
        """Server, site, application and job of one of the page's ways."""
        mail = f'ca = "{self._mail.folder.parent / "localhost.pem"}"\n'
        self.write("generate.sh", "generate.sh")
        self.write("generate.toml", "site/apps/generate.toml")
        self.write(f"{way}/server.toml", "server/server.toml", tables=mail)
        self.write(f"{way}/site.toml", "site/site.toml", tables=QUICK_TABLES)
        self.write(f"{way}/job.toml", "job.toml")

    def shell(self, text: str, *, timeout_s: float = 60) -> str:
        """Run lines; what they print."""
        done = subprocess.run(
            self._bash(text), env=self._environment(), capture_output=True, text=True, timeout=timeout_s, check=False
        )  # fmt: skip
        if done.returncode:
            pytest.fail(f"{text}\nended with {done.returncode}: {done.stderr}{done.stdout}\n{self.tails()}")
        return done.stdout

    def do(self, name: str, *, more: str = "", timeout_s: float = 60) -> str:
        """Run a block of commands; `more`: words behind it."""
        return self.shell(self.text(name).rstrip("\n") + more, timeout_s=timeout_s)

    def spawn(self, name: str, file: str) -> None:
        """Run a block of commands beside the test until its end; stdout goes to a file."""
        with (self.here / file).open("ab") as out, (self.here / f"{file}.log").open("ab") as errors:
            self._spawned.append(
                subprocess.Popen(
                    self._bash(self.text(name)), env=self._environment(), stdout=out, stderr=errors
                )
            )

    def stop(self) -> None:
        """End everything."""
        super().stop()
        for each in self._spawned:
            each.wait()
        for client in self._clients.values():
            client.connection.close()

    def seen_by(self, name: str) -> Client:
        """The server, as the owner of a key pair sees it."""
        if name not in self._clients:
            keys = self.here / "ca"
            shown = Credentials(
                certificate=keys / f"{name}.pem", key=keys / f"{name}.key", ca=keys / "ca.pem"
            )
            self._clients[name] = Client(f"https://127.0.0.1:{self.port}", credentials=shown, home=self.home)
        return self._clients[name]

    def _bash(self, text: str) -> list[str]:
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.here)]  # nsenter goes to /
        return self.inside([*there, *self._as_user(), "/bin/bash", "-ec", SHELL + text])


@contextlib.contextmanager
def edge(cluster: SlurmCluster, places: Places) -> Iterator[Edge]:
    """A namespace with the page's directory, ended and removed afterwards."""
    it = Edge(cluster, places)
    try:
        it.start()
        yield it
    finally:
        it.stop()
        shutil.rmtree(it.home, ignore_errors=True)


def expected(grid: bytes, seed_base: int, events: int) -> bytes:
    """What the page's `generate.sh` leaves, computed without it."""
    digest = f"{hashlib.sha256(grid).hexdigest()}  -"
    lines = []
    for event in range(events):
        seed = 1 + seed_base + event
        line = hashlib.sha256(f"{digest} {seed}\n".encode()).hexdigest()
        lines.append(f"event {event} seed {seed} {line}  -\n")
    return "".join(lines).encode()
