"""Every parser of what comes from outside, by name. A new one is a line here and an honest input in its corpus."""

from __future__ import annotations

from tests.fuzz import of_batch, of_server, of_site, of_transfer
from tests.fuzz.parser import Parser

PARSERS: dict[str, Parser] = {
    each.name: each
    for each in [*of_server.PARSERS, *of_site.PARSERS, *of_transfer.PARSERS, *of_batch.PARSERS]
}
