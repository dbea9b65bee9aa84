"""Where home directories are: the user's own, and those of others beside it."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

_USUAL = (Path("/home"), Path("/root"), Path("/Users"), Path("/users"))
_NAMES = frozenset({"home", "homes", "users", "user", "people", "u"})
"""A directory in which homes lie has such a name, or is in one that has: /home, /users, /global/homes/a."""


def user_homes() -> list[Path]:
    """The user's home, by its variable and by the password database, as named and where links lead to."""
    found: list[Path] = []
    with suppress(RuntimeError):
        found.append(Path.home())
    with suppress(KeyError):
        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    real = [Path(os.path.realpath(path)) for path in found]
    return [path for path in dict.fromkeys([*found, *real]) if path.is_absolute() and len(path.parts) > 1]


def home_veils() -> list[Path]:
    """Directories that hold home directories, as far as their names say so, and the user's own."""
    own = user_homes()
    return list(dict.fromkeys([*own, *(home.parent for home in own if _holds_homes(home.parent)), *_USUAL]))


def _holds_homes(directory: Path) -> bool:
    return len(directory.parts) > 1 and not _NAMES.isdisjoint(directory.parts[1:][-2:])
