"""The `pi` example against the strict pilot: identical bytes however its events are cut into ranges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.examples import APPLICATIONS, HERE, try_ranges
from tidemill.examples.try_ranges import Trial

COMMAND = [sys.executable, str(HERE / APPLICATIONS["pi"])]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_output_does_not_depend_on_ranges(tmp_path: Path, size: int) -> None:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    outcome = try_ranges.run(COMMAND, work_dir, Trial(events=30, size=size, seed=500, params={"darts": 10}))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    lines = outcome.joined("hits").decode().splitlines()
    assert [line.split()[:2] for line in lines] == [[str(k), str(500 + k)] for k in range(30)]
    # random.Random(500..529), ten darts each: written down once, so that a change of any part is seen
    assert [int(line.split()[2]) for line in lines][:10] == EXPECTED


EXPECTED = [9, 8, 8, 7, 6, 7, 8, 5, 7, 9]
