"""Findings of `site check` on container runtimes: whether their programs are on this host, and answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.batch.run import ask
from tidemill.errors import SiteError, did_you_mean
from tidemill.files import why_unseen
from tidemill.model.application import Runtime
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.site import ContainerRuntime, SiteConfig

VERSION_S = 10
"""Time for `--version`: a program on a busy shared file system takes seconds."""

TOLD_CHARS_MAX = 200
REPLY_BYTES_MAX = 1 << 20
"""Of `--version`: a program that prints more is not one that answers."""

PASSED = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR")
"""What the program gets of our environment: it need not know our tokens and keys."""


def examine_containers(read: SiteConfig, *, version_s: float = VERSION_S) -> Iterator[Finding]:
    """One finding for each runtime; none where there are none."""
    known = [each.value for each in Runtime]
    for name, runtime in read.containers.items():
        if name not in known:
            yield Finding(
                "container", "fail", f"`containers.{name}` is not a known runtime", did_you_mean(name, known)
            )
        else:
            yield _examine(name, runtime, version_s)


def _examine(name: str, runtime: ContainerRuntime, version_s: float) -> Finding:
    program = runtime.program
    unseen = why_unseen(program)
    if unseen:
        return Finding(
            "container", "warn", f"`{name}`: `{program}` {unseen}",
            "right where only compute nodes have it; else correct `command`",
        )  # fmt: skip
    command = [*runtime.command, "--version"]
    if not program.is_file() or not os.access(program, os.X_OK):
        return Finding(
            "container", "fail", f"`{name}`: `{program}` is not a program that you may run",
            f"name the program in `command` of [containers.{name}]",
        )  # fmt: skip
    environ = {key: os.environ[key] for key in PASSED if key in os.environ}
    try:
        done = ask(command, timeout_s=version_s, bytes_max=REPLY_BYTES_MAX, environ=environ)
    except SiteError as error:
        if not isinstance(error.__cause__, OSError):  # it started, and does not answer as such a program does
            return _silent(name, error.message)
        return Finding(
            "container", "fail", f"`{name}`: failed to run `{program}`: {error.__cause__.strerror}",
            f"name the program in `command` of [containers.{name}]",
        )  # fmt: skip
    output = done.output.decode(errors="replace").strip() or done.errors.strip()
    told = "".join(output.splitlines()[:1])
    if done.status != 0:
        why = f"exit status {done.status}" + (f", {told}" if told else "")
        return _silent(name, f"`{' '.join(command)}` failed: {why[:TOLD_CHARS_MAX]}")
    return Finding("container", "ok", f"`{name}`: {program}: {told[:TOLD_CHARS_MAX] or 'runs here'}")


def _silent(name: str, why: str) -> Finding:
    return Finding(
        "container", "warn", f"`{name}`: on this host {why}",
        "right where it works on compute nodes only; else correct the words of `command`",
    )  # fmt: skip
