"""The server without its network side: every change of the store goes through here, one after the other.

One thread owns the writing connection. Requests that wait together are committed together (each behind its own
savepoint), and nobody is answered before the commit. Reading does not pass here (`pages.py`).
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from tidemill import clock, log
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.server import actions, lost, submit, sync
from tidemill.server.matching import HALF_LIFE_S
from tidemill.server.records import kind_of, site_of
from tidemill.server.store import Session, Store
from tidemill.server.sync import Bad
from tidemill.server.work import Memory, Work
from tidemill.wire.api import (
    ActionReply,
    ActionRequest,
    DrainRequest,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)

GROUP_MAX = 32  #: requests per commit
NUMBER_MAX = 2**62
QUEUE_MAX = 1_000  #: requests that wait; more get 503
SITE_LOST_S = 600.0
CLOCK_STEP_US = 10_000_000
SILENT_S = 120.0  #: shown as SILENT from then on
T = TypeVar("T")


class Act(Protocol):
    """Does something to jobs; to how many."""

    def __call__(self, work: Work, jobs: list[int]) -> int:
        """Do it."""


_LOG = log.Log("server")
_Entry = tuple[Callable[[Work], Any], "Future[Any]"]


class Dispatcher:
    """Opens the store's writer; `close` it. The clocks are arguments for tests that let time jump."""

    def __init__(
        self,
        store: Store,
        *,
        site_lost_s: float = SITE_LOST_S,
        half_life_s: float = HALF_LIFE_S,
        monotonic_s: Callable[[], float] = clock.monotonic_s,
        now_us: Callable[[], int] = clock.now_us,
    ) -> None:
        store.check()
        self._session: Session = store.writer()
        if not getattr(self._session, "lock", lambda: True)():
            self._session.close()
            raise ConfigError(
                "another server writes to this database", hint="stop it first; there is one server only"
            )
        self._memory = Memory()
        self._site_lost_s, self.half_life_s = site_lost_s, half_life_s
        self._monotonic_s, self._wall_us = monotonic_s, now_us
        self._started_s = monotonic_s()
        self._heard_s: dict[str, float] = {}
        self._last_us, self._last_s = 0, 0.0
        self._queue: queue.Queue[_Entry | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self.on_commit: Callable[[], None] = lambda: None
        self.full = False  #: the last commit found the database full or unreachable

    # ---- the verbs, each one transaction ---------------------------------------------------------------------

    def handle_submit(self, request: SubmitRequest | bytes) -> SubmitReply:
        """Insert jobs, all or none."""
        decoded = submit.decode(request) if isinstance(request, bytes) else request
        return self.write(lambda work: submit.submit(work, decoded, half_life_s=self.half_life_s))

    def handle_sync(self, request: SyncRequest) -> SyncReply:
        """Take a site's reports; answer with its orders."""
        reply = self.write(lambda work: sync.sync(work, request, half_life_s=self.half_life_s))
        self._heard_s[request.site] = self._monotonic_s()
        return reply

    def handle_cancel(self, request: ActionRequest) -> ActionReply:
        """Cancel jobs, or all of a campaign, in several transactions if they are many."""
        return self._act(
            request,
            actions.CANCELABLE,
            lambda work, jobs: actions.cancel(work, jobs, request.reason, half_life_s=self.half_life_s),
        )

    def handle_retry(self, request: ActionRequest) -> ActionReply:
        """Let jobs run again that ended without success."""
        return self._act(
            request,
            actions.RETRIABLE,
            lambda work, jobs: actions.retry(work, jobs, half_life_s=self.half_life_s),
        )

    def handle_drain(self, name: str, request: DrainRequest) -> ActionReply:
        """Let a site take no more leases, or take them again."""
        changed = self.write(lambda work: actions.drain(work, name, request))
        if changed is None:
            raise Missing(f"there is no site `{name}`")
        return ActionReply(changed=int(changed), unchanged=int(not changed))

    def ask_log(self, job: int, event: int | None) -> int | None:
        """Ask the site for a payload's output; number of the request."""
        return self.write(lambda work: actions.ask_log(work, job, event))

    def check_sites(self) -> list[str]:
        """Sites that have now been silent for too long lose their leases; their names."""
        silent = self.silent_sites()
        return self.write(lambda work: self._lose(work, silent)) if silent else []

    def silent_sites(self) -> dict[str, float]:
        """Sites silent for longer than `site_lost_s`, and how long. Durations are of this process and its monotonic
        clock: a wall clock that jumps, or a server that was down, loses no site."""
        now_s = self._monotonic_s()
        sites = list(self._memory.sites.values())
        ages = {
            site.name: now_s - self._heard_s.get(site.name, self._started_s)
            for site in sites
            if site.epoch and not site.lost
        }
        return {name: age for name, age in ages.items() if age > self._site_lost_s}

    def silent_s(self, name: str) -> float:
        """Seconds since a site was heard, or since this server started."""
        return self._monotonic_s() - self._heard_s.get(name, self._started_s)

    def _lose(self, work: Work, silent: dict[str, float]) -> list[str]:
        lost_now = []
        for site in list(work.memory.sites.values()):
            if site.name in silent and not site.lost:
                lost.lose(work, site, silent_s=silent[site.name])
                lost_now.append(site)
        sync.charge(work, self.half_life_s)
        work.flush()
        sync.keep_sites(work)
        for site in lost_now:
            sync.keep(work, site)
        return [site.name for site in lost_now]

    def _act(self, request: ActionRequest, states: tuple[int, ...], act: Act) -> ActionReply:
        if (request.campaign is None) == (not request.jobs):
            raise Bad("name either jobs or a campaign")
        if request.campaign is None:
            jobs = sorted(set(request.jobs))
            self._all_exist(jobs)
            pieces = [jobs[at : at + actions.PIECE] for at in range(0, len(jobs), actions.PIECE)]
            changed = sum(self.write(partial(act, jobs=piece)) for piece in pieces)
            return ActionReply(changed=changed, unchanged=len(jobs) - changed)
        changed = seen = after = 0
        while True:
            name, at = request.campaign, after

            def piece_of(work: Work, name: str = name, at: int = at) -> tuple[list[int], int]:
                rows = work.session.rows("campaign_by_name", name=name)
                if not rows:
                    raise Missing(f"there is no campaign `{name}`")
                jobs = actions.members(work, int(rows[0][0]), states, at)
                return jobs, act(work, jobs) if jobs else 0

            jobs, done = self.write(piece_of)
            if not jobs:
                return ActionReply(changed=changed, unchanged=seen - changed)
            changed, seen, after = changed + done, seen + len(jobs), jobs[-1]

    def _all_exist(self, jobs: list[int]) -> None:
        if not all(0 < each < NUMBER_MAX for each in jobs):
            raise Missing(f"there is no job {next(each for each in jobs if not 0 < each < NUMBER_MAX)}")
        rows = self.write(lambda work: work.session.rows("states_by_id", ids=jobs))
        missing = set(jobs) - {row[0] for row in rows}
        if missing:
            raise Missing(f"there is no job {min(missing)}")

    # ---- transactions ----------------------------------------------------------------------------------------

    def write(self, act: Callable[[Work], T]) -> T:
        """What `act` returns, once it is committed. From any thread."""
        if self._thread is None:
            future: Future[T] = Future()
            self._commit([(act, future)])
            return future.result()
        return self.submit(act).result()

    def submit(self, act: Callable[[Work], T]) -> Future[T]:
        """Queue `act` for the writer's thread. Raises SiteError when too much waits."""
        future: Future[T] = Future()
        try:
            self._queue.put_nowait((act, future))
        except queue.Full:
            raise SiteError(f"{QUEUE_MAX} requests wait already", hint="try again in a moment") from None
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
        going = True
        while going:
            entries: list[_Entry] = []
            entry = self._queue.get()
            while True:
                if entry is None:
                    going = False
                    break
                entries.append(entry)
                if len(entries) == GROUP_MAX or self._queue.empty():
                    break
                entry = self._queue.get()
            if entries:
                self._commit(entries)

    def _commit(self, entries: list[_Entry]) -> None:
        """One transaction. A request that is refused is undone alone; a failing commit undoes and refuses all."""
        answers: list[tuple[Future[Any], Any]] = []
        collects = gc.isenabled()
        gc.disable()  # a transaction makes tens of thousands of records, and no cycles
        try:
            self._session.begin()
            self._load()
            for act, future in entries:
                answers.append((future, self._one(act, alone=len(entries) == 1)))
            if all(isinstance(answer, BaseException) for _, answer in answers):
                self._session.rollback()
            else:
                self._session.commit()
            self.full = any(isinstance(answer, SiteError) for _, answer in answers)
        except BaseException as error:  # whatever it was, everybody who waits is told
            self._forget()
            self.full = isinstance(error, SiteError)
            answers = [(future, error) for _, future in entries]
            if not isinstance(error, Exception):
                raise
        finally:
            if collects:
                gc.enable()
            for future, answer in answers:
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        if not self.full:
            self.on_commit()

    def _one(self, act: Callable[[Work], T], *, alone: bool) -> T | Exception:
        if not alone:
            self._session.savepoint()
        try:
            result = act(Work(self._session, self._memory, self._now_us()))
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
        return result

    def _undo(self, alone: bool) -> None:
        if not alone:
            self._session.undo()
        self._memory = Memory()
        if not alone:
            self._load()

    def _forget(self) -> None:
        self._memory = Memory()
        try:
            self._session.rollback()
        except SiteError as error:
            _LOG.warning("rollback.failed", error=error.message)

    def _now_us(self) -> int:
        """The wall clock, smoothed: it never goes back, and follows a jump by steps of at most CLOCK_STEP_US, so that
        one wrong reading decays no account and stamps nothing far in the future."""
        at_s, wall_us = self._monotonic_s(), self._wall_us()
        if not self._last_us:
            self._last_us, self._last_s = wall_us, at_s
        passed_us = max(0, int((at_s - self._last_s) * 1e6))
        gap_us = wall_us - (self._last_us + passed_us)
        # ahead of the wall: half speed until that has caught up
        self._last_us += passed_us + (
            min(gap_us, CLOCK_STEP_US) if gap_us > 0 else max(gap_us, -(passed_us // 2))
        )
        self._last_s = at_s
        return self._last_us

    def _load(self) -> None:
        memory = self._memory
        if memory.loaded:
            return
        for row in self._session.rows("kinds"):
            memory.kinds[row[0]] = kind_of(row)
            memory.kind_ids[row[1:]] = row[0]
        for row in self._session.rows("sites"):
            site = site_of(row)
            memory.sites[site.id] = site
            memory.site_ids[site.name] = site.id
        memory.loaded = True


class Missing(Bad):
    """There is no such thing (HTTP 404)."""
