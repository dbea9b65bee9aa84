"""Values that are read from files which may lie on a file system that hangs: an agent's tick does not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tidemill import clock, log

WAIT_S = 0.2
"""What is read in less time is fresh. Only the tick that begins to read waits at all."""

T = TypeVar("T")
_log = log.Log("site")


class BackgroundReading(Generic[T]):
    """The latest value of a reading that is repeated after `every_s`, in a thread of its own.

    One reading is under way at a time, however long it takes.
    """

    def __init__(self, read: Callable[[], T], first: T, *, every_s: float) -> None:
        """`first`: the value until the first reading is over."""
        self._read, self._every_s = read, every_s
        self._value = first
        self._next_s = 0.0
        self._begun_s = 0.0
        self._is_over = threading.Event()
        self._is_over.set()

    def now(self) -> T:
        """The latest value. Takes `WAIT_S` at most."""
        now_s = clock.monotonic_s()
        if self._is_over.is_set() and now_s >= self._next_s:
            self._next_s, self._begun_s = now_s + self._every_s, now_s
            self._is_over.clear()
            threading.Thread(target=self._run, name="reading", daemon=True).start()
            self._is_over.wait(WAIT_S)
        return self._value

    @property
    def under_way_s(self) -> float:
        """For how long a reading has gone on; 0 = none is under way."""
        return 0.0 if self._is_over.is_set() else clock.monotonic_s() - self._begun_s

    def _run(self) -> None:
        try:
            self._value = self._read()
        except Exception as error:  # noqa: BLE001 - top of a thread: what was read before holds
            _log.warning("reading.failed", reason=repr(error)[:500])
        finally:
            self._is_over.set()
