"""From a run to its result: the table of the study, knee, nodes, what saturated. Pure; the same run gives the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tidemill_stress import knee, level, nodes, saturation, statistics, window
from tidemill_stress.nodes import NodeQuality
from tidemill_stress.plan import StressStep
from tidemill_stress.run import Run, StepRun
from tidemill_stress.saturation import Saturated
from tidemill_stress.statistics import Estimate, cpu_per_wall, events_per_wall
from tidemill_stress.window import Counted, WindowFilter

MEAN_S = 60.0  #: the level is judged by means over this many seconds


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a level measured. Mean and standard deviation are over payloads, as in the study; the intervals are of the
    ratio of sums over payloads that count."""

    cpu_wall: Estimate
    cpu_wall_mean: float
    cpu_wall_sd: float
    events_wall: Estimate  #: events per second of a payload
    events_wall_mean: float
    events_wall_sd: float
    events_s: Estimate  #: of all that run together
    running: float  #: mean over the window
    setup_mean_s: float
    setup_sd_s: float
    failed: dict[str, int]
    method: str


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """A step's result; without figures if nothing was measured."""

    step: StressStep
    status: str
    reason: str
    filter: WindowFilter | None = None
    figures: Figures | None = None
    level_means: list[float] = []
    together: int = 1  #: number of levels whose intervals hold together
    worst_level_error: float | None = None


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """A run's result. `slots`: recommended slots per node of a scan; 0 = no recommendation."""

    id: str
    steps: list[StepResult]
    knees: dict[str, knee.Knee]  #: by site
    slots: dict[str, tuple[int, str]]
    nodes: list[NodeQuality]
    saturated: list[Saturated]
    worst_level_error: float | None


class _Measured(msgspec.Struct):
    run: StepRun
    counted: Counted
    figures: Figures
    samples: list[float]
    means: list[float]
    together: int


def analyse(run: Run, *, mean_s: float = MEAN_S) -> Analysis:
    """The result of a run. `mean_s`: length of the means by which the level is judged."""
    filtered = {
        each.step.number: window.counted(each.payloads, each.start_s, each.end_s)
        for each in run.steps
        if each.status == "measured"
    }
    quality = nodes.judge([each.payloads for each in filtered.values()])
    slow = nodes.slow_nodes(quality)
    measured = {
        each.step.number: _measure(
            each, filtered[each.step.number], slow, (run.plan.seed, mean_s, len(filtered))
        )
        for each in run.steps
        if each.step.number in filtered and any(one.events for one in filtered[each.step.number].payloads)
    }
    results = [_result(each, measured.get(each.step.number)) for each in run.steps]
    errors = [each.worst_level_error for each in results if each.worst_level_error is not None]
    sites = list(dict.fromkeys(each.step.site for each in run.steps))
    of_site = {site: [one for one in measured.values() if one.run.step.site == site] for site in sites}
    return Analysis(
        id=run.id, steps=results, nodes=quality, saturated=saturation.find(run.steps),
        knees={site: _knee(found) for site, found in of_site.items()} if run.mode == "run" else {},
        slots={site: _slots(run, found) for site, found in of_site.items()} if run.mode == "scan" else {},
        worst_level_error=max(errors, default=None),
    )  # fmt: skip


def _measure(each: StepRun, counted: Counted, slow: set[str], how: tuple[int, float, int]) -> _Measured:
    seed, mean_s, together = how
    curve = level.running(each.payloads)
    mean = level.mean_running(curve, each.start_s, each.end_s)
    draws = statistics.draw(counted, seed=seed * 1_000 + each.step.number, slow=slow)
    rate = draws.estimate(events_per_wall, mean)
    samples = [
        rate.value + draws.widening * (mean * events_per_wall(one) - rate.value) for one in draws.samples
    ]
    done = [one for one in counted.payloads if one.events]
    cpu = statistics.mean_sd([one.cpu_s / one.wall_s for one in done])
    events = statistics.mean_sd([one.events / one.wall_s for one in done])
    setup = statistics.mean_sd([one.setup_s for one in done])
    figures = Figures(
        cpu_wall=draws.estimate(cpu_per_wall, together=together), cpu_wall_mean=cpu[0], cpu_wall_sd=cpu[1],
        events_wall=draws.estimate(events_per_wall, together=together), events_wall_mean=events[0],
        events_wall_sd=events[1], events_s=draws.estimate(events_per_wall, mean, together=together), running=mean,
        setup_mean_s=setup[0], setup_sd_s=setup[1],
        failed=dict(sorted(Counter(one.failure for one in counted.payloads if one.failure).items())),
        method=draws.method,
    )  # fmt: skip
    means = level.interval_means(curve, each.start_s, each.end_s, interval_s=mean_s)
    return _Measured(each, counted, figures, samples, means, together)


def _result(each: StepRun, found: _Measured | None) -> StepResult:
    if found is None:
        reason = each.reason
        if each.status == "measured":
            reason = "no payload that did events started and ended inside the window"
        return StepResult(step=each.step, status=each.status, reason=reason)
    return StepResult(
        step=each.step, status=each.status, reason=each.reason, filter=found.counted.filter, figures=found.figures,
        level_means=found.means, together=found.together,
        worst_level_error=level.level_error(found.means, each.step.level),
    )  # fmt: skip


def _knee(measured: Sequence[_Measured]) -> knee.Knee:
    ordered = sorted(measured, key=lambda each: each.run.step.level)
    return knee.find(
        [each.run.step.level for each in ordered],
        [each.figures.events_s for each in ordered],
        [each.samples for each in ordered],
    )


def _slots(run: Run, measured: Sequence[_Measured]) -> tuple[int, str]:
    """The best number of slots of the first placement whose best is as good as the best of all."""
    passes: dict[str, dict[int, list[Estimate]]] = {}  # by placement and slots
    for each in sorted(measured, key=lambda one: one.run.step.number):
        of = passes.setdefault(each.run.step.placement, {})
        of.setdefault(each.run.step.slots, []).append(each.figures.events_s)
    if run.plan.scan is None or not passes:
        return knee.best_slots([], [])
    gain_percent = run.plan.scan.gain_percent
    rates = {name: {slots: knee.spanning(all_) for slots, all_ in of.items()} for name, of in passes.items()}
    tops = {name: max(of.values(), key=lambda rate: rate.value) for name, of in rates.items()}
    best = max(tops.values(), key=lambda rate: rate.value)
    chosen = next(name for name, top in tops.items() if knee.is_as_good(top, best, gain_percent))
    slots, why = knee.best_slots(list(rates[chosen]), list(rates[chosen].values()), gain_percent=gain_percent)
    return slots, f"placement by {chosen}: {why}" if len(rates) > 1 else why
