"""The first tables of `tidemill report`: core-hours and GPU-hours by campaign, application and allocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli.terminal import say, show, show_table
from tidemill.model.quantities import count_text, counted_text, percent_text

if TYPE_CHECKING:
    from tidemill.wire.core_hours import AllocationUse
    from tidemill_report.core_hours import CoreHours, CoreHoursReport

ROWS_SHOWN = 20  #: allocations, the newest
NAMES_SHOWN = 2  #: campaigns of an allocation


def print_core_hours(report: CoreHoursReport | None) -> None:
    """The tables on stdout. None: the server is of an earlier version."""
    if report is None:
        say("the server is of an earlier version, which does not know core-hours")
        return
    total = report.total
    if not total.allocations:
        show("core-hours  none: no allocation has held a node")
        show("")
        return
    show(
        f"core-hours  {hours(total.held_h)} held by {counted_text(total.allocations, 'allocation')}, "
        f"{hours(total.used_h)} used by payloads, {percent_text(total.idle)} idle"
        + (f"; GPU-hours held: {hours(total.gpu_h)}" if total.gpu_h else "")
    )
    show("")
    _print_sums("CAMPAIGN", report.campaigns, gpus=bool(total.gpu_h))
    _print_sums("APPLICATION", report.apps, gpus=bool(total.gpu_h))
    _print_allocations(report.allocations, gpus=bool(total.gpu_h))
    say(report.how)


def hours(value: float) -> str:
    """Hours with as many digits as a comparison with sacct needs."""
    return f"{value:,.2f}" if value >= 10 else f"{value:.4f}"


def _print_sums(head: str, found: Sequence[CoreHours], *, gpus: bool) -> None:
    heads = [head, "ALLOCATIONS", "CORE-H HELD", "USED", "IDLE", *(["GPU-H HELD"] if gpus else [])]
    rows = [
        [
            row.name, count_text(row.allocations), hours(row.held_h), hours(row.used_h), percent_text(row.idle),
            *([hours(row.gpu_h)] if gpus else []),
        ]
        for row in found
    ]  # fmt: skip
    show_table(heads, rows, right=tuple(range(1, len(heads))))
    show("")


def _print_allocations(uses: Sequence[AllocationUse], *, gpus: bool) -> None:
    heads = [
        "BATCH ID",
        "SITE",
        "CORES",
        "ELAPSED",
        "CORE-S HELD",
        "USED",
        *(["GPUS"] if gpus else []),
        "CAMPAIGNS",
    ]
    show_table(heads, [_row(each, gpus=gpus) for each in uses[:ROWS_SHOWN]], right=tuple(range(2, 6 + gpus)))
    if len(uses) > ROWS_SHOWN:
        say(f"the newest {ROWS_SHOWN} of {count_text(len(uses))} allocations; --csv DIR writes all")
    show("")


def _row(each: AllocationUse, *, gpus: bool) -> list[object]:
    names = sorted({use.campaign for use in each.uses})
    more = len(names) - NAMES_SHOWN
    return [
        each.batch_id or each.name,
        each.site,
        count_text(each.cores) if each.cores else "-",
        elapsed_text(each.elapsed_us) + ("" if each.ended_us is not None else " (runs)"),
        f"{each.held_core_us / 1e6:,.0f}",
        f"{sum(use.core_us for use in each.uses) / 1e6:,.0f}",
        *([count_text(each.gpus)] if gpus else []),
        ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "") or "-",
    ]


def elapsed_text(elapsed_us: int) -> str:
    """`1-02:03:04`, as sacct prints Elapsed."""
    seconds = round(elapsed_us / 1e6)
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
