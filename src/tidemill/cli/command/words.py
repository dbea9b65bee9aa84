"""The words of a command, as its payloads get them: programs and files by absolute paths."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import ConfigError

PLACE = re.compile(r"\{\{([^{}]+)\}\}|\{([^{}]+)\}")
"""`{{NAME}}`, which stands for the text `{NAME}` (group 1), or the placeholder `{NAME}` (group 2)."""


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


def names_in(word: str) -> list[str]:
    """The placeholders that a word uses: `{line}` is one, `{{line}}` is text."""
    return [found[2] for found in PLACE.finditer(word) if found[2]]


def escaped(path: str) -> str:
    """A path with its placeholders escaped: a directory may be named `{event}`."""
    from tidemill.site.applications.templates import is_slot_template

    return re.sub(
        r"\{([^{}]+)\}", lambda found: f"{{{found[0]}}}" if is_slot_template(found[1]) else found[0], path
    )


def plain(word: str) -> str | None:
    """The text that a word stands for; None if it has placeholders."""
    from tidemill.site.applications.templates import is_slot_template

    if any(map(is_slot_template, names_in(word))):
        return None
    return PLACE.sub(
        lambda found: f"{{{found[1]}}}" if found[1] and is_slot_template(found[1]) else found[0], word
    )


def executable(word: str) -> str:
    """The program as absolute path: the payload's work directory is another one. Templates are left as they are."""
    if "{" in word:
        return word
    if not word:
        raise ConfigError("the command is empty", hint="name a program: `tidemill run -- CMD`")
    found = shutil.which(word)
    if found is None:
        exists = Path(word).exists()
        raise ConfigError(
            f"`{word}` is not executable" if exists else f"program `{word}` does not exist",
            hint=f"chmod +x {word}" if exists else "name it by its path, or put its directory on PATH",
        )
    return escaped(str(Path(found).absolute()))


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
    return escaped(str(path.absolute())) if is_meant else word


def unused(name: str, taken: Collection[str], *, ending: str = "") -> str:
    """The name with its ending, and with `-2`, `-3`, ... between them where it is taken."""
    result, number = f"{name}{ending}", 2
    while result in taken:
        result = f"{name}-{number}{ending}"
        number += 1
    return result
