"""Moves of remote files: what is wanted, what may start now, what came of it. Nothing here waits.

A caller that wants a file asks again until there is an outcome. Moves run in threads of this process (`LocalMoves`), or
in one on a data-transfer node (`transfer_node`). How many run is bounded in all and for each endpoint.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError, TidemillError
from tidemill.files import write_whole
from tidemill.log import Log
from tidemill.model.failure import FailureClass
from tidemill.site.applications.checksums import PendingError
from tidemill.transfer import constants as transfer_constants
from tidemill.transfer.allowed import check_endpoint, permit
from tidemill.transfer.contract import (
    Direction,
    NoSpaceError,
    TooLargeError,
    TransferError,
    Watch,
    of_os_error,
)
from tidemill.transfer.mover import Moved, Mover
from tidemill.transfer.patience import MovePatience
from tidemill.transfer.sharing import OWNERS_S, MoveLimits, RunningMove, WaitingMove, due, makes_way

KEEP_S = 3600.0
"""An outcome that was not taken for this time is dropped."""

UNTOLD_GROWTH = 4
"""Where a server does not report a file's size, each new try reserves this multiple of the room that was too small.
Failed tries fetch less than four thirds of the file in all."""

YIELD_STEP_S = 1.0
"""Whether a move has to make way is asked this often."""

TELL_S = 1.0
"""The progress of moves is written to a file at this interval."""

_log = Log("moving")


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A move to make. `path`: of the site's file, in the site directory's stage. `expect`: algorithm -> checksum.
    `version`: of the copy that the site has; nothing is moved if the source has the same. `before`: SHA-256 of
    files that may be replaced at the destination. `known`: checksums of the site's file that are known already. `look`:
    only size and version are wanted. `bytes_max`: room reserved in the stage for this file (0 = no bound); a larger
    file is not fetched. `owner`: of the job that wants it first."""

    id: str
    direction: Direction
    url: str
    path: str
    expect: dict[str, str] = {}
    version: str | None = None
    before: list[str] = []
    known: dict[str, str] = {}
    look: bool = False
    bytes_max: int = 0
    owner: str = ""


class MoveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an order. `moved` None = nothing was moved: the copy is still good, the order asked only for size
    and version, the file is larger than what is reserved for it (`size_bytes`), or `error` states the cause.
    `no_space`: the site's disk is full. `is_told` False: the server does not report the file's size; `size_bytes` is
    then the room to reserve (0 = any)."""

    id: str
    version: str = ""
    moved: Moved | None = None
    error: str = ""
    hint: str | None = None
    transient: bool = False
    failure: FailureClass | None = None
    size_bytes: int | None = None
    no_space: bool = False
    is_told: bool = True
    seconds: float = 0.0  #: that a file took to come, all tries together; 0 = not measured

    def check(self) -> None:
        """Raise TransferError if it failed."""
        if self.error:
            kind = NoSpaceError if self.no_space else TransferError
            raise kind(self.error, hint=self.hint, transient=self.transient, failure=self.failure)


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """A move that runs: `bytes` of `size_bytes` (0 = not known yet) are moved."""

    url: str
    direction: Direction
    bytes: int
    size_bytes: int


class MoveCounts(msgspec.Struct):
    """Counts of moves that ended since the start of the process."""

    done: int = 0
    failed: int = 0
    bytes: int = 0


class MovesPendingError(PendingError):
    """Files are on their way: ask again when all of `awaits` have an outcome."""

    def __init__(self, awaits: list[str]) -> None:
        super().__init__(f"{len(awaits)} files are on their way")
        self.awaits = tuple(awaits)


class Moves(Protocol):
    """Where moves are made."""

    def submit(self, order: MoveOrder) -> None:
        """Have this made; an order with the same id that is known already counts as this one."""

    def pop_outcome(self, order_id: str) -> MoveOutcome | None:
        """The outcome, once; None while there is none."""

    def is_done(self, order_ids: Iterable[str]) -> bool:
        """Whether none of these is still on its way."""

    def cancel(self, *order_ids: str) -> None:
        """Break off moves that are not wanted any more, and forget what came of them."""

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""

    @property
    def counts(self) -> dict[Direction, MoveCounts]:
        """What was made so far."""

    def close(self) -> None:
        """Start nothing more, break off what runs."""


def order_id(direction: Direction, url: str, *more: object) -> str:
    """The name of an order: the same for the same wish."""
    return f"{direction}-" + hashlib.sha256(repr((url, *more)).encode()).hexdigest()[:24]


class LocalMoves:
    """Moves in threads of this process."""

    def __init__(self, config: SiteConfig, progress: Path | None = None) -> None:
        for endpoint in config.endpoints:
            check_endpoint(endpoint)
        self._config = config
        self._mover = Mover(config.endpoints, MovePatience(), size_max=config.stage_file_bytes_max)
        self._limits = {endpoint.url: endpoint.transfers_max for endpoint in config.endpoints}
        #: an endpoint that may have more gets them
        self._total_max = max(transfer_constants.TRANSFERS_MAX, *self._limits.values(), 0)
        self._threads = ThreadPoolExecutor(2 * self._total_max, thread_name_prefix="moves")
        self._lock = threading.Lock()
        #: waiting or running, with their endpoints and when they were wanted
        self._orders: dict[str, tuple[MoveOrder, str, float]] = {}
        #: those that wait, by endpoint and owner, the oldest first: no question is for each of ten thousand
        self._queues: dict[tuple[str, str], dict[str, None]] = {}
        self._owners_s: dict[str, float] = {}  #: when each of them wanted something last
        self._yielded: set[str] = set()  #: running ones that make way for others
        self._yields: dict[str, tuple[int, float]] = {}  #: how often an order made way, and when last
        self._next_yield_s = 0.0
        self._running: dict[str, Watch] = {}
        self._here: set[str] = set()  #: running ones whose bytes have come: only their digest is made
        self._outcomes: dict[str, MoveOutcome] = {}
        self._ended_s: dict[str, float] = {}
        self._is_closed = False
        self._progress = progress  #: where moves under way are shown
        self._next_told_s = 0.0
        self.counts = {direction: MoveCounts() for direction in Direction}

    def submit(self, order: MoveOrder) -> None:
        """Have the move made; an order with a known id is not made twice."""
        try:
            place = permit(order.url, self._config.endpoints, order.direction)
        except TransferError as error:
            with self._lock:
                self._outcomes[order.id] = _failed(order, error)
            return
        with self._lock:
            if order.id not in self._orders and order.id not in self._outcomes and not self._is_closed:
                now_s = clock.monotonic_s()
                self._orders[order.id] = (order, place.endpoint.url, now_s)
                self._queues.setdefault((place.endpoint.url, order.owner), {})[order.id] = None
                self._owners_s[order.owner] = now_s
                self._start([self._waiting_move(order.id)])  # no other may start for it

    def pop_outcome(self, order_id: str) -> MoveOutcome | None:
        """The outcome, once; None while there is none."""
        with self._lock:
            self._make_way()
            return self._outcomes.pop(order_id, None)

    def is_done(self, order_ids: Iterable[str]) -> bool:
        """Whether none of these is still on its way."""
        if clock.monotonic_s() >= self._next_yield_s:
            with self._lock:
                self._make_way()
        return not any(each in self._orders for each in order_ids)

    @property
    def is_busy(self) -> bool:
        """Whether any move is on its way."""
        return bool(self._orders)

    def known(self) -> set[str]:
        """Orders that wait, run, or have an outcome that was not taken."""
        with self._lock:
            return {*self._orders, *self._outcomes}

    def cancel(self, *order_ids: str) -> None:
        """Drop orders that are not wanted any more."""
        with self._lock:  # for all: no slot that one leaves goes to another of them
            for order_id in order_ids:
                if order_id in self._running:
                    self._running[order_id].canceled.set()
                    continue
                if order_id in self._orders:
                    self._unqueue(order_id)
                    del self._orders[order_id]
                    self._yields.pop(order_id, None)
                self._outcomes.pop(order_id, None)

    def close(self) -> None:
        """Start nothing more, end what runs."""
        with self._lock:
            self._is_closed = True
            for order_id in [each for each in self._orders if each not in self._running]:
                del self._orders[order_id]
            self._queues.clear()
            for watch in self._running.values():
                watch.canceled.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._mover.close()
        if self._progress is not None:
            self._progress.unlink(missing_ok=True)

    def under_way(self) -> list[UnderWay]:
        """The moves that run."""
        with self._lock:
            return [self._progress_of(name, watch) for name, watch in self._running.items()]

    def _progress_of(self, name: str, watch: Watch) -> UnderWay:
        order = self._orders[name][0]
        return UnderWay(
            url=order.url.partition("?")[0],
            direction=order.direction,
            bytes=watch.bytes,
            size_bytes=watch.size_bytes,
        )

    def _write_progress(self, *, at_once: bool = False) -> None:
        """Write down how far the moves are, now and then, for people to see."""
        now_s = clock.monotonic_s()
        if self._progress is None or self._is_closed or (now_s < self._next_told_s and not at_once):
            return
        self._next_told_s = now_s + TELL_S
        try:
            write_whole(self._progress, msgspec.json.encode(self.under_way()))
        except (OSError, SiteError) as error:
            _log.debug("progress.unwritten", reason=str(error))

    def _waiting_move(self, name: str) -> WaitingMove:
        order, place, since_s = self._orders[name]
        return WaitingMove(name, place, order.owner, since_s)

    def _first(self, count: int) -> list[WaitingMove]:
        """So many of those that wait for each endpoint and owner, the oldest first. The lock is held."""
        names = (name for queue in self._queues.values() for name in islice(queue, count))
        return sorted(map(self._waiting_move, names), key=lambda each: each.since_s)

    def _unqueue(self, name: str) -> None:
        """Take an order out of its queue, if it waits."""
        order, place, _ = self._orders[name]
        queue = self._queues.get((place, order.owner), {})
        queue.pop(name, None)
        if not queue:
            self._queues.pop((place, order.owner), None)

    def _standing(self) -> tuple[list[RunningMove], MoveLimits]:
        """What has a slot, and what may. The lock is held."""
        now_s = clock.monotonic_s()
        self._owners_s = {each: at_s for each, at_s in self._owners_s.items() if now_s - at_s < OWNERS_S}
        running = []
        for name in self._running.keys() - self._here - self._yielded:
            (order, place, _), watch = self._orders[name], self._running[name]
            is_whole = 0 < watch.size_bytes <= watch.bytes
            yields, _ = self._yields.get(name, (0, 0.0))
            running.append(RunningMove(name, place, order.owner, watch.idle_s, watch.bytes, yields, is_whole))
        stall_s = transfer_constants.STALL_S
        return running, MoveLimits(self._limits, self._total_max, len(self._owners_s) > 1, stall_s)

    def _start(self, among: list[WaitingMove] | None = None) -> None:
        """Start what may start, of these or of all; the lock is held."""
        waiting = self._first(self._total_max) if among is None else among
        for name in due(waiting, *self._standing()):
            self._unqueue(name)
            watch = self._running[name] = self._mover.watch()
            self._threads.submit(self._run, self._orders[name][0], watch)

    def _make_way(self) -> None:
        """Break off a move for an owner who waits in vain: who wants it asks again. Now and then; the lock is held."""
        now_s = clock.monotonic_s()
        if now_s < self._next_yield_s or self._is_closed or len(self._yielded) >= self._total_max:
            return
        self._next_yield_s = now_s + YIELD_STEP_S
        if len(self._owners_s) < 2 or len(self._orders) == len(self._running):
            return
        name = makes_way(self._first(1), *self._standing(), now_s)
        if name is not None:
            _log.info("move.yields", url=self._orders[name][0].url.partition("?")[0])
            self._yielded.add(name)
            self._note_yield(name, now_s)
            self._running[name].canceled.set()
            self._start()

    def _note_yield(self, name: str, now_s: float) -> None:
        """The next time it may be idle for longer. Orders that come no more are forgotten."""
        times, _ = self._yields.pop(name, (0, 0.0))
        self._yields = {
            each: (count, at_s)
            for each, (count, at_s) in self._yields.items()
            if each in self._orders or now_s - at_s < KEEP_S
        }
        self._yields[name] = (times + 1, now_s)

    def _run(self, order: MoveOrder, watch: Watch) -> None:
        outcome = _failed(order, SiteError(f"moving `{order.id}` met a bug: see the log"))
        watch.on_progress = lambda _: self._write_progress()
        try:
            outcome = make(self._mover, order, watch, lambda: self._has_come(order))
        except Exception as error:  # noqa: BLE001 - top of a thread: the caller gets an outcome in any case
            _log.error("move.bug", move=order.id, error=repr(error))
        finally:
            self._end(order, outcome)
            self._write_progress(at_once=not self.is_busy)

    def _has_come(self, order: MoveOrder) -> None:
        """The bytes are here: the next move from there may start."""
        with self._lock:
            self._here.add(order.id)
            if not self._is_closed:
                self._start()

    def _end(self, order: MoveOrder, outcome: MoveOutcome) -> None:
        counts = self.counts[order.direction]
        with self._lock:
            counts.failed += bool(outcome.error)
            counts.done += not outcome.error
            counts.bytes += outcome.moved.size_bytes if outcome.moved is not None else 0
            self._orders.pop(order.id, None)
            was_canceled = self._running.pop(order.id).canceled.is_set()
            self._here.discard(order.id)
            is_wanted = order.id in self._yielded
            self._yielded.discard(order.id)
            if not (was_canceled and is_wanted):
                self._yields.pop(order.id, None)
            if self._is_closed:
                return
            if not was_canceled:  # else a caller that wants it again has it made again
                self._outcomes[order.id] = outcome
                self._ended_s[order.id] = clock.monotonic_s()
            self._forget()
            self._start()

    def _forget(self) -> None:
        """Drop outcomes that were not taken: their jobs are gone. What came is deleted by the data cache."""
        now_s = clock.monotonic_s()
        while self._ended_s:
            oldest, ended_s = next(iter(self._ended_s.items()))
            if oldest in self._outcomes and now_s - ended_s < KEEP_S:
                return
            self._outcomes.pop(oldest, None)
            del self._ended_s[oldest]


def make(
    mover: Mover, order: MoveOrder, watch: Watch, has_come: Callable[[], None] = lambda: None
) -> MoveOutcome:
    """Do what an order says; errors of the world become outcomes. `has_come` is called when nothing is left to be done
    but the digest of a file that came."""
    shown = order.url.partition("?")[0]
    path = Path(order.path)
    version, seconds = "", 0.0
    try:
        if order.direction is Direction.OUT:
            moved = mover.put(path, order.url, watch, before=order.before, known=order.known)
        else:
            stat = mover.stat(order.url, watch)
            version, size = stat.version, stat.size_bytes
            is_too_large = order.bytes_max and size > order.bytes_max
            if order.look or is_too_large or version == order.version:
                return MoveOutcome(id=order.id, version=version, size_bytes=size, is_told=stat.is_told)
            path.unlink(missing_ok=True)  # of an agent that died before it took it over
            begun_s = clock.monotonic_s()
            moved = mover.get(order.url, path, watch, expect=order.expect, bytes_max=order.bytes_max)
            seconds = clock.monotonic_s() - begun_s
            has_come()
            moved = mover.sum_up(path, moved, watch)
    except TooLargeError:
        size = UNTOLD_GROWTH * order.bytes_max
        return MoveOutcome(id=order.id, version=version, size_bytes=size, is_told=False)
    except TidemillError as error:
        _log.warning("move.failed", url=shown, direction=order.direction, reason=error.message)
        return _failed(order, error)
    except OSError as error:
        return _failed(order, of_os_error(error, f"move `{shown}`"))
    _log.debug(
        "move.done",
        url=shown,
        direction=order.direction,
        bytes=moved.size_bytes,
        tries=moved.tries,
        checked=moved.checked,
    )
    return MoveOutcome(id=order.id, version=version, moved=moved, seconds=seconds)


def _failed(order: MoveOrder, error: TidemillError) -> MoveOutcome:
    return MoveOutcome(
        id=order.id,
        error=error.message,
        hint=error.hint,
        transient=isinstance(error, SiteError) and error.transient,
        failure=getattr(error, "failure", None) or order.direction.failure,
        no_space=isinstance(error, NoSpaceError),
    )
