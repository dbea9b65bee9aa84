"""What `bench/trace.py` makes of its rounds."""

from __future__ import annotations

import pytest
from bench.trace import AGAIN, BARE, Rounds, Took


def rounds(**runs: list[float]) -> Rounds:
    """Of ways with these wall times; CPU times are half of them."""
    return Rounds({way: [Took(wall_s, wall_s / 2) for wall_s in walls] for way, walls in runs.items()})


def test_what_the_machine_did_beside_in_some_rounds_changes_no_ratio() -> None:
    calm = rounds(**{BARE: [1.0] * 5, "trace": [1.1] * 5})
    busy = rounds(**{BARE: [1.0, 3.0, 1.5, 1.0, 2.0], "trace": [4.0, 1.1, 1.2, 1.1, 9.0]})
    for what in ("wall_s", "cpu_s"):
        assert calm.fastest("trace", what) == busy.fastest("trace", what) == pytest.approx(1.1)
    assert calm.median("trace") == pytest.approx(1.1)


def test_noise_is_how_far_the_bare_command_is_from_itself() -> None:
    quiet = rounds(**{BARE: [1.0, 1.0, 7.0, 7.0], AGAIN: [1.0, 1.0, 7.0, 7.0], "trace": [5.0] * 4})
    assert quiet.noise("wall_s") == 0
    # the second runs of every other round were all slow: nobody knows what the others would have been without that
    noisy = rounds(**{BARE: [1.0, 1.0, 1.0, 1.0], AGAIN: [1.0, 1.2, 1.0, 1.3]})
    assert noisy.noise("wall_s") == noisy.noise("cpu_s") == pytest.approx(0.2)
