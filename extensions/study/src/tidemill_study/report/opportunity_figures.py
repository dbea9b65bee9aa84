"""Figures of the report on what a guest could harvest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.charts.axes import Axis, ceiling, scale_of
from tidemill.charts.histogram import NARROW, Panel, Points, Steps, histogram
from tidemill.harvest.account.waits import RelativeChange
from tidemill.model.quantities import count_text
from tidemill_study.accounting.idle import STEPS, Idle
from tidemill_study.report.opportunity import NO_CLOCK, Harvestable, Opportunity

HEAD = "Tidemill"
DAY_S = 86_400
APART = 0.16  #: distance between points of one category at most, in widths of a category
WEEK = (
    ("all days", 4, range(7), "fill"),
    ("Monday to Friday", 0, range(5), "line"),
    ("weekend", 2, range(5, 7), "line"),
)


def harvested(results: Sequence[Harvestable]) -> str:
    """The harvestable share of the idle time by length of events, each policy with its 95 % interval."""
    lengths = sorted({each.event_s for each in results})
    chosen = list(dict.fromkeys(each.policy for each in results))
    series = []
    for k, policy in enumerate(chosen):
        mine = {each.event_s: each for each in results if each.policy == policy}
        series.append(
            Points(
                policy,
                k,
                _apart(len(lengths), k, len(chosen)),
                [mine[length].useful if length in mine else None for length in lengths],
                [
                    _half(mine[length].useful_low, mine[length].useful_high) if length in mine else 0.0
                    for length in lengths
                ],
            )
        )
    top = max([each.useful_high or each.useful or 0.0 for each in results], default=0.0)
    y = Axis(0, 1.05 if top <= 1 else ceiling(top), "Harvestable share", is_share=True)
    panel = Panel(_categories([span(each) for each in lengths], "Length of an event"), y, series, 250)
    return histogram(
        [panel],
        head=HEAD,
        title="harvestable share of the idle node-hours",
        note="of idle node-hours",
        width=NARROW,
    )


def waits(results: Sequence[Harvestable]) -> str | None:
    """The relative change of other users' mean waits by size of their jobs; None where no waits were compared.

    For the shortest events: the length hardly matters to other users.
    """
    shortest = min((each.event_s for each in results), default=0.0)
    shown = [each for each in results if each.event_s == shortest and each.by_size]
    if not shown:
        return None
    sizes = [(each.nodes_min, each.nodes) for each in shown[0].by_size]
    names = ["all", *(f"{high:,}" if low == high else f"≤ {high:,}" for low, high in sizes)]
    series, ends = [], [0.01]
    for k, each in enumerate(shown):
        changes = [each.wait_change] + [
            RelativeChange(mean=size.wait_change, low=size.low, high=size.high) for size in each.by_size
        ]
        errors = [_half(change.low, change.high) for change in changes]
        ends += [abs(change.mean or 0.0) + error for change, error in zip(changes, errors, strict=True)]
        values = [change.mean for change in changes]
        series.append(Points(each.policy, k, _apart(len(names), k, len(shown)), values, errors))
    if all(value is None for each in series for value in each.ys):
        return None
    most = ceiling(max(ends))
    y = Axis(-most, most, "Change of the mean wait", is_share=True)
    panel = Panel(_categories(names, "Nodes of a job"), y, series, 250, level=0.0)
    note = f"events of {span(shortest)}"
    return histogram(
        [panel], head=HEAD, title="change of other users' waits by size of jobs", note=note, width=NARROW
    )


def holes(idle: Idle) -> str:
    """Idle node-hours by the length of the hole that they lie in."""
    values = [each.node_h for each in idle.holes]
    scale, power = scale_of(max(values, default=0.0))
    marks = [(float(k), f"{each.from_s // 60:,}") for k, each in enumerate(idle.holes)]
    marks.append((float(len(marks)), "∞"))
    x = Axis(0, len(values), "Length of a hole / min", marks=marks)
    y = Axis(
        0, ceiling(max(values, default=0.0) / scale), "Idle node-hours" + (f" / {power}" if power else "")
    )
    step = Steps("", 5, range(len(values) + 1), [each / scale for each in values], kind="fill")
    note = f"{count_text(idle.idle_node_h)} idle node-hours"
    return histogram(
        [Panel(x, y, [step], 250)],
        head=HEAD,
        title="idle node-hours by length of the hole",
        note=note,
        width=NARROW,
    )


def hours(data: Opportunity) -> str:
    """Mean idle nodes by the hour of the day; on working days and on weekends where the log knows the day."""
    idle = data.idle
    series: list[Steps] = []
    for name, colour, days, kind in WEEK if data.hours_are != NO_CLOCK else WEEK[:1]:
        values = idle.by_hour if len(days) == 7 else _mean_of_days(idle.by_weekday, days)
        series += _known(name, colour, values, kind=kind, edge=lambda k: k)
    if len(series) == 1:
        series = [series[0]._replace(name="")]
    x = Axis(0, 24, "Hour of the day", marks=[(float(k), str(k)) for k in range(0, 25, 3)])
    return histogram(
        [Panel(x, _idle_axis(series), series, 250)],
        head=HEAD,
        title="mean idle nodes by hour of the day",
        note=f"of {data.machine.nodes:,} nodes",
        width=NARROW,
    )


def course(data: Opportunity) -> str:
    """Mean idle nodes over the whole time."""
    idle = data.idle
    days = (idle.end_s - idle.start_s) / DAY_S
    series = _known("", 5, list(idle.course), kind="fill", edge=lambda k: days * k / STEPS)
    x = Axis(0, max(days, 1e-3), "Time / d")
    return histogram(
        [Panel(x, _idle_axis(series), series, 220)],
        head=HEAD,
        title="mean idle nodes over time",
        note=f"of {data.machine.nodes:,} nodes",
    )


def _idle_axis(series: Sequence[Steps]) -> Axis:
    return Axis(0, ceiling(max((max(each.values) for each in series), default=0.0)), "Mean idle nodes")


def _known(
    name: str, colour: int, values: Sequence[float | None], *, kind: str, edge: Callable[[int], float]
) -> list[Steps]:
    """Steps over the bins that have a value; those without leave a gap."""
    found: list[Steps] = []
    begin = 0
    for k in range(len(values) + 1):
        if k < len(values) and values[k] is not None:
            continue
        if k > begin:
            run = [float(each or 0.0) for each in values[begin:k]]
            found.append(Steps(name, colour, [edge(j) for j in range(begin, k + 1)], run, kind=kind))
        begin = k + 1
    return found


def _mean_of_days(by_weekday: Sequence[float | None], days: range) -> list[float | None]:
    """The mean of each hour over these days (0 = Monday); None where none is known."""
    found: list[float | None] = []
    for hour in range(24):
        known = [value for day in days if (value := by_weekday[24 * day + hour]) is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def _categories(names: Sequence[str], label: str) -> Axis:
    return Axis(0, len(names), label, marks=[(k + 0.5, name) for k, name in enumerate(names)])


def _apart(categories: int, k: int, number: int) -> list[float]:
    """Where the k-th of several series has its points, so that none covers another."""
    return [at + 0.5 + (k - (number - 1) / 2) * APART for at in range(categories)]


def _half(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else (high - low) / 2


def nodes_text(low: int, high: int) -> str:
    """A class of sizes of jobs."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def span(seconds: float) -> str:
    """A length in its largest whole unit."""
    for size, unit in ((DAY_S, "d"), (3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:g} s"
