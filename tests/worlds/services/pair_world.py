"""Two servers on one PostgreSQL, each behind a relay, and an agent that knows both: parts that tests kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.worlds.home.world import TIDEMILL, Options, World, namespace_command
from tests.worlds.services.ports import free_port
from tests.worlds.services.relay import Relay
from tests.worlds.services.server_process import UnixConnection

from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.server.database.store import Store
from tidemill.wire.server_connection import Connection

SCRIPT = Path(__file__).parents[3] / "scripts" / "postgresql.sh"
TAKE_OVER_S = 15.0
SERVER = """dir = "{place}"
database = "postgresql://tidemill@127.0.0.1:{port}/postgres"
pair = true
"""


class Database:
    """A PostgreSQL on a port of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.start()

    def start(self) -> None:
        options = f"-c fsync=off -c listen_addresses=127.0.0.1 -c port={self.port}"
        subprocess.run(
            [SCRIPT, "start", self._folder], env={**os.environ, "POSTGRESQL_OPTIONS": options}, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self, how: str) -> None:
        subprocess.run([SCRIPT, how, self._folder], check=True)


class PairServer:
    """One server of the pair."""

    def __init__(self, place: Path, database: Database, more: str = "") -> None:
        place.mkdir(mode=0o700)
        self.place, self.relay = place, Relay(database.port)
        self.address = f"unix:{place}/api.sock"
        (place / "server.toml").write_text(SERVER.format(place=place, port=self.relay.port) + more)
        self.start()

    def start(self) -> None:
        command = [*TIDEMILL, "server", "run", "--config", str(self.place / "server.toml")]
        with (self.place / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait()

    def role(self, timeout_s: float = 2.0) -> str:
        """As it says; empty if it says nothing."""
        connection = Connection(self.address, timeout_s=timeout_s)
        try:
            return str(connection.call("GET", "/v1/health", dict[str, Any])["role"])
        except TidemillError:
            return ""
        finally:
            connection.close()

    def post_later(self, body: bytes) -> tuple[threading.Thread, list[int]]:
        """A submission in the socket of a server that may be stopped; its status is there when the thread has ended."""
        answer: list[int] = []

        def post() -> None:
            connection = UnixConnection(self.place / "api.sock")
            try:
                connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
                answer.append(connection.getresponse().status)
            except OSError:
                answer.append(0)
            finally:
                connection.close()

        thread = threading.Thread(target=post, daemon=True)
        thread.start()
        return thread, answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.relay.close()


class PairWorld:
    """All of it; `home` has the agent and the client, which know both addresses. `close` it."""

    def __init__(self, options: Options, server: str = "") -> None:
        """`server`: more of both servers' `server.toml`."""
        self.folder = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
        self.folder.chmod(0o711)
        self.database = Database(self.folder / "d")
        store = Store(url=f"postgresql://tidemill@127.0.0.1:{self.database.port}/postgres")
        store.init()
        self.servers = [PairServer(self.folder / name, self.database, server) for name in "ab"]
        both = ",".join(server.address for server in self.servers)
        (self.folder / "h").mkdir(mode=0o700)
        self.home = World(self.folder / "h", options)
        toml = self.folder / "h" / "site" / "site.toml"
        old = f'server = "unix:{self.folder}/h/server/api.sock"'
        assert old in toml.read_text()
        toml.write_text(toml.read_text().replace(old, f'server = "{both}"'))
        self.home.client = Client(both, retry_s=120)

    def start(self) -> None:
        """Wait for the pair, and start the agent in a PID namespace of its own."""
        self.wait_active()
        command = [*namespace_command(), *TIDEMILL, "site", "run", str(self.folder / "h" / "site")]
        with (self.folder / "h" / "site.log").open("ab") as log:
            self.home._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.home._environment()
            )

    def wait_active(self, *, without: PairServer | None = None, timeout_s: float = 30.0) -> PairServer:
        """The active server; `without`: not this one."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            for server in self.servers:
                if server is not without and server.role() == "active":
                    return server
            time.sleep(0.05)
        raise AssertionError(f"no server became active in {timeout_s:.0f} s\n{self.tails()}")

    def wait_pair(self) -> tuple[PairServer, PairServer]:
        """The active server and the standby, once there is one of each."""
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            roles = [server.role() for server in self.servers]
            if sorted(roles) == ["active", "standby"]:
                return self.servers[roles.index("active")], self.servers[roles.index("standby")]
            time.sleep(0.1)
        raise AssertionError(f"the servers are {roles}\n{self.tails()}")

    def tails(self) -> str:
        """The ends of all logs."""
        logs = [server.place / "server.log" for server in self.servers]
        parts = [f"--- {log}\n{log.read_bytes()[-4000:].decode(errors='replace')}" for log in logs]
        return "\n".join([*parts, self.home.tails()])

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.home.stop()
        self.database.end("stop")
        shutil.rmtree(self.folder, ignore_errors=True)
