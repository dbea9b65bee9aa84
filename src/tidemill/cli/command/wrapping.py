"""A command with what has to be done around it in its work directory, as one command of a shell. Pure.

The shell's text holds nothing of a command: that follows as its arguments, and reaches the program word by word.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.cli.command.words import plain

SHELL = "/bin/sh"
PACKED = ".tidemill-packed"
"""Holds the paths in the work directory that are not forgotten outputs: what lies there before CMD, and what archives
take (`crates/slot`, `scratch`)."""

_KEEP = f"printf '%s\\0' PATHS >> {PACKED}"
_FOUND_MAX = 3

# No braces: they are templates where the command runs.
_FOUND = (
    'set --; shown=; before="; the work directory has "; for found in *; do '
    f'if [ $# -lt {_FOUND_MAX} ] && [ -f "$found" ] && ! [ -L "$found" ]; then '
    'set -- "$@" x; shown="$shown$before\\`$found\\`"; before=", "; fi; done'
)
_MISSING = (
    f'if ! [ -e "$each" ] && ! [ -L "$each" ]; then {_FOUND}; '
    'printf \'tidemill: CMD left nothing that matches --output %s%s\\n\' "$each" "$shown" >&2; exit 125; fi'
)


class Around(NamedTuple):
    """`stdin`: the input that CMD reads; `links`: (name of an input, name that CMD knows it by); `unpacked`: inputs
    that are tar archives of a directory; `packed`: (archive, words of its paths, with patterns for the shell)."""

    stdin: str = ""
    links: Sequence[tuple[str, str]] = ()
    unpacked: Sequence[str] = ()
    packed: Sequence[tuple[str, str]] = ()


def wrapped(command: list[str], around: Around) -> list[str]:
    """The command itself if nothing has to be done around it; otherwise a shell that does it and ends as the command
    did. The shell also finds a program that is not an absolute path, such as one of an image, and a program whose name
    has placeholders: slots fill in arguments, but not the program."""
    program = plain(command[0])
    if not any(around) and program is not None and program.startswith("/"):
        return [program, *command[1:]]
    steps = [f"mv {shlex.quote(name)} {shlex.quote(known)} || exit 125" for name, known in around.links]
    steps += [f"tar -xf {name} && rm -f {name} || exit 125" for name in map(shlex.quote, around.unpacked)]
    if around.unpacked or around.packed:
        steps.append(_KEEP.replace("PATHS", "*"))
    start = '"$@"' + (f" < {shlex.quote(around.stdin)}" if around.stdin else "")
    if not around.packed:
        steps.append(f"exec {start}")
        return [SHELL, "-c", "; ".join(steps), "tidemill-run", *command]
    steps += [start, "status=$?", '[ "$status" = 0 ] || exit "$status"']
    for archive, paths in around.packed:
        steps.append(f"for each in {paths}; do {_MISSING}; done")
        steps.append(f"tar -cf {shlex.quote(archive)} -- {paths} || exit 125")
        steps.append(_KEEP.replace("PATHS", paths))
    return [SHELL, "-c", "; ".join(steps), "tidemill-run", *command]
