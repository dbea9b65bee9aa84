"""`run/contents.json`: what a cache holds, by dataset. Its supervisor writes it from time to time; others read it.

The agent of a site and `cache status` read this file instead of a million others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tidemill import clock, files, log
from tidemill.errors import UNDECODABLE, ProtocolError, TidemillError
from tidemill_caches.contents.scan import ContentsSummary, ScanPace, datasets, directories, summary
from tidemill_caches.engine.origins import OriginPath

DATASETS_MAX = 1000
RECORD_BYTES_MAX = 8 << 20
PAUSE_S = 300.0  #: between the end of a scan and the next
FIRST_S = 20.0
PAUSE_FACTOR = 9.0
"""The pause after a long scan is this multiple of its duration: scans take at most a tenth of the time."""
FILES_PER_S = 4000.0
NICE = 19
_log = log.Log("cache")


def record_path(directory: Path) -> Path:
    """Where the summary of a cache directory is."""
    return directory / "run" / "contents.json"


def read_contents(directory: Path) -> ContentsSummary | None:
    """The summary, None where none was written yet. Raises SiteError, ProtocolError."""
    content = files.read_bounded(record_path(directory), RECORD_BYTES_MAX)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=ContentsSummary)
    except UNDECODABLE as error:
        raise ProtocolError(f"`{record_path(directory)}` cannot be read: {error}") from error


def cached_share(contents: ContentsSummary, path: str) -> float | None:
    """The share of a file's dataset that is cached, of those of its files that the cache has met. `path`: of its URL.

    None = not known: the summary lists only the largest datasets, and this is not one of them.
    """
    dataset = path.rpartition("/")[0] or "/"
    for each in contents.datasets:
        if each.dataset == dataset:
            return each.share
    return None if contents.left_out else 0.0


def held(contents: ContentsSummary, origins: Sequence[OriginPath]) -> list[tuple[str, float]]:
    """The URL of each dataset in the summary with the share of it that is cached, the largest first.

    A dataset that several origins serve (`federation`) is listed with the URL of each.
    """
    return [
        (f"{origin.scheme}://{origin.host}:{origin.port}/{each.dataset}", round(min(1.0, each.share), 3))
        for each in contents.datasets
        for origin in origins
        if f"{each.dataset.rstrip('/')}/".startswith(origin.path) and each.held_bytes
    ]


class ContentsScan:
    """Writes the summary of a cache again and again, in a thread of the lowest priority."""

    def __init__(self, directory: Path, data: Path) -> None:
        self._directory, self._data = directory, data
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="contents", daemon=True)

    def start(self) -> None:
        """Start the thread that scans."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current file."""
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(
                os.PRIO_PROCESS, threading.get_native_id(), NICE
            )  # of this thread alone (sched(7))
        wait_s = FIRST_S
        while not self._stop.wait(wait_s):
            wait_s = PAUSE_S
            try:
                summary = write_contents(self._directory, self._data, pace=_Stoppable(self._stop))
                wait_s = max(PAUSE_S, PAUSE_FACTOR * summary.took_s)
            except _StoppedError:
                return
            except (
                TidemillError
            ) as error:  # a full disk, a directory that vanished: the next scan may succeed
                _log.warning("cache.contents", reason=error.message)
            except Exception as error:  # noqa: BLE001 - top of a thread: the next scan may succeed
                _log.error("cache.contents", reason=repr(error)[:500])


def write_contents(directory: Path, data: Path, *, pace: ScanPace) -> ContentsSummary:
    """Read all records and replace the summary. Raises SiteError, ConfigError."""
    begun_s = clock.monotonic_s()
    found = summary(datasets(directories(data, pace=pace)), count_max=DATASETS_MAX)
    files.write_durable(record_path(directory), msgspec.json.encode(found), mode=0o644)
    _log.info("cache.contents", files=found.total.files, seconds=round(clock.monotonic_s() - begun_s, 1))
    return found


class _StoppedError(Exception):
    """The supervisor ends."""


class _Stoppable(ScanPace):
    def __init__(self, stop: threading.Event) -> None:
        super().__init__(FILES_PER_S)
        self._stop = stop

    def step(self) -> None:
        if self._stop.is_set():
            raise _StoppedError
        super().step()
