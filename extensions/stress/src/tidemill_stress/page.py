"""A result as one HTML page: what to do, the study's table, curves, nodes, what saturated, what was left out. Pure."""

from __future__ import annotations

import math
from collections import Counter
from html import escape

from tidemill.charts.axes import Axis, ceiling, nice_step
from tidemill.charts.bars import Bar, bars
from tidemill.charts.histogram import Panel, Steps, histogram
from tidemill.charts.page import code, document, figure, section, table
from tidemill.charts.points import Point, points
from tidemill.charts.time import area
from tidemill_stress.analysis import Analysis, Figures, StepResult
from tidemill_stress.knee import Knee
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import StressStep
from tidemill_stress.run import Run
from tidemill_stress.statistics import Estimate, mean_sd
from tidemill_stress.window import counted

NODES_SHOWN = 60
LEVELS_DRAWN = 8  #: of a histogram: as many as there are colours
BINS = 50  #: of a histogram, at most about
PAYLOADS_MIN = 10  #: for a histogram
SERIES_SHOWN = 40
RELOAD_S = 30  #: while the run goes on
HEADS = [
    "id",
    "level",
    "running",
    "CPU/wall",
    "sd",
    "Events/wall (1/s)",
    "sd",
    "events/s, all",
    "failed",
    "worst minute",
]


def page(run: Run, analysis: Analysis) -> str:
    """The HTML page of a stress test."""
    body = [
        _advice(run, analysis),
        section(
            "Levels",
            table(HEADS, [row(each) for each in analysis.steps], right=range(2, len(HEADS)), whole=(0, 1)),
        ),
        _curves(run, analysis),
        _distributions(run),
        _sites(analysis),
        _nodes(analysis),
        _saturated(run, analysis),
        _held(run, analysis),
        _series(run),
        _filter(analysis),
        _remarks(run),
    ]
    made_us = run.ended_us or round(1e6 * max((each.end_s for each in run.steps), default=0.0))
    whole = document(
        f"Stress test {run.plan.name}", f"run {run.id}, {_state(run)}", "\n".join(body),
        made_us=made_us, reload_s=0 if run.ended_us else RELOAD_S,
    )  # fmt: skip
    return whole.replace("<main>", '<main class="broad">', 1)


def _state(run: Run) -> str:
    if run.stopped:
        return "stopped before its end"
    count = f"{len(run.steps)} {'level' if len(run.steps) == 1 else 'levels'}"
    return count if run.ended_us else f"{count} so far; the run goes on"


def row(each: StepResult) -> list[str]:
    """A step as a row of the study's table (HEADS)."""
    of = each.figures
    if of is None:
        return [str(each.step.number), each.step.title, each.status, *["-"] * (len(HEADS) - 3)]
    worst = "-" if each.worst_level_error is None else f"{100 * each.worst_level_error:.1f} %"
    total = each.filter.counted if each.filter else 0
    return [
        str(each.step.number), each.step.title, f"{of.running:.2f}", f"{100 * of.cpu_wall_mean:.1f} %",
        f"{100 * of.cpu_wall_sd:.1f} %", f"{of.events_wall_mean:.4g}", f"{of.events_wall_sd:.2g}", within(of.events_s),
        f"{sum(of.failed.values())} of {total}", worst,
    ]  # fmt: skip


def within(estimate: Estimate) -> str:
    """An estimate with its interval."""
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def advice(analysis: Analysis) -> list[str]:
    """What to do, in sentences."""
    lines = []
    for site, knee in analysis.knees.items():
        at = f"at {site}: " if site else ""
        does = (
            f"run at most {knee.recommended} payloads at a time" if knee.recommended else "no recommendation"
        )
        lines.append(f"{at}{does}: {knee.reason}")
    for site, (slots, why) in analysis.slots.items():
        at = f"at {site}: " if site else ""
        lines.append(f"{at}use {slots} slots per node: {why}")
    lines += [f"node {each.node} is {each.verdict}: {each.reason}" for each in analysis.nodes if each.reason and
              each.verdict in ("slow", "failing")]  # fmt: skip
    if analysis.saturated:
        first = analysis.saturated[0]
        lines.append(f"{first.title} ({first.source}) saturated first: {first.evidence}")
    return lines


def _advice(run: Run, analysis: Analysis) -> str:
    lines = [f"the run stopped: {run.stopped}"] if run.stopped else []
    lines += advice(analysis)
    return section("Result", "".join(f"<p>{code(each[:1].upper() + each[1:])}.</p>" for each in lines))


