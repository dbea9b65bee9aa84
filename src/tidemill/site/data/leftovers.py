"""Files that killed agents and movers left half-written in the stage and among outputs: found by name and age, removed.

A temporary name is used once (`files.temporary`), so nothing ever takes these over; that of a delivery is used again
only if its job is delivered again. Copies have their own (`cache`).
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from tidemill import clock
from tidemill.log import Log

OUTPUT_AGE_S = 86400.0
"""Other sites may write below the same output directory: what is younger may be theirs."""

ENTRIES_MAX = 1_000_000
"""Entries that are inspected at most: an output directory may hold any number."""

_TEMPORARY = re.compile(r"\..+\.(tmp|link)")
_PARTIAL = re.compile(r"\..+\.\d+\.(part|[0-9a-f]{8}\.tmp)")
"""A delivery's own: `.NAME.JOB.part`, `.manifest-JOB.json.PID.HEX.tmp`."""

_log = Log("stage")


def is_partial_name(name: str) -> bool:
    """Whether a file of that name is taken for one that a delivery left half-written: no output may be called so."""
    return _PARTIAL.fullmatch(name) is not None


def sweep_leftovers(
    stage: Path, outputs: Path, *, started_us: int, canceled: threading.Event | None = None
) -> int:
    """Remove what processes that began before `started_us` left below the stage, and what is old below the directory of
    outputs, until `canceled`; how many files. For a helper thread: lists directories."""
    jobs = [each for each in _directories(stage) if each.name.isdecimal()]
    departures = _directories(stage / "out")
    old_us = clock.now_us() - int(OUTPUT_AGE_S * 1e6)
    canceled = canceled or threading.Event()
    halved = takewhile(lambda _: not canceled.is_set(), _entries([*jobs, *departures]))
    removed = _sweep(halved, _TEMPORARY, _linked_us, started_us)
    delivered = takewhile(lambda _: not canceled.is_set(), _below(outputs))
    removed += _sweep(delivered, _PARTIAL, _written_us, old_us)
    if removed:
        _log.info("leftovers.removed", files=removed)
    return removed


def _sweep(
    entries: Iterable[os.DirEntry[str]],
    names: re.Pattern[str],
    changed_us: Callable[[os.stat_result], int],
    before_us: int,
) -> int:
    removed = 0
    for number, entry in enumerate(entries):
        if number >= ENTRIES_MAX:
            break
        if not names.fullmatch(entry.name):
            continue
        with suppress(OSError):
            is_file = entry.is_file(follow_symlinks=False)
            if is_file and changed_us(entry.stat(follow_symlinks=False)) < before_us:
                Path(entry.path).unlink(missing_ok=True)
                removed += 1
    return removed


def _entries(directories: Iterable[Path]) -> Iterator[os.DirEntry[str]]:
    for directory in directories:
        with suppress(OSError), os.scandir(directory) as entries:
            yield from entries


def _below(directory: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a directory, and then what is below it, level by level. Outputs are in the directories of their owner,
    campaign and job, and in those that their jobs name. Follows no link."""
    left = deque([directory])
    while left:
        for entry in _entries([left.popleft()]):
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
            yield entry


def _directories(directory: Path) -> list[Path]:
    with suppress(OSError):
        return [each for each in directory.iterdir() if each.is_dir() and not each.is_symlink()]
    return []


def _linked_us(status: os.stat_result) -> int:
    """When a file got its last link: one that is being made now links an old file."""
    return status.st_ctime_ns // 1000


def _written_us(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1000
