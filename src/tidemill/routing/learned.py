"""What payloads of an application read of a file, and how long they waited for it by each way. Pure.

The newest samples of each count, and of those the median: one payload on a bad node, or the first one that fills a
cache, decides nothing. Samples are forgotten after a day, so that a way which was slow once is tried again. An owner's
payloads teach for this owner; for others only what payloads of two owners show counts, each owner's median once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import msgspec

APPS_MAX = 200
WAYS_MAX = 10
SAMPLES_MAX = 15
SAMPLES_MIN = 5
"""Fewer samples decide nothing."""

OWNERS_MIN = 2
"""So many other owners teach what one has not seen."""

OWNERS_MAX = 8
"""Owners whose samples are kept of one kind, the latest."""

T = TypeVar("T")

KEEP_US = 86_400_000_000
KEY_CHARACTERS_MAX = 300
ALIKE = 4.0
"""Waits count for files whose size differs by this factor at most."""


class ReadSample(msgspec.Struct, frozen=True, array_like=True):
    """One payload's reads of one file: bytes that were read or seconds that were waited, the file's size if known, and
    whose payload it was."""

    at_us: int
    value: float
    size_bytes: int | None = None
    owner: str = ""


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
    reads = _app(apps, app, sample.owner)
    reads.parts = _with(reads.parts, sample)


def note_wait(apps: dict[str, AppReads], app: str, key: str, sample: ReadSample) -> None:
    """Add how long a payload waited for a file that it read by this route."""
    if not _is_sound(sample) or len(key) > KEY_CHARACTERS_MAX:
        return
    waits = _app(apps, app, sample.owner).waits
    samples = waits.pop(key, [])
    if not samples:
        _make_room(waits, WAYS_MAX, _owners_of, sample.owner)
    waits[key] = _with(samples, sample)


def learned(reads: AppReads | None, size_bytes: int | None, now_us: int, owner: str = "") -> LearnedReads:
    """What was learned for a file of this size that a payload of this owner reads."""
    if reads is None:
        return LearnedReads()
    parts = [each for each in reads.parts if _is_fresh(each, now_us)]
    sized = [
        msgspec.structs.replace(each, value=min(1.0, each.value / each.size_bytes))
        for each in parts
        if each.size_bytes
    ]
    fraction = _median(sized, owner) if size_bytes is not None else None
    waits = {}
    for key, samples in reads.waits.items():
        alike = [e for e in samples if _is_fresh(e, now_us) and _is_alike(e.size_bytes, size_bytes)]
        found = _median(alike, owner)
        if found is not None:
            waits[key] = found
    return LearnedReads(
        fraction=fraction, part_bytes=_median(parts, owner) if fraction is None else None, waits=waits
    )


def _app(apps: dict[str, AppReads], app: str, owner: str) -> AppReads:
    """The entry of an application, as the newest."""
    reads = apps.pop(app, None)
    if reads is None:
        _make_room(apps, APPS_MAX, _teachers, owner)
        reads = AppReads()
    apps[app] = reads
    return reads


def _teachers(reads: AppReads) -> set[str]:
    return _owners_of(reads.parts).union(*map(_owners_of, reads.waits.values()))


def _owners_of(samples: Sequence[ReadSample]) -> set[str]:
    return {each.owner for each in samples}


def _make_room(entries: dict[str, T], most: int, owners_of: Callable[[T], set[str]], owner: str) -> None:
    """Drop what was used least lately, where there are too many: of those that only `owner` has taught, if these are
    half of them, so that who makes up many pushes out no other's."""
    while len(entries) >= most:
        own = [key for key, each in entries.items() if owners_of(each) <= {owner}]
        del entries[own[0] if 2 * len(own) >= most else next(iter(entries))]


def _with(samples: list[ReadSample], sample: ReadSample) -> list[ReadSample]:
    """The newest of each owner, of the owners who were there lately."""
    mine = [each for each in samples if each.owner == sample.owner][1 - SAMPLES_MAX :]
    others = [each for each in samples if each.owner != sample.owner]
    latest = list(dict.fromkeys(each.owner for each in reversed(others)))[: OWNERS_MAX - 1]
    return [*(each for each in others if each.owner in latest), *mine, sample]


def _median(samples: Sequence[ReadSample], owner: str) -> Learned | None:
    """The median of the owner's own samples if they suffice, else of other owners' medians."""
    of: dict[str, list[float]] = {}
    for each in samples:
        of.setdefault(each.owner, []).append(each.value)
    own = of.get(owner, [])
    if len(own) >= SAMPLES_MIN:
        return Learned(median(own), len(own))
    if len(of) < OWNERS_MIN or len(samples) < SAMPLES_MIN:
        return None
    return Learned(median(median(each) for each in of.values()), len(samples))


def _is_fresh(sample: ReadSample, now_us: int) -> bool:
    """A sample from the future is of a clock that was wrong."""
    return _is_sound(sample) and 0 <= now_us - sample.at_us <= KEEP_US


def _is_sound(sample: ReadSample) -> bool:
    return math.isfinite(sample.value) and sample.value >= 0


def _is_alike(one: int | None, other: int | None) -> bool:
    if not one or not other:
        return True
    return one <= ALIKE * other and other <= ALIKE * one
