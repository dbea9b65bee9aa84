"""Findings of `site check` on container runtimes: whether their programs are on this host, and answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.errors import did_you_mean
from tidemill.model.application import Runtime
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.site import ContainerRuntime, SiteConfig

VERSION_S = 10
"""Time for `--version`: a program on a busy shared file system takes seconds."""

TOLD_CHARS_MAX = 200


def examine_containers(read: SiteConfig) -> Iterator[Finding]:
    """One finding for each runtime; none where there are none."""
    known = [each.value for each in Runtime]
    for name, runtime in read.containers.items():
        if name not in known:
            yield Finding(
                "container", "fail", f"`containers.{name}` is not a known runtime", did_you_mean(name, known)
            )
        else:
            yield _examine(name, runtime)


def _examine(name: str, runtime: ContainerRuntime) -> Finding:
    program = runtime.program
    if not program.exists():
        return Finding(
            "container", "warn", f"`{name}`: `{program}` is not on this host",
            "right where only compute nodes have it; else correct `command`",
        )  # fmt: skip
    command = [*runtime.command, "--version"]
    if not program.is_file() or not os.access(program, os.X_OK):
        return Finding(
            "container", "fail", f"`{name}`: `{program}` is not a program that you may run",
            f"name the program in `command` of [containers.{name}]",
        )  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=VERSION_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _silent(name, command, f"no answer within {VERSION_S} s")
    except OSError as error:
        return Finding(
            "container", "fail", f"`{name}`: failed to run `{program}`: {error.strerror}",
            f"name the program in `command` of [containers.{name}]",
        )  # fmt: skip
    told = (done.stdout.strip() or done.stderr.strip()).splitlines()[:1] or [""]
    if done.returncode != 0:
        return _silent(name, command, f"exit status {done.returncode}" + (f", {told[0]}" if told[0] else ""))
    return Finding("container", "ok", f"`{name}`: {program}: {told[0][:TOLD_CHARS_MAX] or 'runs here'}")


def _silent(name: str, command: list[str], why: str) -> Finding:
    return Finding(
        "container", "warn", f"`{name}`: `{' '.join(command)}` failed on this host: {why[:TOLD_CHARS_MAX]}",
        "right where it works on compute nodes only; else correct the words of `command`",
    )  # fmt: skip
