"""Glances and headroom in the simulated machine: small jobs wait less, and commands stay within their bound."""

from __future__ import annotations

from statistics import fmean

from tidemill.harvest.plan.pace import NEEDED_PER_HOUR, least_pause_s
from tidemill.harvest.plan.policies import Policy
from tidemill_study.simulation.simulator import SimulatedMachine, Tally, World, calls_of
from tidemill_study.simulation.swf import Job

HOUR, DAY = 3600, 86400
LATER = 4 * HOUR  #: by then the machine is full of allocations


def play(world: World, jobs: list[Job], seed: str = "1") -> Tally:
    return SimulatedMachine(world, jobs, policy=Policy.YIELD, seed=seed).run()


def world(**settings: object) -> World:
    return World(nodes=64, horizon_s=float(DAY), **settings)  # type: ignore[arg-type]


def per_min(tally: Tally) -> float:
    return calls_of(tally) / (DAY / 60)


def test_a_job_on_a_full_machine_waits_for_a_glance_and_a_death_not_for_a_poll() -> None:
    jobs = [Job(LATER + k * 1811, 600, 2, 900) for k in range(30)]
    quick, polled = play(world(), jobs), play(world(glance_s=0.0), jobs)

    assert max(quick.waits_s) <= 9 + 1 + 5  # the longest way to a glance, the reaction, the death
    assert fmean(quick.waits_s) < 0.7 * fmean(polled.waits_s)


def test_a_quiet_day_costs_twelve_commands_a_minute_and_a_busy_one_stays_within_the_bound() -> None:
    quiet = play(world(), [Job(LATER + k * 5000, 600, 2, 900) for k in range(10)])
    busy = play(world(), [Job(LATER + k * 20, 60, 1, 120) for k in range(3000)])

    assert 8 < per_min(quiet) <= 12.5
    assert per_min(busy) <= 30


def test_few_commands_allowed_means_polls_alone() -> None:
    assert play(world(calls_per_min_max=8.0), [Job(LATER, 600, 2, 900)]).glances == 0


def test_while_nothing_is_held_there_are_no_glances() -> None:
    jobs = [Job(0, DAY, 64, DAY), Job(DAY // 2, 60, 1, 60)]
    assert play(world(), jobs).glances == 0


def test_small_jobs_that_come_often_find_headroom() -> None:
    """One every 20 s or so; without them nothing is kept."""
    jobs = [Job(LATER + k * 23, 200, 1, 300) for k in range(1000)]
    kept, filled = play(world(), jobs), play(world(has_headroom=False), jobs)

    assert filled.kept_s == 0
    assert 0 < kept.kept_s < 0.02 * kept.idle_s
    assert fmean(kept.waits_s) < fmean(filled.waits_s)
    assert kept.useful_s > 0.95 * filled.useful_s
    assert play(world(), [Job(LATER, 200, 1, 300)]).kept_s == 0


def test_a_job_that_waited_before_it_needs_nodes_of_tidemill_quickens_glances_too() -> None:
    """As in the agent. Of two jobs, nine pairs an hour, the second one, which is wider, waits for the first, which ends
    early, and then for Tidemill's nodes: neither kind alone comes often enough for the quickest pace."""
    pairs, apart_s = 40, 400
    jobs = [
        Job(LATER + k * apart_s + late, 60, width, 900)
        for k in range(pairs)
        for late, width in ((0, 33), (20, 50))
    ]
    end_s = float(LATER + pairs * apart_s)
    machine = SimulatedMachine(World(nodes=64, horizon_s=end_s), jobs, policy=Policy.YIELD, seed="1")
    machine.run()

    assert 3600 / apart_s < NEEDED_PER_HOUR < 2 * 3600 / apart_s
    assert machine.pace.glance_s(end_s, holds=True) == least_pause_s(machine.world.poll_s)
