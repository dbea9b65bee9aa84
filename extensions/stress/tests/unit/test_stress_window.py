"""The steady window: what counts, what is left out and why, and what the selection by length does to the figures."""

from __future__ import annotations

import random

import pytest

from tidemill.wire.api import PayloadTime
from tidemill_stress import level, statistics, window
from tidemill_stress.payloads import Payload, taken
from tidemill_stress.statistics import PayloadSums, cpu_per_wall


def payload(start: float, end: float, *, node: str = "n", cpu: float = 0.5, events: int = 1) -> Payload:
    return Payload(node, start, end, cpu * (end - start), 0.0, events)


def test_only_payloads_that_start_and_end_inside_count_and_each_other_has_a_reason() -> None:
    payloads = [
        payload(0, 5),
        payload(9, 11),
        payload(12, 14),
        payload(19, 21),
        payload(8, 22),
        payload(30, 31),
    ]
    found = window.counted(payloads, 10, 20)
    assert found.payloads == [payload(12, 14)]
    assert found.filter.left_out == {
        "ended after the window": 1, "longer than the window": 1, "ran outside of the window": 2,
        "started before the window": 1,
    }  # fmt: skip


def test_a_payload_that_fills_the_window_gets_a_bounded_weight_and_is_told() -> None:
    found = window.counted([payload(10, 20), payload(11, 13)], 10, 20)
    assert found.weights == [window.WEIGHT_MAX, pytest.approx(1.25)]
    assert (found.filter.cut, found.filter.longest_s) == (1, 10)


def renewed(dice: random.Random, slots: int, until: float) -> list[Payload]:
    """Slots without pauses, whose payloads use more CPU the longer they are."""
    found = []
    for slot in range(slots):
        now = -dice.uniform(0, 60)
        while now < until:
            length = dice.uniform(5, 60)
            found.append(payload(now, now + length, node=f"n{slot}", cpu=length / 100))
            now += length
    return found


def test_the_weights_undo_that_long_payloads_are_seen_less_often() -> None:
    payloads = renewed(random.Random(3), 400, 260)
    found = window.counted(payloads, 100, 200)
    plain, weighted = PayloadSums(), PayloadSums()
    for each, weight in zip(found.payloads, found.weights, strict=True):
        plain.add(each, 1.0)
        weighted.add(each, weight)
    lengths = [5 + 55 * (k + 0.5) / 10_000 for k in range(10_000)]
    truth = sum(each * each / 100 for each in lengths) / sum(lengths)
    assert cpu_per_wall(weighted) == pytest.approx(truth, rel=0.02)
    assert cpu_per_wall(plain) < 0.96 * truth


def test_the_number_running_and_its_means_follow_starts_and_ends() -> None:
    curve = level.running([payload(0, 10), payload(5, 15), payload(10, 20)])
    assert curve.counts == [1, 2, 2, 1, 0]
    assert level.mean_running(curve, 0, 10) == pytest.approx(1.5)
    assert level.interval_means(curve, 0, 22, interval_s=10) == [pytest.approx(1.5), pytest.approx(1.5)]
    assert level.mean_running(curve, 25, 30) == 0
    assert level.level_error([1.5, 2.2], 2) == pytest.approx(0.25)
    assert level.level_error([], 2) is None


def test_a_level_is_reached_when_it_stays_and_not_when_it_is_touched() -> None:
    touched = [payload(0, 1, node="a"), payload(0, 20, node="b")]
    assert window.reached_s(touched, 2, tolerance=0.05, for_s=5) is None
    stays = [*touched, payload(6, 20, node="c")]
    assert window.reached_s(stays, 2, tolerance=0.05, for_s=5) == 6


def test_times_of_a_stepped_clock_are_left_out() -> None:
    good = PayloadTime(
        0, 2, 1, "n1", 0, 1_000_000, 3_000_000, 2_000_000, 100_000, 900_000, 100_000, "", "here"
    )
    bad = PayloadTime(2, 1, 1, "n1", 0, 5_000_000, 4_000_000, 0, 0, 0, 0)
    failed = PayloadTime(3, 1, 1, "n1", 0, 1_000_000, 2_000_000, 1_000_000, 0, 0, 0, "exit_code", "here")
    assert taken([good, bad, failed]) == [
        Payload("here/n1", 1.0, 2.0, 0.0, 0.0, 0, "exit_code"),
        Payload("here/n1", 1.0, 3.0, 1.0, 0.1, 2),
    ]


def test_a_bootstrap_repeats_itself_and_widens_with_few_payloads() -> None:
    many = window.counted(renewed(random.Random(1), 40, 260), 100, 200)
    few = window.counted(renewed(random.Random(1), 9, 260), 100, 200)
    one, again = (statistics.draw(many, seed=4).estimate(cpu_per_wall) for _ in range(2))
    assert one == again
    assert statistics.draw(few, seed=4).estimate(cpu_per_wall).width > 1.5 * one.width
    assert "40 nodes drawn as clusters" in statistics.draw(many, seed=4).method
