"""How long nodes are kept after a cancel."""

from __future__ import annotations

from tidemill.batch.pbs.deaths import ASKED_MAX, DEATH_S_MAX, ENOUGH, EVERY_S, KEPT_MAX, RIPE_S, Deaths


def seen(deaths: Deaths, seconds: list[float]) -> Deaths:
    for k, each in enumerate(seconds):
        deaths.canceled([f"a{k}"], 1000.0)
        deaths.ended(f"a{k}", 1000.0 + each)
    return deaths


def test_it_is_known_after_some_and_most_were_shorter() -> None:
    assert seen(Deaths(), [8.0] * (ENOUGH - 1)).death_s == 0
    assert seen(Deaths(), [8, 9, 9, 10, 12, 15]).death_s == 12


def test_clocks_that_differ_teach_nothing() -> None:
    assert seen(Deaths(), [-3.0, DEATH_S_MAX + 1] * ENOUGH).death_s == 0
    assert seen(Deaths(), [0.0] * ENOUGH).death_s == 1


def test_the_history_is_asked_once_and_rarely_when_enough_is_known() -> None:
    deaths = Deaths()
    deaths.canceled(["a", "b"], 0.0)
    assert deaths.ripe(RIPE_S - 1) == []
    assert deaths.ripe(RIPE_S) == ["a", "b"]
    deaths.ended("a", 9.0)
    deaths.ended("b", None)
    assert deaths.ripe(RIPE_S) == []
    seen(deaths, [9.0] * ENOUGH)
    deaths.canceled(["c"], 10.0)
    assert deaths.ripe(RIPE_S + 10) == []
    assert deaths.ripe(RIPE_S + EVERY_S) == ["c"]


def test_what_is_kept_and_asked_is_bounded() -> None:
    deaths = Deaths()
    deaths.canceled([f"n{k}" for k in range(3 * KEPT_MAX)], 0.0)
    assert len(deaths.ripe(RIPE_S)) == ASKED_MAX
    assert len(deaths._canceled) == KEPT_MAX


def test_one_that_never_comes_into_the_history_is_not_asked_for_at_every_poll() -> None:
    deaths = Deaths()
    deaths.canceled(["tm-here-e1-1"], 0.0)
    asked = [now_s for now_s in range(0, 300, 10) if deaths.ripe(float(now_s))]
    assert asked == [60, 120, 180, 240]
