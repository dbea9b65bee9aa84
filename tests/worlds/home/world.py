"""A whole Tidemill in a temporary home, started as a user would start it, and a hand that kills its parts.

`up` supervises server and agent; the agent starts lead and pilots. Everything runs in a PID namespace of its own, so
that nothing can outlive a test or reach anything outside of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.timing import Values, passed_on
from tests.worlds.home.processes import Process, by_role, send, snapshot

from tidemill import examples
from tidemill.client import Client
from tidemill.model.job import JobSpec
from tidemill.wire.api import CampaignRow

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
FINAL = {"COMPLETED", "PARTIAL", "FAILED", "CANCELED"}

SITE = """name = "here"
server = "unix:{home}/server/api.sock"
data_roots = ["/"]
allow_adhoc = true
nodes_max = {nodes}
walltime_s = "1h"
{extra}
[local]
nodes = {nodes}
[node]
cores = {cores}
"""

TIMING: Values = {
    "batch": {"LOCAL_GRACE_S": 3},
    "site": {
        "OUTPUT_FLUSH_S": 0.3, "PILOT_GRACE_S": 2, "IDLE_S": 20, "QUEUE_S": 0.5, "LOCAL_POLL_S": 0.1,
        "CLUSTER_POLL_S": 0.5,
        "START_BACKOFF_S": 0.1, "START_BACKOFF_MAX_S": 0.5, "SYNC_INTERVAL_MAX_S": 1, "DEAD_AGENT_S": 3,
        "HEARTBEAT_S": 1, "DEAD_AFTER_S": 20,
    },
}  # fmt: skip
"""The times of all worlds: what production waits for, a test has not the time for."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a world is made. `user`: it runs as this user (root only); `environment` is added; its home is made
    in `parent`. HOME is `home/me`. `timing` is added to that of all worlds."""

    nodes: int = 2
    cores: int = 1
    extra: str = ""
    timing: Values = field(default_factory=dict)
    user: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    parent: Path = Path("/tmp")


class World:
    """One home; `client` talks to its server, unless the world runs as another user (use `run` then)."""

    def __init__(self, home: Path, options: Options) -> None:
        self.home = home
        self.options = options
        nodes, cores, extra = options.nodes, options.cores, options.extra
        for directory in (home, home / "server", home / "site", home / "site" / "apps", home / "me"):
            directory.mkdir(mode=0o700, exist_ok=True)
        text = SITE.format(home=home, nodes=nodes, cores=cores, extra=extra)
        if "batch = " in extra:  # its nodes are as they are
            text = text.replace(f"[node]\ncores = {cores}\n", "")
        (home / "site" / "site.toml").write_text(text)
        examples.install(home / "site" / "apps")
        if options.user is not None:
            for path in (home, *home.rglob("*")):
                os.chown(path, options.user, options.user)
        self.client = Client(f"unix:{home}/server/api.sock", retry_s=60)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start `tidemill up` in a PID namespace of its own and wait until it answers."""
        command = [*self._reachable(), *self._as_user(), *TIDEMILL, "up", "--home", str(self.home)]
        with (self.home / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*namespace_command(), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(),
            )  # fmt: skip
        self.wait_for(lambda: (self.home / "up.json").exists(), "`tidemill up` answers")

    def stop(self) -> None:
        """End everything: the end of the namespace's first process kills all the others. It is killed by hand: a
        process that changes its user loses what `unshare --kill-child` has set."""
        if self._process is not None:
            for first in self._firsts():
                send(first, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None

    def run(self, *words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """`tidemill WORDS` as the world's user, in its home."""
        return subprocess.run(
            self._command(*words), cwd=self.home / "me", env=self._environment(),
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """As `run`, beside the test; killed if the test leaves it."""
        process = subprocess.Popen(
            self._command(*words), cwd=self.home / "me", env=self._environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, *words: str) -> list[str]:
        if self.options.user is None:
            return [*TIDEMILL, *words]
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.home / "me")]  # nsenter goes to /
        return self.inside([*there, *self._as_user(), *TIDEMILL, *words])

    def _reachable(self) -> list[str]:
        """A prefix that shows the interpreter at its path although it lies below a closed directory, such as /root."""
        if self.options.user is None:
            return []
        prefix = Path(sys.executable).resolve().parents[1]
        closed = [path for path in reversed(prefix.parents) if not path.stat().st_mode & 0o001]
        if not closed:
            return []
        stage = self.home / "interpreter"
        stage.mkdir()
        script = (
            'mount --bind "$2" "$3" && mount -t tmpfs -o mode=0755 tm-test "$1" && mkdir -p "$2" && '
            'mount --bind "$3" "$2" && shift 3 && exec "$@"'
        )
        return ["sh", "-c", script, "sh", str(closed[0]), str(prefix), str(stage)]

    def _as_user(self) -> list[str]:
        user = self.options.user
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--"]
        return [] if user is None else drop

    def _environment(self) -> dict[str, str]:
        own = {
            "TIDEMILL_HOME": str(self.home),
            **passed_on(TIMING, self.options.timing),
            **self.options.environment,
        }
        own.setdefault("HOME", str(self.home / "me"))
        # Open MPI names its session directory after its pid, and worlds have the same pids
        own.setdefault("TMPDIR", str(self.home / "me"))
        return {**os.environ, **own}

    def wait_for(self, done: object, what: str, timeout_s: float = 60.0) -> None:
        """Poll until the condition holds; the test fails with the logs' tails if it does not."""
        assert callable(done)
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline or (
                self._process is not None and self._process.poll() is not None
            ):
                pytest.fail(f"waited in vain: {what}\n{self.tails()}")
            time.sleep(0.02)

    def wait_campaign(self, name: str, timeout_s: float = 90.0) -> CampaignRow:
        """The campaign when all of its jobs have ended."""

        def ended() -> bool:
            row = self.client.campaign(name)
            return sum(row.states.get(state, 0) for state in FINAL) == row.jobs

        self.wait_for(ended, f"campaign {name} ends", timeout_s)
        return self.client.campaign(name)

    def submit(self, campaign: str, *specs: JobSpec) -> list[int]:
        """Submit jobs of a campaign; their ids."""
        return list(self.client.submit(list(specs), campaign=campaign).jobs)

    def processes(self, role: str) -> list[Process]:
        """The living processes of a role."""
        return by_role(self.home).get(role, [])

    def kill(self, role: str, rng: random.Random, number: signal.Signals = signal.SIGKILL) -> bool:
        """Signal one process of a role; False when there is none."""
        victims = sorted(self.processes(role), key=lambda process: process.pid)
        return bool(victims) and send(rng.choice(victims), number)

    def restart(self, role: str) -> None:
        """Kill the one process of a role and wait until `up` has started another."""
        (old,) = self.processes(role)
        send(old, signal.SIGKILL)
        self.wait_for(lambda: any(p.pid != old.pid for p in self.processes(role)), f"a new {role}")

    def inside(self, command: list[str]) -> list[str]:
        """A command that runs in the home's PID namespace."""
        assert self._process is not None
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self._firsts()[0].pid}", "--pid", "--mount", *user, "--", *command]

    def _firsts(self) -> list[Process]:
        """The first process of the home's PID namespace, while it lives."""
        assert self._process is not None
        return [p for p in snapshot().values() if p.parent == self._process.pid]

    def inner_pid(self, process: Process) -> int:
        """A process's number in the home's PID namespace."""
        status = Path(f"/proc/{process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
        return int(line.split()[2])

    def tails(self) -> str:
        """The ends of all logs, for a failing test."""
        found = [Path(top, name) for top, _, names in os.walk(self.home) for name in sorted(names)]
        batch = self.home / "site" / "batch"
        logs = sorted(path for path in found if path.suffix == ".log")
        logs += sorted(path for path in found if path.suffix == ".err" and batch in path.parents)
        parts = []
        for log in logs:
            with contextlib.suppress(OSError):  # what a running agent removes meanwhile is left out
                if log.is_file():
                    parts.append(f"--- {log}\n{log.read_bytes()[-3000:].decode(errors='replace')}")
        return "\n".join(parts)[-20000:]


def namespace_command() -> list[str]:
    """A prefix that runs a command as the first process of a PID namespace, which ends with this process."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    return ["unshare", *own, "--pid", "--mount-proc", "--fork", "--kill-child", "--"]


@contextlib.contextmanager
def world(
    *,
    nodes: int = 2,
    cores: int = 1,
    extra: str = "",
    timing: Values | None = None,
    options: Options | None = None,
) -> Iterator[World]:
    """A running Tidemill, ended and removed afterwards. Its path is short: sockets allow 107 bytes."""
    if shutil.which("unshare") is None:
        pytest.fail("`unshare` is missing: install util-linux")
    options = options or Options(nodes=nodes, cores=cores, extra=extra, timing=timing or {})
    home = Path(tempfile.mkdtemp(prefix="tm-", dir=options.parent))
    it = World(home, options)
    try:
        it.start()
        yield it
    finally:
        it.stop()
        shutil.rmtree(home, ignore_errors=True)
