"""What payloads of a timed job did over time, as small charts: the live view of a stress test. Pure.

The server hears of a payload when it ends. So the number that runs is known up to the longest payload ago, where
the charts end while the job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from tidemill.charts.lines import TimeLine, lines
from tidemill.charts.time import clock_marks, nice_ceiling
from tidemill.model.quantities import figure_text
from tidemill.wire.api import PayloadTime

STEPS = 40
STEP_S_MIN = 1.0
RUNNING = "Payloads that run"
HEADROOM = 1.05  #: above a level, so that its line is not the edge
LATE_S = 2.0  #: what comes later than that after its end is missing at the charts' right edge for a moment


Text = Callable[[float], str]


class PayloadChart(NamedTuple):
    """A chart with its texts; `now`: the mean of what it shows."""

    title: str
    about: str
    drawing: Markup
    top: str
    now: str


class AskedLevels(NamedTuple):
    """Levels, as lines beside the number that runs, and what they are."""

    lines: Sequence[TimeLine]
    about: str


class PayloadView(NamedTuple):
    """The charts of a job, and the times on their common axis."""

    charts: list[PayloadChart]
    marks: list[str]
    payloads: int


class _Step(NamedTuple):
    """Sums over one step. `running`: payload-seconds; the others are of payloads that ended in it."""

    running: list[float]
    wall: list[float]
    setup: list[float]
    cpu: list[float]
    events: list[int]
    failed: list[int]
    ended: list[int]


def view(
    times: Sequence[PayloadTime], *, at_once: int | None, now_us: int, is_over: bool
) -> PayloadView | None:
    """The view of a job's latest payloads; None before any is known. `at_once`: the level that is asked for."""
    known = valid(times)
    if not known:
        return None
    begin = min(each.started_us for each in known) / 1e6
    end = known_until_s(known, now_us=now_us, is_over=is_over)
    span = (begin, max(end, begin + STEP_S_MIN))
    members = [] if at_once is None else [TimeLine("asked for", [(each, float(at_once)) for each in span])]
    asked = "" if at_once is None else f"The thin line is what was asked for: {at_once}"
    charts = drawn(known, span, AskedLevels(members, asked), until_s=span[1], steps=STEPS)
    return PayloadView(charts, clock_marks(span[0], span[1] - span[0]), len(known))


def valid(times: Sequence[PayloadTime]) -> list[PayloadTime]:
    """Without those of clocks that stepped."""
    return [each for each in times if 0 < each.started_us < each.ended_us]


def known_until_s(times: Sequence[PayloadTime], *, now_us: int, is_over: bool) -> float:
    """Until when it is known what ran: while it goes on, up to the longest payload ago."""
    begin = min(each.started_us for each in times) / 1e6
    last = max(each.ended_us for each in times) / 1e6
    if is_over:
        return last
    longest_s = max(each.ended_us - each.started_us for each in times) / 1e6
    return max(begin + STEP_S_MIN, min(last, now_us / 1e6 - LATE_S - longest_s))


def drawn(
    times: Sequence[PayloadTime], span: tuple[float, float], asked: AskedLevels, *, until_s: float, steps: int
) -> list[PayloadChart]:
    """The charts of payloads on an axis of `steps` steps, one for each quantity; lines end at `until_s`."""
    step_s = max(STEP_S_MIN, (span[1] - span[0]) / steps)
    sums = _sums(times, span[0], step_s, max(1, int((until_s - span[0]) / step_s)))
    middles = [span[0] + (k + 0.5) * step_s for k in range(len(sums.running))]
    levels = [value for line in asked.lines for _, value in line.points]

    def chart(
        title: str, about: str, values: Sequence[float | None], text: Text, *, percent: bool = False
    ) -> PayloadChart:
        points = [(at, value) for at, value in zip(middles, values, strict=True) if value is not None]
        beside = list(asked.lines) if title == RUNNING else []
        top = nice_ceiling(
            max([*(value for _, value in points), *(HEADROOM * each for each in levels if beside), 0.01])
        )
        if percent:
            top = max(1.0, top)
        mean = sum(value for _, value in points) / len(points) if points else 0.0
        picture = lines(
            beside, TimeLine(title, points), span=span, top=top, title=f"{title}: mean {text(mean)}"
        )
        return PayloadChart(title, about, Markup(picture), text(top), text(mean))

    ended = "Of the payloads that ended"
    return [
        chart(RUNNING, asked.about, [each / step_s for each in sums.running], figure_text),
        chart(
            "Events per second",
            "Of all payloads together",
            [each / step_s for each in sums.events],
            figure_text,
        ),
        chart("CPU/wall", ended, _shares(sums.cpu, sums.wall), _percent, percent=True),
        chart("Wall time", f"{ended}, mean", _seconds(sums.wall, sums.ended), _duration),
        chart("Set-up", f"{ended}, mean before the first event", _seconds(sums.setup, sums.ended), _duration),
        chart(
            "Failed",
            "Part of the payloads that ended",
            _shares(sums.failed, sums.ended),
            _percent,
            percent=True,
        ),
    ]


def _sums(times: Sequence[PayloadTime], begin: float, step_s: float, steps: int) -> _Step:
    zeros = [0.0] * steps
    sums = _Step(
        zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy(), [0] * steps, [0] * steps, [0] * steps
    )
    for each in times:
        start, end = (each.started_us / 1e6 - begin) / step_s, (each.ended_us / 1e6 - begin) / step_s
        for k in range(int(start), min(steps - 1, int(end)) + 1):
            sums.running[k] += (min(end, k + 1) - max(start, k)) * step_s
        k = int(end)
        if k < steps:
            sums.wall[k] += each.wall_us
            sums.setup[k] += each.setup_us
            sums.cpu[k] += each.user_us + each.system_us
            sums.events[k] += 0 if each.failure else each.count
            sums.failed[k] += bool(each.failure)
            sums.ended[k] += 1
    return sums


def _shares(parts: Sequence[float], wholes: Sequence[float]) -> list[float | None]:
    return [part / whole if whole else None for part, whole in zip(parts, wholes, strict=True)]


def _seconds(sums_us: Sequence[float], counts: Sequence[float]) -> list[float | None]:
    return [sum_us / 1e6 / count if count else None for sum_us, count in zip(sums_us, counts, strict=True)]


def _duration(value: float) -> str:
    return f"{value:.3g} s"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
