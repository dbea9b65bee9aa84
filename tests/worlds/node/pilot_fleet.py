"""A fleet directory with a real lead and real pilots, each in a PID namespace of its own, for the pilot's tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.wire_values import program, settings

from tidemill.model.intervals import IntervalSet
from tidemill.node.binary import find_binary
from tidemill.node.fleet import Fleet, create_fleet
from tidemill.node.journal import FleetJournal
from tidemill.wire.node import (
    FORMAT,
    Done,
    Grant,
    JobDef,
    Manifest,
    Noted,
    OutputDef,
    Record,
)

__all__ = ["program", "settings"]
R = TypeVar("R", bound=Record)
ROOT = Path(__file__).parents[3]


@cache
def binary() -> Path:
    """The debug build where there is a checkout with cargo, else the installed one. Built once, before the first test
    (`conftest.py`): cargo may take minutes, and waits without bound for others that build in the same directory."""
    if "TIDEMILL_NODE_BINARY" in os.environ or shutil.which("cargo") is None:
        return find_binary()
    host = next(
        line.split()[1]
        for line in subprocess.run(
            ["rustc", "-vV"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        if line.startswith("host:")
    )
    build = ["cargo", "build", "-q", "-p", "tidemill-node", "--target", host]
    subprocess.run(build, check=True, cwd=ROOT, timeout=600)
    return ROOT / "target" / host / "debug" / "tidemill-node"


def output(name: str, path: str) -> OutputDef:
    return OutputDef(name=name, path=path)


def job(number: int, script: str, *, events: int, of: int = 1) -> JobDef:
    return JobDef(
        job=number,
        program=of,
        argv=["-c", script],
        env={},
        params="{}",
        seed_base=0,
        events=events,
        inputs=[],
    )


def grants(*jobs: JobDef) -> list[Grant]:
    """All events of each job as one grant."""
    return [Grant(grant=each.job, job=each.job, first=0, count=each.events, chunk_max=None) for each in jobs]


class Field:
    """One fleet; everything that was started ends with it."""

    def __init__(self, fleet: Fleet, node: Path) -> None:
        self.fleet = fleet
        self.node = node
        self.records: list[Record] = []
        self.prefix: list[str] = []  #: words before the binary, such as `setpriv ...`
        self._journal = FleetJournal(fleet.journal)
        self._started: list[subprocess.Popen[bytes]] = []
        self._logs = fleet.directory.parent / "logs"
        self._logs.mkdir(exist_ok=True)

    def lead(self) -> subprocess.Popen[bytes]:
        """Start a lead and wait until it listens."""
        before = self.fleet.lead_address()
        process = self._start("lead", ["lead", "--fleet", str(self.fleet.directory)], {}, [])
        self.until(lambda: self.fleet.lead_address() != before, "the lead listens")
        return process

    def pilot(
        self,
        *options: str,
        allocation: str = "tm-here-e1-1",
        env: dict[str, str] | None = None,
        before: str | None = None,
        user: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a pilot; `before` is a shell command in its namespaces, `user` gives it a user namespace too."""
        arguments = ["run", "--fleet", str(self.fleet.directory), "--allocation", allocation, *options]
        wrap = [] if before is None else ["/bin/sh", "-c", f'{before} && exec "$0" "$@"']
        return self._start(f"pilot-{len(self._started)}", arguments, env or {}, wrap, user=user)

    def _start(
        self, name: str, arguments: list[str], env: dict[str, str], wrap: list[str], *, user: bool = False
    ) -> subprocess.Popen[bytes]:
        mapped = ["-Ur"] if user or os.geteuid() else []
        command = [
            "unshare",
            *mapped,
            "-pf",
            "--mount-proc",
            "--kill-child",
            *wrap,
            *self.prefix,
            str(self.node),
            *arguments,
        ]
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "CUDA", "PMI"))
        }
        with (self._logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, env=clean | env)
        self._started.append(process)
        return process

    def signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Signal the program itself, the first process of its namespace."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        self.until(lambda: bool(children.read_text().split()), "the namespace has a process")
        os.kill(int(children.read_text().split()[0]), number)

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
        """Wait until it holds, with the logs in the error where it does not."""
        end_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end_s, f"{what}: not within {timeout_s} s\n{self.tails()}"
            time.sleep(0.01)

    def ended(self, process: subprocess.Popen[bytes], timeout_s: float = 30) -> int:
        """The exit code of a process that ends by itself."""
        self.until(lambda: process.poll() is not None, "the process ends", timeout_s)
        return process.returncode

    def read(self) -> list[Record]:
        """All records so far."""
        while new := self._journal.read():
            self.records += new
        return self.records

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.read() if isinstance(record, kind)]

    def noted(self, topic: str) -> list[Noted]:
        return [record for record in self.of(Noted) if record.topic == topic]

    def done(self, number: int) -> IntervalSet:
        """Done events of a job; fails where one was done twice."""
        events = IntervalSet()
        for record in self.read():
            if isinstance(record, Done) and record.job == number:
                fresh = events.add(record.first, record.first + record.count)
                assert fresh == record.count, f"done twice: {record}"
        return events

    def tails(self) -> str:
        """The ends of all logs and the last records."""
        texts = [f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self._logs.iterdir())]
        return "\n".join([*texts, *(str(record) for record in self.read()[-20:])])

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def field(tmp_path: Path, *, lead: str = "beside", **changes: object) -> Iterator[Field]:
    """A new fleet; `changes` of its settings."""
    manifest = Manifest(
        format=FORMAT,
        fleet="e1-1",
        site="here",
        epoch=1,
        created_us=1,
        lead=lead,
        listen="127.0.0.1:0",
        settings=settings(**changes),
    )
    it = Field(create_fleet(tmp_path / "e1-1", manifest), binary())
    try:
        yield it
    finally:
        it.close()