def _curves(run: Run, analysis: Analysis) -> str:
    drawn = []
    for site in dict.fromkeys(each.step.site for each in analysis.steps):
        rows = [
            (each.step, each.figures) for each in analysis.steps if each.figures and each.step.site == site
        ]
        for placement in dict.fromkeys(step.placement for step, _ in rows):
            here = [(step.slots or step.level, of) for step, of in rows if step.placement == placement]
            where = ", ".join(each for each in (site, placement) if each)
            against = "slots per node" if run.mode == "scan" else "level"
            knee = analysis.knees.get(site)
            drawn += _two(here, f"{where + ': ' if where else ''}", against, knee)
    heading = "Curves, with 95 % intervals" + (", each pass a point" if run.mode == "scan" else "")
    return section(heading, "".join(drawn)) if drawn else ""


def _two(here: list[tuple[int, Figures]], where: str, against: str, knee: Knee | None) -> list[str]:
    band = (knee.at.low, knee.at.high) if knee and knee.at else None
    line = []
    if knee and knee.at:
        top, at = max(x for x, _ in here), knee.at.value
        line = [(0.0, 0.0), (at, knee.before * at), (float(top), knee.before * at + knee.after * (top - at))]
    rate = [Point(x, of.events_s.value, of.events_s.low, of.events_s.high) for x, of in here]
    cpu = [Point(x, of.cpu_wall.value, of.cpu_wall.low, of.cpu_wall.high) for x, of in here]
    drawn = points(rate, labels=(against, "events/s"), text="{:.4g}".format, band=band, line=line)
    shade = "; shaded: the knee's interval" if band else ""
    return [
        figure(f"{where}events/s of all payloads against {against}{shade}", drawn),
        figure(
            f"{where}CPU/wall against {against}",
            points(cpu, labels=(against, "CPU/wall"), text=lambda y: f"{100 * y:.0f} %"),
        ),
    ]


def _distributions(run: Run) -> str:
    """CPU/wall and events/wall of the payloads that count, as histograms: a step line for each level, or for each
    number of slots with all its passes."""
    drawn = []
    for site in dict.fromkeys(each.step.site for each in run.steps):
        rows = [each for each in run.steps if each.step.site == site and each.status == "measured"]
        levels: dict[StressStep, list[Payload]] = {}
        for each in sorted(rows, key=lambda each: each.step.number):
            level = levels.setdefault(each.step._replace(number=0, pass_=1), [])
            found = counted(each.payloads, each.start_s, each.end_s).payloads
            level += [one for one in found if one.events]
        done = {step.title: payloads for step, payloads in list(levels.items())[-LEVELS_DRAWN:]}
        cpu = {name: [100 * one.cpu_s / one.wall_s for one in found] for name, found in done.items()}
        events = {name: [one.events / one.wall_s for one in found] for name, found in done.items()}
        for what, values in (("CPU/wall of a payload / %", cpu), ("Events/wall of a payload / s⁻¹", events)):
            if sum(map(len, values.values())) >= PAYLOADS_MIN:
                where = f"{site}: " if site else ""
                drawn.append(
                    figure(f"{where}{what.partition(' /')[0]}, payloads that count", _steps(what, values))
                )
    return section("Distributions", "".join(drawn)) if drawn else ""


def _steps(label: str, values: dict[str, list[float]]) -> str:
    """Histograms on common bins; values at the upper edge belong to the last bin."""
    every = [value for found in values.values() for value in found]
    span = max(every) - min(every)
    step = nice_step((span if span > 1e-6 * max(every) else max(every) or 1.0) / BINS)
    first = math.floor(min(every) / step)
    bins = max(1, math.ceil(max(every) / step) - first)
    series = []
    for k, (name, found) in enumerate(values.items()):
        counts = Counter(min(bins - 1, math.floor(value / step) - first) for value in found)
        mean, sd = mean_sd(found)
        key = f"{name}: {mean:.3g} ± {sd:.2g}"
        series.append(
            Steps(key, k, [(first + i) * step for i in range(bins + 1)], [counts[i] for i in range(bins)])
        )
    top = ceiling(max(max(each.values) for each in series))
    panel = Panel(Axis(first * step, (first + bins) * step, label), Axis(0, top, "Payloads"), series, 200)
    return histogram([panel], head="Tidemill", title=label, note="mean ± standard deviation")


