"""What payloads of a timed job did over time, as small charts: the live view of a stress test. Pure.

The server hears of a payload when it ends. So the number that runs is known up to the longest payload ago, where
the charts end while the job runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from tidemill.charts.lines import TimeLine, lines
from tidemill.charts.time import clock_marks, nice_ceiling
from tidemill.model.quantities import figure_text
from tidemill.wire.api import PayloadTime

STEPS = 40
STEP_S_MIN = 1.0
LATE_S = 2.0  #: what comes later than that after its end is missing at the charts' right edge for a moment


class PayloadChart(NamedTuple):
    """A chart with its texts; `now`: the mean of what it shows."""

    title: str
    about: str
    drawing: Markup
    top: str
    now: str


class PayloadView(NamedTuple):
    """The charts of a job, and the times on their common axis."""

    charts: list[PayloadChart]
    marks: list[str]
    payloads: int


class _Step(NamedTuple):
    """Sums over one step. `running`: payload-seconds; the others are of payloads that ended in it."""

    running: list[float]
    wall: list[float]
    cpu: list[float]
    events: list[int]
    failed: list[int]
    ended: list[int]


def view(
    times: Sequence[PayloadTime], *, at_once: int | None, now_us: int, is_over: bool
) -> PayloadView | None:
    """The view of a job's latest payloads; None before any is known. `at_once`: the level that is asked for."""
    known = [each for each in times if 0 < each.started_us < each.ended_us]
    if not known:
        return None
    longest_s = max(each.ended_us - each.started_us for each in known) / 1e6
    begin = min(each.started_us for each in known) / 1e6
    last = max(each.ended_us for each in known) / 1e6
    end = last if is_over else max(begin + STEP_S_MIN, min(last, now_us / 1e6 - LATE_S - longest_s))
    step_s = max(STEP_S_MIN, (end - begin) / STEPS)
    sums = _sums(known, begin, step_s, max(1, int((end - begin) / step_s)))
    middles = [begin + (k + 0.5) * step_s for k in range(len(sums.running))]
    span = (begin, max(end, begin + STEP_S_MIN))

    def drawn(
        title: str, about: str, values: Sequence[float | None], level: float | None, percent: bool
    ) -> PayloadChart:
        points = [(at, value) for at, value in zip(middles, values, strict=True) if value is not None]
        top = nice_ceiling(max([*(value for _, value in points), level or 0.0, 0.01]))
        if percent:
            top = max(1.0, top)
        members = [] if level is None else [TimeLine("asked for", [(span[0], level), (span[1], level)])]
        mean = sum(value for _, value in points) / len(points) if points else 0.0
        picture = lines(
            members,
            TimeLine(title, points),
            span=span,
            top=top,
            title=f"{title}: mean {_text(mean, percent)}",
        )
        return PayloadChart(title, about, Markup(picture), _text(top, percent), _text(mean, percent))

    asked = "" if at_once is None else f"The thin line is what was asked for: {at_once}"
    charts = [
        drawn("Payloads that run", asked, [each / step_s for each in sums.running], at_once, percent=False),
        drawn(
            "Events per second",
            "Of all payloads together",
            [each / step_s for each in sums.events],
            None,
            percent=False,
        ),
        drawn("CPU/wall", "Of the payloads that ended", _shares(sums.cpu, sums.wall), None, percent=True),
        drawn(
            "Failed", "Part of the payloads that ended", _shares(sums.failed, sums.ended), None, percent=True
        ),
    ]
    return PayloadView(charts, clock_marks(span[0], span[1] - span[0]), len(known))


def _sums(times: Sequence[PayloadTime], begin: float, step_s: float, steps: int) -> _Step:
    sums = _Step([0.0] * steps, [0.0] * steps, [0.0] * steps, [0] * steps, [0] * steps, [0] * steps)
    for each in times:
        start, end = (each.started_us / 1e6 - begin) / step_s, (each.ended_us / 1e6 - begin) / step_s
        for k in range(int(start), min(steps - 1, int(end)) + 1):
            sums.running[k] += (min(end, k + 1) - max(start, k)) * step_s
        k = int(end)
        if k < steps:
            sums.wall[k] += each.wall_us
            sums.cpu[k] += each.user_us + each.system_us
            sums.events[k] += 0 if each.failure else each.count
            sums.failed[k] += bool(each.failure)
            sums.ended[k] += 1
    return sums


def _shares(parts: Sequence[float], wholes: Sequence[float]) -> list[float | None]:
    return [part / whole if whole else None for part, whole in zip(parts, wholes, strict=True)]


def _text(value: float, percent: bool) -> str:
    return f"{100 * value:.3g} %" if percent else figure_text(value)
