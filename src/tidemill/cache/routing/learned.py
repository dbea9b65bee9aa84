"""What payloads of an application read of a file, and how long they waited for it by each way. Pure.

The newest samples of each count, and of those the median: one payload on a bad node, or the first one that fills a
cache, decides nothing. Samples are forgotten after a day, so that a way which was slow once is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

import msgspec

APPS_MAX = 200
WAYS_MAX = 10
SAMPLES_MAX = 15
SAMPLES_MIN = 5
"""Fewer samples decide nothing."""

KEEP_US = 86_400_000_000
KEY_CHARACTERS_MAX = 300
ALIKE = 4.0
"""Waits count for files whose size differs by this factor at most."""


class ReadSample(msgspec.Struct, frozen=True, array_like=True):
    """Of one payload and one file: bytes that were read or seconds that were waited, and the file's size if known."""

    at_us: int
    value: float
    size_bytes: int | None = None


class AppReads(msgspec.Struct, kw_only=True):
    """What is known of one application. `parts`: bytes read; `waits`: seconds, by `way_key`."""

    parts: list[ReadSample] = []
    waits: dict[str, list[ReadSample]] = {}


class Learned(msgspec.Struct, frozen=True):
    """A median and the number of payloads that it comes from."""

    value: float
    payloads: int


class LearnedReads(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned for a file. `fraction`: the part of it that is read; `part_bytes`: the bytes that are read,
    where the file's size is not known; `waits`: seconds of one read, by `way_key`."""

    fraction: Learned | None = None
    part_bytes: Learned | None = None
    waits: Mapping[str, Learned] = {}


def way_key(via: str, place: str) -> str:
    """The name of a way: a cache, empty = none, and the origin's place."""
    return f"{via} {place}"


def note_part(apps: dict[str, AppReads], app: str, sample: ReadSample) -> None:
    """Add how much of a file a payload has read."""
    if not _is_sound(sample):
        return
    known = _app(apps, app)
    known.parts = [*known.parts[1 - SAMPLES_MAX :], sample]


def note_wait(apps: dict[str, AppReads], app: str, key: str, sample: ReadSample) -> None:
    """Add how long a payload waited for a file that it read by this route."""
    if not _is_sound(sample) or len(key) > KEY_CHARACTERS_MAX:
        return
    waits = _app(apps, app).waits
    samples = waits.pop(key, [])
    while len(waits) >= WAYS_MAX:
        del waits[next(iter(waits))]
    waits[key] = [*samples[1 - SAMPLES_MAX :], sample]


def learned(known: AppReads | None, size_bytes: int | None, now_us: int) -> LearnedReads:
    """What was learned for a file of this size."""
    if known is None:
        return LearnedReads()
    parts = [each for each in known.parts if _is_fresh(each, now_us)]
    fractions = [min(1.0, each.value / each.size_bytes) for each in parts if each.size_bytes]
    fraction = _median(fractions) if size_bytes is not None else None
    waits = {}
    for key, samples in known.waits.items():
        alike = [e.value for e in samples if _is_fresh(e, now_us) and _is_alike(e.size_bytes, size_bytes)]
        found = _median(alike)
        if found is not None:
            waits[key] = found
    return LearnedReads(
        fraction=fraction,
        part_bytes=_median([each.value for each in parts]) if fraction is None else None,
        waits=waits,
    )


def _app(apps: dict[str, AppReads], app: str) -> AppReads:
    """The entry of an application, as the newest."""
    known = apps.pop(app, None) or AppReads()
    while len(apps) >= APPS_MAX:
        del apps[next(iter(apps))]
    apps[app] = known
    return known


def _median(values: list[float]) -> Learned | None:
    return Learned(median(values), len(values)) if len(values) >= SAMPLES_MIN else None


def _is_fresh(sample: ReadSample, now_us: int) -> bool:
    """A sample from the future is of a clock that was wrong."""
    return _is_sound(sample) and 0 <= now_us - sample.at_us <= KEEP_US


def _is_sound(sample: ReadSample) -> bool:
    return math.isfinite(sample.value) and sample.value >= 0


def _is_alike(one: int | None, other: int | None) -> bool:
    if not one or not other:
        return True
    return one <= ALIKE * other and other <= ALIKE * one