def _sites(analysis: Analysis) -> str:
    """The sites of one test side by side: what each reached, and its knee or slots."""
    if len({each.step.site for each in analysis.steps}) < 2:
        return ""
    rows = []
    for site in dict.fromkeys(each.step.site for each in analysis.steps):
        here = [
            (each.step, each.figures) for each in analysis.steps if each.step.site == site and each.figures
        ]
        stopped = next((each for each in analysis.steps if each.step.site == site and not each.figures), None)
        why = f"level {stopped.step.level}: {stopped.reason or stopped.status}" if stopped else "-"
        if not here:
            rows.append([site, "-", "-", "-", "-", why])
            continue
        step, top = max(here, key=lambda each: each[1].events_s.value)
        knee, slots = analysis.knees.get(site), analysis.slots.get(site)
        advice = f"{knee.recommended} payloads" if knee and knee.recommended else "-"
        advice = f"{slots[0]} slots per node" if slots else advice
        rows.append([
            site, within(top.events_s), str(step.slots or step.level), f"{100 * top.cpu_wall_mean:.1f} %", advice, why,
        ])  # fmt: skip
    heads = ["site", "most events/s", "at", "CPU/wall there", "recommended", "stopped at"]
    return section("Sites side by side", table(heads, rows, right=(1, 2, 3), whole=(0,)))


def _remarks(run: Run) -> str:
    rows = [[each.step.title, remark] for each in run.steps for remark in each.remarks]
    return section("Remarks", table(["level", "remark"], rows, whole=(0,))) if rows else ""


def _nodes(analysis: Analysis) -> str:
    if not analysis.nodes:
        return ""
    kinds = {"good": "good", "slow": "bad", "failing": "bad", "few": "idle"}
    shown = analysis.nodes[:NODES_SHOWN]
    rows = [
        Bar(each.node, each.factor, f"{each.factor:.2f} {each.verdict}", kinds[each.verdict])
        for each in shown
    ]
    rest = len(analysis.nodes) - len(shown)
    more = f"<p>{rest} more nodes, none slower.</p>" if rest > 0 else ""
    caption = "wall time per event, relative to the other nodes"
    return section("Nodes", figure(caption, bars(rows, title=caption)) + more)


def _saturated(run: Run, analysis: Analysis) -> str:
    if not any(each.series for each in run.steps):
        return section("What saturated", "<p>No time series were recorded, so nothing can be said.</p>")
    rows = [[each.title, each.source, f"{each.level:.4g}", each.evidence] for each in analysis.saturated]
    if not rows:
        return section("What saturated", "<p>No recorded quantity reached its limit or stopped growing.</p>")
    return section(
        "What saturated, the first on top", table(["quantity", "source", "level", "evidence"], rows)
    )


def _held(run: Run, analysis: Analysis) -> str:
    drawn = []
    starts = {each.step.number: each.start_s for each in run.steps}
    for each in analysis.steps:
        if each.level_means:
            start_us = int(starts[each.step.number] * 1e6)
            title = f"{each.step.title}: mean number running, each minute"
            drawn.append(
                figure(
                    title,
                    area(each.level_means, start_us=start_us, bin_s=60, title=title, text="{:.1f}".format),
                )
            )
    return section("How the level was held", "".join(drawn)) if drawn else ""


def _series(run: Run) -> str:
    drawn = []
    for each in run.steps:
        for series in each.series[:SERIES_SHOWN]:
            if len(series.points) < 2:
                continue
            step = (series.points[-1][0] - series.points[0][0]) / (len(series.points) - 1)
            title = f"{each.step.title}: {series.title} ({series.source}) {series.unit}".rstrip()
            values = [value for _, value in series.points]
            start_us = int(series.points[0][0] * 1e6)
            drawn.append(
                figure(title, area(values, start_us=start_us, bin_s=step, title=title, text="{:.4g}".format))
            )
    return section("Servers and nodes", "".join(drawn)) if drawn else ""


def _filter(analysis: Analysis) -> str:
    rows = [
        [each.step.title, str(each.filter.counted),
         "; ".join(f"{why}: {count}" for why, count in each.filter.left_out.items()) or "none",
         f"{each.filter.longest_s:.3g} s", f"{each.filter.weight_max:.2f}", each.figures.method if each.figures else ""]
        for each in analysis.steps if each.filter
    ]  # fmt: skip
    if not rows:
        return ""
    rule = next(each.filter.rule for each in analysis.steps if each.filter)
    heads = ["level", "counted", "left out", "longest counted", "largest weight", "intervals"]
    return section("What counts", f"<p>{escape(rule)}.</p>" + table(heads, rows, right=(1, 3, 4), whole=(0,)))
