"""What the tables of parsers are made of."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).parent / "corpus"


class Parser(NamedTuple):
    """A parser of what comes from outside. `errors`: what its documentation says it raises; anything else is a defect.
    `fixtures`: files of other tests that are honest inputs of it, besides its folder in `corpus`."""

    name: str
    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()
    fixtures: tuple[str, ...] = ()
    corpus: Path = CORPUS


@cache
def folder() -> Path:
    """A directory of this process; whoever started it removes it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def file_of(content: bytes, name: str = "input") -> Path:
    """A file that holds this, for parsers that read files."""
    path = folder() / name
    path.write_bytes(content)
    return path
