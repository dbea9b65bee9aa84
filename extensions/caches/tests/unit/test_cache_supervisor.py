"""What a supervisor does beside xrootd: its log stays small, and a failure of what counts ends nothing."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tidemill_caches.engine import directory as places
from tidemill_caches.engine.state import CacheState, read_state
from tidemill_caches.engine.supervisor import LOG_BYTES_MAX, Supervisor
from tidemill_caches.settings import CacheConfig, CacheSpace

CONFIG = CacheConfig(origins=["root://a.example:1094//store/"], space=CacheSpace(max=10**8))


def long_log(directory: Path) -> Path:
    path = directory / "log" / "xrootd.log"
    path.touch()
    os.truncate(path, LOG_BYTES_MAX + 1)
    return path


def test_a_long_log_is_put_aside_and_begun_again(tmp_path: Path) -> None:
    places.make_parts(tmp_path)
    log = long_log(tmp_path)
    Supervisor(tmp_path, CONFIG)._trim_log()
    assert (log.stat().st_size, log.with_name("xrootd.log.1").stat().st_size) == (0, LOG_BYTES_MAX + 1)


def test_a_long_log_that_cannot_be_put_aside_does_not_grow(tmp_path: Path) -> None:
    places.make_parts(tmp_path)
    log = long_log(tmp_path)
    log.with_name("xrootd.log.1").mkdir()  # as on a disk without room
    Supervisor(tmp_path, CONFIG)._trim_log()
    assert log.stat().st_size == 0


def test_figures_that_fail_end_no_cache_and_hide_no_state(tmp_path: Path) -> None:
    places.make_parts(tmp_path)
    called: list[str] = []

    def fails(state: CacheState) -> None:
        called.append(state.phase)
        raise OverflowError("a sum that was not expected")

    supervisor = Supervisor(tmp_path, CONFIG, tend=fails)
    supervisor._next_s = math.inf  # no xrootd
    supervisor._step()
    state = read_state(tmp_path)
    assert (called, state is not None and state.phase) == (["waiting"], "waiting")


def test_a_signal_asks_a_supervisor_to_end_without_a_lock(tmp_path: Path) -> None:
    """It comes in the thread of `run`, which may hold that lock: then `cache run` hung, and xrootd stayed."""
    places.make_parts(tmp_path)
    supervisor = Supervisor(tmp_path, CONFIG)
    called: list[str] = []

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            called.append(function.__name__)

    sys.setprofile(note)
    try:
        supervisor.stop()
    finally:
        sys.setprofile(None)
    assert not {"acquire", "__enter__"} & set(called)
