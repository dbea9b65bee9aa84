"""The live charts of a timed job: what ran, where it is known, and what was asked for."""

from __future__ import annotations

from tidemill.server.web.payloads import STEPS, view
from tidemill.wire.api import PayloadTime

S = 1_000_000


def payload(
    slot: int, start_s: float, length_s: float, *, failure: str = "", cpu: float = 0.5
) -> PayloadTime:
    wall_us = int(length_s * S)
    return PayloadTime(
        first=0, count=2, payloads=1, node="n1", slot=slot, started_us=int(start_s * S),
        ended_us=int((start_s + length_s) * S), wall_us=wall_us, setup_us=0, user_us=int(cpu * wall_us), system_us=0,
        failure=failure,
    )  # fmt: skip


def steady(slots: int, until_s: float) -> list[PayloadTime]:
    """So many payloads at a time, from 1000 s on, of 10 s each; one in ten fails."""
    count = int((until_s - 1000) / 10)
    return [
        payload(slot, 1000 + 10 * k, 10, failure="payload" if (k + slot) % 10 == 0 else "")
        for slot in range(slots)
        for k in range(count)
    ]


def test_the_charts_show_the_number_that_ran_the_rate_the_share_of_cpu_and_of_failures() -> None:
    found = view(steady(4, 1600), at_once=4, now_us=1600 * S, is_over=True)
    assert found is not None
    running, rate, cpu, wall, setup, failed = found.charts
    assert (running.title, running.now, running.about) == (
        "Payloads that run", "4", "The thin line is what was asked for: 4",
    )  # fmt: skip
    assert 'class="member"' in running.drawing
    assert 0.6 < float(rate.now) < 0.76  # 4 payloads of 2 events in 10 s, 90 % of them
    assert (wall.now, setup.now) == ("10 s", "0 s")
    assert (cpu.now, cpu.top, failed.top) == ("50 %", "100 %", "100 %")
    assert 5 < float(failed.now.split()[0]) < 15
    assert found.payloads == 240


def test_while_it_runs_the_charts_end_where_the_longest_payload_would_not_be_missing() -> None:
    times = [each for each in steady(4, 1600) if each.ended_us <= 1595 * S]
    found = view([*times, payload(9, 1500, 30)], at_once=4, now_us=1595 * S, is_over=False)
    assert found is not None
    assert found.marks[-1] <= "00:26:03"  # 1595 - 30 - 2 s, and not the hole behind it
    running = found.charts[0]
    assert float(running.now) > 3.9
    assert running.drawing.count("L") <= 4 * STEPS


def test_clocks_that_step_and_few_payloads_draw_what_there_is() -> None:
    assert view([], at_once=None, now_us=0, is_over=False) is None
    backwards = PayloadTime(0, 1, 1, "n", 0, 2 * S, 1 * S, S, 0, 0, 0)
    assert view([backwards], at_once=None, now_us=9 * S, is_over=False) is None
    one = view([payload(0, 1000, 0.1)], at_once=None, now_us=1000 * S, is_over=False)
    assert one is not None
    assert "member" not in one.charts[0].drawing
    assert "nan" not in "".join(each.drawing for each in one.charts).lower()
