"""Real servers of each protocol, on loopback, started by our own scripts; a mover that may use them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tidemill.config.transfer import Endpoint
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience

SCRIPTS = Path(__file__).parents[2] / "scripts"
SCHEMES = ("https", "davs", "root", "gsiftp", "ftp", "s3")  # http: differs from https in nothing but TLS
"""`https` is an httpd, which tells no checksum; `davs` is XRootD's HTTPS, which does, and tells no version."""

SETTINGS = MovePatience(tries_max=3, pause_s=0.1, deadline_s=60, stall_s=10)
SIZE_MAX = 2_000_000_000


class Server:
    """A running server of one scheme; `data` is the directory behind `url`, `denied` a URL that nobody may use."""

    def __init__(self, scheme: str, folder: Path) -> None:
        self.scheme = scheme
        self.folder = folder
        self.script = {
            "http": "webdav",
            "https": "webdav",
            "root": "xrootd",
            "davs": "xrootd",
            "s3": "s3",
        }.get(scheme, "gridftp")
        self.started: list[str] = []
        self.movers: list[Mover] = []
        self.start()
        self.data = folder / "data" / {"webdav": "open", "s3": "tests"}.get(self.script, "")
        base = self.started[1] if scheme in ("http", "davs", "gsiftp") else self.started[0]
        base = base.replace("https://", "davs://") if scheme == "davs" else base
        self.base = base.rstrip("/") + ("//" if scheme == "root" else "/")
        tail = {"webdav": "open/", "s3": ""}.get(self.script, "")
        self.url = "s3://tests/" if scheme == "s3" else self.base + tail
        self.endpoint = self._endpoint()

    def start(self) -> None:
        done = self._call("start")
        if done.returncode:
            pytest.skip(f"{self.script} does not start: {done.stderr.strip()[-300:]}")
        self.started = done.stdout.split()

    def stop(self) -> None:
        self._call("stop")
        for mover in self.movers:
            mover.close()
        self.movers.clear()

    def crash(self) -> None:
        self._call("crash")

    def address(self, name: str) -> str:
        """The URL of a file below `url`."""
        return self.url + (name if self.scheme == "root" else quote(name))

    def make(self, name: str, content: bytes) -> str:
        """A file on the server, its URL."""
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.own(path)
        return self.address(name)

    def make_large(self, name: str, size: int) -> str:
        """A file of nothing but zeros after its beginning, which takes no space."""
        path = self.data / name
        with path.open("wb") as file:
            file.write(os.urandom(1_000_000))
            file.truncate(size)
        self.own(path)
        return self.address(name)

    def own(self, path: Path) -> None:
        if os.getuid() == 0:
            while path != self.data:
                shutil.chown(path, "nobody")
                path = path.parent

    def content(self, name: str) -> bytes:
        return (self.data / name).read_bytes()

    def mover(
        self, settings: MovePatience = SETTINGS, *, size_max: int = SIZE_MAX, **changes: object
    ) -> Mover:
        """A mover that may use this server; `changes` of the endpoint."""
        endpoint = msgspec.structs.replace(self.endpoint, **changes)
        self.movers.append(Mover([endpoint], settings, size_max=size_max))
        return self.movers[-1]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All processes of the server stand still."""
        pids = self._processes()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Processor seconds of the server's processes so far, with those of children that ended."""
        ticks = 0
        for pid in self._processes():
            with suppress(OSError):
                ticks += sum(
                    map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
                )
        return ticks / os.sysconf("SC_CLK_TCK")

    def sessions(self) -> list[int]:
        """Processes that the server has forked for its connections."""
        first = {int(path.read_text().strip("\0\n ")) for path in self.folder.glob("*pid")}
        return [pid for pid in self._processes() if pid not in first]

    def _processes(self) -> list[int]:
        first = [int(path.read_text().strip("\0\n ")) for path in self.folder.glob("*pid")]
        found: list[int] = []
        while first:
            pid = first.pop()
            found.append(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children")
            with suppress(OSError):
                first += [int(each) for each in children.read_text().split()]
        return found

    def _endpoint(self) -> Endpoint:
        certs = self.folder / "certs"
        if self.scheme == "s3":
            keys = self.folder / "credentials"
            return Endpoint(url=self.url, access="both", service=self.started[0], credentials_file=keys)
        if self.scheme == "gsiftp":
            user = certs / "user.pem"
            return Endpoint(
                url=self.base, access="both", ca=certs / "trust", certificate=user, key=certs / "user.key"
            )
        ca = certs / "ca.pem" if self.scheme in ("https", "davs") else None
        return Endpoint(url=self.base, access="both", ca=ca)

    def _call(self, verb: str) -> subprocess.CompletedProcess[str]:
        with (self.folder / f"{verb}.err").open("w") as errors:
            done = subprocess.run(
                [SCRIPTS / f"{self.script}.sh", verb, str(self.folder)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=60,
            )
        done.stderr = (self.folder / f"{verb}.err").read_text()
        return done
