"""The only caller of other programs in this part: bounded in time and output, errors that quote what came back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemill.errors import SiteError

TIMEOUT_S = 60.0
_QUOTE_CHARS_MAX = 500


def run(
    command: Sequence[str], *, timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] | None = None
) -> str:
    """What the command prints. Raises SiteError naming the command, its exit status and the last line of its stderr."""
    shown = " ".join(command)[:_QUOTE_CHARS_MAX]
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=dict(environ) if environ is not None else None,
            check=False,
        )
    except FileNotFoundError as error:
        raise SiteError(f"there is no program `{command[0]}`", transient=False) from error
    except OSError as error:
        raise SiteError(f"failed to start `{shown}`: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SiteError(f"`{shown}` did not answer within {timeout_s:g} s") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing on stderr"]
        raise SiteError(f"`{shown}` ended with status {done.returncode}: {lines[-1][:_QUOTE_CHARS_MAX]}")
    return done.stdout.decode(errors="replace")


class Started:
    """A program that was started and outlives us; `poll` waits for it when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  #: exit status, or minus the signal that killed it

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                self.status = 0
            else:
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status


def start(command: Sequence[str], *, output: Path, environ: Mapping[str, str] | None = None) -> Started:
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
        shown = " ".join(command)[:_QUOTE_CHARS_MAX]
        raise SiteError(f"failed to start `{shown}`: {error.strerror}") from error
    return Started(pid)
