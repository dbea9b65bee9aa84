"""Other values of constants, for processes that tests start. Production has no such channel.

Tests cannot wait for the times that production needs, and processes that they start cannot be passed a value. So a test
puts a JSON object into the environment, `TIDEMILL_TEST_TIMING='{"site": {"IDLE_S": 1}}'`, and the modules `constants`
of these rooms read it when they are imported. In one process tests set the constants themselves.

Why this opens nothing to a hostile user of a login node: the variable counts only where the package lies in a source
tree with its tests, whose owner can change the constants anyway. An installed Tidemill refuses to start with it, so
that one left in a shell's profile or a unit does not shorten what a site relies on. It is read from the process's
own environment, which only its user and root can set or read, and neither jobs nor payloads nor servers can; it names
no file. It holds numbers for names that exist: no path, command, address or credential.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tidemill.errors import UNDECODABLE, ConfigError, did_you_mean

VARIABLE = "TIDEMILL_TEST_TIMING"
_TREE = Path(__file__).parents[2]


def replace_for_tests(room: str, constants: dict[str, Any]) -> None:
    """Set those of a module's constants, its `globals()`, that the environment names for this room.

    Raises ConfigError outside a source tree with tests, and for what is not such a value.
    """
    text = os.environ.get(VARIABLE)
    if text:
        constants.update(_replacements(text, room, constants))


def replaced() -> list[str]:
    """The constants that the environment replaces, as `site.IDLE_S`. Raises ConfigError."""
    text = os.environ.get(VARIABLE)
    return [f"{room}.{name}" for room, values in _rooms(text).items() for name in values] if text else []


def _rooms(text: str) -> dict[str, dict[str, Any]]:
    if not (_TREE / "tests" / "timing.py").is_file() or not (_TREE / "src" / "tidemill").is_dir():
        raise ConfigError(
            f"`{VARIABLE}` is set, which only tests in Tidemill's source tree may set",
            hint=f"remove it from the environment: `unset {VARIABLE}`",
        )
    try:
        rooms = json.loads(text)
    except UNDECODABLE as error:
        raise ConfigError(f"`{VARIABLE}` is not JSON: {error}") from error
    if not isinstance(rooms, dict) or not all(isinstance(values, dict) for values in rooms.values()):
        raise ConfigError(f"`{VARIABLE}`: expected an object of objects")
    return rooms


def _replacements(text: str, room: str, constants: dict[str, Any]) -> dict[str, Any]:
    values = _rooms(text).get(room, {})
    for name, value in values.items():
        known = [each for each in constants if each.isupper()]
        if name not in known:
            raise ConfigError(
                f"`{VARIABLE}`: unknown constant `{room}.{name}`", hint=did_you_mean(name, known)
            )
        if not isinstance(value, int | float):
            raise ConfigError(f"`{VARIABLE}`: `{room}.{name}` is `{value}`, expected a number")
    return values
