"""Core-hours and GPU-hours of allocations, campaigns and applications, summed up from what the server says of each
allocation (`server.read.core_hours`). Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidemill.clock import utc_text
from tidemill.model.campaign import reference
from tidemill.wire.core_hours import AllocationUse, CoreUse
from tidemill_report.operation.sheet import Column, Sheet, count, share, text

HOUR_US = 3600e6
UNUSED = "(no payload)"  #: instead of a campaign: allocations in which no payload has ended yet
COMMAND = "(command)"  #: instead of an application: jobs that name their command themselves
SPLIT = (
    "Held: cores x elapsed time of allocations, as the batch system charges them (`sacct -X -o JobID,AllocCPUS,Elapsed,"
    "CPUTimeRAW`). Used: payload time x cores, of payloads that have ended. What an allocation held is split over "
    "campaigns and applications by the core time of their payloads; each bears its part of the idle time."
)


class CoreHours(msgspec.Struct, frozen=True, kw_only=True):
    """Hours of some allocations, or of the parts of a campaign or application (`name`) in them. `gpu_h`: of GPUs that
    were held; `idle`: the part of what was held in which no payload ran, None of nothing."""

    name: str = ""
    allocations: int = 0
    held_h: float = 0.0
    used_h: float = 0.0
    gpu_h: float = 0.0
    idle: float | None = None


class CoreHoursReport(msgspec.Struct, frozen=True, kw_only=True):
    """What allocations held and what was used of it, in all and by campaign, application and allocation."""

    total: CoreHours
    campaigns: list[CoreHours]
    apps: list[CoreHours]
    allocations: list[AllocationUse]  #: newest first
    how: str = SPLIT


class _Sums:
    """Adds up microseconds, so that sums of parts agree to the last digit."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.held_us = self.used_us = self.gpu_us = 0

    def add(self, allocation: str, held_us: int, used_us: int, gpu_us: int) -> None:
        self.names.add(allocation)
        self.held_us += held_us
        self.used_us += used_us
        self.gpu_us += gpu_us

    def hours(self, name: str = "") -> CoreHours:
        return CoreHours(
            name=name,
            allocations=len(self.names),
            held_h=self.held_us / HOUR_US,
            used_h=self.used_us / HOUR_US,
            gpu_h=self.gpu_us / HOUR_US,
            idle=max(0.0, 1.0 - self.used_us / self.held_us) if self.held_us > 0 else None,
        )


def core_hours(uses: Iterable[AllocationUse], *, campaign: str | None = None) -> CoreHoursReport:
    """The report of some allocations; with `campaign` (`NAME` or `OWNER/NAME`), of its parts of them."""
    rows = list(uses) if campaign is None else of_campaign(uses, campaign)
    return CoreHoursReport(
        total=total(rows),
        campaigns=_by(rows, lambda use: reference(use.owner, use.campaign)),
        apps=_by(rows, lambda use: use.app or COMMAND),
        allocations=sorted(rows, key=lambda each: -each.started_us),
    )


def total(uses: Iterable[AllocationUse]) -> CoreHours:
    """Hours of all allocations."""
    sums = _Sums()
    for each in uses:
        sums.add(f"{each.site}/{each.name}", each.held_core_us, used_us(each), each.held_gpu_us)
    return sums.hours()


def used_us(each: AllocationUse) -> int:
    """Core time of payloads in an allocation."""
    return sum(use.core_us for use in each.uses)


def of_campaign(found: Iterable[AllocationUse], name: str) -> list[AllocationUse]:
    """The parts of one campaign (`NAME` or `OWNER/NAME`), of the allocations that it used."""
    rows = []
    for each in found:
        uses = [use for use in each.uses if name in (use.campaign, reference(use.owner, use.campaign))]
        if uses:
            held_us, gpu_us = (
                sum(use.held_core_us for use in uses),
                sum(use.held_gpu_us for use in uses),
            )
            rows.append(
                msgspec.structs.replace(
                    each, uses=uses, held_core_us=held_us, held_gpu_us=gpu_us, whole=False
                )
            )
    return rows


def _by(uses: Sequence[AllocationUse], name_of: Callable[[CoreUse], str]) -> list[CoreHours]:
    """Hours by name, most first; what no payload used comes last."""
    sums: dict[str, _Sums] = defaultdict(_Sums)
    for each in uses:
        where = f"{each.site}/{each.name}"
        for use in each.uses:
            sums[name_of(use)].add(where, use.held_core_us, use.core_us, use.held_gpu_us)
        if not each.uses:
            sums[UNUSED].add(where, each.held_core_us, 0, each.held_gpu_us)
    rows = [each.hours(name) for name, each in sums.items()]
    return sorted(rows, key=lambda row: (row.name == UNUSED, -row.held_h, row.name))


def sheets(report: CoreHoursReport) -> list[Sheet]:
    """The report as tables: `core_hours_campaigns`, `core_hours_apps`, `core_hours_allocations`."""
    return [
        _sums_sheet("core_hours_campaigns", "Core-hours by campaign", report.campaigns),
        _sums_sheet("core_hours_apps", "Core-hours by application", report.apps),
        _allocations_sheet(report.allocations),
    ]


def _sums_sheet(name: str, title: str, hours: Sequence[CoreHours]) -> Sheet:
    columns = (
        text(name.rpartition("_")[2].removesuffix("s")), count("allocations"), Column("held", "core-h"),
        Column("used", "core-h"), share("idle"), Column("gpus_held", "gpu-h"),
    )  # fmt: skip
    rows = [(row.name, row.allocations, row.held_h, row.used_h, row.idle, row.gpu_h) for row in hours]
    return Sheet(name, title, SPLIT, columns, rows)


def _allocations_sheet(uses: Sequence[AllocationUse]) -> Sheet:
    columns = (
        text("batch_id"), text("site"), text("allocation"), count("nodes"), count("cores"), count("gpus"),
        text("started"), text("ended"), count("elapsed", "s"), Column("held", "core-s"), Column("used", "core-s"),
        Column("gpus_held", "gpu-s"), text("campaigns"),
    )  # fmt: skip
    rows = [
        (
            each.batch_id, each.site, each.name, each.nodes, each.cores, each.gpus, utc_text(each.started_us),
            "" if each.ended_us is None else utc_text(each.ended_us), round(each.elapsed_us / 1e6),
            each.held_core_us / 1e6, used_us(each) / 1e6, each.held_gpu_us / 1e6,
            " ".join(sorted({reference(use.owner, use.campaign) for use in each.uses})),
        )
        for each in uses
    ]  # fmt: skip
    return Sheet("core_hours_allocations", "Core-hours by allocation", SPLIT, columns, rows)
