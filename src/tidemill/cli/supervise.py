"""Keeps child processes running: starts them, starts them again when they die, ends them and what they have left.

Knows nothing of servers and sites. A supervisor is a subreaper (prctl(2)), so that whatever a dead child had started
becomes its own child and can be ended with it; its children end when it dies (`end_with_parent`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemill import clock
from tidemill.batch.processes import parse_stat
from tidemill.cli.terminal import say
from tidemill.errors import ConfigError, SiteError

BACKOFF_S = 0.2
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0  #: a child that lived this long starts again without delay
POLL_S = 0.1
TERM_S = 40.0  #: time between SIGTERM and SIGKILL; an agent gives its allocations back in between
LEFT_S = 5.0  #: the same, for what children have left behind
ERROR = "error: "  #: how the sentence begins with which a command ends
HINT = "hint: "
WORDS_MAX = 4  #: lines of an error: the sentence and its hints
LOG_BYTES_MAX = 10_000_000  #: a longer log is moved aside when its child starts
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """One process that is to run for ever."""

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._argv = list(argv)
        self._started_s = 0.0
        self._next_s = 0.0
        self._backoff_s = BACKOFF_S
        self._deaths = 0
        self._code = 0  #: of its last end

    @property
    def pid(self) -> int:
        """The child's process id, 0 while it does not run."""
        return self.process.pid if self.process is not None else 0

    def tend(self) -> bool:
        """Start it if it does not run and its pause is over; whether it was started now."""
        now = clock.monotonic_s()
        if self.process is not None and self.process.poll() is not None:
            lived = now - self._started_s
            self._backoff_s = BACKOFF_S if lived > STEADY_S else min(2 * self._backoff_s, BACKOFF_MAX_S)
            self._next_s = now + self._backoff_s
            self._deaths += 1
            self._code = self.process.returncode
            why = self.last_words() if self._code > 0 else ""
            say(
                f"the {self.name} ended ({_how(self._code)}{f': {why}' if why else ''}), starting it again; "
                f"its log: {self.log}"
            )
            self.process = None
        if self.process is not None or now < self._next_s:
            return False
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.1"))
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,  # Ctrl-C is the supervisor's to handle
            )
        except OSError as error:
            raise SiteError(
                f"failed to start the {self.name}, `{self._argv[0]}`: {error.strerror}"
            ) from error
        finally:
            os.close(descriptor)
        self._started_s = now
        return True

    def deaths(self) -> int:
        """How often it has died."""
        return self._deaths + (1 if self.process is not None and self.process.poll() is not None else 0)

    def last_words(self) -> str:
        """What its log says last: the error and its hint, if that is how it ended, else the last line."""
        lines = _lines(self.log)
        message, *hints = last_error(lines) or lines[-1:] or [""]
        return "; ".join([message, *hints])

    def refusal(self) -> ConfigError | None:
        """The error if it has ended because of its configuration: it would end so again. None = it has not."""
        ended = (
            self.process.returncode if self.process is not None and self.process.poll() is not None else None
        )
        if (self._code if ended is None else ended) != ConfigError.exit_code:
            return None
        return as_refusal(self.log)


def as_refusal(log: Path) -> ConfigError | None:
    """The error, with its hints, that is the last that the log of a command says; None where it says another thing."""
    found = last_error(_lines(log))
    if not found:
        return None
    hints = [line.removeprefix(HINT) for line in found[1:]]
    return ConfigError(found[0], hint="; ".join(hints) or None)


def last_error(lines: Sequence[str]) -> list[str]:
    """The sentence, and the lines of its hints, with which a command ended; empty if it ended otherwise."""
    for number in range(len(lines) - 1, max(-1, len(lines) - 1 - WORDS_MAX), -1):
        if lines[number].startswith(ERROR):
            return [lines[number].removeprefix(ERROR), *lines[number + 1 :]]
    return []


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return []


def become_subreaper() -> None:
    """Orphans among our descendants become our children."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Get SIGTERM when the parent, process `parent`, ends. ConfigError if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise ConfigError(f"process {parent}, which this one should end with, is not its parent")


def end_all(children: Sequence[Child]) -> None:
    """End the children in their order (the first is asked and waited for first), then all that they left behind."""
    for child in children:
        process = child.process
        if process is None:
            continue
        process.terminate()
        try:
            process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            say(f"the {child.name} did not end within {TERM_S:.0f} s, killing it")
            process.kill()
            process.wait()
        child.process = None
    end_orphans()


def end_orphans() -> None:
    """TERM, then KILL whatever is left of our descendants. Only those that are our children: others have parents."""
    deadline = clock.monotonic_s() + LEFT_S
    asked: set[int] = set()
    while True:
        reap()
        left = _children()
        if not left:
            return
        late = clock.monotonic_s() > deadline
        for pid in left:
            if late or pid not in asked:
                _signal(pid, signal.SIGKILL if late else signal.SIGTERM)
                asked.add(pid)
        clock.sleep_s(0.02)


def reap(keep: Callable[[int], bool] = lambda pid: False) -> None:
    """Take the status of children that have ended, except those that others wait for (`keep`)."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or keep(found.si_pid):
            return  # a kept one hides those behind it until its owner has looked: the next round gets them
        os.waitpid(found.si_pid, 0)


def _children() -> list[int]:
    try:
        return [int(word) for word in Path("/proc/thread-self/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in _processes() if _parent(pid) == os.getpid()]


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    process = parse_stat(pid, text)
    return 0 if process is None else process.parent


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
