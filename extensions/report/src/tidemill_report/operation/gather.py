"""All sheets of a report, from files. The only place that knows which sheets there are and how each is defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.harvest.account.delays import Harm
from tidemill_report.operation import accounts, performance, stress
from tidemill_report.operation.failures import FailureKey, count_failures
from tidemill_report.operation.jobs import JobSums, TraceFigures
from tidemill_report.operation.sheet import Sheet
from tidemill_report.operation.site_months import (
    AllocationMonth,
    BackfillMonth,
    SiteMonth,
    allocations,
    backfill,
    cache_months,
    grants,
    quarantine,
    staging,
    staging_times,
    stays,
    waits,
)
from tidemill_report.operation.source import ReportFiles, Window


class OperationReport(NamedTuple):
    """What a report is made of. `sheets` by name, without those of which nothing is known."""

    source: ReportFiles
    jobs: JobSums
    failures: Counter[FailureKey]
    machine: dict[SiteMonth, BackfillMonth]
    held: dict[SiteMonth, AllocationMonth]
    waits: list[tuple[Path, Harm]]
    sheets: dict[str, Sheet]
    stress: list[stress.StressResult]


def gather(
    source: ReportFiles, *, harvest: Sequence[Path] = (), stressed: Sequence[Path] = ()
) -> OperationReport:
    """Read everything once. `harvest`: directories in which brokers wrote of regular jobs; `stressed`: directories of
    stress tests' runs. Raises SiteError, ConfigError."""
    tests = stress.runs(stressed)
    jobs = JobSums(traced(source))
    jobs.read(source)
    failures = count_failures(source)
    machine, held = backfill(source), allocations(source)
    waited = waits(harvest, source)
    made = [
        accounts.months(jobs),
        accounts.days(jobs),
        accounts.sites(jobs, held),
        accounts.calendar_years(jobs, held),
        accounts.backfill_sheet(machine, held),
        accounts.allocations_sheet(held),
        accounts.failures_sheet(failures),
        accounts.failure_rate(jobs),
        performance.io_sheet(jobs),
        performance.io_histograms(jobs),
        performance.times_sheet(jobs),
        performance.time_histograms(jobs),
        performance.staging_sheet(staging(source), staging_times(source)),
        performance.traces_sheet(source.rows("traces")),
        accounts.caches_sheet(cache_months(source)),
        accounts.hospital_sheet(stays(source)),
        accounts.grants_sheet(grants(source)),
        accounts.nodes_sheet(quarantine(source)),
        stress.sheet(tests),
        accounts.waits_sheet(waited),
        accounts.wait_classes_sheet(waited),
    ]
    sheets = {each.name: each for each in made if each.rows}
    return OperationReport(source, jobs, failures, machine, held, waited, sheets, tests)


def nothing(source: ReportFiles) -> str:
    """Why a report has no job, as a sentence without its full stop."""
    window = source.window
    if source.is_empty and not source.has_live:
        where = ", ".join(f"`{each}`" for each in source.directories)
        return (
            f"no job has come into the archive {where} yet: a campaign comes there a while after its end; "
            "`--local` also reads the server's database"
        )
    if window.campaign is not None:
        return f"no job of campaign `{window.campaign}` ran in this time"
    if window == Window():
        return "no job has come to this server yet"
    return "no job ran in this time"


def traced(source: ReportFiles) -> dict[tuple[str, str], TraceFigures]:
    """The average figures of traced payloads, by site and application, of the version that was reported last."""
    result = {}
    for row in sorted(source.rows("traces"), key=lambda row: row["at_us"]):
        figures = TraceFigures(
            row["runs"], row["opens"], row["closes"], max(0, row["ops"] - row["failed"]), row["failed"]
        )
        result[row["site"], row["app"]] = figures
    return result
