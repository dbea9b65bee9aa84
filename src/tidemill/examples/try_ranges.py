"""A strict pilot of one slot, to try a range payload on a laptop: checks every line of the range protocol.

    python -m tidemill.examples.try_ranges --events 100 --range 10 -- ./payload

The real one is `tidemill-node`; this knows no nodes, limits or isolation. Kept files are copied to --keep.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from tidemill import clock
from tidemill.errors import ProtocolError
from tidemill.model.intervals import IntervalSet

LINE_BYTES_MAX = 65536
READ_BYTES = 65536
LIBRARY = Path(__file__).parent.parent / "payload" / "__init__.py"
OUTPUT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}=[^ ]+")


@dataclass
class TriedRange:
    """Events reported by one `done` line, with the content of its files."""

    first: int
    count: int
    outputs: dict[str, bytes] = field(default_factory=dict)


@dataclass
class TrialOutcome:
    """The ranges that a payload asked for, and its failed events."""

    pieces: list[TriedRange] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    beats: int = 0
    ready: bool = False
    exit_status: int | None = None  #: negative: minus the signal
    error: str | None = None  #: how it broke the protocol
    ranges: list[tuple[int, int]] = field(default_factory=list)  #: as handed out

    def joined(self, name: str) -> bytes:
        """An output of all pieces, in the order of events."""
        return b"".join(piece.outputs[name] for piece in sorted(self.pieces, key=lambda piece: piece.first))

    def done(self) -> IntervalSet:
        """The events that were reported as done."""
        return IntervalSet((piece.first, piece.first + piece.count) for piece in self.pieces)


@dataclass
class Trial:
    """What to hand out, and how to behave."""

    events: int = 10
    size: int = 3  #: events per range at most
    first: int = 0
    seed: int = 1  #: seed of event `first`
    params: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cores: int = 1
    timeout_s: float = 60.0
    bytewise: bool = False  #: send each byte alone: payloads must cope with torn lines
    keep_files: bool = False  #: leave outputs where they are
    watch: Callable[[int, str], None] | None = None  #: called with the payload's process id and each line


def run(argv: list[str], work_dir: Path, trial: Trial) -> TrialOutcome:
    """Run a payload in `work_dir` and answer it until it ends. A breach of the protocol kills it and is in `.error`."""
    outcome = TrialOutcome()
    environment = _environment(trial, work_dir)
    with _child(argv, work_dir, environment) as (process, to_payload, from_payload):
        try:
            _Talk(outcome, trial, work_dir).converse(process.pid, to_payload, from_payload)
        except ProtocolError as error:
            outcome.error = error.message
            process.kill()
        try:
            outcome.exit_status = process.wait(timeout=trial.timeout_s)
        except subprocess.TimeoutExpired:
            outcome.error = f"still runs {trial.timeout_s:g} s after it closed the protocol"
            process.kill()
            outcome.exit_status = process.wait()
    if outcome.error is None and outcome.exit_status == 0:
        given = IntervalSet((first, first + count) for first, count in outcome.ranges)
        settled = outcome.done()
        for event in outcome.failed:
            settled.add(event, event + 1)
        if settled != given:
            outcome.error = f"ended without finishing: was given {given}, reported {settled}"
    return outcome


def _environment(trial: Trial, work_dir: Path) -> dict[str, str]:
    library_dir = work_dir.parent / f"{work_dir.name}-library"
    library_dir.mkdir(exist_ok=True)
    (library_dir / "tidemill_payload.py").write_bytes(LIBRARY.read_bytes())
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(work_dir),
        "PYTHONPATH": str(library_dir),
        "TIDEMILL_IN": "3",
        "TIDEMILL_OUT": "4",
        "TIDEMILL_JOB": "1",
        "TIDEMILL_CORES": str(trial.cores),
        "TIDEMILL_SLOT": "0",
        "TIDEMILL_NODE": platform.node(),
        "TIDEMILL_PARAMS": json.dumps(trial.params),
        **trial.env,
    }


@contextlib.contextmanager
def _child(
    argv: list[str], work_dir: Path, environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A process with the protocol on descriptors 3 and 4; killed at the end if it still runs."""
    pipes = [*os.pipe(), *os.pipe()]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in pipes]  # clear of 3 and 4
    payload_in, to_payload, from_payload, payload_out = high

    def place() -> None:
        os.dup2(payload_in, 3)
        os.dup2(payload_out, 4)

    try:
        process = subprocess.Popen(argv, cwd=work_dir, env=environment, pass_fds=(3, 4), preexec_fn=place)
    finally:
        for fd in [*pipes, payload_in, payload_out]:  # `pipes` kept 3 and 4 away from Popen's own pipe
            os.close(fd)
    try:
        yield process, to_payload, from_payload
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(to_payload)
        os.close(from_payload)


