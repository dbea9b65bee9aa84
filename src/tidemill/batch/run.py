"""The only caller of other programs in this part: bounded in time and output, bytes and not text, errors that quote
what came back. What an answer means is the adapters' affair: each has a table of the words of its commands."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.batch.environment import ONE_LANGUAGE, batch_environment
from tidemill.errors import SiteError

TIMEOUT_S = 60.0
REPLY_BYTES_MAX = 64_000_000
ERROR_BYTES_MAX = 1_000_000
"""A query of thousands of unknown ids prints a line for each."""

QUOTE_CHARS_MAX = 500
KILL_S = 1.0
"""A process that has not ended by then after SIGKILL hangs in the kernel (state D), such as on a lost file system."""

_READ_BYTES = 1 << 20
stuck: list[subprocess.Popen[bytes]] = []
"""Those that hang; they are looked after when another program is run."""

_LACKS = re.compile(
    r"ModuleNotFoundError|ImportError|unbound variable|parameter not set|KeyError: '[A-Z_0-9]+'|@INC|"
    r"error while loading shared libraries|environment variable"
)
"""Errors of a wrapper, or of a program that it starts, that misses a variable of the user's shell."""


class Refusal(StrEnum):
    """Why a command failed; the adapters derive it from what the command printed."""

    BUSY = "busy"  #: a rate limit: too many calls
    AWAY = "away"  #: the batch system's daemon does not answer: could not ask
    UNKNOWN = "unknown"  #: no such job: for a cancel as good as done
    LIMIT = "limit"  #: a limit of jobs, time or budget that is for now
    DENIED = "denied"  #: not allowed, or wrong: asking again changes nothing
    OTHER = "other"


class LongReplyError(SiteError):
    """A program printed more than its caller reads."""


class CommandResult(NamedTuple):
    """The exit status and output of a program."""

    command: str  #: for messages, cut
    status: int  #: exit status, or minus the signal that ended it
    output: bytes
    errors: str  #: what it printed on stderr
    seconds: float

    @property
    def last_words(self) -> str:
        """The last line on stderr, else on stdout; cut. What a usage text follows is the line before that."""
        lines = self.errors.strip().splitlines() or self.output[-4000:].decode(errors="replace").split("\n")
        usage = next((k for k, line in enumerate(lines) if line.lower().startswith("usage:")), 0)
        words = next((line.strip() for line in reversed(lines[:usage] or lines) if line.strip()), "")
        return words[:QUOTE_CHARS_MAX] or "it printed nothing"

    def error(self, *, transient: bool = True, hint: str | None = None) -> SiteError:
        """What to raise when it did not do its work."""
        message = f"`{self.command}` ended with status {self.status}: {self.last_words}"
        if hint is None and _LACKS.search(self.last_words):
            hint = (
                "if it works in your shell: batch commands get few of its variables; a script of the same name, first "
                "on PATH, can set what it needs (batch-systems.md)"
            )
        elif hint is None and "authentication" in self.last_words.lower() and os.environ.get("SLURM_JWT"):
            hint = (
                "the token in SLURM_JWT may have expired: this process keeps the one from its start; without the "
                "variable, Slurm uses munge or auth/slurm (batch-systems.md)"
            )
        return SiteError(message, hint=hint, transient=transient)


def recognise(reply: CommandResult, words: Sequence[tuple[str, Refusal]]) -> Refusal:
    """The refusal of the first of these words (lower case) that the reply's stderr, or else its stdout, holds."""
    for text in (reply.errors.lower(), reply.output[-4000:].decode(errors="replace").lower()):
        for word, refusal in words:
            if word in text:
                return refusal
    return Refusal.OTHER


