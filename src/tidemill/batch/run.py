"""The only caller of other programs in this part: bounded in time and output, errors that quote what came back."""

from __future__ import annotations

import os
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


def start(
    command: Sequence[str],
    *,
    output: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own that outlives us; what it prints is appended to `output`.

    Raises SiteError.
    """
    descriptor = -1
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=dict(environ) if environ is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise SiteError(
            f"failed to start `{' '.join(command)[:_QUOTE_CHARS_MAX]}`: {error.strerror}"
        ) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
