"""The generator of `bench/workloads.py`, and that simulations of it hold together: other seeds each time."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from bench.workload_shapes import DAY_S, SHAPES, Shape
from bench.workloads import swf_text, workload, write

from tidemill.harvest.account.promise import PromiseState
from tidemill.harvest.plan.policies import Policy
from tidemill_study.simulation import swf
from tidemill_study.simulation.experiment import Study, horizon_of, results_of, run_all
from tidemill_study.simulation.simulator import SimulatedMachine, World

DAYS = 3
JOBS = 250
"""Of a small log: a pair of runs takes a tenth of a second."""


@pytest.fixture
def chosen() -> list[tuple[Shape, int]]:
    """Two shapes and a seed each, drawn anew in each run of the tests; `-p randomly --randomly-seed N` repeats it."""
    return [(SHAPES[name], random.randrange(10_000)) for name in random.sample(sorted(SHAPES), 2)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_shape_fills_its_machine_to_the_load_that_it_states(shape: Shape) -> None:
    made = workload(shape, 1, days=DAYS)
    up_s = DAYS * DAY_S - sum(end - start for start, end in made.outages)
    load = sum(job.width * job.run_s for job in made.jobs) / shape.nodes / up_s

    # of a burst that comes late, what comes after the end of the log is left out
    assert 0.6 * shape.load < load <= shape.load
    assert 128 <= shape.nodes <= 49_152
    assert 0.75 <= shape.load <= 0.9
    assert max(job.width for job in made.jobs) <= shape.nodes
    assert all(1 <= job.run_s <= job.limit_s for job in made.jobs)
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(made.jobs))


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    shape = SHAPES["diurnal"]
    for name, seed in (("a.swf.gz", 7), ("b.swf.gz", 7), ("c.swf.gz", 8)):
        write(tmp_path / name, workload(shape, seed, days=2))

    first, second, third = ((tmp_path / f"{name}.swf.gz").read_bytes() for name in "abc")
    assert first == second
    assert first != third


def test_a_log_tells_its_maintenance_to_whoever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "maintenance.swf"
    path.write_text(swf_text(workload(SHAPES["maintenance"], 1, days=9)))
    trace = swf.read(path)

    # Mondays from 9:00 to 17:00; the machine may drain some time before, and the first job starts with a cycle
    assert len(trace.outages) == 2
    first = int(path.read_text().split("\n")[7].split()[1])
    for (start, end), day in zip(trace.outages, (0, 7), strict=True):
        assert start + first <= day * DAY_S + 9 * 3600 + 60
        assert day * DAY_S + 17 * 3600 <= end + first <= day * DAY_S + 17 * 3600 + 120


def test_office_hours_and_big_run_days_show_in_arrivals() -> None:
    jobs = workload(SHAPES["diurnal"], 3).jobs
    at_noon = sum(11 <= job.submit_s % DAY_S // 3600 < 17 for job in jobs)
    at_night = sum(2 <= job.submit_s % DAY_S // 3600 < 6 for job in jobs)
    assert at_noon / 6 > 3 * at_night / 4

    shape = SHAPES["full-machine"]
    wide = [job for job in workload(shape, 3).jobs if job.width >= shape.nodes // 2]
    assert len(wide) > 20
    assert sum(job.submit_s // DAY_S % 7 == 0 for job in wide) > len(wide) / 2


def test_small_and_short_jobs_are_half_of_those_of_a_machine_with_a_debug_queue() -> None:
    shape = SHAPES["debug"]
    jobs = workload(shape, 5).jobs
    small = [job for job in jobs if job.width <= shape.nodes // 64]
    assert 0.3 < len(small) / len(jobs) < 0.7
    assert sum(job.limit_s <= 3600 for job in small) == len(small)
    assert sum(job.run_s <= 300 for job in small) > len(small) / 3


def test_yielding_harvests_and_harms_less_than_not_yielding(chosen: list[tuple[Shape, int]]) -> None:
    for shape, seed in chosen:
        made = workload(shape, seed, days=DAYS)
        jobs = made.jobs[:JOBS]
        study = Study(
            world=World(nodes=shape.nodes, outages=made.outages, horizon_s=horizon_of(jobs)),
            jobs=jobs,
            policies=[Policy.YIELD, Policy.CAPPED],
            seeds=1,
            replicas=5,
            jitter_s=120,
        )
        found = results_of(study, run_all(study))
        kind, greedy = found["yield"], found["capped"]
        where = f"shape {shape.name}, seed {seed}"
        assert kind.useful is not None, where
        assert 0.5 < kind.useful < 1.1, where
        assert kind.wait_s < greedy.wait_s, where
        assert greedy.promise.verdict is not PromiseState.KEPT, where
        for each in (kind, greedy):
            for classes in (each.by_size, each.by_length, each.by_limit):
                assert sum(one.jobs for one in classes) == len(jobs), where
                total_s = sum(one.jobs * one.wait_s for one in classes)
                assert total_s == pytest.approx(each.wait_s * len(jobs)), where
                for one in classes:
                    assert one.delay_s.low is not None, where
                    assert one.delay_s.low <= one.delay_s.mean, where
                    assert one.delay_s.mean == pytest.approx(one.wait_s - one.wait_without_s), where


def test_a_machine_without_a_guest_is_about_as_idle_as_the_shape_says(
    chosen: list[tuple[Shape, int]],
) -> None:
    shape, seed = chosen[0]
    made = workload(shape, seed)
    world = World(nodes=shape.nodes, outages=made.outages, horizon_s=horizon_of(made.jobs))
    tally = SimulatedMachine(world, made.jobs, policy=None, seed="1").run()
    # what waits at the end is not counted, and what drains for maintenance and wide jobs is idle, too
    assert 0.8 * (1 - shape.load) < tally.idle_s / tally.capacity_s < 1.4 * (1 - shape.load) + 0.1, (
        f"shape {shape.name}, seed {seed}"
    )
