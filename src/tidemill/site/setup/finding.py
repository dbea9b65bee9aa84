"""What a check found: the shape in which `doctor`, `site init` and `site check` print it."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """What was checked: `ok`, `warn` (works, but less well) or `fail`; what was found; what to do about it."""

    check: str
    state: str
    found: str
    hint: str = ""
