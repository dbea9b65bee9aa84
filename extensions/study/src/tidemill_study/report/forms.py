"""A reconciled month as files: CSV, and the summary records of APEL, the grid's accounting. Pure.

APEL: "APEL-summary-job-message: v0.3", https://github.com/apel/apel, docs "Record and message formats": one record for
each combination of keys, ended by `%%`; durations in seconds; a job counts in the month of its end, in UTC.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

import msgspec

from tidemill import clock
from tidemill.errors import ConfigError
from tidemill.printable import harmless
from tidemill_study.accounting.past_jobs import PastJob
from tidemill_study.report.reconcile import Pair, Reconciliation, month_span

HEADER = "APEL-summary-job-message: v0.3"
HEADS = (
    *("batch_id", "name", "account", "kind", "reason"),
    *("nodes_here", "nodes_there", "start_here", "start_there", "end_here", "end_there"),
    *("node_h_here", "node_h_there", "core_h_here", "core_h_there"),
)


class ApelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an accounting log does not know. `benchmark`: HEPSPEC06 or HEPscore23 of one core."""

    site: str
    vo: str
    benchmark: float
    submit_host: str = ""
    infrastructure: str = "grid"


def csv_text(data: Reconciliation) -> str:
    """One row for each allocation of either side, agreeing or not; times in UTC, empty = not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADS)
    writer.writerows(_row(each) for each in data.pairs)
    return out.getvalue()


def _row(each: Pair) -> list[object]:
    sides = (each.here, each.there)
    return [
        harmless(each.batch_id), harmless(each.name), harmless(each.account), each.kind.value,
        each.reason.value if each.reason else "",
        *(side.nodes if side else "" for side in sides),
        *(_time(side.start_s) if side else "" for side in sides),
        *(_time(side.end_s) if side and side.end_s is not None else "" for side in sides),
        *(f"{side.node_h:.4f}" if side else "" for side in sides),
        *(f"{side.core_h:.4f}" if side and side.core_h is not None else "" for side in sides),
    ]  # fmt: skip


def _time(at_s: int) -> str:
    return clock.utc_text(at_s * 1_000_000)


def apel_text(jobs: Iterable[PastJob], month: str, facts: ApelFacts) -> str:
    """The message for the jobs that ended in a month, by numbers of processors and nodes.

    Raises ConfigError when CPU times are missing, which are mandatory.
    """
    first_s, after_s = month_span(month)
    groups: dict[tuple[int, int], list[PastJob]] = {}
    for job in jobs:
        if job.start_s is not None and job.end_s is not None and first_s <= job.end_s < after_s:
            groups.setdefault((job.cores, job.nodes), []).append(job)
    records = [_record(each, month, facts, *key) for key, each in sorted(groups.items())]
    return "\n".join([HEADER, *(line for record in records for line in (*record, "%%"))]) + "\n"


def _record(jobs: list[PastJob], month: str, facts: ApelFacts, cores: int, nodes: int) -> list[str]:
    missing = [each.id for each in jobs if each.cpu_s is None]
    if missing:
        raise ConfigError(
            f"the accounting has no CPU time of {len(missing):,} jobs, such as {missing[0]}: APEL needs it",
            hint="sacct prints it as TotalCPU, PBS as resources_used.cput",
        )
    year, _, number = month.partition("-")
    wall_s = sum((each.end_s or 0) - (each.start_s or 0) for each in jobs)
    cpu_s = sum(each.cpu_s or 0 for each in jobs)
    ends = [each.end_s or 0 for each in jobs]
    return [
        f"Site: {_word(facts.site)}",
        f"Month: {int(number)}",
        f"Year: {int(year)}",
        f"VO: {_word(facts.vo)}",
        *([f"SubmitHost: {_word(facts.submit_host)}"] if facts.submit_host else []),
        f"Infrastructure: {_word(facts.infrastructure)}",
        *([f"Processors: {cores}"] if cores else []),
        f"NodeCount: {nodes}",
        f"EarliestEndTime: {min(ends)}",
        f"LatestEndTime: {max(ends)}",
        f"WallDuration: {wall_s}",
        f"CpuDuration: {cpu_s}",
        f"NormalisedWallDuration: {round(wall_s * facts.benchmark)}",
        f"NormalisedCpuDuration: {round(cpu_s * facts.benchmark)}",
        f"NumberOfJobs: {len(jobs)}",
    ]


def _word(text: str) -> str:
    """One line."""
    return " ".join(text.split())
