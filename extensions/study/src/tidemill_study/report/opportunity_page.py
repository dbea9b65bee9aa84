"""What `report opportunity` says: answers as sentences first, then one HTML page with the figures behind them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tidemill.charts.page import captioned, cards, document, numbered, pair, section, table
from tidemill.harvest.account.promise import SENTENCE, PromiseState
from tidemill.harvest.account.waits import RelativeChange
from tidemill.model.figures.job_classes import length_text
from tidemill.model.quantities import count_text, duration_text, short_text, times_text
from tidemill_study.accounting.idle import HoleClass
from tidemill_study.report import opportunity_figures as figures
from tidemill_study.report.opportunity import Harvestable, Opportunity
from tidemill_study.report.opportunity_figures import span
from tidemill_study.simulation.experiment import ClassResult

SHORT_S = 900


def answers(data: Opportunity) -> list[tuple[str, str]]:
    """Questions of a centre and their answers, one or two sentences each."""
    result = [("How much is idle?", _idle_answer(data)), ("In which holes?", _holes_answer(data))]
    best = data.found[0].policy
    chosen = [each for each in data.found if each.policy == best]
    result.append(("How much of it could be harvested?", " ".join(_harvest(each) for each in chosen)))
    result.append(("What is that worth?", _money_answer(data, chosen)))
    result.append(
        (
            "What would it cost other users?",
            " ".join(_harm(each, len(chosen) > 1) + _promise(each) for each in chosen),
        )
    )
    result.append(("How certain is this?", _certainty(data)))
    return result


def _idle_answer(data: Opportunity) -> str:
    text = (
        f"{percent(data.idle_share)} of {data.machine.nodes:,} nodes ({data.machine.nodes_from}) in the simulated "
        f"machine without guests: {count_text(data.idle_node_h_month)} node-hours a month."
    )
    if data.machine.is_trusted:
        idle = data.idle
        text += f" By the log's own starts and ends it was {percent(idle.share)} of {days(idle.end_s - idle.start_s)}."
    return text


def _holes_answer(data: Opportunity) -> str:
    total = sum(each.node_h for each in data.idle.holes)
    if total <= 0:
        return "There are none."
    short = sum(each.node_h for each in data.idle.holes if each.to_s is not None and each.to_s <= SHORT_S)
    long = sum(each.node_h for each in data.idle.holes if each.from_s >= 3600)
    return (
        f"{percent(long / total)} of the idle node-hours lie in holes of an hour or more, {percent(short / total)} in "
        f"holes of less than {span(SHORT_S)}."
    )


def _harvest(each: Harvestable) -> str:
    core_h = "" if each.core_h_month is None else f" ({short_text(each.core_h_month)} core-hours)"
    return (
        f"Policy `{each.policy}` with events of {span(each.event_s)}: {percent(each.useful)} of the idle "
        f"node-hours end as finished events, {count_text(each.node_h_month)} node-hours{core_h} a month."
    )


def _money_answer(data: Opportunity, chosen: Sequence[Harvestable]) -> str:
    price = data.price
    if price.cores_per_node is None:
        return "The log does not name the cores of a node: `--cores-per-node N` turns node-hours into money."
    sums = ", ".join(f"{money(each, data)} (events of {span(each.event_s)})" for each in chosen)
    return f"{sums} a month at {price.per_core_h:g} {price.currency} a core-hour, {price.cores_per_node} cores a node."


def _harm(each: Harvestable, is_one_of_many: bool) -> str:
    head = f"Events of {span(each.event_s)}: " if is_one_of_many else ""
    change = each.wait_change
    if change.mean is None:
        return f"{head}no job of the log waits with or without guests."
    waits = f"{wait_text(each.wait_s)} instead of {wait_text(each.wait_without_s)}"
    if change.low is None or change.high is None:
        return f"{head}the mean wait changes by {signed(change.mean)} ({waits}); one pair of runs gives no interval."
    if change.low <= 0 <= change.high:
        return (
            f"{head}no statistically significant change of the mean wait: {signed(change.mean)} ({waits}), "
            f"95 % interval {interval(change)}."
        )
    word = "longer" if change.mean > 0 else "shorter"
    return f"{head}the mean wait is {word} by {percent(abs(change.mean))} ({waits}), 95 % interval {interval(change)}."


def _certainty(data: Opportunity) -> str:
    pairs = min(each.pairs for each in data.found)
    return (
        f"{data.jobs_simulated:,} jobs of {data.days_simulated:,.1f} days were replayed {times_text(pairs)} with and "
        "without guests, each time with slightly later submissions. The future may differ from this past. "
        "`tidemill simulate` makes the same runs."
    )


def page(data: Opportunity) -> str:
    """The HTML page of an opportunity report."""
    said = "".join(f"<h3>{escape(question)}</h3><p>{_code(answer)}</p>" for question, answer in answers(data))
    idle = data.idle
    subtitle = (
        f"{data.log}: {data.jobs:,} jobs, {days(idle.end_s - idle.start_s)}, {data.machine.nodes:,} nodes"
    )
    parts = [
        cards(_cards(data)),
        section("Answers", said),
        section("Harvestable, and what it costs others", _harvestable(data)),
        section("Waits of other users", _waits(data)),
        section("Idle nodes", _idle(data)),
        section("What was read, and how this was computed", _method(data)),
    ]
    whole = document("What a guest could harvest", subtitle, "\n".join(parts), made_us=data.made_us)
    return numbered(whole).replace("<main>", '<main class="broad">', 1)


def _cards(data: Opportunity) -> list[tuple[str, str, str]]:
    first = data.found[0]
    change = first.wait_change
    is_harm = change.low is not None and change.low > 0
    return [
        ("idle", percent(data.idle_share), ""),
        (f"of that harvestable, events of {span(first.event_s)}", percent(first.useful), ""),
        (
            "core-hours a month" if first.core_h_month is not None else "node-hours a month",
            short_text(first.core_h_month if first.core_h_month is not None else first.node_h_month),
            "",
        ),
        ("change of the regular jobs' mean wait", signed(change.mean), "bad" if is_harm else ""),
    ] + ([("worth a month", money(first, data), "")] if first.money_month is not None else [])


def _harvestable(data: Opportunity) -> str:
    heads = ["policy", "event", "useful", "95 %", "node-h/month", "core-h/month", "worth/month"]
    rows = [
        [
            each.policy,
            span(each.event_s),
            percent(each.useful),
            "-" if each.useful_low is None else f"{percent(each.useful_low)} to {percent(each.useful_high)}",
            count_text(each.node_h_month),
            "-" if each.core_h_month is None else count_text(each.core_h_month),
            money(each, data),
        ]
        for each in data.found
    ]
    drawn = [
        captioned(
            "Share of the idle node-hours that ends as finished events, by the length of events, with 95 % intervals.",
            figures.harvested(data.found),
        )
    ]
    waits = figures.waits(data.found)
    if waits is not None:
        words = "Relative change of the mean wait of the log's own jobs, by their number of nodes, with 95 % intervals."
        drawn.append(captioned(words, waits))
    return pair(drawn) + table(heads, rows, right=range(1, len(heads)))


def _classes(each: Harvestable) -> list[tuple[str, ClassResult]]:
    """The classes of jobs by size, then by length, with their names for people."""
    sizes = [(f"want {figures.nodes_text(row.nodes_min, row.nodes)} nodes", row) for row in each.by_size]
    return sizes + [(f"run {length_text(row.over_s, row.up_to_s)}", row) for row in each.by_length]


def _promise(each: Harvestable) -> str:
    """Which classes of jobs wait longer than the promise allows."""
    if each.promise.verdict is PromiseState.UNJUDGED:
        return " The log does not say when jobs were submitted, so whether they wait longer cannot be judged."
    broken = [name for name, row in _classes(each) if row.verdict is PromiseState.BROKEN]
    if broken:
        return f" Jobs that {', and jobs that '.join(broken)} wait longer than promised."
    unsure = sum(row.verdict is PromiseState.UNSURE for _, row in _classes(each))
    if unsure and each.pairs < 2:
        return " One replay gives no intervals for the classes of jobs: `--seeds 8` does."
    if not unsure:
        return " No class of size or length waits longer than promised."
    return f" For {unsure} of {len(_classes(each))} classes it is not sure whether they wait longer than promised."


def _waits(data: Opportunity) -> str:
    heads = [
        "policy",
        "event",
        "jobs that",
        "jobs",
        "without guests",
        "change",
        "95 %",
        "later by",
        "bound",
        "promise",
    ]
    rows = []
    for each in data.found:
        length = span(each.event_s)
        jobs = count_text(sum(size.jobs for size in each.by_size))
        rows.append(
            [each.policy, length, "all", jobs, wait_text(each.wait_without_s), signed(each.wait_change.mean),
             interval(each.wait_change), f"{each.wait_s - each.wait_without_s:+,.0f} s",
             each.mean_bound.text, each.promise.mean.text]
        )  # fmt: skip
        for name, row in _classes(each):
            change = RelativeChange(mean=row.wait_change, low=row.low, high=row.high)
            rows.append(
                [each.policy, length, name, count_text(row.jobs), wait_text(row.wait_without_s), signed(change.mean),
                 interval(change), f"{row.delay_s.mean:+,.0f} s", row.bound.text, row.verdict.text]
            )  # fmt: skip
    told = (
        "Mean waits of the log's own jobs, replayed with and without guests on the same workload. The promise: "
        f"{SENTENCE}. Not sure: the 95 % interval contains the bound, or there is none."
    )
    return f"<p>{escape(told)}</p>" + table(heads, rows, right=range(3, len(heads) - 1))


def _idle(data: Opportunity) -> str:
    idle = data.idle
    total = sum(each.node_h for each in idle.holes) or 1.0
    rows = [
        [hole_name(each), count_text(each.holes), count_text(each.node_h), percent(each.node_h / total)]
        for each in idle.holes
    ]
    lengths = captioned("Idle node-hours by the length of the hole that they lie in.", figures.holes(idle))
    daily = captioned(f"Mean idle nodes by the hour of the day: {data.hours_are}.", figures.hours(data))
    whole = captioned("Mean idle nodes over the whole time; outages count as none.", figures.course(data))
    heads = ["holes of", "number", "node-hours", "share"]
    return (
        f"<p>From {escape(data.idle_from)}.</p>"
        + pair([lengths, daily])
        + whole
        + table(heads, rows, right=range(1, len(heads)))
    )


def _method(data: Opportunity) -> str:
    remarks = "".join(f"<li>{escape(each)}</li>" for each in data.remarks)
    rows = [[name, "-" if value is None else f"{value}"] for name, value in data.parameters.items()]
    return (
        "<p>The k-th idle node is a hole from the moment at which at least k nodes are idle until fewer are. A guest "
        "sees these holes if it takes every idle node and releases first what it took last. Harvestable is the share "
        "of the idle node-hours that ends as finished events: start-up, unfinished events and nodes left empty are not "
        "counted. The broker's own decisions are replayed against a scheduler with backfill.</p>"
        + (f"<ul>{remarks}</ul>" if remarks else "<p>Nothing in the log was remarkable.</p>")
        + f"<details><summary>settings of the simulation</summary>{table(['setting', 'value'], rows)}</details>"
    )


def hole_name(each: HoleClass) -> str:
    """`under 5 min`, `15 min to 30 min`, `1 d or more`."""
    if not each.from_s:
        return f"under {span(each.to_s or 0)}"
    return (
        f"{span(each.from_s)} or more" if each.to_s is None else f"{span(each.from_s)} to {span(each.to_s)}"
    )


def money(each: Harvestable, data: Opportunity) -> str:
    """`1,234 EUR`."""
    return "-" if each.money_month is None else f"{each.money_month:,.0f} {data.price.currency}"


def percent(value: float | None) -> str:
    """`12.3 %`; `-` for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def signed(value: float | None) -> str:
    """`+1.23 %`; `-` for None."""
    return "-" if value is None else f"{100 * value:+.2f} %"


def interval(change: RelativeChange) -> str:
    """`-1.00 % to +2.00 %`; `-` where there is none."""
    return "-" if change.low is None else f"{100 * change.low:+.2f} to {signed(change.high)}"


def wait_text(seconds: float) -> str:
    """`1.23 h`; below half an hour `3 m 05 s`."""
    return f"{seconds / 3600:.2f} h" if seconds >= 1800 else duration_text(seconds)


def days(seconds: float) -> str:
    """`12.3 days`."""
    return f"{seconds / 86400:,.1f} days"


def _code(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if k % 2 else piece for k, piece in enumerate(pieces))
