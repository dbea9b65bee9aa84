"""A profile of metadata operations as tables, as a chart of text, and as a drawing. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape

import msgspec

from tidemill import clock
from tidemill.charts.page import cards, document, figure, section, table
from tidemill.charts.time import Layer, layers
from tidemill.image.profile import CALLS, Area, Bin, Profile
from tidemill.model.quantities import bytes_text, count_text, duration_text, percent_text, ratio
from tidemill_images.explain import EntryVerdict, Explanation

CHART_LINES_MAX = 24
CHART_WIDTH = 48
DRAWN_BINS_MAX = 600
OK, FAILED = "#1f6f8b", "#c0493f"

AREA_HEADS = [
    "AREA",
    "TYPE",
    "OPERATIONS",
    "FAILED",
    "FILES",
    ".SO",
    ".PY",
    "OPEN OK",
    "FAIL",
    "STAT OK",
    "FAIL",
]
AREA_RIGHT = range(2, 11)
CALL_HEADS = ["CALL", "OK", "FAILED", "WHY"]
ENTRY_HEADS = ["VARIABLE", "LOOK-UPS", "FAILED", "HITS", "SHARE", "VERDICT", "ENTRY"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A profile without its paths: what `--json` prints."""

    command: list[str]
    runs: int
    wall_us: int
    exit: int | None
    signal: int | None
    host: str
    started_us: int
    ops: int
    failed: int
    files: int
    so: int
    py: int
    peak_per_s: int  #: most operations of one second
    areas: list[Area]
    calls: dict[str, dict[str, int]]  #: per call: `ok`, `failed`, and each errno
    bins: list[Bin]
    truncated: bool
    left_out: list[str]  #: why, see `explain.GAPS`


def summary(profile: Profile) -> Summary:
    """The numbers of the tables."""
    return Summary(
        command=profile.command,
        runs=profile.runs,
        wall_us=profile.wall_us,
        exit=profile.exit,
        signal=profile.signal,
        host=profile.host,
        started_us=profile.started_us,
        ops=profile.ops_total,
        failed=profile.failed_total,
        files=sum(each.files for each in profile.areas),
        so=sum(each.so for each in profile.areas),
        py=sum(each.py for each in profile.areas),
        peak_per_s=max((each.ok + each.failed for each in profile.bins), default=0),
        areas=profile.areas,
        calls={
            name: {"ok": each.ok, "failed": each.failed, **each.errors} for name, each in profile.ops.items()
        },
        bins=profile.bins,
        truncated=profile.truncated,
        left_out=profile.left_out,
    )


def headline(profile: Profile) -> str:
    """`924,000 operations, 75 % failed; 6,826 files, 1,899 .so, 1,475 .py; 12 s`."""
    told = summary(profile)
    runs = f" in {count_text(told.runs)} runs" if told.runs > 1 else ""
    least = "at least " if told.truncated else ""
    return (
        f"{count_text(told.ops)} operations{runs}, {percent_text(ratio(told.failed, told.ops))} failed; "
        f"{least}{count_text(told.files)} files, {count_text(told.so)} .so, {count_text(told.py)} .py; "
        f"{duration_text(told.wall_us / 1e6)}"
    )


def area_cells(profile: Profile) -> list[list[str]]:
    """Rows below AREA_HEADS, the busiest area first."""
    types = {mount.prefix or mount.point: mount.type for mount in profile.mounts}
    rows = []
    for each in sorted(profile.areas, key=lambda each: -each.ops):
        calls = [each.calls.get(name) for name in ("open", "stat")]
        pairs = [("-", "-") if one is None else (count_text(one.ok), count_text(one.failed)) for one in calls]
        rows.append(
            [
                each.area,
                types.get(each.area, "-"),
                *(count_text(n) for n in (each.ops, each.failed, each.files, each.so, each.py)),
                *pairs[0],
                *pairs[1],
            ]
        )
    return rows


def call_cells(profile: Profile) -> list[list[str]]:
    """Rows below CALL_HEADS: calls that ask alike together, the busiest first in each group."""
    order = [*CALLS, ""]

    def place(name: str) -> tuple[int, int]:
        group = next((group for group, names in CALLS.items() if name in names), "")
        each = profile.ops[name]
        return order.index(group), -each.ok - each.failed

    return [
        [
            name,
            count_text(profile.ops[name].ok),
            count_text(profile.ops[name].failed),
            ", ".join(
                f"{errno} {count_text(n)}"
                for errno, n in sorted(profile.ops[name].errors.items(), key=lambda item: -item[1])
            ),
        ]
        for name in sorted(profile.ops, key=place)
    ]


def stripes(profile: Profile) -> list[str]:
    """How Lustre stripes new files of areas."""
    return [
        f"{mount.prefix or mount.point}: {mount.stripe}"
        for mount in profile.mounts
        if mount.stripe is not None
    ]


