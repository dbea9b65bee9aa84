"""Other times and bounds than production has: passed to a test's own process and to those that it starts."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from tidemill import extensions
from tidemill.timing import VARIABLE

Values = Mapping[str, Mapping[str, float]]
"""Constants by room, such as `{"site": {"IDLE_S": 1}}`: those of `tidemill.site.constants`,
or of an extension, such as `messages`."""


def merged(*all_values: Values) -> dict[str, dict[str, float]]:
    """All of them; the later ones win."""
    found: dict[str, dict[str, float]] = {}
    for values in all_values:
        for room, names in values.items():
            found.setdefault(room, {}).update(names)
    return found


def passed_on(*base: Values) -> dict[str, str]:
    """The environment of a process with these values, and with those that its test has (`mark.timing`) over them."""
    return {VARIABLE: json.dumps(merged(*base, json.loads(os.environ.get(VARIABLE, "{}"))))}


def _module(room: str) -> ModuleType:
    """The constants of a part of the core, or of an extension."""
    is_added = room in extensions.installed()
    return importlib.import_module(f"tidemill_{room}.constants" if is_added else f"tidemill.{room}.constants")


@contextmanager
def timing(**values: Mapping[str, float]) -> Iterator[None]:
    """Constants have these values in this process, and in those that are started meanwhile."""
    known = {room: _module(room) for room in values}
    before = {room: {name: getattr(known[room], name) for name in names} for room, names in values.items()}
    said = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = json.dumps(merged(json.loads(said or "{}"), values))
    for room, names in values.items():
        vars(known[room]).update(names)
    try:
        yield
    finally:
        for room, names in before.items():
            vars(known[room]).update(names)
        if said is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = said
