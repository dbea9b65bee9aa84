"""From the measurements of a study to its table, and to the setting to use. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from tidemill.model.quantities import bytes_text
from tidemill_caches.study.plan import ReadPattern, StudySetting, StudyStep

SLOWER_MAX = 1.1
"""Through a cache that is full, a read may take this much longer than directly: that is noise."""

READS_MAX = 1000
_LEAST_S = 0.001


class StudyPass(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took: `first_s` of a direct or a cold pass, `second_s` of the warm pass.

    `fetched_bytes`: what the cache fetched in the cold pass. `failure`: why there is nothing, empty = there is.
    """

    step: StudyStep
    first_s: float = 0.0
    second_s: float = 0.0
    read_bytes: int = 0
    fetched_bytes: int = 0
    failure: str = ""


class StudyTry(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of a setting under a pattern. `pays_from`: passes from which the cache is quicker, None = never."""

    setting: StudySetting
    cold_s: float
    warm_s: float
    fetched_bytes: int
    amplification: float
    pays_from: int | None


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern at a round trip."""

    rtt_ms: float
    pattern: ReadPattern
    direct_s: float
    read_bytes: int
    tries: list[StudyTry]


class StudyAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What to use at a round trip. `setting` None = read directly."""

    rtt_ms: float
    setting: StudySetting | None
    speedup: float  #: of `reads` passes, geometric mean of the patterns
    why: str


def table(passes: Sequence[StudyPass], natural_ms: float) -> list[StudyRow]:
    """Medians of what succeeded, in the order of the steps. A row needs a direct pass and one through a cache."""
    good = [each for each in passes if not each.failure]
    rows = []
    for rtt_ms, pattern in dict.fromkeys((each.step.rtt_ms, each.step.pattern) for each in good):
        here = [each for each in good if (each.step.rtt_ms, each.step.pattern) == (rtt_ms, pattern)]
        direct = [each for each in here if each.step.setting is None]
        settings = dict.fromkeys(each.step.setting for each in here)
        ordered = sorted(
            (each for each in settings if each is not None),
            key=lambda one: (one.block_bytes, one.prefetch_blocks),
        )
        if not direct or not ordered:
            continue
        direct_s = statistics.median(each.first_s for each in direct)
        rows.append(
            StudyRow(
                rtt_ms=natural_ms if rtt_ms is None else natural_ms + rtt_ms,
                pattern=pattern,
                direct_s=direct_s,
                read_bytes=direct[0].read_bytes,
                tries=[
                    _tried(setting, [each for each in here if each.step.setting == setting], direct_s)
                    for setting in ordered
                ],
            )
        )
    return rows


def _tried(setting: StudySetting, passes: Sequence[StudyPass], direct_s: float) -> StudyTry:
    cold_s = statistics.median(each.first_s for each in passes)
    warm_s = statistics.median(each.second_s for each in passes)
    fetched = int(statistics.median(each.fetched_bytes for each in passes))
    return StudyTry(
        setting=setting,
        cold_s=cold_s,
        warm_s=warm_s,
        fetched_bytes=fetched,
        amplification=fetched / max(1, passes[0].read_bytes),
        pays_from=pays_from(direct_s, cold_s=cold_s, warm_s=warm_s),
    )


def pays_from(direct_s: float, *, cold_s: float, warm_s: float) -> int | None:
    """The number of passes from which on a cache is quicker than direct reads; None = never, or after 1,000."""
    if cold_s < direct_s:
        return 1 if warm_s <= SLOWER_MAX * direct_s else None
    if warm_s >= direct_s:
        return None
    passes = 1 + math.floor((cold_s - direct_s) / (direct_s - warm_s)) + 1
    return passes if passes <= READS_MAX else None


def advise(rows: Sequence[StudyRow], *, reads: int) -> list[StudyAdvice]:
    """For each round trip the setting that is quickest for `reads` passes over the same data, or none."""
    return [
        _advise([row for row in rows if row.rtt_ms == rtt_ms], reads)
        for rtt_ms in dict.fromkeys(row.rtt_ms for row in rows)
    ]


def _advise(rows: Sequence[StudyRow], reads: int) -> StudyAdvice:
    tried = {each.setting for row in rows for each in row.tries}
    whole = [s for s in tried if all(any(each.setting == s for each in row.tries) for row in rows)]
    rated = sorted(
        (
            (-round(_speedup(rows, setting, reads), 2), _fetched(rows, setting), setting)
            for setting in whole or tried
        ),
        key=lambda one: one[:2],
    )
    speedup, _, best = -rated[0][0], *rated[0][1:]
    rtt_ms = rows[0].rtt_ms
    if speedup <= SLOWER_MAX:
        why = f"{_passes(reads)} through the best cache ({best.text}) take {_share(speedup)} of the direct reads' time"
        return StudyAdvice(rtt_ms=rtt_ms, setting=None, speedup=speedup, why=why)
    return StudyAdvice(rtt_ms=rtt_ms, setting=best, speedup=speedup, why=_why(rows, best, reads, rated))


def _why(
    rows: Sequence[StudyRow],
    best: StudySetting,
    reads: int,
    rated: Sequence[tuple[float, int, StudySetting]],
) -> str:
    parts = [f"{_passes(reads)} take {_share(-rated[0][0])} of the direct reads' time"]
    if len(rated) > 1:
        parts[0] += f", with {rated[1][2].text} {_share(-rated[1][0])}"
    for row in rows:
        mine = next((each for each in row.tries if each.setting == best), None)
        if mine is None:
            continue
        if mine.pays_from is None:
            parts.append(f"`{row.pattern}` is never quicker than directly")
        elif mine.pays_from > 1:
            parts.append(f"`{row.pattern}` is quicker from pass {mine.pays_from} on")
        if mine.amplification >= 4:
            parts.append(
                f"`{row.pattern}` fetches {bytes_text(mine.fetched_bytes)} for {bytes_text(row.read_bytes)} read"
            )
    return "; ".join(parts)


def _speedup(rows: Sequence[StudyRow], setting: StudySetting, reads: int) -> float:
    """How many times quicker than directly, over all patterns alike."""
    logs = []
    for row in rows:
        for each in row.tries:
            if each.setting == setting:
                through_s = each.cold_s + (reads - 1) * each.warm_s
                logs.append(math.log(max(_LEAST_S, reads * row.direct_s) / max(_LEAST_S, through_s)))
    return math.exp(statistics.fmean(logs)) if logs else 0.0


def _fetched(rows: Sequence[StudyRow], setting: StudySetting) -> int:
    return sum(each.fetched_bytes for row in rows for each in row.tries if each.setting == setting)


def _passes(reads: int) -> str:
    return "one pass" if reads == 1 else f"{reads} passes"


def _share(speedup: float) -> str:
    return f"{1 / max(speedup, 0.01):.2f}"
