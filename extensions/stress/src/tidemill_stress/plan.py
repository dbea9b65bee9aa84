"""A stress test as its file says: what runs, at which levels, when to stop. Pure.

The file is TOML; a site keeps it under version control. Every wrong value is refused with a sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import config
from tidemill.config.keys import Duration
from tidemill.errors import ConfigError
from tidemill.model.job import NAME_PATTERN, JobSpec, Resources
from tidemill.model.legal import STRESS_LEVELS_MAX

LEVELS_MAX = 50
PASSES_MAX = 10
LEVEL_MAX = 100_000
OUTSIDE_MAX = 50
HOLD_PER_EVENT_MIN = 3.0
"""A window shorter than this many events loses most payloads to the filter."""

HARM_S = 300.0
"""A broker that yields costs a regular job about a second: this is the wait of some hundred jobs, or one long wait."""

PLACEMENTS = ("core", "pair", "domain")


class PayloadPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What runs. `event_s`: how long an event takes on an idle node, roughly."""

    event_s: float
    app: str | None = None
    command: list[str] | None = None
    params: dict[str, str | int | float | bool] = {}
    cores: int | None = None
    memory_mb: int | None = None
    env: dict[str, str] = {}


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`stress scan`: slots per node on `nodes` alike nodes of `node_cores` cores in `domains` NUMA domains.

    `passes`: how often all numbers are measured, in turn upwards and downwards, so that a node that grows slower or
    faster meanwhile does so for all. `gain_percent`: more slots, or a later placement, are recommended if they bring so
    much more, beyond chance.
    """

    node_cores: int
    slots: list[int] = msgspec.field(default_factory=lambda: [1, 2, 4, 6, 8])
    nodes: int = 1
    domains: int = 1
    placements: list[str] = msgspec.field(default_factory=lambda: ["core"])
    passes: int = 2
    gain_percent: float = 5.0


class StopPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a run stops at a site by itself. Shares are 0 to 1.

    `io_budget`: when the site reports that an area was over its I/O budget (`[[io]]`) during a level. `harm_s`: when
    regular jobs have waited longer because of Tidemill during a level, in seconds over all jobs.
    """

    failed_share: float = 0.2
    failed_min: int = 20  #: payloads that must have ended before the share counts
    nodes_lost_share: float = 0.5
    io_budget: bool = True
    harm_s: float = HARM_S


class GuardPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Prometheus query whose value stops the run when it is above a limit, such as the load of a file server. With
    `site` it stops the run at that site only."""

    title: str
    url: str
    query: str
    above: float
    site: str | None = None


class OutsidePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Prometheus range query whose series stand in the result. `limit`: where the quantity is full, if known."""

    title: str
    url: str
    query: str
    unit: str = ""
    limit: float | None = None


class GatePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as a regression in gate mode: events/s or CPU/wall this much below the baseline, beyond chance."""

    worse_percent: float = 5.0


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stress test."""

    name: str
    payload: PayloadPlan
    levels: list[int] = []
    hold_s: Duration = 600.0
    ramp_up_s: Duration = 600.0
    ramp_down_s: Duration = 60.0
    tolerance: float = 0.05
    sites: list[str] = []
    together: bool = False  #: all sites run a level at the same time; else one site after the other
    running_max: int | None = None
    seed: int = 1
    scan: ScanPlan | None = None
    stop: StopPlan = StopPlan()
    guard: list[GuardPlan] = []
    prometheus: list[OutsidePlan] = []
    gate: GatePlan = GatePlan()


class StressStep(NamedTuple):
    """One level of a run. `slots`, `placement` and `pass_` (from 1) are set in a scan; `cores` per slot, None = the
    application's."""

    number: int
    site: str
    level: int
    slots: int = 0
    placement: str = ""
    cores: int | None = None
    pass_: int = 0

    @property
    def title(self) -> str:
        """How the step is named in tables."""
        text = f"{self.slots} per node, {self.placement}" if self.slots else str(self.level)
        if self.pass_ > 1:
            text += f", pass {self.pass_}"
        return f"{self.site}: {text}" if self.site else text


def load(path: Path) -> Plan:
    """The stress test of a file. Raises ConfigError."""
    plan = config.load(path, Plan)
    check(plan, str(path))
    return plan


