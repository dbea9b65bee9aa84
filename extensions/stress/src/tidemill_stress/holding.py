"""What a run does next while a level is held: go on, take the window, or stop with a reason. Pure.

The server learns of a payload when it has ended. So the number running is known up to the longest payload ago, and all
decisions here concern that time: the horizon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemill.model.quantities import counted_text
from tidemill_stress import level, window
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import Plan, StressStep
from tidemill_stress.statistics import median

LONGEST_FACTOR = 1.25
"""The horizon lies this many times the longest payload back: some that still run are longer than all that ended."""

SHIFTS = 50  #: in a window's length: places at which it may begin

GAP_MAX_S = 0.5
"""What may pass between the end of a payload and the start of the next in the same slot, when all is well."""

ALWAYS_MIN = 5  #: payloads after which one that always fails is not given more


class Seen(NamedTuple):
    """What is known of a level. `delay_s`: how late the server hears of ends; `nodes`, `nodes_top`: the site's, now and
    the most during this level; `exhausted`: every submitted event has ended; `guards`: guards that are over; `sums`:
    what the site's own figures say against it."""

    payloads: Sequence[Payload]
    submitted_s: float
    now_s: float
    delay_s: float = 2.0
    nodes: int = 0
    nodes_top: int = 0
    exhausted: bool = False
    guards: Sequence[str] = ()
    sums: Sequence[str] = ()


class SteadyWindow(NamedTuple):
    """The level was held: measure from start to end."""

    start_s: float
    end_s: float


class StopRun(NamedTuple):
    """The run ends. `job`: because of the payload; else because of the site or something outside. `waits`: events may
    wait for something that the server knows. `everywhere`: no other site gets more either."""

    reason: str
    job: bool = False
    unreached: bool = False
    waits: bool = False
    everywhere: bool = False


def horizon_s(plan: Plan, seen: Seen) -> float:
    """Until when the number running is known."""
    longest = max((each.wall_s for each in seen.payloads), default=2 * plan.payload.event_s)
    return seen.now_s - seen.delay_s - LONGEST_FACTOR * longest


def decide(plan: Plan, step: StressStep, seen: Seen) -> SteadyWindow | StopRun | None:
    """The next act for a level; None = go on."""
    return decide_together(plan, [(step, seen)])[0]


def decide_together(
    plan: Plan, levels: Sequence[tuple[StressStep, Seen]]
) -> list[SteadyWindow | StopRun | None]:
    """The next act for each of the levels that run at the same time, one at each site; None = go on.

    Their window is the same: it begins when all sites have reached their levels.
    """
    ends: list[SteadyWindow | StopRun | None] = [_trouble(plan, seen) for _, seen in levels]
    known: dict[int, tuple[float, float]] = {}
    for k, (step, seen) in enumerate(levels):
        if ends[k] is None:
            since = _known(plan, step, seen)
            if isinstance(since, StopRun):
                ends[k] = since
            elif since is not None:
                known[k] = since
    going = [k for k, end in enumerate(ends) if end is None]
    if going and len(known) == len(going):
        for k, held in _held(plan, {k: (*levels[k], known[k]) for k in known}).items():
            ends[k] = held
    for k in going:
        if ends[k] is None and levels[k][1].exhausted:
            ends[k] = _exhausted(plan, *levels[k])
    return ends


def _known(plan: Plan, step: StressStep, seen: Seen) -> tuple[float, float] | StopRun | None:
    """From when until when a level is known to run; None = it has not been reached yet."""
    horizon = horizon_s(plan, seen)
    settle = median([each.wall_s for each in seen.payloads])
    before = [each for each in seen.payloads if each.start_s < horizon]
    reached = window.reached_s(before, step.level, tolerance=plan.tolerance, for_s=settle) if settle else None
    if reached is not None and reached + settle <= horizon:
        return reached + settle, horizon
    if horizon - seen.submitted_s > plan.ramp_up_s:
        return StopRun(_unreached(plan, step, seen, horizon), unreached=True, waits=True)
    return None


def _exhausted(plan: Plan, step: StressStep, seen: Seen) -> StopRun:
    usual_s = median([each.wall_s for each in seen.payloads])
    return StopRun(
        f"all events of level {step.level} ended before it was held for {plan.hold_s:g} s: "
        f"an event takes less than `event_s` = {plan.payload.event_s:g} s; measured: {usual_s:.3g} s per payload",
        job=True,
    )


