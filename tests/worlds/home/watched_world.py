"""A server on a port and an agent, each a process of its own, with mail, hooks and metrics: for those who watch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.timing import Values, passed_on
from tests.worlds.home.world import namespace_command
from tests.worlds.services.mail_world import HookServer, MailServer, make_certificate
from tests.worlds.services.ports import free_port

from tidemill.client import Client

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
DEADLINE_S = 60.0
DIGEST_S = 1.0
#: what must be in no log, bundle, command line or database
SECRETS = {
    "server": "servers-secret-0f3a9c",
    "agent": "metrics-secret-77d1e2",
    "password": "mail password 5e1f 9b",
    "hook": "hooks-secret-c0ffee42",
    "object store": "s3/secret+key/9f27c1aa04",
    "token": "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJjYXJvbCJ9.c2lnbmF0dXJlLW9mLWNhcm9s",
    "database": "postgres-password-31cc",
    "broker": "rabbit-password-88ab",
}
TIMING: Values = {
    "server": {
        "GATHER_S": 0.2, "DIGEST_S": DIGEST_S, "NOTICES_PER_HOUR_MAX": 3600, "NOTICES_LOOK_S": 0.1,
        "NOTICES_RETRY_S": 0.2, "NOTICES_RETRY_MAX_S": 1,
    },
    "site": {
        "SYNC_INTERVAL_S": 0.2, "SYNC_INTERVAL_MAX_S": 1, "LOCAL_POLL_S": 0.1, "HEARTBEAT_S": 0.3, "IDLE_S": 5,
    },
    "transfer": {"TRIES_MAX": 1},
}  # fmt: skip
SERVER_TOML = """
dir = "{home}/server"
listen = "127.0.0.1:{port}"
secret_file = "{home}/server.secret"

[mail]
server = "localhost:{mail}"
sender = "tidemill@example.org"
ca = "{home}/localhost.pem"
secret_file = "{home}/mail.login"

[notify]
allowed = ["mail:*@example.org", "hook:nobody", "hook:chat"]

[[notify.hooks]]
name = "nobody"
url = "http://127.0.0.1:1/"
secret_file = "{home}/hook.secret"

[[notify.hooks]]
name = "chat"
url = "https://localhost:{hook}/tidemill"
secret_file = "{home}/hook.secret"
ca = "{home}/localhost.pem"
"""
SITE_TOML = """
name = "here"
server = "http://127.0.0.1:{port}"
secret_file = "{home}/server.secret"
data_roots = ["{home}"]
allow_adhoc = true
[metrics]
listen = "127.0.0.1:{metrics}"
secret_file = "{home}/agent.secret"
textfile = "{home}/textfile/tidemill-here.prom"
[local]
nodes = 1
[node]
cores = 2
[[endpoints]]
url = "s3://bucket/"
service = "http://127.0.0.1:1"
credentials_file = "{home}/s3.credentials"
[[endpoints]]
url = "https://127.0.0.1:1/"
token_file = "{home}/dav.token"
certificate = "{home}/localhost.pem"
key = "{home}/localhost.key"
"""
#: a site with a budget of operations and bytes
BUSY_SITE = """
[[io]]
name = "software"
prefixes = ["/sw"]
ops_per_s = 1e6
bytes_per_s = 1e9
"""


S3 = "[default]\naws_access_key_id = AKIDTIDEMILL\naws_secret_access_key = {}\n"


class Watched:
    """See the module. Nothing runs until it is started."""

    def __init__(self, home: Path, more: str = "") -> None:
        self.home = home
        self.port, self.metrics_port = free_port(), free_port()
        cert, key = make_certificate(home)
        self.mail = MailServer(home / "mails", "--cert", cert, "--key", key, "--login", home / "mail.login")
        self.hook = HookServer(home / "posts", "--cert", cert, "--key", key)
        for name, text in {
            "server.secret": SECRETS["server"], "agent.secret": SECRETS["agent"], "hook.secret": SECRETS["hook"],
            "mail.login": f"tidemill\n{SECRETS['password']}\n", "dav.token": SECRETS["token"],
            "s3.credentials": S3.format(SECRETS["object store"]),
        }.items():  # fmt: skip
            (home / name).touch(0o600)
            (home / name).write_text(text)
        for name in ("server", "site", "site/apps", "textfile", "me"):
            (home / name).mkdir(mode=0o700)
        places = {
            "home": home, "port": self.port, "mail": self.mail.port, "hook": self.hook.port,
            "metrics": self.metrics_port,
        }  # fmt: skip
        (home / "server" / "server.toml").write_text(SERVER_TOML.format(**places))
        (home / "site" / "site.toml").write_text(SITE_TOML.format(**places) + more)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.client = Client(
            f"http://127.0.0.1:{self.port}", secret_file=home / "server.secret", home=home, retry_s=DEADLINE_S
        )

    def environment(self) -> dict[str, str]:
        """What all processes get."""
        homes = {"TIDEMILL_HOME": str(self.home), "HOME": str(self.home / "me")}
        return {**os.environ, **homes, **passed_on(TIMING)}

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        self._start(
            "server", "server", "run", "--config", f"{self.home}/server/server.toml", "--log-level", "DEBUG"
        )
        self.until(lambda: self.get("/health", self.port) is not None, "the server answers")

    def start_agent(self) -> None:
        """Start the site's agent."""
        self._start("agent", "site", "run", f"{self.home}/site", "--log-level", "DEBUG")
        self.until(lambda: any(site.state == "UP" for site in self.client.sites()), "the site is up")

    def _start(self, name: str, *words: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*namespace_command(), *TIDEMILL, *words], stdout=log, stderr=log, env=self.environment()
            )

    def kill(self, name: str) -> None:
        """SIGKILL to all processes of the server or the agent."""
        process = self._processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)  # --kill-child ends the namespace with it
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in list(self._processes):
            self.kill(name)
        self.mail.kill()
        self.hook.kill()

    def get(self, path: str, port: int, secret: str = "") -> str | None:
        """The body of an answer 200, else None."""
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        if secret:
            request.add_header("authorization", f"Bearer {secret}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:  # HTTPError is one
            return None

    def run(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """`tidemill WORDS`."""
        return subprocess.run(
            [*TIDEMILL, *words], env=self.environment(), capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Ask until it is so."""
        end = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < end, f"waited in vain: {what}\n{self.logs()[-8000:]}"
            time.sleep(0.05)

    def logs(self) -> str:
        """All that server, agent, leads and pilots have logged."""
        paths = [
            *self.home.glob("*.log"),
            *(self.home / "site").rglob("*.log"),
            *(self.home / "site").rglob("*.err"),
        ]
        return "\n".join(path.read_bytes().decode(errors="replace") for path in paths if path.is_file())


@contextmanager
def watched(more: str = "") -> Iterator[Watched]:
    """A world, ended and removed afterwards. `more`: the end of its site.toml."""
    home = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    it = Watched(home, more)
    try:
        yield it
    finally:
        it.stop()
        shutil.rmtree(home, ignore_errors=True)
