"""The report on an operation as one HTML page that needs nothing else, with its figures and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

from tidemill import clock
from tidemill.charts.page import captioned, cards, code, document, numbered, pair, section, table
from tidemill.model.failure import FailureClass, FaultKind
from tidemill.model.quantities import count_text, percent_text, ratio
from tidemill_report.operation import figures, stress
from tidemill_report.operation.gather import OperationReport, nothing
from tidemill_report.operation.jobs import ESTIMATED, EVENT, SETUP
from tidemill_report.operation.performance import WIDE
from tidemill_report.operation.sheet import Column, Sheet, Value

LONG = 16  #: a table with more rows scrolls
APPS_MAX = 4  #: applications with figures of their own, those with most jobs
NODES_MAX = 30
IO_LABELS = {
    "read": "Read by a job / GB", "written": "Written by a job / GB", "opens": "open() of a job",
    "closes": "close() of a job",
}  # fmt: skip


def page(operation: OperationReport) -> str:
    """The HTML page of an operation report."""
    parts = [
        ("Core-hours, jobs and events", _work(operation)),
        ("Backfill", _backfill(operation)),
        ("Allocations", _plain(operation, "allocations")),
        ("Failures", _failures(operation)),
        ("Jobs by day", _days(operation)),
        ("I/O per job", _io(operation)),
        ("Set-up and event times", _times(operation)),
        ("Staging times against nodes", _staging(operation)),
        ("Metadata operations of traced payloads", _plain(operation, "traces")),
        ("Caches", _plain(operation, "caches")),
        ("Hospital", _plain(operation, "hospital")),
        ("Stress tests", _stress(operation)),
        ("Grant ledger", _grants(operation)),
        ("Node quality", _plain(operation, "nodes", rows_max=NODES_MAX)),
        ("Waits of others", _waits(operation)),
    ]
    shown = [(title, body) for title, body in parts if body]
    links = "".join(f'<div><a href="#{_anchor(title)}">{escape(title)}</a></div>' for title, _ in shown)
    drawn = [_facts(operation), f'<nav class="parts">{links}</nav>']
    drawn += [
        section(title, body).replace("<section>", f'<section id="{_anchor(title)}">', 1)
        for title, body in shown
    ]
    if not operation.jobs.sums:
        text = nothing(operation.source)
        drawn = [f"<p>{code(text[0].upper() + text[1:])}.</p>", *(drawn if shown else [])]
    window = operation.source.window
    title = f"Campaign {window.campaign}" if window.campaign else "Report on operations"
    whole = document(title, _span(operation), "\n".join(drawn), made_us=clock.now_us())
    return numbered(whole).replace("<main>", '<main class="broad">', 1)


def months_of(operation: OperationReport) -> list[str]:
    """The months from the first to the last of the report."""
    dated = ("months", "backfill", "failures", "failure_rate")
    known = [
        month
        for name in dated
        if name in operation.sheets
        for month in operation.sheets[name].column("month")
        if month
    ]
    return figures.month_range(min(known), max(known)) if known else []


def _span(operation: OperationReport) -> str:
    months, window = months_of(operation), operation.source.window
    text = f"{months[0]} to {months[-1]}" if months else "nothing has run"
    if window.since_us is not None or window.until_us is not None:
        low = "the start" if window.since_us is None else clock.utc_text(window.since_us)
        high = "now" if window.until_us is None else clock.utc_text(window.until_us)
        text += f"; asked for {low} to {high}"
    return text


def _order(operation: OperationReport) -> list[str]:
    sheet = operation.sheets.get("months")
    return [] if sheet is None else figures.site_order(sheet)


def _facts(operation: OperationReport) -> str:
    total = operation.sheets.get("sites")
    if total is None:
        return ""
    row = dict(zip([each.name for each in total.columns], total.rows[-1], strict=True))
    facts = [
        ("jobs", count_text(_whole(row["jobs"])), ""),
        ("events done", count_text(_whole(row["events_done"])), ""),
        ("core-hours of payloads", _number(row["core_hours"]), ""),
        ("of ended jobs failed", percent_text(_real(row["failed"])), ""),
    ]
    sheet = operation.sheets.get("backfill")
    if sheet is not None:
        used, available = sum(sheet.column("used")), sum(sheet.column("available"))
        useful = sum(each or 0 for each in sheet.column("useful"))
        facts += [
            ("node-hours available", _number(available), ""),
            ("backfill efficiency", percent_text(ratio(used, available)), ""),
            ("of what was available useful", percent_text(ratio(useful, available)), ""),
        ]
    held = operation.sheets.get("allocations")
    if held is not None:
        facts.append(("allocations", count_text(sum(held.column("allocations"))), ""))
    return cards(facts)


def _work(operation: OperationReport) -> str:
    sheet, months = operation.sheets.get("months"), months_of(operation)
    if sheet is None:
        return ""
    body = captioned(
        "Core-hours that payloads used, by month and site.", figures.per_month(sheet, "core_hours", months)
    )
    body += pair([
        captioned("Jobs by the month in which they ended.", figures.per_month(sheet, "jobs", months, is_narrow=True)),
        captioned("Events done, by month.", figures.per_month(sheet, "events_done", months, is_narrow=True)),
    ])  # fmt: skip
    body += sheet_table(operation.sheets["sites"])
    if "years" in operation.sheets:
        body += "<h3>By year</h3>" + sheet_table(operation.sheets["years"])
    return body + "<h3>By month</h3>" + sheet_table(sheet)


def _backfill(operation: OperationReport) -> str:
    sheet = operation.sheets.get("backfill")
    if sheet is None:
        return ""
    words = "Backfill that was available, used and useful; below, the efficiency of each site."
    return captioned(words, figures.backfill(sheet, months_of(operation), _order(operation))) + sheet_table(
        sheet
    )


def _failures(operation: OperationReport) -> str:
    sheet, rate = operation.sheets.get("failures"), operation.sheets.get("failure_rate")
    if sheet is None:
        return "" if rate is None else sheet_table(rate)
    words = "Failures by class; below, the share of ended jobs that failed, with binomial errors."
    body = captioned(words, figures.failures(sheet, rate, months_of(operation)))
    counts: Counter[tuple[str, str]] = Counter()
    for name, component, number in zip(
        *(sheet.column(each) for each in ("class", "component", "failures")), strict=True
    ):
        counts[name, component] += number
    total = sum(counts.values())
    rows = [(*key, number, number / total) for key, number in counts.most_common()]
    columns = (
        Column("class", "", "text"),
        Column("component", "", "text"),
        Column("failures", "", "count"),
        Column("share", "", "share"),
    )
    return body + sheet_table(Sheet("failures", sheet.title, sheet.about, columns, rows)) + _known(counts)


def _days(operation: OperationReport) -> str:
    sheet = operation.sheets.get("days")
    if sheet is None or (not any(sheet.column("completed")) and not any(sheet.column("failed"))):
        return ""
    words = (
        "Jobs that completed and jobs that failed, by the day (UTC) on which they ended; "
        f"at most {figures.DAYS_MAX} days."
    )
    return captioned(words, figures.per_day(sheet)) + "<p>The table is in <code>days.csv</code>.</p>"


def _known(counts: Iterable[tuple[str, str]]) -> str:
    """A line on what words mean, of those that occur."""
    known = {str(each) for each in FailureClass} | {str(each) for each in FaultKind} | {"unreadable"}
    strange = sorted({word for key in counts for word in key} - known)
    return f"<p>Of another version: {escape(', '.join(strange))}</p>" if strange else ""


def _io(operation: OperationReport) -> str:
    sheet = operation.sheets.get("io")
    if sheet is None:
        return ""
    io = operation.jobs.io
    apps = sorted(
        {app for _, app in io},
        key=lambda app: -max(s.deviation or 0 for (q, a), s in io.items() if a == app and q == "nodes"),
    )
    body = f'<p class="soft">{code(sheet.about)}</p>'
    for app in apps[:APPS_MAX]:
        rows = [tuple(cells) for name, *cells in sheet.rows if name == app]
        body += f"<h3>{escape(app)}</h3>" + sheet_table(
            sheet._replace(columns=sheet.columns[1:], rows=rows, about="")
        )
        body += _not_counted(operation, app)
        drawn = []
        for quantity, label in IO_LABELS.items():
            spread = io.get((quantity, app))
            if spread is not None and len(spread.merged(WIDE)) > 1:
                is_estimate = quantity in ESTIMATED
                figure = figures.of_jobs(
                    spread, label=label, head=app, is_estimate=is_estimate, colour=0 if not is_estimate else 3
                )
                words = f"{label.split(' /')[0]}" + (
                    ": estimated from traced payloads." if is_estimate else "."
                )
                drawn.append(captioned(words, figure))
        body += pair(drawn)
    if len(apps) > APPS_MAX:
        body += f'<p class="soft">{len(apps) - APPS_MAX} applications more: <code>--csv</code>, <code>io.csv</code></p>'
    return body


def _not_counted(operation: OperationReport, app: str) -> str:
    """What is missing of an application's opens, closes and metadata operations, and what would make it known."""
    traces = [each for (_, name), each in operation.jobs.traces.items() if name == app]
    if not traces:
        text = (
            "Opens, closes and metadata operations are not known: no payload of this application was traced "
            "(`trace_every` in its file)."
        )
    elif all(each.closes is None for each in traces):
        text = (
            "Closes are not known: samples of payloads count opens, but not closes. `tidemill trace --also close` "
            "counts those of a single payload."
        )
    else:
        return ""
    return f'<p class="soft">{code(text)}</p>'


