"""Knee, nodes, saturation and comparison: planted effects are found, and nothing is found where nothing is."""

from __future__ import annotations

import random

import pytest

from tidemill_stress import compare, knee, nodes, page, saturation
from tidemill_stress.analysis import Analysis, analyse
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import PayloadPlan, Plan, ScanPlan, StressStep
from tidemill_stress.run import Run, Series, StepRun
from tidemill_stress.statistics import Estimate

LEVELS = [4, 8, 12, 16]


def rates(values: list[float], error: float = 0.01) -> tuple[list[Estimate], list[list[float]]]:
    dice = random.Random(1)
    samples = [[each * (1 + error * dice.gauss(0, 1)) for _ in range(200)] for each in values]
    return [Estimate(each, each * (1 - 2 * error), each * (1 + 2 * error)) for each in values], samples


def test_a_planted_knee_is_found_with_an_interval_and_a_recommendation() -> None:
    found = knee.find(LEVELS, *rates([min(n, 10) + 0.1 * max(0, n - 10) for n in LEVELS]))
    assert found.at is not None
    assert found.at.low < 10 < found.at.high
    assert found.at.width < 0.1
    assert found.recommended in (9, 10)


def test_throughput_that_grows_to_the_end_has_no_knee() -> None:
    found = knee.find(LEVELS, *rates([float(n) for n in LEVELS]))
    assert found.at is None
    assert found.recommended == 16
    assert "no knee" in found.reason


def test_a_knee_in_the_last_gap_is_known_only_to_lie_there() -> None:
    found = knee.find(LEVELS, *rates([4.0, 8.0, 12.0, 12.5]))
    assert found.at is not None
    assert (found.at.low, found.at.high, found.recommended) == (12, 16, 12)


def test_fewest_slots_within_the_best_interval_are_recommended() -> None:
    slots = [1, 2, 4, 8]
    chosen, why = knee.best_slots(slots, rates([1.0, 1.9, 3.02, 3.05], 0.02)[0])
    assert chosen == 4
    assert why.startswith("they do 3.02 events/s (")
    assert why.endswith("but that is not more beyond chance, and fewer slots leave more room")


def test_an_estimate_of_several_passes_spans_them() -> None:
    found = knee.spanning([Estimate(1.0, 0.98, 1.02), Estimate(0.8, 0.79, 0.83)])
    assert found.value == pytest.approx(0.9)
    assert (found.low, found.high) == (0.79, 1.02)


def test_a_small_gain_is_not_worth_more_slots_and_a_large_one_is() -> None:
    measured = rates([0.48, 0.85, 0.86, 0.91], 0.005)[0]
    assert knee.best_slots([1, 2, 4, 6], measured)[0] == 6
    chosen, why = knee.best_slots([1, 2, 4, 6], measured, gain_percent=5)
    assert chosen == 2
    assert "6 do the most, 0.91 (" in why
    assert "not 5 % more beyond chance" in why
    assert knee.best_slots([1, 2], measured[:2], gain_percent=5)[0] == 2


def payloads(dice: random.Random, node: str, count: int, factor: float, failed: float = 0.0) -> list[Payload]:
    found = []
    for k in range(count):
        bad = dice.random() < failed
        end = k + factor * dice.lognormvariate(0, 0.2)
        found.append(Payload(node, k, end, 0.5, 0.0, 0 if bad else 1, "exit_code" if bad else ""))
    return found


def test_a_slow_and_a_failing_node_are_named_and_good_ones_are_not() -> None:
    dice = random.Random(2)
    factors, failing = {7: 1.4}, {3: 0.5}
    rows = [
        each
        for k in range(16)
        for each in payloads(dice, f"n{k:02}", 60, factors.get(k, 1.0), failing.get(k, 0.05))
    ]
    found = {each.node: each.verdict for each in nodes.judge([rows])}
    assert (found.pop("n07"), found.pop("n03")) == ("slow", "failing")
    assert set(found.values()) == {"good"}


def test_alike_nodes_are_hardly_ever_called_slow() -> None:
    wrong = 0
    for seed in range(40):
        dice = random.Random(seed)
        rows = [each for k in range(16) for each in payloads(dice, f"n{k}", 30, 1.0)]
        wrong += bool(nodes.slow_nodes(nodes.judge([rows])))
    assert wrong <= 2