def digest(plan: Plan) -> str:
    """A name for what is measured, the same for the same test: SHA-256 in hex."""
    return hashlib.sha256(msgspec.json.encode(plan, order="deterministic")).hexdigest()


def check(plan: Plan, source: str) -> None:
    """Raises ConfigError that says what is wrong with a test."""
    for wrong in (
        _of_payload(plan),
        _of_sites(plan),
        _of_levels(plan),
        _of_times(plan),
        _of_stops(plan),
        _of_scan(plan),
    ):
        if wrong:
            raise ConfigError(f"{source}: {wrong}")


def _of_payload(plan: Plan) -> str:
    import re

    if not re.fullmatch(NAME_PATTERN, plan.name) or len(plan.name) > 40:
        return f"`name` is `{plan.name}`, legal are letters, digits, `.`, `_`, `+` and `-`, at most 40"
    payload = plan.payload
    if (payload.app is None) == (payload.command is None):
        return "`payload` must have either `app` or `command`"
    if not 0.01 <= payload.event_s <= 86_400:
        return f"`payload.event_s` is {payload.event_s}, legal is 0.01 to 86400 seconds"
    return ""


def _of_sites(plan: Plan) -> str:
    if len(set(plan.sites)) < len(plan.sites):
        return "`sites` names a site twice"
    if plan.together and len(plan.sites) < 2:
        return "`together` runs a level at several sites at the same time: `sites` must name two or more"
    for guard in plan.guard:
        if guard.site is not None and guard.site not in plan.sites:
            return f"guard `{guard.title}` is for site `{guard.site}`, which `sites` does not name"
    planned = len(plan.levels) * max(1, len(plan.sites))
    if planned > STRESS_LEVELS_MAX:
        return f"`levels` and `sites` make {planned} levels, at most {STRESS_LEVELS_MAX}"
    return ""


def _of_levels(plan: Plan) -> str:
    if not plan.levels and plan.scan is None:
        return "`levels` is empty and there is no table `scan`: nothing would run"
    if len(plan.levels) > LEVELS_MAX:
        return f"`levels` has {len(plan.levels)} levels, legal are {LEVELS_MAX}"
    if sorted(set(plan.levels)) != plan.levels:
        return f"`levels` must rise, each level once: {plan.levels}"
    wrong = [each for each in plan.levels if not 1 <= each <= LEVEL_MAX]
    if wrong:
        return f"`levels` holds {wrong[0]}, legal is 1 to {LEVEL_MAX}"
    if plan.running_max is not None and plan.levels and plan.levels[-1] > plan.running_max:
        limit = f"the site's limit of {plan.running_max} running payloads (`running_max`)"
        return f"level {plan.levels[-1]} is above {limit}"
    return ""


def _of_times(plan: Plan) -> str:
    if not 0.005 <= plan.tolerance <= 0.5:
        return f"`tolerance` is {plan.tolerance}, legal is 0.005 to 0.5"
    if plan.hold_s < HOLD_PER_EVENT_MIN * plan.payload.event_s:
        return (
            f"`hold_s` is {plan.hold_s:g} s, shorter than {HOLD_PER_EVENT_MIN:g} events of {plan.payload.event_s:g} s: "
            "hardly any payload would start and end inside the window"
        )
    if plan.ramp_up_s < plan.payload.event_s:
        return f"`ramp_up_s` is {plan.ramp_up_s:g} s, shorter than one event of {plan.payload.event_s:g} s"
    return ""


def _of_stops(plan: Plan) -> str:
    stop = plan.stop
    if not 0 < stop.failed_share <= 1 or stop.failed_min < 1:
        return "`stop.failed_share` must be above 0 and at most 1, `stop.failed_min` at least 1"
    if not 0 < stop.nodes_lost_share <= 1:
        return "`stop.nodes_lost_share` must be above 0 and at most 1"
    if not stop.harm_s >= 0:
        return f"`stop.harm_s` is {stop.harm_s}, legal is 0 or more seconds"
    if len(plan.guard) + len(plan.prometheus) > OUTSIDE_MAX:
        return f"more than {OUTSIDE_MAX} queries to Prometheus"
    for title, url in [(each.title, each.url) for each in plan.guard] + [
        (each.title, each.url) for each in plan.prometheus
    ]:
        if not url.startswith(("http://", "https://")):
            return f"`{url}` of `{title}` is not an http:// or https:// address"
    if not 0 < plan.gate.worse_percent < 100:
        return "`gate.worse_percent` must be above 0 and below 100"
    return ""


