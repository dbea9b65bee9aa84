"""The words of a command, as its payloads get them: programs and files by absolute paths."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import ConfigError


class Resolved(NamedTuple):
    """The words; `moved`: those that became absolute paths, for a remark."""

    words: list[str]
    moved: list[str]


def resolved(command: Sequence[str], *, staged: Collection[str]) -> Resolved:
    """A command as its payload gets it; `staged`: names that mean inputs and outputs, and are left as they are."""
    words, moved = [executable(command[0])], []
    for word in command[1:]:
        words.append(argument(word, staged=staged))
        moved += [word] if words[-1] != word else []
    return Resolved(words, moved)


def executable(word: str) -> str:
    """The program as absolute path: the payload's work directory is another one. Templates are left as they are."""
    if "{" in word:
        return word
    found = shutil.which(word)
    if found is None:
        exists = Path(word).exists()
        raise ConfigError(
            f"`{word}` is not executable" if exists else f"program `{word}` does not exist",
            hint=f"chmod +x {word}" if exists else "name it by its path, or put its directory on PATH",
        )
    return str(Path(found).absolute())


def argument(word: str, *, staged: Collection[str]) -> str:
    """A relative path of what is here, as absolute path, so that `python prog.py {event}` finds its program.

    A directory needs a `/` in its word to be taken for one: `data/` or `./data`. Inputs, outputs, options and templates
    are left as they are: they name something else.
    """
    if word in staged or word.startswith(("-", "/")) or "{" in word:
        return word
    path = Path(word)
    try:
        is_meant = path.is_file() or ("/" in word and path.is_dir())
    except OSError:  # too long for a path
        return word
    return str(path.absolute()) if is_meant else word


def unused(name: str, taken: Collection[str], *, ending: str = "") -> str:
    """The name with its ending, and with `-2`, `-3`, ... between them where it is taken."""
    found, number = f"{name}{ending}", 2
    while found in taken:
        found = f"{name}-{number}{ending}"
        number += 1
    return found
