"""What the site's fleets may do to shared file systems: `[[io]]` of site.toml, divided by demand.

Every lead keeps its fleet's starts within the fleet's part; the parts together are never more than the whole, also
while they change: what is taken from one fleet is given to another only after the first one's lead must have read of
it. Where there is no lead, every allocation keeps to the same small part, that of `nodes_max` allocations at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.log import Log
from tidemill.node.fleet import Fleet, WorkOrder
from tidemill.wire.node import IoArea, Noted, Record

SETTLE_S = 10.0
"""A lead reads work files every 0.5 s; what it has permitted until then counts for it over a window of 10 s."""

CHANGE_MIN = 0.1
"""A part that is off by less is left as it is, unless a fleet has none."""

NEXT_TO_NOTHING = 1e-3

STEP_S = 2.0

OVER_S = 300.0
"""An area is within its budget again when no pilot has reported the contrary for this time. Pilots that see it report
once a minute."""

_log = Log("io")


class GivenPart(msgspec.Struct, frozen=True):
    """A part of the whole that a fleet was given, and when."""

    part: float
    at_s: float


def ceiling(parts: Sequence[GivenPart], now_s: float) -> float:
    """The largest part that a fleet may still be using: the last that it was given, or the one before, a moment ago."""
    at = [each.part for each in parts[-1:]]
    later = [after.at_s for after in parts[1:]]
    at += [each.part for each, until_s in zip(parts, later, strict=False) if now_s < until_s + SETTLE_S]
    return max(at, default=0.0)


def parts(
    demands: Mapping[str, float], told: Mapping[str, Sequence[GivenPart]], now_s: float
) -> dict[str, float]:
    """The parts that fleets are to be given now, so that all ceilings together stay within 1 and parts follow demands.

    Lowering comes at once; what it frees is given on when it is free. Fleets whose part stays are left out."""
    total = sum(demands.values())
    if total <= 0:
        return {}  # no fleet needs any: all parts stay
    before = {fleet: told[fleet][-1].part if told.get(fleet) else 0.0 for fleet in {**told, **demands}}
    aims = {fleet: demands.get(fleet, 0.0) / total for fleet in before}
    is_starving = any(aims[fleet] > 0 and before[fleet] < NEXT_TO_NOTHING for fleet in before)
    slack = 1.0 if is_starving else 1.0 - CHANGE_MIN
    news = {fleet: aim for fleet, aim in aims.items() if aim < before[fleet] * slack - NEXT_TO_NOTHING}
    free = 1.0 - sum(ceiling(each, now_s) for each in told.values())
    hungry = {
        fleet: aim - before[fleet]
        for fleet, aim in aims.items()
        if aim * (1.0 - CHANGE_MIN) > before[fleet] and fleet not in news
    }
    fill = min(1.0, free / sum(hungry.values())) if hungry else 0.0
    for fleet, more in hungry.items():
        if more * fill > NEXT_TO_NOTHING:
            news[fleet] = before[fleet] + more * fill
    return news


class IoShares:
    """What fleets were given, and what their nodes counted."""

    def __init__(self, config: SiteConfig) -> None:
        self._config = config
        self._given: dict[str, list[GivenPart]] = {}
        self._next_s = 0.0
        self.observed: Counter[tuple[str, str]] = Counter()  #: (area, `ops` or `bytes`) -> since our start
        self.over: Counter[tuple[str, str]] = Counter()  #: as `observed`: records that it was over its budget
        self._over_s: dict[tuple[str, str], float] = {}  #: when the last of them came

    @property
    def budgets(self) -> dict[str, tuple[float | None, float | None]]:
        """Operations and bytes per second, per area."""
        return {area.name: (area.ops_per_s, area.bytes_per_s) for area in self._config.io}

    def part(self, fleet: str) -> float:
        """The part that a fleet was given last."""
        told = self._given.get(fleet)
        return told[-1].part if told else 0.0

    def given_sum(self) -> float:
        """All parts together."""
        return sum(self.part(fleet) for fleet in self._given)

    def first(self, fleet: str) -> list[IoArea]:
        """The areas that a new fleet begins with: what no other fleet may use, or nothing until others gave some up."""
        config = self._config
        if not config.io:
            return []
        if not config.harvest.has_lead:
            return self._areas(1.0 / config.nodes_max)
        now_s = clock.monotonic_s()
        part = max(0.0, 1.0 - sum(ceiling(told, now_s) for told in self._given.values()))
        self._given[fleet] = [GivenPart(part, now_s)]
        return self._areas(part)

    def adopt(self, fleet: str) -> None:
        """A fleet of an earlier agent: it may be using everything until it is given a part."""
        if self._config.io and self._config.harvest.has_lead:
            self._given.setdefault(fleet, [GivenPart(1.0, clock.monotonic_s())])

    @property
    def is_due(self) -> bool:
        """Whether `step` would do anything now."""
        is_shared = bool(self._config.io) and self._config.harvest.has_lead
        return is_shared and clock.monotonic_s() >= self._next_s

    def step(
        self, demands: Mapping[str, float], fleets: Mapping[str, Fleet], check: Callable[[], None]
    ) -> None:
        """Give fleets their parts where they change; what cannot be written is tried again."""
        if not self.is_due:
            return
        now_s = clock.monotonic_s()
        self._next_s = now_s + STEP_S
        for gone in [fleet for fleet in self._given if fleet not in fleets]:
            del self._given[gone]
        for fleet, part in sorted(parts(demands, self._given, now_s).items(), key=lambda each: each[1]):
            target = fleets.get(fleet)
            if target is None:
                continue
            check()
            history = self._given.setdefault(fleet, [])
            is_raise = part >= self.part(fleet)
            if is_raise:
                history.append(
                    GivenPart(part, now_s)
                )  # it counts before it is written, a cut only afterwards
            try:
                target.write_work(order=WorkOrder(io=self._areas(part)))
            except SiteError as error:
                if is_raise:
                    history.pop()
                _log.error("io.untold", fleet=fleet, reason=error.message, hint=error.hint)
                continue
            if not is_raise:
                history.append(GivenPart(part, clock.monotonic_s()))
            del history[:-8]
            _log.info("io.share", fleet=fleet, part=round(part, 3))

    def on_records(self, records: Iterable[Record]) -> None:
        """Add up what nodes counted; log what is over its budget."""
        for record in records:
            if type(record) is not Noted or record.topic != "io":
                continue
            told = [(*name.rpartition(".")[::2], value) for name, value in record.numbers.items()]
            if record.mode == "over":
                self._heard_over(record, [(area, kind) for area, kind, _ in told])
            elif record.mode == "usage":
                for area, kind, value in told:
                    if area and value > 0:
                        self.observed[area, kind] += value

    def _heard_over(self, record: Noted, over: list[tuple[str, str]]) -> None:
        """Every pilot reports it again and again while it lasts: it is logged when it begins."""
        now_s = clock.monotonic_s()
        is_new = any(now_s - self._over_s.get(each, -OVER_S) >= OVER_S for each in over)
        self.over.update(over)
        self._over_s.update(dict.fromkeys(over, now_s))
        if is_new:
            _log.warning("io.over_budget", pilot=record.p, reason=record.message)

    def _areas(self, part: float) -> list[IoArea]:
        def cut(rate: float | None) -> float | None:
            return None if rate is None else rate * part

        return [
            IoArea(
                name=area.name,
                prefixes=[str(prefix) for prefix in area.prefixes],
                ops_per_s=cut(area.ops_per_s),
                bytes_per_s=cut(area.bytes_per_s),
            )
            for area in self._config.io
        ]
