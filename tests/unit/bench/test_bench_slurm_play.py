"""The emulation that chooses mixes starts jobs when a real Slurm did."""

from __future__ import annotations

import pytest
from bench.slurm_mix import mix
from bench.slurm_play import CYCLE_S, Variation, is_steady, play, steady_seeds

# Seconds after the start of the run, without us, on 22.05 (a cluster of bench/slurm_harvest.py)
REAL = {
    "r6-0": 5.7, "r6-1": 31.7, "r6-2": 33.7, "r6-3": 82.7, "r6-4": 82.7, "r6-5": 133.9, "r6-7": 142.8, "r6-6": 229.0,
    "r6-8": 274.2, "r6-9": 322.3, "r6-12": 322.9, "r6-10": 332.9, "r6-13": 352.9, "r6-11": 442.5, "r6-14": 474.5,
}  # fmt: skip


def test_jobs_start_as_on_a_real_slurm() -> None:
    jobs = mix(6, load=0.85, seconds=450.0)
    zero = [0.0] * len(jobs)
    starts = play(jobs, Variation(zero, zero, CYCLE_S / 2))
    assert {name: starts[name] for name in REAL} == pytest.approx(REAL, abs=4.0)


def test_a_mix_in_which_seconds_move_minutes_is_not_steady() -> None:
    verdicts = {seed: is_steady(mix(seed, load=0.85, seconds=450.0), seed) for seed in (5, 6, 7, 8)}
    assert verdicts == {5: False, 6: False, 7: True, 8: True}


def test_the_first_steady_seeds_are_the_same_each_time() -> None:
    assert steady_seeds(4, load=0.85, seconds=450.0, since_s=30.0) == [1, 2, 7, 8]
