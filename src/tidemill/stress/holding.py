"""What a run does next while a level is held: go on, take the window, or stop with a reason. Pure.

The server hears of a payload when it has ended. So the number running is known up to the longest payload ago, and all
that is decided here looks at that time: the horizon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.stress import level, window
from tidemill.stress.payloads import Payload
from tidemill.stress.plan import Plan, StressStep
from tidemill.stress.statistics import median

LONGEST_FACTOR = 1.25
"""The horizon lies so many times the longest payload back: some that still run are longer than all that ended."""

SHIFTS = 50  #: in a window's length: places at which it may begin

GAP_MAX_S = 0.5
"""What may pass between the end of a payload and the start of the next in the same slot, when all is well."""

ALWAYS_MIN = 5  #: payloads after which one that always fails is not given more


class Seen(NamedTuple):
    """What is known of a level. `delay_s`: how late the server hears of ends; `nodes`, `nodes_top`: the site's, now and
    the most during this level; `exhausted`: every submitted event has ended; `guards`: guards that are over."""

    payloads: Sequence[Payload]
    submitted_s: float
    now_s: float
    delay_s: float = 2.0
    nodes: int = 0
    nodes_top: int = 0
    exhausted: bool = False
    guards: Sequence[str] = ()


class SteadyWindow(NamedTuple):
    """The level was held: measure from start to end."""

    start_s: float
    end_s: float


class StopRun(NamedTuple):
    """The run ends. `job`: the payload is to blame; else the site or something outside. `waits`: events may wait for
    something that the server knows."""

    reason: str
    job: bool = False
    unreached: bool = False
    waits: bool = False


def horizon_s(plan: Plan, seen: Seen) -> float:
    """Until when the number running is known."""
    longest = max((each.wall_s for each in seen.payloads), default=2 * plan.payload.event_s)
    return seen.now_s - seen.delay_s - LONGEST_FACTOR * longest


def decide(plan: Plan, step: StressStep, seen: Seen) -> SteadyWindow | StopRun | None:
    """The next act; None = go on."""
    trouble = _trouble(plan, seen)
    if trouble is not None:
        return trouble
    horizon = horizon_s(plan, seen)
    settle = median([each.wall_s for each in seen.payloads])
    known = [each for each in seen.payloads if each.start_s < horizon]
    reached = window.reached_s(known, step.level, tolerance=plan.tolerance, for_s=settle) if settle else None
    if reached is not None and reached + settle <= horizon:
        held = _held(plan, step, seen, (reached + settle, horizon))
        if held is not None:
            return held
    elif horizon - seen.submitted_s > plan.ramp_up_s:
        return StopRun(_unreached(plan, step, seen, horizon), unreached=True, waits=True)
    if seen.exhausted:
        reason = (
            f"all events of level {step.level} ended before it was held for {plan.hold_s:g} s: "
            f"an event takes less than `event_s` = {plan.payload.event_s:g} s; measured: "
            f"{settle:.3g} s per payload"
        )
        return StopRun(reason, job=True)
    return None


def _held(
    plan: Plan, step: StressStep, seen: Seen, known: tuple[float, float]
) -> SteadyWindow | StopRun | None:
    """The first window with the level's mean. It may begin as late as a level may be reached; None = not known yet."""
    sums, last = level.Integral(level.running(seen.payloads)), known[1] - plan.hold_s
    latest = max(known[0], seen.submitted_s + plan.ramp_up_s)
    start, nearest = known[0], 0.0
    while start <= min(last, latest):
        mean = sums.mean(start, start + plan.hold_s)
        if abs(mean / step.level - 1) <= plan.tolerance:
            return SteadyWindow(start, start + plan.hold_s)
        nearest = min(nearest, mean, key=lambda each: abs(each - step.level))
        start += max(plan.hold_s / SHIFTS, 1e-3)
    return StopRun(_unheld(plan, step, nearest, seen), unreached=True) if last > latest else None


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
    return (
        f"level {step.level} was not reached within {plan.ramp_up_s:g} s: at most {top:.1f} payloads ran together; "
        f"the site had {seen.nodes} nodes{_gap(step, top, seen)}"
    )


def _trouble(plan: Plan, seen: Seen) -> StopRun | None:
    if seen.guards:
        return StopRun(f"a guard of the test says stop: {'; '.join(seen.guards)}")
    if seen.nodes_top and seen.nodes <= (1 - plan.stop.nodes_lost_share) * seen.nodes_top:
        return StopRun(f"the site has {seen.nodes} of {seen.nodes_top} nodes left")
    failed = [each for each in seen.payloads if each.failure]
    total = len(seen.payloads)
    if not failed:
        return None
    kinds = ", ".join(
        f"{kind} {count}" for kind, count in Counter(each.failure for each in failed).most_common(3)
    )
    if len(failed) == total and total >= ALWAYS_MIN:
        return StopRun(f"the payload always fails: {total} of {total} ended with {kinds}", job=True)
    if total >= plan.stop.failed_min and len(failed) > plan.stop.failed_share * total:
        return StopRun(
            f"{len(failed)} of {total} payloads failed ({kinds}), more than the share of "
            f"{plan.stop.failed_share:g} that the test allows",
            job=True,
        )  # fmt: skip
    return None