def joined_bins(bins: Sequence[Bin], most: int) -> tuple[int, list[tuple[float, float]]]:
    """Seconds of a step, and (ok, failed) per second in each of at most `most` steps, gaps included."""
    span = max((each.s for each in bins), default=-1) + 1
    step = max(1, -(-span // most))
    rates = [[0.0, 0.0] for _ in range(-(-span // step))]
    for each in bins:
        seconds = min(step, span - each.s // step * step)
        rates[each.s // step][0] += each.ok / seconds
        rates[each.s // step][1] += each.failed / seconds
    return step, [(ok, failed) for ok, failed in rates]


def chart(profile: Profile) -> list[str]:
    """Operations per second over time, one line per step: `#` failed, `=` well."""
    step, rates = joined_bins(profile.bins, CHART_LINES_MAX)
    top = max((ok + failed for ok, failed in rates), default=0.0)
    if not top:
        return []
    lines = [f"operations per second ({step} s each; `=` ok, `#` failed)"]
    width = max(len(count_text(ok + failed)) for ok, failed in rates)
    for k, (ok, failed) in enumerate(rates):
        whole = round(CHART_WIDTH * (ok + failed) / top)
        bad = min(whole, round(CHART_WIDTH * failed / top))
        bar = "=" * (whole - bad) + "#" * bad
        lines.append(f"{k * step:>6} s  {count_text(ok + failed):>{width}}  {bar}".rstrip())
    return lines


def svg(profile: Profile, *, title: str = "") -> str:
    """Operations per second over time, failed ones above those that went well: a file of its own."""
    step, rates = joined_bins(profile.bins, DRAWN_BINS_MAX)
    top = max((ok + failed for ok, failed in rates), default=0.0) or 1.0
    found = [
        Layer("ok", OK, [ok for ok, _ in rates]),
        Layer("failed", FAILED, [failed for _, failed in rates]),
    ]
    times = ["0 s", *(duration_text(step * len(rates) * k / 4) for k in range(1, 5))]
    title = title or f"Metadata operations per second: {shlex.join(profile.command)}"
    return layers(found, top=top, title=title, across=times)


def page(profile: Profile, explanation: Explanation, *, made_us: int) -> str:
    """The profile and its explanation as one page that needs nothing else."""
    told = summary(profile)
    command = shlex.join(profile.command)
    read = [each.bytes_read for each in profile.areas if each.bytes_read is not None]
    facts = [
        ("operations", count_text(told.ops), ""),
        ("failed", percent_text(ratio(told.failed, told.ops)), "bad" if told.failed * 2 > told.ops else ""),
        ("files", count_text(told.files), ""),
        ("most in a second", count_text(told.peak_per_s), ""),
        *([("read at most", bytes_text(sum(read)), "")] if read else []),
        ("avoidable", count_text(explanation.saves_ops), "warn" if explanation.saves_ops else ""),
        ("time", duration_text(told.wall_us / 1e6), ""),
    ]
    drawn = svg(profile, title="Metadata operations per second")
    areas = table(AREA_HEADS, area_cells(profile), right=AREA_RIGHT)
    calls = table(CALL_HEADS, call_cells(profile), right=(1, 2))
    entries = table(ENTRY_HEADS, entry_cells(explanation), right=(1, 2, 3, 4)) if explanation.searches else ""
    advice = "".join(f"<li>{escape(line)}</li>" for line in explanation.advice)
    fix = "\n".join(fix_lines(explanation))
    parts = [
        cards(facts),
        section("Over time", figure(command, drawn)),
        section("By area", areas),
        section("By call", calls),
        section("Search paths", entries) if entries else "",
        section("What would avoid failing look-ups", f"<pre>{escape(fix)}</pre>") if fix else "",
        section("Further", f"<ul>{advice}</ul>") if advice else "",
    ]
    when = f"{profile.host}, {clock.utc_text(profile.started_us)}"
    return document(f"Trace of {command}", when, "\n".join(parts), made_us=made_us)


def entry_cells(explanation: Explanation, *, all_entries: bool = True) -> list[list[str]]:
    """Rows below ENTRY_HEADS; without `all_entries` those that cost nothing are left out."""
    rows = []
    for search in explanation.searches:
        for each in search.entries:
            if not (all_entries or each.lookups or each.verdict is EntryVerdict.DUPLICATE):
                continue
            verdict = "move first" if each.entry in search.moved else each.verdict.value
            rows.append(
                [
                    search.name,
                    count_text(each.lookups),
                    count_text(each.failed),
                    count_text(each.hits),
                    percent_text(each.share),
                    verdict,
                    each.entry or "(empty: the working directory)",
                ]
            )
    return rows


def group_cells(explanation: Explanation, places_max: int) -> list[list[str]]:
    """Rows below ENTRY_HEADS of the searches that no variable explains."""
    return [
        [
            group.name,
            count_text(place.lookups),
            count_text(place.failed),
            count_text(place.hits),
            percent_text(place.share),
            "",
            place.directory,
        ]
        for group in explanation.groups
        for place in group.places[:places_max]
    ]


def fix_lines(explanation: Explanation) -> list[str]:
    """The proposed environment as lines for a POSIX shell."""
    return [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
        for name, value in sorted(explanation.environment.items())
    ]
