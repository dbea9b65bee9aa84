"""Runs a client program of a protocol: watched, bounded, gone when we are, its last words quoted."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.transfer.contract import TransferError, Watch

OUTPUT_BYTES_MAX = 1_000_000
QUOTE_CHARS_MAX = 400
LOOK_S = 0.1
"""The interval at which the progress of a client is checked."""

_QUERY = re.compile(r"\?\S*")


class ClientResult(NamedTuple):
    """The exit status and output of a client program."""

    program: str
    status: int
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """The last words of the client program, in one line and cut; without queries, in which tokens may be."""
        lines = [
            line.strip() for line in (self.errors.strip() or self.output.strip()).splitlines() if line.strip()
        ]
        return _QUERY.sub("?...", " / ".join(lines[-6:]))[-QUOTE_CHARS_MAX:] or "it printed nothing"

    def says(self, *words: str) -> bool:
        """Whether any of these words (lower case) is in what it printed."""
        text = f"{self.errors}\n{self.output}".lower()
        return any(word in text for word in words)


def find(program: str, package: str) -> str:
    """The path of a client program. Raises TransferError naming what to install."""
    path = shutil.which(program)
    if path is None:
        raise TransferError(
            f"there is no program `{program}` on this host",
            hint=f"install it ({package}), or put it on the PATH of `tidemill site run`",
            transient=False,
        )
    return path


def run(
    command: Sequence[str],
    watch: Watch,
    *,
    environ: Mapping[str, str],
    progress: Callable[[int], int] | None = None,
) -> ClientResult:
    """Run a program to its end; `progress` returns how many bytes the process with this number has moved. Raises
    TransferError when the watch does: the program is killed then, with all its children."""
    try:
        process = subprocess.Popen(
            [*_until_we_end(), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise TransferError(f"failed to start `{command[0]}`: {error.strerror}") from error
    with process:
        try:
            output, errors = _follow(process, watch, progress)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return ClientResult(Path(command[0]).name, process.returncode, output, errors)


def _follow(
    process: subprocess.Popen[bytes], watch: Watch, progress: Callable[[int], int] | None
) -> tuple[str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    kept: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    next_look_s = clock.monotonic_s() + LOOK_S
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(LOOK_S):
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(key.fd)
                kept[key.fd] += piece
                del kept[key.fd][:-OUTPUT_BYTES_MAX]
            if clock.monotonic_s() >= next_look_s:
                next_look_s = clock.monotonic_s() + LOOK_S
                if progress is not None:
                    watch.progress(progress(process.pid))
                watch.check()
    while process.returncode is None:  # one that has closed its outputs may hang all the same
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            watch.check()
    output, errors = (each.decode(errors="replace") for each in kept.values())
    return output, errors


def size_of(path: Path) -> int:
    """Bytes of a file that grows; 0 while there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def bytes_read(pid: int) -> int:
    """Bytes that a process has read so far, mostly from files (proc(5), `rchar`); 0 where that is unknown."""
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return parse_io(text)


def parse_io(text: str) -> int:
    """`rchar` of /proc/N/io; 0 where it is missing or is not a number of 64 bits."""
    match = re.search(r"^rchar: ([0-9]{1,20})$", text, re.MULTILINE)
    found = 0 if match is None else int(match[1])
    return found if found < 1 << 64 else 0


@cache
def _until_we_end() -> list[str]:
    """Words that have the kernel kill a client whose caller has died: two of them must never write one file."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    text = subprocess.run([setpriv, "--help"], capture_output=True, text=True, check=False).stdout
    return [setpriv, "--pdeathsig", "KILL", "--"] if "--pdeathsig" in text else []