def ask(
    command: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    bytes_max: int = REPLY_BYTES_MAX,
    environ: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> CommandResult:
    """Run a program in English and UTC to its end; the reply has its exit status. The program gets the variables of
    this process that `batch_environment` passes, or all of `environ`.

    Raises SiteError when there is no such program, it does not end in time (then it is killed with all its children)
    or prints more than `bytes_max` (LongReplyError): in the last two cases what it was to do may have been done.
    """
    shown = " ".join(command)[:QUOTE_CHARS_MAX]
    started_s = clock.monotonic_s()
    script = _file_of(stdin) if stdin else None
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL if script is None else script,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=batch_environment(os.environ) if environ is None else {**environ, **ONE_LANGUAGE},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        hint = "is the batch system's client installed, and on PATH?"
        raise SiteError(f"there is no program `{command[0]}`", transient=False, hint=hint) from error
    except OSError as error:
        raise SiteError(f"failed to start `{shown}`: {error.strerror}") from error
    finally:
        if script is not None:
            os.close(script)
    with _ended(process):
        try:
            output, errors = _read(process, until_s=started_s + timeout_s, bytes_max=bytes_max)
        except TimeoutError:
            left = "" if _kill(process) else ", and cannot be killed: it hangs in the kernel"
            raise SiteError(f"`{shown}` did not answer within {timeout_s:g} s{left}") from None
        except OverflowError:
            message = f"`{shown}` printed more than {bytes_max} bytes, the bound on one reply; nothing of it was used"
            hint = "no machine has needed more: report this one in an issue"
            raise LongReplyError(message, hint=hint) from None
    seconds = clock.monotonic_s() - started_s
    return CommandResult(shown, process.returncode, output, errors.decode(errors="replace"), seconds)


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process is killed and its streams are closed at the end. One that cannot be killed is left behind."""
    stuck[:] = [each for each in stuck if each.poll() is None]
    try:
        yield
    finally:
        if not _kill(process):
            stuck.append(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """End a process with its children if it was not waited for; whether it has within a second."""
    if process.returncode is None:  # not waited for: a child of one that has ended may hold its streams
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
    return process.returncode is not None


def _read(process: subprocess.Popen[bytes], *, until_s: float, bytes_max: int) -> tuple[bytes, bytes]:
    """Read both streams until they close, wait for the end. Raises TimeoutError, OverflowError."""
    output, errors = process.stdout, process.stderr
    assert output is not None
    assert errors is not None
    pieces: dict[int, list[bytes]] = {output.fileno(): [], errors.fileno(): []}
    room = {output.fileno(): bytes_max, errors.fileno(): min(ERROR_BYTES_MAX, bytes_max)}
    with selectors.DefaultSelector() as selector:
        for stream in pieces:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if clock.monotonic_s() >= until_s:
                raise TimeoutError
            for key, _ in selector.select(until_s - clock.monotonic_s()):
                piece = os.read(key.fd, _READ_BYTES)
                pieces[key.fd].append(piece)
                room[key.fd] -= len(piece)
                if room[key.fd] < 0:
                    raise OverflowError
                if not piece:
                    selector.unregister(key.fd)
    try:
        process.wait(max(0.01, until_s - clock.monotonic_s()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return b"".join(pieces[output.fileno()]), b"".join(pieces[errors.fileno()])


def _file_of(content: bytes) -> int:
    """Descriptor of an open file in memory that holds this."""
    descriptor = os.memfd_create("stdin")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def run(
    command: Sequence[str], *, timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] | None = None
) -> str:
    """What the command prints. Raises SiteError naming the command, its exit status and the last line of its stderr."""
    reply = ask(command, timeout_s=timeout_s, environ=environ)
    if reply.status != 0:
        raise reply.error()
    return reply.output.decode(errors="replace")


class StartedProgram:
    """A program that was started and outlives us; `poll` waits for it when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  #: exit status, or minus the signal that killed it

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # its status was collected elsewhere
                self.status = 0
            else:
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status


def start(
    command: Sequence[str], *, output: Path, environ: Mapping[str, str] | None = None
) -> StartedProgram:
    """Start a program in a session of its own that outlives us; what it prints is appended to `output`.

    Raises SiteError.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            dict(os.environ if environ is None else environ),
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1],
        )
    except OSError as error:
        shown = " ".join(command)[:QUOTE_CHARS_MAX]
        raise SiteError(f"failed to start `{shown}`: {error.strerror}") from error
    return StartedProgram(pid)
