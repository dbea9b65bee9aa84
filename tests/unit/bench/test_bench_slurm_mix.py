"""Small jobs of the bench: of one node, 10 to 30 s, as many as asked for, the same each time."""

from __future__ import annotations

import pytest
from bench.slurm_mix import Delays, RegularJob, Run, Times, is_small, mix, pooled, small


def test_small_jobs_are_short_and_narrow_and_come_as_often_as_asked() -> None:
    jobs = small(3, per_min=12.0, seconds=6000.0)
    assert jobs == small(3, per_min=12.0, seconds=6000.0)
    assert len(jobs) == pytest.approx(1200, rel=0.15)
    assert {job.width for job in jobs} == {1}
    assert all(10 <= job.run_s <= 30 and 0 <= job.at_s < 6000 for job in jobs)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert all(is_small(job.name) for job in jobs)
    assert not any(is_small(job.name) for job in mix(3, load=0.8, seconds=450.0))
    assert small(3, per_min=0.0, seconds=6000.0) == []


def test_delays_of_small_jobs_are_told_apart() -> None:
    jobs = [RegularJob("r1-0", 0.0, 4, 60.0, 2), RegularJob("s1-0", 1.0, 1, 20.0, 1)]

    def run(large_s: float, small_s: float) -> Run:
        return Run({"r1-0": Times(0.0, large_s), "s1-0": Times(1.0, 1.0 + small_s)})

    told = pooled([Delays.of(jobs, (run(5, 2), run(5, 4), run(5, 3), run(9, 4)))])
    assert (told["small_jobs"], told["small_mean_delay_s"]) == (1, 1.0)
    assert told["mean_delay_s"] == 2.5
    assert "small_jobs" not in pooled([Delays.of(jobs[:1], (run(5, 2), run(5, 4), run(5, 3), run(9, 4)))])
