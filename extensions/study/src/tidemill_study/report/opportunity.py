"""What a machine's past would have offered a guest, in node-hours and money, and what that would have cost others.

Shares come from `harvest.simulation`, the same runs that `tidemill simulate` makes; nothing is estimated besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tidemill import clock
from tidemill.batch.log_times import LogClock
from tidemill.harvest.account.promise import Promise, WaitBound
from tidemill.harvest.account.waits import RelativeChange
from tidemill.model.quantities import counted_text
from tidemill_study.accounting.history import History, Machine
from tidemill_study.accounting.idle import HOUR_S, Idle, busy_of_tide, idle_of
from tidemill_study.simulation.experiment import (
    ClassResult,
    Result,
    Study,
    results_of,
    run_all,
    tide_of,
    too_little,
)

MONTH_H = 365.25 * 24 / 12
"""Hours of a mean month."""
NO_CLOCK = "hours since the log's first submission: it does not say at which time of day that was"


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a core-hour is worth, and how many cores a node has; None = not stated."""

    per_core_h: float
    currency: str
    cores_per_node: int | None


class Harvestable(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy reaches with events of one length. `useful`: finished events' share of the idle node-hours."""

    policy: str
    event_s: float
    useful: float | None
    useful_low: float | None
    useful_high: float | None
    occupied: float | None
    node_h_month: float
    core_h_month: float | None
    money_month: float | None
    wait_change: RelativeChange
    wait_s: float
    wait_without_s: float
    by_size: list[ClassResult]
    starts_per_h: float
    cancels_per_h: float
    pairs: int
    by_length: list[ClassResult]
    mean_bound: WaitBound
    promise: Promise


class Opportunity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `report opportunity` shows. `idle` is the log's own, or a simulation's if `idle_from` says so.

    `idle_share`: of the simulated machine without guests, to which all shares refer.
    """

    log: str
    kind: str
    made_us: int
    jobs: int
    jobs_simulated: int
    days_simulated: float
    machine: Machine
    price: Price
    idle: Idle
    idle_from: str
    hours_are: str
    idle_share: float | None
    idle_node_h_month: float
    found: list[Harvestable]
    remarks: list[str]
    parameters: dict[str, float | int | str | None]


def opportunity(
    history: History, machine: Machine, studies: Sequence[Study], *, price: Price, hours: LogClock
) -> Opportunity:
    """Simulate and count. `studies`: one for each length of events, of the same trace. Raises nothing of its own."""
    results = {study.world.event_s: results_of(study, run_all(study)) for study in studies}
    first = studies[0]
    service = _service_share(first)
    found = [
        _harvestable(policy, event_s, result, machine.nodes * MONTH_H * service, price)
        for event_s, by_policy in results.items()
        for policy, result in by_policy.items()
    ]
    share = next(iter(results[first.world.event_s].values())).idle_share
    idle, source = _idle(history, machine, first, hours)
    return Opportunity(
        log=history.name,
        kind=history.kind,
        made_us=clock.now_us(),
        jobs=len(history),
        jobs_simulated=len(first.jobs),
        days_simulated=first.world.horizon_s / 86400,
        machine=machine,
        price=price,
        idle=idle,
        idle_from=source,
        hours_are=_hours_are(history, hours),
        idle_share=share,
        idle_node_h_month=(share or 0.0) * machine.nodes * MONTH_H * service,
        found=found,
        remarks=_remarks(history, machine, price, first),
        parameters=_parameters(first, results),
    )


def _service_share(study: Study) -> float:
    """Share of the time in which the machine was in service."""
    horizon_s = study.world.horizon_s
    out_s = sum(max(0.0, min(end, horizon_s) - start) for start, end in study.world.outages)
    return 1 - out_s / horizon_s if horizon_s > 0 else 1.0


def _harvestable(policy: str, event_s: float, result: Result, node_h: float, price: Price) -> Harvestable:
    """`node_h`: of the whole machine in a month."""
    harvested = (result.useful or 0.0) * (result.idle_share or 0.0) * node_h
    cores = price.cores_per_node
    return Harvestable(
        policy=policy,
        event_s=event_s,
        useful=result.useful,
        useful_low=result.useful_low,
        useful_high=result.useful_high,
        occupied=result.occupied,
        node_h_month=harvested,
        core_h_month=None if cores is None else harvested * cores,
        money_month=None if cores is None else harvested * cores * price.per_core_h,
        wait_change=result.wait_change,
        wait_s=result.wait_s,
        wait_without_s=result.wait_without_s,
        by_size=result.by_size,
        starts_per_h=result.starts_per_h,
        cancels_per_h=result.cancels_per_h,
        pairs=result.pairs,
        by_length=result.by_length,
        mean_bound=result.mean_bound,
        promise=result.promise,
    )


def _idle(history: History, machine: Machine, study: Study, hours: LogClock) -> tuple[Idle, str]:
    """The log's own idle time where its starts can be trusted, else that of a simulated machine without guests."""
    if machine.is_trusted:
        return (
            idle_of(
                history.timeline, nodes=machine.nodes, span=history.span, outages=machine.outages, clock=hours
            ),
            "the log's own starts and ends",
        )
    tally = tide_of(study, None)
    busy = busy_of_tide(tally.tide)
    span = (0, int(study.world.horizon_s))
    shifted = LogClock(hours.zone, origin_s=hours.origin_s + history.recent(1 << 40)[0].submit_s)
    return (
        idle_of(busy, nodes=machine.nodes, span=span, outages=study.world.outages, clock=shifted),
        "a simulation of the log's jobs without guests",
    )


def _hours_are(history: History, hours: LogClock) -> str:
    if history.kind == "swf" and not hours.origin_s:
        return NO_CLOCK
    if hours.zone is not None:
        return f"hours of {hours.zone}"
    return "hours as the log writes them" if history.kind == "sacct" else "hours of UTC"


def _remarks(history: History, machine: Machine, price: Price, study: Study) -> list[str]:
    result = list(history.remarks.sentences())
    if machine.note:
        result.append(machine.note)
    if machine.outages:
        out_h = sum(end - start for start, end in machine.outages) / HOUR_S
        result.append(
            f"left out: {counted_text(len(machine.outages), 'outage')} of the whole machine, {out_h:,.0f} h in all"
        )
    if len(study.jobs) < len(history):
        result.append(
            f"{len(study.jobs):,} of {len(history):,} jobs are simulated, the latest: shares, waits and money refer to "
            f"their {study.world.horizon_s / 86400:,.1f} days"
        )
    result += too_little(study)
    if price.cores_per_node is not None and (parts := history.part_nodes(price.cores_per_node)):
        result.append(
            f"{parts:,} jobs had only a part of their nodes' cores; they count as whole nodes: more may be idle than "
            "this report says"
        )
    return result


def _parameters(study: Study, results: Mapping[float, object]) -> dict[str, float | int | str | None]:
    world = study.world
    return {
        "event_s": ",".join(f"{each:g}" for each in results),
        "startup_s": world.startup_s,
        "poll_s": world.poll_s,
        "cycle_s": world.cycle_s,
        "death_s": world.death_s,
        "cycle_known": "yes" if world.is_aligned else "no",
        "order_known": "yes" if world.is_order_known else "no",
        "walltime_max_s": world.walltime_max_s,
        "width_min": world.width_min,
        "jitter_s": study.jitter_s,
        "seeds": study.seeds,
        "replicas": study.replicas,
    }


def cores_per_node(history: History) -> int | None:
    """Cores of a node by the log: the most common cores per node of its jobs; None where it does not show them."""
    counts: dict[int, int] = {}
    for cores, width in zip(history.cores, history.width, strict=True):
        if cores > 0 and cores % width == 0:
            counts[cores // width] = counts.get(cores // width, 0) + width
    return max(counts, key=lambda each: (counts[each], each)) if counts else None
