"""A real XRootD origin, far away if wanted, and a real cache made and run by `tidemill cache` as an ordinary user.

with cache_world(rtt_ms=250) as world:              # rtt_ms=None: no proxy, the origin is near
    world.make("d/f.root", os.urandom(10_000_000))  # a file of the origin
    world.start()                                   # `tidemill cache run`, until it answers
    world.read("d/f.root")                          # its bytes by xrdcp through the cache
    world.sent()                                    # what the origin has sent: exact bytes and connections
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.timing import passed_on
from tests.worlds.services.ports import free_port

from tidemill_caches.engine.state import CacheState, read_state
from tidemill_caches.engine.windows import client_environment
from tidemill_caches.figures.collector import read_sums
from tidemill_caches.figures.ledger import CacheLedger

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts"
TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
DEADLINE_S = 60.0
COPY_S = 120.0


def ordinary_user() -> list[str]:
    """Words that run a command as an ordinary user. As root: nobody, who may read this checkout and its Python."""
    if os.getuid() != 0:
        return []
    may_read = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *may_read]


def until(true: Callable[[], bool], what: str = "not in time", seconds: float = DEADLINE_S) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Origin:
    """A server by scripts/xrootd.sh; `data` is what it serves."""

    def __init__(self, folder: Path, options: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._environ = {**os.environ, **(options or {})}
        self.port = 0
        self.start()

    def start(self) -> None:
        if shutil.which("xrootd") is None:
            pytest.skip("no XRootD server: apt-get install xrootd-server")
        done = self._call("start")
        if done.returncode:
            pytest.fail(f"the XRootD server does not start: {done.stderr.strip()[-300:]}")
        self.port = int(done.stdout.split()[0].rpartition(":")[2].strip("/"))

    def stop(self) -> None:
        self._call("stop")

    def crash(self) -> None:
        self._call("crash")

    def make(self, name: str, content: bytes) -> Path:
        """A file of the origin."""
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        while os.getuid() == 0 and path != self.data:
            shutil.chown(path, "nobody")
            path = path.parent
        return self.data / name

    def _call(self, verb: str) -> subprocess.CompletedProcess[str]:
        with (self.folder.parent / f"{self.folder.name}-{verb}.err").open("w+") as errors:
            done = subprocess.run(
                [SCRIPTS / "xrootd.sh", verb, str(self.folder)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environ,
                check=False,
            )
            errors.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, errors.read())


class DelayLine:
    """A `scripts/delay_proxy.py` in front of a port of this host."""

    def __init__(self, target_port: int, rtt_ms: float, window_kb: int = 4096) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SCRIPTS / "delay_proxy.py", str(free_port()), f"127.0.0.1:{target_port}", str(rtt_ms),
             str(window_kb)],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        ports = json.loads(self.process.stdout.readline())
        self.port: int = ports["port"]
        self._control = socket.create_connection(("127.0.0.1", ports["control"]), DEADLINE_S)
        self._answers = self._control.makefile("rb")

    def tell(self, command: str) -> dict[str, int]:
        """Send a command (see the script); the counts."""
        self._control.sendall(f"{command}\n".encode())
        answer: dict[str, int] = json.loads(self._answers.readline())
        return answer

    def close(self) -> None:
        self._answers.close()
        self._control.close()
        self.process.kill()
        self.process.communicate()


class CacheWorld:
    """An origin, a line to it, and one cache directory in front."""

    def __init__(
        self, folder: Path, *, rtt_ms: float | None, options: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.origin = Origin(folder / "o", options)
        # without a delay the line still counts what the origin sends
        self.line = DelayLine(self.origin.port, rtt_ms or 0.0)
        self.directory = folder / "user" / "c"
        self.home = folder / "user"
        self.home.mkdir()
        if os.getuid() == 0:
            shutil.chown(self.home, "nobody", "nogroup")
        self.host = "127.0.0.1"  #: the origin's, as URLs name it
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    # ---- the cache -------------------------------------------------------------------------------

    def init(self, *options: str, size: str = "2GB") -> subprocess.CompletedProcess[str]:
        """`tidemill cache init` for all of the origin; must succeed."""
        return self.init_for(self.origin_url, *options, size=size)

    def init_for(self, origin: str, *options: str, size: str = "2GB") -> subprocess.CompletedProcess[str]:
        """The same, for another URL of an origin."""
        self.port = free_port()
        done = self.tidemill(
            "cache", "init", str(self.directory), "--origin", origin, "--port", str(self.port), "--size", size,
            *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    def set(self, text: str) -> None:
        """Put lines of TOML before the rest of cache.toml: keys that are no part of a table."""
        path = self.directory / "cache.toml"
        path.write_text(f"{text}\n{path.read_text()}")

    def set_table(self, name: str, **values: object) -> None:
        """Replace a table of cache.toml."""
        path = self.directory / "cache.toml"
        before, _, rest = path.read_text().partition(f"[{name}]\n")
        after = "".join(re.findall(r"^\[[a-z]+\]\n.*", rest, re.MULTILINE | re.DOTALL))
        lines = "".join(f"{key} = {json.dumps(str(value))}\n" for key, value in values.items())
        path.write_text(f"{before}[{name}]\n{lines}\n{after}")

    def start(self, descriptors: int | None = None, mounted: tuple[Path, int] | None = None) -> None:
        """`tidemill cache run`, until the cache answers; `init` first if there is none.

        `descriptors`: what the system allows it; `mounted`: a directory that is a disk of so many bytes (as root).
        """
        limited = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        if mounted is not None:
            mount = 'mount -t tmpfs -o size="$1",mode=0700,uid=65534 none "$2" && shift 2 && exec "$@"'
            limited += ["unshare", "--mount", "sh", "-c", mount, "sh", str(mounted[1]), str(mounted[0])]
        if not (self.directory / "cache.toml").exists():
            self.init()
        if mounted is not None:
            (self.directory / "data.json").unlink(missing_ok=True)  # the disk is a new one
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*limited, *ordinary_user(), *TIDEMILL, "cache", "run", str(self.directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=ROOT,
            )
        self.wait_answers()

    def wait_answers(self, after_pid: int = 0) -> CacheState:
        """The state once xrootd answers; that of another process than `after_pid`."""

        def works() -> bool:
            assert self.process is None or self.process.poll() is None, self.log.read_text()
            state = read_state(self.directory)
            is_ours = state is not None and (self.process is None or state.supervisor_pid == self.process.pid)
            return state is not None and is_ours and state.answers and state.pid != after_pid

        until(works, "the cache does not answer")
        return self.state()

    def stop(self) -> int:
        """End the supervisor as systemd would; its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        return process.wait(DEADLINE_S)

    def kill_xrootd(self) -> int:
        """Kill xrootd with SIGKILL; the pid that it had."""
        pid = self.state().pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def state(self) -> CacheState:
        found = read_state(self.directory)
        assert found is not None
        return found

    def status(self) -> dict[str, Any]:
        """What `tidemill cache status --json` prints."""
        done = self.tidemill("cache", "status", str(self.directory), "--json")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def tidemill(self, *words: str, descriptors: int | None = None) -> subprocess.CompletedProcess[str]:
        """A command of the ordinary user; `descriptors`: what the system allows it."""
        limited = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        return subprocess.run(
            [*limited, *ordinary_user(), *TIDEMILL, *words],
            capture_output=True,
            text=True,
            env=self.environ,
            cwd=ROOT,
            check=False,
            timeout=COPY_S,
        )

    # ---- files -----------------------------------------------------------------------------------

    def make(self, name: str, content: bytes) -> Path:
        return self.origin.make(name, content)

    def url(self, name: str) -> str:
        """The URL of a file through the cache."""
        return f"root://127.0.0.1:{self.port}//{self.direct(name)}"

    def direct(self, name: str) -> str:
        """The URL of a file at the origin, along the line."""
        return f"{self.origin_url}{name}"

    @property
    def origin_url(self) -> str:
        return f"root://{self.host}:{self.line.port}//"

    def read(self, name: str) -> bytes:
        """A file's bytes by xrdcp through the cache; must succeed."""
        done = self.copy(self.url(name))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def copy(self, url: str) -> subprocess.CompletedProcess[bytes]:
        """What xrdcp prints of a URL, with the environment that a payload would have."""
        return subprocess.run(
            ["xrdcp", "--silent", "--force", url, "-"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.client_environ,
            check=False,
            timeout=COPY_S,
        )

    def sent(self) -> dict[str, int]:
        """What went along the line: `down` bytes from the origin, `up` bytes to it, `connections`, and `open` ones."""
        return self.line.tell("count")

    @property
    def client_environ(self) -> dict[str, str]:
        """Of programs that read through the cache."""
        return {**os.environ, **client_environment()}

    @property
    def environ(self) -> dict[str, str]:
        """Of commands of the ordinary user."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("XRD_", "TIDEMILL_"))
        }
        return {**kept, "HOME": str(self.home), "TIDEMILL_HOME": str(self.home / "home"), **passed_on()}

    @property
    def log(self) -> Path:
        return self.folder / "run.log"

    def close(self) -> None:
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.stop()
        self.line.close()
        self.origin.stop()


def sums_once(world: CacheWorld, served_bytes: int, *, origin_bytes: int) -> CacheLedger:
    """The cache's figures once they have so many bytes to clients, and the kernel's counters so many from the origin.

    XCache counts a short last block as a whole one, the kernel does not.
    """

    def has_come() -> bool:
        sums = read_sums(world.directory)
        if sums is None or sums.total.served_bytes < served_bytes:
            return False
        return sums.wire_origin_bytes >= origin_bytes

    until(has_come, "the figures do not come", seconds=150)  # XCache closes files once a minute
    sums = read_sums(world.directory)
    assert sums is not None
    return sums


@contextmanager
def cache_world(
    *, rtt_ms: float | None = None, options: Mapping[str, str] | None = None
) -> Iterator[CacheWorld]:
    """A world in a short temporary folder: XRootD's sockets need short paths."""
    if shutil.which("xrootd") is None or shutil.which("xrdcp") is None:
        pytest.skip("no XRootD server: apt-get install xrootd-server xrootd-client")
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as text:
        Path(text).chmod(0o711)
        world = CacheWorld(Path(text), rtt_ms=rtt_ms, options=options)
        try:
            yield world
        finally:
            world.close()


@pytest.fixture
def near() -> Iterator[CacheWorld]:
    """A cache and an origin beside it, not yet started."""
    with cache_world() as world:
        yield world


@pytest.fixture
def far() -> Iterator[CacheWorld]:
    """A cache and an origin 100 ms away, not yet started."""
    with cache_world(rtt_ms=100.0) as world:
        yield world