def _times(operation: OperationReport) -> str:
    sheet = operation.sheets.get("times")
    if sheet is None:
        return ""
    found = operation.jobs.times
    jobs: Counter[str] = Counter()
    for (_, app, _), spread in found.items():
        jobs[app] += spread.count
    body = ""
    for app, _ in jobs.most_common(APPS_MAX):
        drawn = []
        for quantity, label in ((SETUP, "Set-up time of a payload / s"), (EVENT, "Time of an event / s")):
            spreads = {
                site: spread
                for (q, a, site), spread in found.items()
                if (q, a) == (quantity, app) and spread.bins
            }
            if spreads:
                words = f"{app}: {label.split(' /')[0].lower()}, mean of each job."
                drawn.append(
                    captioned(words, figures.times(spreads, head=app, label=label, order=_order(operation)))
                )
        body += pair(drawn)
    return body + sheet_table(sheet)


def _staging(operation: OperationReport) -> str:
    sheet = operation.sheets.get("staging")
    if sheet is None:
        return ""
    words = (
        "Time until an input was in the memory of a node, against the nodes of the allocation; errors of the mean. "
        "Marks of one number of nodes stand beside each other."
    )
    return captioned(words, figures.staging(sheet)) + sheet_table(sheet)


def _stress(operation: OperationReport) -> str:
    return pair([captioned(*each) for each in stress.curves(operation.stress)]) + _plain(operation, "stress")


