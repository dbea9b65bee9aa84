"""Sheets of what jobs did: I/O per job, set-up and event times, traced starts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.model.figures.time_classes import median_ms
from tidemill.model.quantities import ratio
from tidemill_report.operation.jobs import COUNTED, ESTIMATED, EVENT, SETUP, JobSums
from tidemill_report.operation.sheet import Column, Sheet, count, share, text

WIDE = 6  #: fine bins in one of a histogram: 10 to a decade
MEANING = {SETUP: "set-up time of a payload", EVENT: "time of an event"}


def io_sheet(jobs: JobSums) -> Sheet:
    """I/O per job: least, most, average and deviation of each quantity."""
    rows = [
        (
            app,
            name.replace("_", " "),
            unit,
            spread.count,
            spread.low,
            spread.high,
            spread.mean,
            spread.deviation,
            "estimate" if name in ESTIMATED else "counted",
        )
        for app in sorted({app for _, app in jobs.io})
        for name, unit in {**COUNTED, **ESTIMATED}.items()
        if (spread := jobs.io.get((name, app))) is not None and spread.count
    ]
    runs = {app: 0 for _, app in jobs.traces}
    for (_, app), figures in jobs.traces.items():
        runs[app] += figures.runs
    about = (
        "Of jobs that ran. Nodes are those that a payload of the job spans; duration is from the job's first start "
        "to its "
        "end; bytes are those of its payloads, as the kernel counted them. Deviations are of the sample (n - 1). "
        "Opens, "
        "closes and metadata operations are estimates: the number of the job's payloads x the mean of traced "
        "payloads of "
        "its application at its site"
        + ("" if not runs else f" ({', '.join(f'{app}: {n:,}' for app, n in sorted(runs.items()))} traced)")
        + ". Closes are there only where traces count them."
    )
    columns = (
        text("application"), text("quantity"), text("unit"), count("jobs"), Column("min"), Column("max"),
        Column("average"), Column("deviation"), text("kind"),
    )  # fmt: skip
    return Sheet("io", "I/O per job", about, columns, rows)


def io_histograms(jobs: JobSums) -> Sheet:
    """Jobs per bin of what they read, wrote, opened and closed."""
    rows = [
        (app, quantity, each.low, each.high, each.number)
        for (quantity, app), spread in sorted(jobs.io.items(), key=lambda item: (item[0][1], item[0][0]))
        if quantity in ("read", "written", "opens", "closes")
        for each in spread.merged(WIDE)
    ]
    columns = (text("application"), text("quantity"), Column("low"), Column("high"), count("jobs"))
    about = "Jobs by what they read and wrote (GB), opened and closed; ten bins to a decade. Jobs with 0 are in no bin."
    return Sheet("io_histograms", "Histograms of I/O per job", about, columns, rows)


def times_sheet(jobs: JobSums) -> Sheet:
    """Set-up and event times by application and site."""
    rows = [
        (
            MEANING[quantity], app, site or "-", spread.count, spread.mean, spread.deviation, spread.low,
            spread.quantile(0.05), spread.quantile(0.5), spread.quantile(0.95), spread.high,
        )
        for (quantity, app, site), spread in sorted(jobs.times.items(), key=lambda item: (item[0][0] == EVENT, item[0]))
        if spread.count
    ]  # fmt: skip
    about = (
        "Of each job its mean, and each job counts once: set-up time / payloads, and the payloads' time on slots after "
        "set-up / events done. What single events took is not kept. Percentiles come from 60 bins to a decade: right "
        "within 4 %."
    )
    columns = (
        text("quantity"), text("application"), text("site"), count("jobs"), Column("mean", "s"), Column("deviation",
        "s"),
        Column("min", "s"), Column("p5", "s"), Column("median", "s"), Column("p95", "s"), Column("max", "s"),
    )  # fmt: skip
    return Sheet("times", "Set-up and event times", about, columns, rows)


def time_histograms(jobs: JobSums) -> Sheet:
    """Jobs per bin of set-up and event time."""
    rows = [
        (MEANING[quantity], app, site or "-", each.low, each.high, each.number)
        for (quantity, app, site), spread in sorted(jobs.times.items())
        for each in spread.merged(1)
    ]
    columns = (
        text("quantity"),
        text("application"),
        text("site"),
        Column("low", "s"),
        Column("high", "s"),
        count("jobs"),
    )
    about = "Jobs by their mean set-up and event time; sixty bins to a decade."
    return Sheet("time_histograms", "Histograms of set-up and event times", about, columns, rows)


def staging_sheet(
    found: Mapping[tuple[str, int, str], Sequence[int]],
    times: Mapping[tuple[str, int, str], Mapping[int, int]],
) -> Sheet:
    """Staging times against the nodes of an allocation. `times`: histograms of them, for the medians."""
    rows = []
    for (site, nodes, way), (files, size_bytes, ms, square, most) in sorted(found.items()):
        if files > 0:
            mean = ms / files
            scatter = max(0.0, square - ms * mean)
            deviation = math.sqrt(scatter / (files - 1)) / 1e3 if files > 1 else None
            rate = ratio(size_bytes / 1e6, ms / 1e3)
            middle = median_ms(times.get((site, nodes, way), {}))
            median = None if middle is None else middle / 1e3
            rows.append(
                (
                    site,
                    nodes,
                    way,
                    files,
                    size_bytes / files / 1e9,
                    median,
                    mean / 1e3,
                    deviation,
                    most / 1e3,
                    rate,
                )
            )
    about = (
        "Inputs that came into the memory of nodes, one for each file and node: `shared` from the shared file system, "
        "`peer` from another node of the allocation. Times are from the order to the checked file; medians are "
        "those of a histogram with four classes to each doubling."
    )
    columns = (
        text("site"), count("nodes"), text("way"), count("files"), Column("mean_size", "GB"), Column("median", "s"),
        Column("mean", "s"), Column("deviation", "s"), Column("max", "s"), Column("rate", "MB/s"),
    )  # fmt: skip
    return Sheet("staging", "Staging times against nodes", about, columns, rows)


def traces_sheet(rows: Iterable[Mapping[str, Any]]) -> Sheet:
    """What starts of applications asked of file systems."""
    made = [
        (
            row["site"], row["app"], row["version"], row["runs"], row["ops"], row["failed"], ratio(row["failed"],
            row["ops"]),
            row["files"], row["opens"], row["opens_failed"], row["closes"],
        )
        for row in sorted(rows, key=lambda row: (row["site"], row["app"], row["version"]))
    ]  # fmt: skip
    about = (
        "Metadata operations of one payload, on average over those that were traced (a sample: `trace_every` of the "
        "application). Files are different ones of all runs. A closes cell is empty where traces do not count them."
    )
    columns = (
        text("site"), text("application"), text("version"), count("traced"), count("operations"), count("failed"),
        share("failed_share"), count("files"), count("opens"), count("opens_failed"), count("closes"),
    )  # fmt: skip
    return Sheet("traces", "Traced payloads", about, columns, made)
