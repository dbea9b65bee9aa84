"""Every parser of what comes from outside, by name. A new one is a line here and an honest input in its corpus.

Those of an extension are in `extensions/NAME/tests/fuzz/parsers.py`, and belong to the list where it is installed.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.fuzz import of_batch, of_server, of_site, of_transfer
from tests.fuzz.parser import Parser

from tidemill import extensions

EXTENSIONS = Path(__file__).parents[2] / "extensions"


def of_extensions() -> list[Parser]:
    """The parsers of the extensions that are installed."""
    found: list[Parser] = []
    for name in extensions.installed():
        if (EXTENSIONS / name / "tests" / "fuzz" / "parsers.py").exists():
            found += importlib.import_module(f"extensions.{name}.tests.fuzz.parsers").PARSERS
    return found


PARSERS: dict[str, Parser] = {
    each.name: each
    for each in [
        *of_server.PARSERS,
        *of_site.PARSERS,
        *of_transfer.PARSERS,
        *of_batch.PARSERS,
        *of_extensions(),
    ]
}