def _of_scan(plan: Plan) -> str:
    scan = plan.scan
    if scan is None:
        return ""
    if not 1 <= scan.node_cores <= 4096 or not 1 <= scan.domains <= scan.node_cores or scan.nodes < 1:
        return "`scan` needs 1 to 4096 `node_cores`, at most as many `domains`, and at least one node"
    if sorted(set(scan.slots)) != scan.slots or not scan.slots or scan.slots[0] < 1:
        return f"`scan.slots` must rise from 1, each number once: {scan.slots}"
    if not scan.placements or set(scan.placements) - set(PLACEMENTS):
        return f"`scan.placements` is {scan.placements}, legal are {', '.join(PLACEMENTS)}"
    if not 1 <= scan.passes <= PASSES_MAX:
        return f"`scan.passes` is {scan.passes}, legal is 1 to {PASSES_MAX}"
    if not 0 <= scan.gain_percent < 100:
        return f"`scan.gain_percent` is {scan.gain_percent}, legal is 0 to below 100"
    planned = len(scan_steps(plan))
    if not planned:
        return f"no entry of `scan.slots` fits on {scan.node_cores} cores with these placements"
    if planned > STRESS_LEVELS_MAX:
        return f"`scan` and `sites` make {planned} levels, at most {STRESS_LEVELS_MAX}"
    return ""


def steps(plan: Plan) -> list[StressStep]:
    """The steps of `stress run`: every level at every site."""
    if not plan.levels:
        raise ConfigError("the test has no `levels`", hint="`tidemill stress scan` runs its table `scan`")
    return _at_sites(plan, [StressStep(0, "", level, cores=plan.payload.cores) for level in plan.levels])


def _at_sites(plan: Plan, levels: Sequence[StressStep]) -> list[StressStep]:
    """These levels at each site: one site after the other, or level by level where the sites run together."""
    sites = plan.sites or [""]
    if plan.together:
        rows = [(site, level) for level in levels for site in sites]
    else:
        rows = [(site, level) for site in sites for level in levels]
    return [level._replace(number=number, site=site) for number, (site, level) in enumerate(rows, 1)]


def rounds(plan: Plan, steps: Sequence[StressStep]) -> list[list[StressStep]]:
    """Steps that run at the same time: those of one level at all sites, or each alone."""
    if not plan.together:
        return [[each] for each in steps]
    found: dict[StressStep, list[StressStep]] = {}
    for each in steps:
        found.setdefault(each._replace(number=0, site=""), []).append(each)
    return list(found.values())


def scan_steps(plan: Plan) -> list[StressStep]:
    """The steps of `stress scan`. A slot takes a core, a core pair, or an equal part of a NUMA domain that holds it;
    what does not fit on the node is left out."""
    scan = plan.scan
    if scan is None:
        raise ConfigError("the test has no table `scan`", hint="extensions/stress/docs/stress.md shows one")
    fitting = [
        (placement, slots, cores)
        for placement in scan.placements
        for slots in scan.slots
        if (cores := slot_cores(scan, placement, slots)) and cores * slots <= scan.node_cores
    ]
    levels = [
        StressStep(0, "", slots * scan.nodes, slots, placement, cores, pass_)
        for pass_ in range(1, scan.passes + 1)
        for placement, slots, cores in (fitting if pass_ % 2 else reversed(fitting))
    ]
    return _at_sites(plan, levels)


def slot_cores(scan: ScanPlan, placement: str, slots: int) -> int:
    """Cores that a slot reserves; 0 = it does not fit."""
    if placement == "core":
        return 1
    if placement == "pair":
        return 2
    in_domain = -(-slots // scan.domains)
    return scan.node_cores // scan.domains // in_domain


def spec(plan: Plan, step: StressStep, events: int) -> JobSpec:
    """The job of a step. It is timed, has no outputs, and its failed events are not run again: they are counted."""
    payload = plan.payload
    return JobSpec(
        app=payload.app, command=payload.command, params=payload.params, env=payload.env, events=events, outputs=[],
        name=f"stress-{plan.name}-{step.number}", retries=0, failed_max=events, site=step.site or None, timed=True,
        resources=Resources(cores=step.cores, memory_mb=payload.memory_mb, event_s=payload.event_s),
    )  # fmt: skip
