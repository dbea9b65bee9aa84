"""Whether a payload failed by the way on which it read a far file: what its client printed, what the cache noted of
itself at that time, and what the site measured. Pure.

What the site saw itself is believed. What only the payload's output says is believed a few times for each event: a
program can print anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.routing.engine import CacheHealth, PastTrouble
from tidemill.routing.links import place_of_url
from tidemill.routing.refusals import refusal

TEXT_MAX = 1000
SENTENCES_MAX = 4
MARGIN_US = 5_000_000
"""A finding appears up to this long after its cause: the supervisor inspects a cache every few seconds."""

_WAY = re.compile(
    r"input `(?P<input>[^`]{1,200})` was read (?:directly|through cache `(?P<cache>[^`]{1,61})`) "
    r"from (?P<place>[^\s,;]{1,300})"
)


class ReadWay(NamedTuple):
    """How an input was read, as the pilot says. `cache`: its name, empty = directly."""

    input: str
    cache: str
    place: str


class FarTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the route by which a failed payload read. `is_sites`: its events did not cause the failure;
    `is_seen`: the site observed the trouble itself."""

    text: str
    is_sites: bool = False
    is_seen: bool = False


def ways_of(message: str) -> list[ReadWay]:
    """The ways that the message of a failure names; copies are not among them."""
    return [ReadWay(each["input"], each["cache"] or "", each["place"]) for each in _WAY.finditer(message)]


def attribute(
    ways: Sequence[ReadWay],
    errors: str,
    *,
    life_us: tuple[int, int],
    caches: Mapping[str, CacheHealth],
    down: Collection[str],
) -> FarTrouble | None:
    """What went wrong on these ways while the payload ran; None where nothing is known.

    `errors`: what it printed; `life_us`: its start and end; `caches`: those whose health this site can read;
    `down`: places that did not answer the site.
    """
    sentences: list[str] = []
    is_seen = False
    found = refusal(errors, through_cache=any(each.cache for each in ways)) if ways else None
    if found is not None:
        sentences.append(found.cause)
    for way in ways:
        if way.place in down:
            is_seen = True
            sentences.append(f"`{way.place}` does not answer this site either")
        if not way.cache or way.cache not in caches:
            continue
        health = caches[way.cache]
        if not health.answers:
            is_seen = True
            sentences.append(f"cache `{way.cache}` does not run now")
        for each in troubles(health, life_us, place=way.place):
            is_seen |= _fails_reads(each)
            sentences.append(f"cache `{way.cache}`: {sentence(each)}")
    if not sentences:
        return None
    kept = list(dict.fromkeys(sentences))[:SENTENCES_MAX]
    return FarTrouble(
        text="; ".join(kept)[:TEXT_MAX],
        is_sites=is_seen or (found is not None and found.is_sites),
        is_seen=is_seen,
    )


def troubles(health: CacheHealth | None, life_us: tuple[int, int], *, place: str = "") -> list[PastTrouble]:
    """What a cache noted of itself in that time; of origins that of `place` only, empty = of all."""
    begun_us, ended_us = life_us
    return [
        each
        for each in (() if health is None else health.past)
        if each.last_us >= begun_us
        and each.first_us <= ended_us + MARGIN_US
        and (not each.subject or not place or place_of_url(each.subject) == place)
    ]


def _fails_reads(each: PastTrouble) -> bool:
    """Those of the disk do not: what does not fit is read without being cached."""
    return each.check in ("process", "origin") or (each.check == "descriptors" and each.state == "fail")


def sentence(each: PastTrouble) -> str:
    """A trouble with its time."""
    since, until = clock.utc_text(each.first_us), clock.utc_text(each.last_us)
    if each.check == "process":
        again = f"; it was started again at {until}" if each.last_us > each.first_us else ""
        return f"{each.found}, at {since}{again}"
    return f"{each.found} (from {since} to {until})"