class _Talk:
    """One conversation: what is left to hand out, what is open, what was said."""

    def __init__(self, outcome: TrialOutcome, trial: Trial, work_dir: Path) -> None:
        self._outcome = outcome
        self._trial = trial
        self._work_dir = work_dir.resolve()
        self._next_event = trial.first
        self._end = trial.first + trial.events
        self._open = IntervalSet()
        self._ended = False

    def converse(self, pid: int, to_payload: int, from_payload: int) -> None:
        rest = b""
        deadline_s = clock.monotonic_s() + self._trial.timeout_s
        while True:
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0 or not select.select([from_payload], [], [], left_s)[0]:
                raise ProtocolError(f"nothing more after {self._trial.timeout_s:g} s")
            data = os.read(from_payload, READ_BYTES)
            if not data:
                if rest:
                    raise ProtocolError(f"ended in the middle of a line: `{rest[:200]!r}`")
                return
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise ProtocolError(f"a line of more than {LINE_BYTES_MAX} bytes")
            for line in lines:
                text = line.decode("utf-8", "replace")
                self._outcome.lines.append(text)
                self._send(to_payload, self._answer(text))
                if self._trial.watch is not None:
                    self._trial.watch(pid, text)

    def _send(self, to_payload: int, text: str) -> None:
        data = text.encode()
        step = 1 if self._trial.bytewise else max(len(data), 1)
        with contextlib.suppress(BrokenPipeError):  # it has ended; its exit status shows why
            for at in range(0, len(data), step):
                os.write(to_payload, data[at : at + step])

    def _answer(self, line: str) -> str:
        word, _, rest = line.partition(" ")
        if word == "next":
            return self._range(line, rest)
        if word == "done":
            self._done(line, rest)
        elif word == "failed":
            self._failed(line, rest)
        elif line == "ready" and not self._outcome.ready:
            self._outcome.ready = True
        elif word == "log":
            self._outcome.log.append(rest)
        elif line == "beat":
            self._outcome.beats += 1
        else:
            raise ProtocolError(f"not a line of the range protocol: `{line[:200]}`")
        return ""

    def _range(self, line: str, rest: str) -> str:
        if not self._outcome.ready or not re.fullmatch(r"next( [1-9][0-9]*)?", line):
            raise ProtocolError(f"not a legal request here: `{line[:200]}`")
        if self._next_event >= self._end:
            answer = "" if self._ended else "end\n"
            self._ended = True
            return answer
        count = min(self._trial.size, int(rest or self._trial.size), self._end - self._next_event)
        first = self._next_event
        self._next_event += count
        self._open.add(first, first + count)
        self._outcome.ranges.append((first, count))
        return f"range {first} {count} {self._trial.seed + first - self._trial.first}\n"

    def _done(self, line: str, rest: str) -> None:
        numbers, outputs = rest.split(" ")[:2], rest.split(" ")[2:]
        if (
            len(numbers) != 2
            or not all(map(str.isdecimal, numbers))
            or not all(map(OUTPUT.fullmatch, outputs))
        ):
            raise ProtocolError(f"not a legal report: `{line[:200]}`")
        piece = TriedRange(int(numbers[0]), int(numbers[1]))
        if piece.count < 1 or not self._open.covers(piece.first, piece.first + piece.count):
            raise ProtocolError(f"reports events that it does not have: `{line[:200]}`")
        self._open.remove(piece.first, piece.first + piece.count)
        for output in outputs:
            name, _, path = output.partition("=")
            piece.outputs[name] = self._take(unquote(path, errors="surrogateescape"), line)
        self._outcome.pieces.append(piece)

    def _take(self, relative: str, line: str) -> bytes:
        path = self._work_dir / relative
        if not path.resolve().is_relative_to(self._work_dir) or path.is_symlink() or not path.is_file():
            raise ProtocolError(f"`{relative}` is not a file below the work directory: `{line[:200]}`")
        content = path.read_bytes()
        if not self._trial.keep_files:
            path.unlink()
        return content

    def _failed(self, line: str, rest: str) -> None:
        event, _, message = rest.partition(" ")
        if not event.isdecimal() or int(event) not in self._open:
            raise ProtocolError(f"fails an event that it does not have: `{line[:200]}`")
        self._open.remove(int(event), int(event) + 1)
        self._outcome.failed[int(event)] = message


def main(argv: list[str] | None = None) -> int:
    """Run the command after `--` as a payload; 0 if it kept to the protocol and finished all events."""
    parser = argparse.ArgumentParser(description="Try a range payload on this machine")
    parser.add_argument("--events", type=int, default=10)
    parser.add_argument("--range", type=int, default=3, help="events per range")
    parser.add_argument("--seed", type=int, default=1, help="seed of event 0")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--params", default="{}", help="a JSON object")
    parser.add_argument("--dir", type=Path, required=True, help="an empty work directory; made if missing")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds")
    parser.add_argument("--keep", type=Path, help="write joined outputs into this directory")
    parser.add_argument("command", nargs="+", help="files among its words may be named from here")
    options = parser.parse_args(argv)
    options.dir.mkdir(parents=True, exist_ok=True)
    trial = Trial(
        events=options.events,
        size=options.range,
        seed=options.seed,
        cores=options.cores,
        params=json.loads(options.params),
        timeout_s=options.timeout,
    )
    started_s = clock.monotonic_s()
    command = [str(Path(word).absolute()) if Path(word).is_file() else word for word in options.command]
    outcome = run(command, options.dir, trial)
    wall_s = clock.monotonic_s() - started_s
    if options.keep is not None and outcome.pieces:
        options.keep.mkdir(parents=True, exist_ok=True)
        for name in outcome.pieces[0].outputs:
            (options.keep / name).write_bytes(outcome.joined(name))
    for text in outcome.log:
        print(f"log: {text}", file=sys.stderr)
    for event, message in sorted(outcome.failed.items()):
        print(f"event {event} failed: {message}", file=sys.stderr)
    print(
        f"{len(outcome.done())} events done in {len(outcome.ranges)} ranges, {len(outcome.failed)} failed, "
        f"{wall_s:.1f} s, exit status {outcome.exit_status}",
    )
    if outcome.error is not None:
        print(f"error: {outcome.error}", file=sys.stderr)
    return 0 if outcome.error is None and outcome.exit_status == 0 and not outcome.failed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