def step(level: int, value: float, limit: float | None) -> StepRun:
    series = Series(
        title="network", unit="MB/s", source="pool", points=[(k, value) for k in range(10)], limit=limit
    )
    return StepRun(
        step=StressStep(level, "", level),
        campaign="",
        status="measured",
        start_s=0,
        end_s=10,
        series=[series],
    )


@pytest.mark.parametrize(("limit", "level"), [(None, 9.0), (95.0, 12)])
def test_what_stops_growing_or_reaches_its_limit_saturated(limit: float | None, level: float) -> None:
    steps = [step(n, 10.0 * min(n, 9), limit) for n in LEVELS]
    found = saturation.find(steps)
    assert [each.title for each in found] == ["network"]
    assert found[0].level == pytest.approx(level, rel=0.1)


def test_what_does_not_follow_the_jobs_is_not_blamed() -> None:
    assert saturation.find([step(n, 50.0, None) for n in LEVELS]) == []
    assert saturation.find([step(n, 10.0 * n, None) for n in LEVELS]) == []
    falls = dict(zip(LEVELS, (10.0, 20.0, 30.0, 6.0), strict=True))
    assert saturation.find([step(n, falls[n], None) for n in LEVELS]) == []


def test_passes_of_a_scan_count_as_one_level() -> None:
    up = [step(n, 10.0 * min(n, 9) + 5, None) for n in LEVELS]
    down = [step(n, 10.0 * min(n, 9) - 5, None) for n in reversed(LEVELS)]
    assert saturation.find([*up, *down])[0].level == pytest.approx(9, rel=0.1)


def run(seed: int, cpu: float) -> Analysis:
    dice = random.Random(seed)
    rows = []
    for k in range(10):
        now = 0.0
        while now < 200:
            wall = dice.uniform(2, 6)
            rows.append(Payload(f"n{k}", now, now + wall, cpu * wall * dice.uniform(0.95, 1.05), 0.1, 1))
            now += wall
    plan = Plan(name="x", payload=PayloadPlan(event_s=4, command=["x"]), levels=[10])
    one = StepRun(
        step=StressStep(1, "", 10), campaign="", status="measured", start_s=10, end_s=190, payloads=rows
    )
    return analyse(
        Run(id=f"r{seed}", mode="run", plan=plan, digest="d", version="", started_us=0, steps=[one])
    )


def test_two_runs_of_the_same_do_not_differ_and_a_loss_is_a_regression() -> None:
    same = compare.compare(run(1, 0.8), run(2, 0.8), same_test=True)
    assert not same.differ
    worse = compare.compare(run(1, 0.8), run(2, 0.7), same_test=True)
    assert [each.quantity for each in compare.regressions(worse, 5)] == ["cpu_wall"]
    assert compare.regressions(worse, 20) == []
    assert compare.regressions(compare.compare(run(1, 0.7), run(2, 0.8), same_test=True), 5) == []


def test_one_level_alone_gives_no_recommendation() -> None:
    found = knee.find([4], *rates([8.0]))
    assert (found.at, found.recommended) == (None, 0)
    assert "level 4 alone was measured" in found.reason


def test_histograms_of_a_scan_have_a_line_for_each_number_of_slots_whatever_the_passes() -> None:
    steps = []
    for number, (slots, pass_) in enumerate([(1, 1), (2, 1), (2, 2), (1, 2)], 1):
        rows = [Payload("n", k, k + 1, 0.5 / slots, 0.1, 1) for k in range(20)]
        at = StressStep(number, "", slots, slots, "core", 1, pass_)
        steps.append(StepRun(step=at, campaign="", status="measured", start_s=0, end_s=20, payloads=rows))
    plan = Plan(
        name="x", payload=PayloadPlan(event_s=1, command=["x"]), scan=ScanPlan(node_cores=2, slots=[1, 2])
    )
    of = Run(id="r", mode="scan", plan=plan, digest="d", version="", started_us=0, steps=steps)
    text = page.page(of, analyse(of))
    drawn = text[text.index("Distributions") : text.index("What counts")]
    assert (
        drawn.count("1 per node, core:") == drawn.count("2 per node, core:") == 2
    )  # CPU/wall and events/wall
    assert "pass 2" not in drawn
