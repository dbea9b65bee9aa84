"""The simulated machine on workloads small enough to be checked by hand; logs; statistics."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from tidemill.errors import ConfigError
from tidemill.harvest.account.waits import change
from tidemill.harvest.plan.policies import Policy
from tidemill_study.report.tide import tide
from tidemill_study.simulation import availability, swf
from tidemill_study.simulation.experiment import Study, results_of, run_all
from tidemill_study.simulation.outcome import classes_of, digest
from tidemill_study.simulation.simulator import SimulatedMachine, Tally, World
from tidemill_study.simulation.swf import Job

DAY = 86400


def play(world: World, jobs: list[Job], policy: Policy | None = None) -> Tally:
    """One run."""
    return SimulatedMachine(world, jobs, policy=policy, seed="1").run()


def test_jobs_start_in_order_and_short_ones_are_backfilled_at_the_next_cycle() -> None:
    jobs = [Job(0, 1000, 6, 1000), Job(10, 1000, 8, 1000), Job(20, 500, 4, 900), Job(30, 500, 4, 5000)]

    waits = play(World(nodes=10), jobs).waits_s

    assert waits[0] == 0
    assert waits[1] == 990
    assert 0 < waits[2] <= 30  # ends before the second could start
    assert waits[3] == 1970 - 0  # would have delayed it


def test_an_idle_machine_is_filled_and_the_job_that_comes_waits_for_poll_and_death_only() -> None:
    world = World(nodes=10, horizon_s=DAY)
    jobs = [Job(0, 10, 1, 10), Job(DAY // 2, 600, 10, 600)]

    tally = play(world, jobs, Policy.YIELD)

    assert world.death_s < tally.waits_s[1] <= world.poll_s + world.death_s
    assert tally.idle_s == pytest.approx(10 * DAY - 10 - 6000)
    assert tally.held_s / tally.idle_s > 0.99
    assert 0.98 < tally.useful_s / tally.idle_s < 0.995


def test_a_kill_loses_the_event_in_flight_and_start_up_counts_for_nothing() -> None:
    world = World(nodes=1, horizon_s=10_000.0, walltime_max_s=2000.0, poll_s=1.0, cycle_s=1.0, death_s=0.0)
    tally = play(world, [Job(0, 1, 1, 1), Job(9990, 1, 1, 1)], Policy.YIELD)

    # 2000 s at most each in steps of a minute: 1980 s = 120 s of start-up and 6 events of 300 s
    assert tally.useful_s == 5 * 6 * 300
    assert tally.starts == 7  # the sixth had no time for an event, the seventh came after the job


def test_nothing_runs_in_an_outage_and_its_time_is_left_out() -> None:
    world = World(nodes=10, horizon_s=20_000.0, outages=[(5000, 9000)])
    jobs = [Job(0, 10, 1, 10), Job(4500, 1000, 10, 1000)]

    without, with_us = play(world, jobs), play(world, jobs, Policy.YIELD)

    assert without.waits_s[1] == 4500  # it would have run into the outage
    assert without.capacity_s == 10 * 16_000
    assert with_us.waits_s[1] == pytest.approx(4500, abs=world.poll_s + world.death_s)
    assert with_us.held_s <= without.idle_s


def test_a_broker_that_does_not_know_the_order_releases_nodes_for_every_job_that_could_start() -> None:
    """Ten nodes; the first job of the queue needs all, and the scheduler starts no other: `later` would delay it."""
    jobs = [Job(0, DAY, 4, DAY), Job(DAY // 2, 600, 10, 600), Job(DAY // 2 + 10, 600, 2, 2 * DAY)]
    held_s = {}
    for known in (True, False):
        world = World(nodes=10, horizon_s=DAY, is_order_known=known)
        tally = play(world, jobs, Policy.YIELD)
        assert tally.waits_s == pytest.approx([0, DAY // 2, DAY // 2 - 10 + 600], abs=40)
        held_s[known] = tally.held_s
    assert held_s[True] == pytest.approx(6 * DAY, rel=0.01)
    assert held_s[False] == pytest.approx(5 * DAY, rel=0.01)  # two nodes stay idle from then on


@pytest.mark.parametrize("known", [True, False])
def test_a_blocked_job_is_planned_for_the_time_at_which_it_would_start_without_us(known: bool) -> None:
    """Ten nodes, four busy for an hour. `head` needs all; `long` and `short` would delay it. If Tidemill held nodes
    until `long` might end, the scheduler would plan `head` for then, and start `short` ahead of it."""
    head, long, short = Job(1800, 600, 10, 600), Job(1800, DAY // 2, 3, DAY // 2), Job(1800, 7200, 1, 7200)
    jobs = [Job(0, 3600, 4, 3600), head, long, short]
    world = World(nodes=10, horizon_s=DAY, is_order_known=known)
    assert play(world, jobs).waits_s == pytest.approx([0, 1800, 2400, 2400])
    assert play(world, jobs, Policy.YIELD).waits_s == pytest.approx([0, 1800, 2400, 2400], abs=40)


def test_preemption_makes_a_job_wait_for_the_grace_only() -> None:
    world = World(nodes=10, horizon_s=DAY)
    jobs = [Job(0, 10, 1, 10), Job(DAY // 2, 600, 10, 600)]

    assert play(world, jobs, Policy.PREEMPT).waits_s[1] == world.death_s


def test_who_never_yields_makes_others_wait() -> None:
    world = World(nodes=10, horizon_s=DAY)
    jobs = [Job(0, 10, 1, 10), Job(DAY // 2, 600, 10, 600)]

    assert play(world, jobs, Policy.CAPPED).waits_s[1] > 10_000


def test_no_more_allocations_than_allowed_and_none_narrower() -> None:
    jobs = [Job(k * 3000, 2000, 30 + 7 * (k % 5), 2500) for k in range(40)]
    few = play(World(nodes=100, horizon_s=1e5, jobs_max=5), jobs, Policy.YIELD)
    wide = play(World(nodes=100, horizon_s=1e5, width_min=32), jobs, Policy.YIELD)
    free = play(World(nodes=100, horizon_s=1e5), jobs, Policy.YIELD)

    assert 0 < wide.held_s <= free.held_s
    assert 0 < few.starts < free.starts


def test_seeds_are_repeatable_whatever_the_number_of_processes() -> None:
    jobs = [Job(k * 300, 200 + 17 * (k % 11), 1 + k % 13, 600) for k in range(300)]
    study = Study(
        world=World(nodes=16, horizon_s=90_000.0),
        jobs=jobs,
        policies=[Policy.YIELD, Policy.TITAN],
        seeds=3,
        replicas=2,
        jitter_s=120,
        workers=1,
    )

    def figures(workers: int) -> list[tuple[object, ...]]:
        changed = msgspec.structs.replace(study, workers=workers)
        found = results_of(changed, run_all(changed))
        return [
            (name, each.useful, each.wait_change, each.by_size, each.pairs) for name, each in found.items()
        ]

    assert figures(1) == figures(2)
    assert [pairs for *_, pairs in figures(1)] == [6, 3]


def test_a_change_is_a_ratio_of_sums_with_bounds_of_student() -> None:
    found = change([100.0, 200.0, 300.0], [110.0, 190.0, 330.0])

    assert found.mean == pytest.approx(0.05)
    # residuals 5, -20, 15; s = 18.03; half = 4.303 * 18.03 * sqrt(3) / 600
    assert found.high == pytest.approx(0.05 + 0.22392, abs=1e-4)
    assert found.low == pytest.approx(0.05 - 0.22392, abs=1e-4)
    assert change([0.0, 0.0], [1.0, 2.0]).mean is None
    assert change([2.0], [3.0]).high is None


def test_classes_cover_all_jobs_and_small_ones_join_their_neighbours() -> None:
    jobs = [Job(0, 1, 1, 1)] * 200 + [Job(0, 1, 64, 1)] * 150 + [Job(0, 1, 1000, 1)] * 3

    sizes = classes_of(jobs, 1024).sizes
    assert [(c.name, c.nodes_min, c.nodes, c.jobs) for c in sizes] == [
        ("1/64", 1, 1, 200),
        ("1", 64, 1000, 153),
    ]


def test_lengths_are_those_that_jobs_run_and_limits_those_that_they_asked_for() -> None:
    jobs = [Job(0, 20, 1, 3600)] * 150 + [Job(0, 7200, 1, 7200)] * 120 + [Job(0, 90_000, 64, 90_000)] * 130
    found = classes_of(jobs, 1024)

    assert [(c.name, c.over_s, c.up_to_s, c.jobs) for c in found.lengths] == [
        ("5min", 0.0, 300.0, 150), ("6h", 300.0, 21_600.0, 120), ("longer", 21_600.0, None, 130)
    ]  # fmt: skip
    assert [(c.name, c.jobs) for c in found.limits] == [("1h", 150), ("6h", 120), ("longer", 130)]
    assert [(i, j, c.name, c.jobs) for i, j, c in found.both] == [
        (0, 0, "1/64 5min", 150), (0, 1, "1/64 6h", 120), (1, 2, "1/16 longer", 130)
    ]  # fmt: skip


def test_each_job_counts_once_in_each_kind_of_class() -> None:
    jobs = [Job(k, 20 + 40 * (k % 200), 1 + k % 40, 9000) for k in range(1000)]
    classes = classes_of(jobs, 64)
    waits = [float(job.width + job.run_s / 1000) for job in jobs]
    found = digest(Tally(waits_s=waits), jobs, classes, cpu_s=0.0)

    both = [each for _, _, each in classes.both]
    everything = [*classes.sizes, *classes.lengths, *classes.limits, *both]
    sums = [mean * each.jobs for mean, each in zip(found.waits_s[1:], everything, strict=True)]
    ends = (len(classes.sizes), len(classes.sizes) + len(classes.lengths))
    assert sum(sums[: ends[0]]) == pytest.approx(sum(waits))
    assert sum(sums[ends[0] : ends[1]]) == pytest.approx(sum(waits))
    for each, mean in zip(everything, found.waits_s[1:], strict=True):
        if each in classes.limits:
            continue
        inside = [
            wait
            for wait, job in zip(waits, jobs, strict=True)
            if each.nodes_min <= job.width <= each.nodes and each.over_s < job.run_s <= (each.up_to_s or 1e9)
        ]
        assert len(inside) == each.jobs
        assert mean == pytest.approx(sum(inside) / len(inside))


def test_falls_and_rises_of_free_nodes_become_jobs_that_leave_as_many_free(tmp_path: Path) -> None:
    path = tmp_path / "free.csv"
    path.write_text("time,free\n0,10\n3600,4\n7200,7\n9000,2\n20000,10\n30000,10\n")

    trace = availability.read(path)
    tally = play(World(nodes=10, horizon_s=30_000.0), trace.jobs)

    assert tally.idle_s == 10 * 3600 + 4 * 3600 + 7 * 1800 + 2 * 11_000 + 10 * 10_000
    assert tally.waits_s == [0.0] * len(trace.jobs)


HEADER = "; MaxNodes: 100\n; MaxProcs: 100\n"
RECORD = "{n} {submit} 10 {run} {width} -1 -1 {width} 600 -1 1 1 1 1 1 1 -1 -1\n"


def record(n: int = 1, submit: int = 0, run: int = 60, width: int = 4) -> str:
    """A line of a workload."""
    return RECORD.format(n=n, submit=submit, run=run, width=width)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no job"),
        (HEADER, "has no job"),
        (HEADER + "hello world\n", "line 3 is not a record"),
        (HEADER + record() + "2 10 3\n", "line 4 has 3 fields"),
        (HEADER + record(submit=-5), "line 3 has a negative submit time: -5"),
        (HEADER + record(run=-7), "line 3 has a negative run time: -7"),
        (HEADER + record(width=101), "line 3: a job of 101 nodes on a machine of 100"),
        (HEADER + record(run=-1) + record(run=0), "2 records with no run time"),
    ],
)
def test_bad_logs_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.swf"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        swf.read(path)

    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_truncated_gzip_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cut.swf.gz"
    path.write_bytes(gzip.compress((HEADER + "".join(record(n) for n in range(2000))).encode())[:-20])

    with pytest.raises(ConfigError, match="cut short or damaged"):
        swf.read(path)


def test_records_without_a_job_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "some.swf"
    path.write_text(HEADER + record(1) + record(2, run=-1) + record(3, width=0) + record(4, submit=50))

    trace = swf.read(path)

    assert [job.submit_s for job in trace.jobs] == [0, 50]
    assert trace.skipped == {"no run time": 1, "no number of processors": 1}


def test_the_size_of_the_machine_is_the_headers_else_what_was_busy_at_once(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.swf", tmp_path / "cores.swf"
    plain.write_text(record(1, width=4) + record(2, submit=20, width=7) + record(3, submit=500, width=9))
    packed.write_text("; MaxNodes: 10\n; MaxProcs: 160\n" + record(1, width=17))

    assert swf.read(plain).nodes == 11
    assert swf.read(plain, nodes=50).nodes == 50
    assert (swf.read(packed).nodes, swf.read(packed).jobs[0].width) == (10, 2)


def test_an_empty_machine_while_somebody_waits_is_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "out.swf"
    late = "3 1000 19000 60 4 -1 -1 4 600 -1 1 1 1 1 1 1 -1 -1\n"
    path.write_text(HEADER + record(1) + late)
    quiet = tmp_path / "quiet.swf"
    quiet.write_text(HEADER + record(1) + record(2, submit=20_000))

    assert swf.read(path).outages == [(70, 20_000)]
    assert swf.read(quiet).outages == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,5\n10\n", "line 2 has 1 fields"),
        ("0,5\nx y\n", "line 2 is not a sample"),
        ("0,5\n10,-3\n", "line 2 has a negative number"),
        ("10,5\n0,5\n", "line 2: time goes back by 10 s"),
        ("0,5\n", "1 samples"),
    ],
)
def test_bad_samples_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        availability.read(path)

    assert message in str(caught.value)


def test_the_tide_is_drawn_with_all_three_layers() -> None:
    drawn = tide(
        [(0.0, 3, 0), (50.0, 5, 5)], nodes=10, until_s=100.0, title="a <machine>", outages=[(60, 80)]
    )

    assert drawn.startswith("<svg")
    assert drawn.count("<path fill=") == 2
    assert "out of service" in drawn
    assert "a &lt;machine&gt;" in drawn
