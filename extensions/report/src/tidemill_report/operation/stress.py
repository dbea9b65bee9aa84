"""Stress tests in a report: the study's table over all runs of some directories, and a curve for each of the latest.

The extension `stress` writes their results; of such a file this reads the fields that it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidemill.charts.points import Point, points
from tidemill.errors import ConfigError
from tidemill.files import read_bounded
from tidemill_report.operation.sheet import Column, Sheet, Value, count, share, text

RESULT = "result.json"  #: of a run's directory
RESULT_BYTES_MAX = 100_000_000
CURVES_MAX = 6  #: runs with a curve, the latest
ABOUT = (
    "Levels of stress tests (`tidemill stress run`). CPU/wall and events/wall: mean and standard deviation over the "
    "payloads that began and ended inside a level's window. Events/s: of all payloads together, with 95 % intervals. "
    "Worst minute: the largest distance of a minute's mean of the number running from the level."
)
COLUMNS = (
    text("run"), text("site"), count("level"), count("slots"), text("status"), Column("running"), count("payloads"),
    count("failed"), share("cpu_wall"), share("cpu_wall_sd"),
    Column("events_wall", "1/s"), Column("events_wall_sd", "1/s"),
    Column("events_s", "1/s"), Column("events_s_low", "1/s"), Column("events_s_high", "1/s"), share("worst_minute"),
    text("recommended"),
)  # fmt: skip


class RateInterval(msgspec.Struct, frozen=True):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


class LevelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a level of a stress test measured."""

    cpu_wall_mean: float
    cpu_wall_sd: float
    events_wall_mean: float
    events_wall_sd: float
    events_s: RateInterval
    running: float
    failed: dict[str, int]


class AskedLevel(msgspec.Struct, frozen=True, array_like=True):
    """A level as it was asked for."""

    number: int
    site: str
    level: int
    slots: int


class CountedPayloads(msgspec.Struct, frozen=True):
    """How many payloads of a level count."""

    counted: int


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """A level with what it measured; without figures if nothing was."""

    step: AskedLevel
    status: str
    filter: CountedPayloads | None = None
    figures: LevelFigures | None = None
    worst_level_error: float | None = None


class Recommended(msgspec.Struct, frozen=True):
    """The number of payloads that a site should run."""

    recommended: int


class StressResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `knees`, `slots`: by site; the latter are slots per node and their placement."""

    id: str
    steps: list[LevelResult]
    knees: dict[str, Recommended]
    slots: dict[str, tuple[int, str]]


def runs(directories: Sequence[Path]) -> list[StressResult]:
    """The results of all runs below these directories, by name, which has the time. A run that goes on has none yet.
    Raises ConfigError for a directory without results, and for one that cannot be read."""
    found = []
    for directory in directories:
        paths = sorted({*directory.glob(f"*/{RESULT}"), *directory.glob(RESULT)})
        if not paths:
            raise ConfigError(
                f"`{directory}` holds no result of a stress test",
                hint="name the directory of `tidemill stress run --runs`",
            )
        found += [_read(path) for path in paths]
    return sorted(found, key=lambda each: each.id)


def sheet(results: Sequence[StressResult]) -> Sheet:
    """All levels of all runs."""
    return Sheet(
        "stress", "Stress tests", ABOUT, COLUMNS, [_row(run, each) for run in results for each in run.steps]
    )


def curves(results: Sequence[StressResult]) -> list[tuple[str, str]]:
    """Caption and drawing of each run's events/s against its level, the latest first."""
    drawn = []
    for run in [each for each in reversed(results) if sum(one.figures is not None for one in each.steps) > 1][
        :CURVES_MAX
    ]:
        for site in dict.fromkeys(each.step.site for each in run.steps):
            here = [
                Point(
                    each.step.slots or each.step.level, of.events_s.value, of.events_s.low, of.events_s.high
                )
                for each in run.steps
                if (of := each.figures) is not None and each.step.site == site
            ]
            if len(here) > 1:
                against = "slots per node" if run.slots else "level"
                where = f" at {site}" if site else ""
                words = (
                    f"{run.id}{where}: events/s of all payloads against the {against}, with 95 % intervals."
                )
                drawn.append((words, points(here, labels=(against, "events/s"), text="{:.4g}".format)))
    return drawn


def _read(path: Path) -> StressResult:
    try:
        return msgspec.json.decode(read_bounded(path, RESULT_BYTES_MAX) or b"", type=StressResult)
    except (msgspec.DecodeError, RecursionError, ValueError, OSError) as error:
        raise ConfigError(
            f"failed to read `{path}`, the result of a stress test: {error}",
            hint="`tidemill stress run FILE --resume ID` writes it anew",
        ) from error


def _row(run: StressResult, each: LevelResult) -> tuple[Value, ...]:
    site, step, of = each.step.site, each.step, each.figures
    knee, slots = run.knees.get(site), run.slots.get(site)
    advice = (
        f"{slots[0]} slots per node"
        if slots
        else f"{knee.recommended} at a time"
        if knee and knee.recommended
        else ""
    )
    head: tuple[Value, ...] = (run.id, site, step.level, step.slots or None, each.status)
    if of is None:
        return (*head, *[None] * (len(COLUMNS) - len(head) - 1), advice)
    counted = each.filter.counted if each.filter else 0
    return (
        *head, of.running, counted, sum(of.failed.values()), of.cpu_wall_mean, of.cpu_wall_sd, of.events_wall_mean,
        of.events_wall_sd, of.events_s.value, of.events_s.low, of.events_s.high, each.worst_level_error, advice,
    )  # fmt: skip
