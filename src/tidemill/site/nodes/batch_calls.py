"""The calls to the batch system, one after the other beside the agent's loop: a slow controller holds up nothing.

At most one call is under way: a poll (one status of all our allocations, one snapshot), a glance, actions (cancel,
shorten, submit, in this order), or the deletion of a few old files. What a call does outside is durable in the site's
log before it starts, and the epoch is checked before every single action. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from tidemill import clock
from tidemill.batch.contract import BatchSubmission, BatchSystem, PlainReply, Status, is_shown
from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.model.machine import JobCounts, Snapshot
from tidemill.site.state.epoch import SupersededError

_log = Log("harvest")


class PollAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the batch system answered. `snapshot` None = it was asked for allocations only. `calls`: commands that it
    took; `at_s`: monotonic time at which it was asked. `plain`: what the plain query showed of those that had to be
    in the answer and are not; None = all are, or it failed."""

    statuses: dict[str, Status]
    snapshot: Snapshot | None
    seconds: float
    calls: int
    at_s: float = 0.0
    plain: PlainReply | None = None


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, in this order. `ends_s`: new ends, seconds since 1970."""

    cancel: list[str] = []
    ends_s: dict[str, float] = {}
    submissions: list[BatchSubmission] = []


class ActionsDone(msgspec.Struct, kw_only=True):
    """What came of it. Every action that was ordered is in one of these. `refused`: submission -> the error; its
    `transient`: it may have been taken all the same."""

    acts: Actions
    canceled: bool = False
    ends_s: dict[str, float] = {}
    submitted: dict[str, str] = {}  #: submission -> number in the batch system
    refused: dict[str, TidemillError] = {}
    errors: list[TidemillError] = []


class FilesRemoved(msgspec.Struct, frozen=True):
    """Old files are deleted, or not: then `error` says why."""

    error: TidemillError | None = None


class Unreachable(msgspec.Struct, frozen=True):
    """The batch system could not be asked."""

    error: TidemillError


class Glanced(msgspec.Struct, frozen=True, kw_only=True):
    """What a glance showed. `counts` None = nothing; `error`: why it failed."""

    counts: JobCounts | None = None
    error: TidemillError | None = None


Answered = PollAnswer | Glanced | ActionsDone | FilesRemoved | Unreachable


class BatchCalls:
    """Makes the calls; `poll_answer` gives the answer of the last one. With `inline` they are made at once, in the
    caller: for a batch system that answers in milliseconds."""

    def __init__(self, batch: BatchSystem, check: Callable[[], None], *, inline: bool) -> None:
        self.batch = batch
        self._check = check
        self._thread = None if inline else ThreadPoolExecutor(1, thread_name_prefix="batch")
        self._under_way: Future[Answered] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, or its answer was not taken yet."""
        return self._under_way is not None

    def poll(self, names: Collection[str], *, machine: bool, expected: Collection[str] = ()) -> None:
        """Ask for the state of these allocations and, with `machine`, of the whole machine. Allocations of `expected`
        that the answer does not show are looked up by the plain query."""
        self._start(lambda: _poll(self.batch, list(names), machine, expected))

    def glance(self) -> None:
        """Ask whether jobs have come or ended."""
        self._start(lambda: _glance(self.batch))

    def act(self, acts: Actions) -> None:
        """Do these actions. They must be durable in the site's log."""
        self._start(lambda: _act(self.batch, acts, self._check))

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Delete the files of these ended allocations, and of these submissions without a living one."""
        self._start(lambda: _forget(self.batch, names, submissions))

    def poll_answer(self) -> Answered | None:
        """The answer; None while there is none. Raises SupersededError when a newer agent serves the site."""
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        return done.result()

    def wait(self, timeout_s: float) -> None:
        """Wait until the call under way has ended, at most `timeout_s`."""
        deadline = clock.monotonic_s() + timeout_s
        while self._under_way is not None and not self._under_way.done() and clock.monotonic_s() < deadline:
            clock.sleep_s(0.005)

    def close(self) -> None:
        """Start nothing more."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self, call: Callable[[], Answered]) -> None:
        assert self._under_way is None, "one call at a time"
        if self._thread is not None:
            self._under_way = self._thread.submit(call)
            return
        done: Future[Answered] = Future()
        done.set_result(call())
        self._under_way = done


def _poll(
    batch: BatchSystem, names: list[str], machine: bool, expected: Collection[str]
) -> PollAnswer | Unreachable:
    began_s, before = clock.monotonic_s(), batch.calls.queries
    try:
        statuses = batch.status(names) if names else {}
        snapshot = batch.snapshot() if machine else None
    except TidemillError as error:
        return Unreachable(error)
    plain = plain_reply(batch, [each for each in expected if not is_shown(statuses, each)])
    return PollAnswer(
        statuses=statuses,
        snapshot=snapshot,
        seconds=clock.monotonic_s() - began_s,
        at_s=began_s,
        plain=plain,
        calls=batch.calls.queries - before,
    )


def plain_reply(batch: BatchSystem, names: list[str]) -> PlainReply | None:
    """What the plain query shows of these allocations; None = there are none, or it failed."""
    try:
        return batch.plain(names) if names else None
    except TidemillError as error:
        _log.warning("plain.failed", reason=error.message)
        return None


def _glance(batch: BatchSystem) -> Glanced:
    try:
        return Glanced(counts=batch.glance())
    except TidemillError as error:
        return Glanced(error=error)


def _forget(batch: BatchSystem, names: Collection[str], submissions: Collection[str]) -> FilesRemoved:
    try:
        batch.forget(names, submissions)
    except TidemillError as error:
        return FilesRemoved(error)
    return FilesRemoved()


def _act(batch: BatchSystem, acts: Actions, check: Callable[[], None]) -> ActionsDone:
    """Carry out the actions: one call cancels all, one call sets each end (the adapter joins equal ones), one call
    submits each array. A failed call does not stop the others: releasing nodes must not wait for anything."""
    acted = ActionsDone(acts=acts)
    if acts.cancel:
        check()
        try:
            batch.cancel(acts.cancel)
            acted.canceled = True
        except TidemillError as error:
            acted.errors.append(error)
    if acts.ends_s:
        check()
        try:
            acted.ends_s = batch.shorten(acts.ends_s)
        except TidemillError as error:
            acted.errors.append(error)
    for submission in acts.submissions:
        check()
        try:
            acted.submitted[submission.name] = batch.submit(submission)
        except SupersededError:
            raise
        except TidemillError as error:
            acted.refused[submission.name] = error
    return acted
