"""A campaign of Pythia jobs, the same on every batch system, and what is true of its outputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.worlds.home.oracle import output_bytes

from tidemill.examples.digest import digests
from tidemill.wire.api import JobDetail

JOBS, EVENTS = 2, 60
FILE = f"""campaign = "c"
[[job]]
app = "pythia8"
repeat = {JOBS}
events = {EVENTS}
params = {{process = "zmumu"}}
"""


def needs_pythia() -> None:
    """Skip the file unless the extra `examples` is installed."""
    for module in ("pythia8mc", "pyhepmc", "uproot", "hist"):
        pytest.importorskip(module, reason="needs `tidemill[examples]`")


def check(details: list[JobDetail], directory: Path) -> None:
    """Every event is there once, and no two jobs have the same."""
    assert len(details) == JOBS
    contents: set[str] = set()
    for detail in details:
        assert detail.row.state == "COMPLETED", detail.row.reason
        merged = directory / f"merged-{detail.row.id}"
        merged.write_bytes(output_bytes(detail))
        found = list(digests(merged))
        assert Counter(number for number, _ in found) == Counter(range(EVENTS))
        contents.update(digest for _, digest in found)
    assert len(contents) == JOBS * EVENTS
