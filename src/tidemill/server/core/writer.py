"""The one writer: every change of the store is a transaction of its thread, one after the other.

Requests that wait together are committed together (each behind its own savepoint), and no request is answered before
the commit. Knows how to commit, not what is changed. Reading does not pass here (`database/readers.py`).
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from tidemill import clock, log
from tidemill.config.hospital import Ward
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.server.core.meters import Meters
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database.store import Session, Store
from tidemill.server.database.unit_of_work import FeedRetention, UnitOfWork
from tidemill.server.database.writer_memory import WriterMemory
from tidemill.server.errors import StandbyError
from tidemill.wire.api import LeaseOrder

GROUP_MAX = 32  #: requests per commit
QUEUE_MAX = 1_000  #: requests that wait; more get 503
AWAY_TRIES = (
    3  #: requests in a row that the database refuses alone; then it is not them, and the others are refused
)
T = TypeVar("T")
_LOG = log.Log("server")
_Entry = tuple[Callable[[UnitOfWork], Any], "Future[Any]"]


class Staged(Protocol):
    """What is kept in memory beside the database, and holds only once the transaction that changed it is committed."""

    def settle(self) -> None:
        """Keep what was staged: the transaction was committed."""

    def forget(self) -> None:
        """Drop what was staged: the transaction was undone."""


class Writer:
    """Holds the store's writing connection; `close` it. Raises ConfigError if another server writes already."""

    def __init__(
        self,
        store: Store,
        *,
        server_clock: ServerClock,
        meters: Meters,
        staged: Staged,
        wards: Sequence[Ward] = (),
    ) -> None:
        store.check()
        self._session: Session = store.writer()
        self._term = 0
        if not self.is_paired and not getattr(self._session, "lock", lambda: True)():
            holder = getattr(self._session, "lock_holder", str)()
            self._session.close()
            raise ConfigError(
                f"another server writes to this database: `{holder}` holds its lock",
                hint="stop it first; for two servers set `pair = true` in both server.toml (docs/pairs.md)",
            )
        self._wards = wards
        self.memory = WriterMemory(wards)
        self._clock, self._meters, self._staged = server_clock, meters, staged
        self._queue: queue.Queue[_Entry | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self.kept = FeedRetention()  #: how long the feed of changes is
        self.listeners: list[Callable[[], None]] = []  #: called after each commit, in the writer's thread
        self._waited = threading.local()
        self.full = False  #: the last commit found the database full or unreachable
        self._ended = False  #: the thread has ended without being asked to

    @property
    def waiting(self) -> int:
        """Requests that wait for the writer."""
        return self._queue.qsize()

    @property
    def lives(self) -> bool:
        """Whether changes are written: False once the thread has ended without being asked to."""
        return not self._ended and (self._thread is None or self._thread.is_alive())

    @property
    def is_paired(self) -> bool:
        """Whether this server is one of a pair."""
        return bool(getattr(self._session, "is_paired", False))

    @property
    def is_active(self) -> bool:
        """Whether this server may write: always, but for the standby of a pair."""
        return bool(getattr(self._session, "may_write", True))

    @property
    def session(self) -> Session:
        """The connection that writes: for what keeps a server of a pair in its role."""
        return self._session

    @property
    def dialect(self) -> str:
        """Which database it is."""
        return str(self._session.dialect)

    def write(self, act: Callable[[UnitOfWork], T]) -> T:
        """What `act` returns, once it is committed. From any thread."""
        asked_s, spent_s = clock.monotonic_s(), 0.0

        def timed(work: UnitOfWork) -> T:
            nonlocal spent_s
            began_s = clock.monotonic_s()
            try:
                return act(work)
            finally:
                spent_s = clock.monotonic_s() - began_s

        try:
            if self._thread is None:
                future: Future[T] = Future()
                self._commit([(timed, future)])
                return future.result()
            return self.submit(timed).result()
        finally:
            waited_s = clock.monotonic_s() - asked_s - spent_s
            self._waited.s = getattr(self._waited, "s", 0.0) + waited_s

    def take_waited_s(self) -> float:
        """Seconds that this thread has waited for its turn at the writer since it last called this."""
        waited_s: float = getattr(self._waited, "s", 0.0)
        self._waited.s = 0.0
        return waited_s

    def submit(self, act: Callable[[UnitOfWork], T]) -> Future[T]:
        """Queue `act` for the writer's thread. Raises SiteError when too much waits, or when the thread is gone."""
        if not self.lives:
            raise SiteError("the server's writer has ended", hint="restart the server; its log says why")
        if not self.is_active:
            raise StandbyError
        future: Future[T] = Future()
        try:
            self._queue.put_nowait((act, future))
        except queue.Full:
            raise SiteError(f"{QUEUE_MAX} requests wait already", hint="try again in a moment") from None
        if self._ended:  # between the check above and here
            self._refuse_waiting(SiteError("the server's writer has ended"))
        return future

    def start(self) -> None:
        """Write in a thread from now on."""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End what is queued, then close."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._session.close()

    def _run(self) -> None:
        """Commit until asked to end. An exception in a commit ends that commit only; one that ends the thread all the
        same also ends every request that waits, so that none hangs."""
        try:
            while self._next():
                pass
        except BaseException as error:
            self._ended = True
            _LOG.error("writer.ended", error=repr(error))
            self._refuse_waiting(error)
            raise

    def _next(self) -> bool:
        """Commit what waits together; False when asked to end."""
        entries: list[_Entry] = []
        going = True
        entry = self._queue.get()
        while True:
            if entry is None:
                going = False
                break
            entries.append(entry)
            if len(entries) == GROUP_MAX or self._queue.empty():
                break
            entry = self._queue.get()
        try:
            if entries and not self._commit(entries):
                self._commit_alone(entries)
        except Exception as error:  # noqa: BLE001 - top of the writer's loop: log it and go on
            _LOG.error("commit.unfinished", error=repr(error))
            for _, future in entries:
                _answer(future, error)
        return going

    def _refuse_waiting(self, error: BaseException) -> None:
        while True:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return
            if entry is not None:
                _answer(entry[1], error)

    def _commit_alone(self, entries: list[_Entry]) -> None:
        """Each in a transaction of its own, as the database refused something of one of them."""
        refused = 0
        for number, entry in enumerate(entries):
            self._commit([entry])
            refused = refused + 1 if self.full else 0
            if refused == AWAY_TRIES:
                error = entry[1].exception()
                for _, future in entries[number + 1 :]:
                    _answer(future, error)
                return

    def _commit(self, entries: list[_Entry]) -> bool:
        """One transaction. A request that is refused is undone alone; a failing commit undoes and refuses all. False
        without any answer if the database refused what one of several did: the others must not fail with it."""
        answers: list[tuple[Future[Any], Any]] = []
        works: list[UnitOfWork] = []
        is_acting = False
        began_s = clock.monotonic_s()
        collects = gc.isenabled()
        gc.disable()  # a transaction makes tens of thousands of records, and no cycles
        try:
            self._begin()
            is_acting = True
            for act, future in entries:
                answers.append((future, self._one(act, works, alone=len(entries) == 1)))
            is_acting = False
            if all(isinstance(answer, BaseException) for _, answer in answers):
                self._session.rollback()
            else:
                self._session.commit()
                self._staged.settle()
            self.memory.settle()
            self.full = any(isinstance(answer, SiteError) for _, answer in answers)
        except BaseException as error:  # whatever it was, every request that waits gets it
            self._forget()
            works.clear()
            if is_acting and isinstance(error, SiteError) and len(entries) > 1:
                answers = []
                return False
            self.full = isinstance(error, SiteError) and self.is_active
            answers = [(future, error) for _, future in entries]
            if not isinstance(error, Exception):
                raise
        finally:
            if collects:
                gc.enable()
            self._count(answers, began_s)
            for future, answer in answers:
                _answer(future, answer)
        if not self.full:
            self._tell_listeners()
        _explain(works)
        return True

    def _tell_listeners(self) -> None:
        """The commit is done: what a listener raises is its own trouble, not the next request's."""
        for each in tuple(self.listeners):
            try:
                each()
            except Exception as error:  # noqa: BLE001 - a listener must not end the writer
                _LOG.error("listener.failed", error=repr(error))

    def _begin(self) -> None:
        self._session.begin()
        term = getattr(self._session, "term", 0)
        if term != self._term:  # the other server of the pair may have written since
            self.memory, self._term = WriterMemory(self._wards), term
            self._staged.forget()
        self.memory.load(self._session)

    def _one(self, act: Callable[[UnitOfWork], T], works: list[UnitOfWork], *, alone: bool) -> T | Exception:
        if not alone:
            self._session.savepoint()
        self.memory.begin()
        work = UnitOfWork(self._session, self.memory, self._clock.now_us(), retention=self.kept)
        try:
            result = act(work)
        except SiteError:
            raise
        except TidemillError as error:
            self._undo(alone)
            return error
        except Exception as error:  # noqa: BLE001 - top of the writer's loop: a bug in one request must not end the others
            self._undo(alone)
            return error
        if not alone:
            self._session.release()
        if _LOG.explains:
            works.append(work)
        return result

    def _undo(self, alone: bool) -> None:
        if not alone:
            self._session.undo()
        self.memory.undo()

    def _forget(self) -> None:
        self.memory = WriterMemory(self._wards)
        self._staged.forget()
        try:
            self._session.rollback()
        except Exception as error:  # noqa: BLE001 - whatever it was, the next transaction begins anew or fails aloud
            _LOG.warning("rollback.failed", error=repr(error))

    def _count(self, answers: list[tuple[Future[Any], Any]], began_s: float) -> None:
        if not answers:  # they are tried again
            return
        errors = [answer for _, answer in answers if isinstance(answer, BaseException)]
        failed = any(isinstance(error, SiteError) for error in errors)
        outcome = "failed" if failed else "refused" if len(errors) == len(answers) else "committed"
        self._meters.observe("tidemill_server_transaction_seconds", clock.monotonic_s() - began_s)
        self._meters.add("tidemill_server_transactions_total", outcome=outcome)


def _answer(future: Future[Any], answer: Any) -> None:
    """Give an answer to the one who waits, if that one still does: a future may be canceled, or answered before."""
    with suppress(InvalidStateError):
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _explain(works: list[UnitOfWork]) -> None:
    """Log at DEBUG what these transactions did to single jobs. The ids have the names of `log.JOINED`, as at agents."""
    for work in works:
        for number, orders in work.all_orders():
            site = work.memory.sites[number]
            for order in orders:
                if isinstance(order, LeaseOrder):
                    _LOG.debug(
                        "lease.made", campaign=order.campaign, job=order.job, first=order.first, count=order.count,
                        lease=order.lease, site=site.name, epoch=site.epoch,
                    )  # fmt: skip
        for change in work.changes:
            _LOG.debug(
                "job.changed", campaign=change.campaign, job=change.job, state=change.state,
                events_done=change.events_done, events_failed=change.events_failed,
            )  # fmt: skip