def _held(
    plan: Plan, levels: Mapping[int, tuple[StressStep, Seen, tuple[float, float]]]
) -> Mapping[int, SteadyWindow | StopRun]:
    """The first window with the means of all levels. It may begin as late as a level may be reached; empty = not known
    yet. Where there is none, those end that missed it most often."""
    sums = {k: level.Integral(level.running(seen.payloads)) for k, (_, seen, _) in levels.items()}
    start = max(known[0] for _, _, known in levels.values())
    last = min(known[1] for _, _, known in levels.values()) - plan.hold_s
    latest = max([start, *(seen.submitted_s + plan.ramp_up_s for _, seen, _ in levels.values())])
    best: dict[int, tuple[float, float]] = {}  # distance from the level, mean
    missed = dict.fromkeys(levels, 0)
    while start <= min(last, latest):
        off = 0
        for k, (step, _, _) in levels.items():
            mean = sums[k].mean(start, start + plan.hold_s)
            away = abs(mean / step.level - 1)
            best[k] = min(best.get(k, (away, mean)), (away, mean))
            missed[k] += away > plan.tolerance
            off += away > plan.tolerance
        if not off:
            return dict.fromkeys(levels, SteadyWindow(start, start + plan.hold_s))
        start += max(plan.hold_s / SHIFTS, 1e-3)
    if last <= latest:
        return {}
    most = max(missed.values())
    return {
        k: StopRun(_unheld(plan, step, best[k][1], seen), unreached=True)
        for k, (step, seen, _) in levels.items()
        if missed[k] == most
    }


def _unheld(plan: Plan, step: StressStep, mean: float, seen: Seen) -> str:
    return (
        f"level {step.level} was reached, and not held: at best {mean:.2f} payloads ran on average during "
        f"{plan.hold_s:g} s, "
        f"more than {100 * plan.tolerance:g} % away (`tolerance`){_gap(step, mean, seen)}"
    )


def _gap(step: StressStep, mean: float, seen: Seen) -> str:
    """Where moments between short payloads explain a mean below the level: a part of a sentence that says so."""
    usual_s = median([each.wall_s for each in seen.payloads])
    gap_s = usual_s * (step.level / max(mean, 1e-9) - 1)
    if not 0 < gap_s <= min(GAP_MAX_S, 0.3 * usual_s):
        return ""
    return (
        f"; {gap_s:.1g} s between two payloads of a slot explain that, as a payload takes only {usual_s:.2g} s: "
        "let each do more"
    )


def _unreached(plan: Plan, step: StressStep, seen: Seen, horizon: float) -> str:
    curve = level.running(seen.payloads)
    top = max(
        (mean for mean in level.interval_means(
            curve, seen.submitted_s, horizon, interval_s=max(plan.payload.event_s, plan.ramp_up_s / 10))),
        default=0.0,
    )  # fmt: skip
    most = f"{round(top, 1):g} payload{'' if round(top, 1) == 1 else 's'}"
    return (
        f"level {step.level} was not reached within {plan.ramp_up_s:g} s: at most {most} ran together; "
        f"the site had {counted_text(seen.nodes, 'node')}{_gap(step, top, seen)}"
    )


def _trouble(plan: Plan, seen: Seen) -> StopRun | None:
    if seen.guards:
        return StopRun(f"a guard of the test says stop: {'; '.join(seen.guards)}")
    if seen.sums:
        return StopRun("; ".join(seen.sums))
    if seen.nodes_top and seen.nodes <= (1 - plan.stop.nodes_lost_share) * seen.nodes_top:
        return StopRun(f"the site has {seen.nodes} of {seen.nodes_top} nodes left")
    failed = [each for each in seen.payloads if each.failure]
    total = len(seen.payloads)
    if not failed:
        return None
    kinds = ", ".join(
        f"{count} of class {kind}" for kind, count in Counter(each.failure for each in failed).most_common(3)
    )
    if len(failed) == total and total >= ALWAYS_MIN:
        return StopRun(f"the payload always fails: {total} of {total} failed ({kinds})", job=True)
    if total >= plan.stop.failed_min and len(failed) > plan.stop.failed_share * total:
        return StopRun(
            f"{len(failed)} of {total} payloads failed ({kinds}), more than the share of "
            f"{plan.stop.failed_share:g} that the test allows",
            job=True,
        )  # fmt: skip
    return None
