"""A command with what has to be done around it in its work directory, as one command of a shell. Pure.

The shell's text holds nothing of a command: that follows as its arguments, and reaches the program word by word.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

SHELL = "/bin/sh"
_MISSING = (
    'if ! [ -e "$each" ] && ! [ -L "$each" ]; then '
    "printf 'tidemill: CMD left nothing that matches --output %s\\n' \"$each\" >&2; exit 125; fi"
)
"""No braces: they are templates where the command runs."""


class Around(NamedTuple):
    """`stdin`: the input that CMD reads; `links`: (name of an input, name that CMD knows it by); `unpacked`: inputs
    that are tar archives of a directory; `packed`: (archive, words of its paths, with patterns for the shell)."""

    stdin: str = ""
    links: Sequence[tuple[str, str]] = ()
    unpacked: Sequence[str] = ()
    packed: Sequence[tuple[str, str]] = ()


def wrapped(command: list[str], around: Around) -> list[str]:
    """The command itself where nothing has to be done, else a shell that does it and ends as the command did. The shell
    also finds a program that is not an absolute path, such as one of an image."""
    if not any(around) and command[0].startswith("/"):
        return command
    steps = [f"mv {shlex.quote(name)} {shlex.quote(known)} || exit 125" for name, known in around.links]
    for name in map(shlex.quote, around.unpacked):
        steps.append(f"tar -xf {name} && rm -f {name} || exit 125")
    start = '"$@"' + (f" < {shlex.quote(around.stdin)}" if around.stdin else "")
    if not around.packed:
        steps.append(f"exec {start}")
        return [SHELL, "-c", "; ".join(steps), "tidemill-run", *command]
    steps += [start, "status=$?", '[ "$status" = 0 ] || exit "$status"']
    for archive, paths in around.packed:
        steps.append(f"for each in {paths}; do {_MISSING}; done")
        steps.append(f"tar -cf {shlex.quote(archive)} -- {paths} || exit 125")
    return [SHELL, "-c", "; ".join(steps), "tidemill-run", *command]