def _grants(operation: OperationReport) -> str:
    sheet = operation.sheets.get("grants")
    if sheet is None:
        return ""
    months = months_of(operation)
    drawn = figures.grants(sheet, months)
    told = sheet.column("month")
    last = [cells for cells, month in zip(sheet.rows, told, strict=True) if month == max(told)]
    words = "What was used of each grant, in percent of what was granted."
    return captioned(words, drawn) + sheet_table(sheet._replace(rows=last))


def _waits(operation: OperationReport) -> str:
    sheet = operation.sheets.get("waits")
    if sheet is None:
        return ""
    body = ""
    for directory, each in operation.waits:
        drawn = figures.waits(each)
        if drawn is not None:
            words = f"{directory.parent.name}: how long jobs of other users waited because of Tidemill."
            body += captioned(words, drawn)
    return body + sheet_table(sheet) + _plain(operation, "wait_classes")


def _plain(operation: OperationReport, name: str, *, rows_max: int | None = None) -> str:
    sheet = operation.sheets.get(name)
    if sheet is None:
        return ""
    more = ""
    if rows_max is not None and len(sheet.rows) > rows_max:
        more = f'<p class="soft">the first {rows_max} of {len(sheet.rows):,}: all with <code>--csv</code></p>'
        sheet = sheet._replace(rows=sheet.rows[:rows_max])
    return sheet_table(sheet) + more


def sheet_table(sheet: Sheet) -> str:
    """A sheet as a table, with its definition below."""
    heads = [
        f"{each.name.replace('_', ' ')}{f', {each.unit}' if each.unit else ''}" for each in sheet.columns
    ]
    cells = [
        [cell_text(cell, each) for cell, each in zip(row, sheet.columns, strict=True)] for row in sheet.rows
    ]
    drawn = table(heads, cells, right=[k for k, each in enumerate(sheet.columns) if each.kind != "text"])
    if len(cells) > LONG:
        drawn = drawn.replace('class="scroll"', 'class="scroll long"', 1)
    return drawn + (f'<p class="soft">{code(sheet.about)}</p>' if sheet.about else "")


def cell_text(cell: Value, column: Column) -> str:
    """A cell for people."""
    if cell is None:
        return "-"
    if column.kind == "text":
        return str(cell)
    if column.kind == "count":
        return count_text(int(cell))
    if column.kind == "share":
        return (
            f"{float(cell) * 100:.1f} %" if float(cell) >= 0.001 or not cell else f"{float(cell) * 100:.2g} %"
        )
    return _number(cell)


def _number(cell: Value) -> str:
    """Five figures at most, thousands apart."""
    value = _real(cell) or 0.0
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _anchor(title: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in title.lower())


def _whole(cell: Value) -> int:
    return int(cell or 0)


def _real(cell: Value) -> float | None:
    return None if cell is None else float(cell)
