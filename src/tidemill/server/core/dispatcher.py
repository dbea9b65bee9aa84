"""The server without its network side: every change of the store goes through here, one after the other.

One thread owns the writing connection. Requests that wait together are committed together (each behind its own
savepoint), and nobody is answered before the commit. Reading does not pass here (`pages.py`).
"""

from __future__ import annotations

import gc
import queue
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar, get_args

from tidemill import clock, log
from tidemill.config.server import HALF_LIFE_S, SITE_LOST_S
from tidemill.config.tls import MARGIN_S
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.model.identity import LOCAL, Act, Identity
from tidemill.model.intervals import IntervalSet
from tidemill.server.audit import audit_log
from tidemill.server.core import actions, expiry, idempotency, lifelines, rights, silence, submission, sync
from tidemill.server.core.meters import Meters
from tidemill.server.database.rows import kind_of, site_of
from tidemill.server.database.store import Session, Store
from tidemill.server.database.work import Kept, Memory, Work
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.notices.addressees import Addressees
from tidemill.wire.api import (
    ActionReply,
    ActionRequest,
    DrainRequest,
    Order,
    Report,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)

GROUP_MAX = 32  #: requests per commit
NUMBER_MAX = 2**62
QUEUE_MAX = 1_000  #: requests that wait; more get 503
CLOCK_STEP_US = 10_000_000
SILENT_S = 120.0  #: shown as SILENT from then on
T = TypeVar("T")


class Deed(Protocol):
    """Does something to jobs; to how many."""

    def __call__(self, work: Work, jobs: list[int]) -> int:
        """Do it."""


_LOG = log.Log("server")
_TAGS: dict[type, str] = {
    kind: str(kind.__struct_config__.tag) for kind in (*get_args(Report), *get_args(Order))
}
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
        self._tallies = audit_log.SyncTallies()
        self.margin_s = MARGIN_S
        self._last_us, self._last_s = 0, 0.0
        self._queue: queue.Queue[_Entry | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self.on_commit: Callable[[], None] = lambda: None
        self.addressees = Addressees()  #: whom submitters may have told
        self.meters = Meters()
        self.kept = Kept()
        self.listeners: list[Callable[[], None]] = []  #: called after each commit too, in the writer's thread
        self.broker_up: Callable[[], bool] | None = (
            None  #: whether the message broker is connected; None = none
        )
        self.full = False  #: the last commit found the database full or unreachable

    # ---- the verbs, each one transaction ---------------------------------------------------------------------

    # Each takes who asks, and refuses with ForbiddenError what that one may not do, before anything is changed.

    def handle_submit(self, request: SubmitRequest | bytes, identity: Identity = LOCAL) -> SubmitReply:
        """Insert jobs, all or none. They belong to the one who asks."""
        decoded = submission.decode(request) if isinstance(request, bytes) else request
        refused = self.addressees.refuse(decoded.notify)
        if refused is not None:
            raise RequestError(refused[0], hint=refused[1])

        def deed(work: Work) -> SubmitReply:
            rights.check_submit(work.session, identity, decoded)
            reply = submission.submit(work, decoded, half_life_s=self.half_life_s)
            reply.remark = expiry.remark(work, identity, decoded, margin_s=self.margin_s)
            if not reply.repeated:
                submission.keep_submitter(work, decoded.key, identity, reply.remark)
                audit_log.note(
                    work, identity, Act.SUBMIT, f"campaign {reply.campaign}", first_job=reply.first_job,
                    jobs=reply.count, events=submission.events_of(decoded), apps=submission.apps_of(decoded),
                )  # fmt: skip
            return reply

        reply = self.write(deed)
        if not reply.repeated:
            _LOG.info(
                "jobs.submitted",
                campaign=reply.campaign,
                job=reply.first_job,
                jobs=reply.count,
                by=identity.name,
            )
        self.meters.add("tidemill_server_submits_total")
        self.meters.add("tidemill_server_submitted_jobs_total", 0 if reply.repeated else reply.count)
        return reply

    def handle_sync(self, request: SyncRequest, identity: Identity = LOCAL) -> SyncReply:
        """Take a site's reports; answer with its orders."""
        rights.check(identity, Act.SYNC, site=request.site)
        began_s = clock.monotonic_s()

        def deed(work: Work) -> SyncReply:
            reply = sync.sync(work, request, half_life_s=self.half_life_s)
            self._tallies.note(work, identity, request)
            return reply

        reply = self.write(deed)
        self._heard_s[request.site] = self._monotonic_s()
        self.meters.observe("tidemill_server_sync_seconds", clock.monotonic_s() - began_s)
        self._count_messages(request, reply)
        return reply

    def handle_cancel(self, request: ActionRequest, identity: Identity = LOCAL) -> ActionReply:
        """Cancel jobs, or all of a campaign, in several transactions if they are many."""
        self._check_action(request, identity, Act.CANCEL)
        return self._act(
            request,
            actions.CANCELABLE,
            lambda work, jobs: actions.cancel(work, jobs, request.reason, half_life_s=self.half_life_s),
            (identity, Act.CANCEL),
        )

    def handle_retry(self, request: ActionRequest, identity: Identity = LOCAL) -> ActionReply:
        """Let jobs run again that ended without success."""
        self._check_action(request, identity, Act.RETRY)
        return self._act(
            request,
            actions.RETRIABLE,
            lambda work, jobs: actions.retry(work, jobs, half_life_s=self.half_life_s),
            (identity, Act.RETRY),
        )

    def _check_action(self, request: ActionRequest, identity: Identity, act: Act) -> None:
        """Ahead of the deed, in a transaction of its own: owners never change.

        What is not there yet is refused in the same one: what is made after it may be another's.
        """
        if identity.is_everybody:
            return
        jobs = [each for each in request.jobs if 0 < each < NUMBER_MAX]

        def check(work: Work) -> None:
            rights.check_campaign(work.session, identity, act, request.campaign)
            rights.check_jobs(work.session, identity, act, jobs)
            if request.campaign is not None:
                _campaign(work, request.campaign)
            _all_exist(work, jobs)

        self.write(check)

    def handle_drain(self, name: str, request: DrainRequest, identity: Identity = LOCAL) -> ActionReply:
        """Let a site take no more leases, or take them again."""
        rights.check(identity, Act.DRAIN, site=name)

        def deed(work: Work) -> bool | None:
            changed = actions.drain(work, name, request)
            if changed:
                facts = {"drain": request.drain, "reason": request.reason}
                audit_log.note(work, identity, Act.DRAIN, f"site {name}", **facts)
            return changed

        changed = self.write(deed)
        if changed is None:
            raise MissingError(f"there is no site `{name}`")
        return ActionReply(changed=int(changed), unchanged=int(not changed))

    def ask_log(self, job: int, event: int | None, identity: Identity = LOCAL) -> int | None:
        """Ask the site for a payload's output; number of the request."""

        def deed(work: Work) -> int | None:
            rights.check_jobs(work.session, identity, Act.LOG, [job])
            audit_log.note(work, identity, Act.LOG, f"job {job}", event=event)
            return actions.ask_log(work, job, event)

        return self.write(deed)

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
                silence.lose(work, site, silent_s=silent[site.name])
                lost_now.append(site)
        sync.charge(work, self.half_life_s)
        work.flush()
        sync.keep_sites(work)
        for site in lost_now:
            sync.keep(work, site)
        return [site.name for site in lost_now]

    def _act(
        self, request: ActionRequest, states: tuple[int, ...], deed: Deed, by: tuple[Identity, Act]
    ) -> ActionReply:
        if (request.campaign is None) == (not request.jobs):
            raise RequestError("name either jobs or a campaign")
        key = idempotency.once_of(request, *by)
        named = sorted(set(request.jobs))
        self.write(partial(_all_exist, jobs=named))

        def piece(work: Work, so_far: ActionReply, after: int) -> tuple[ActionReply, int | None]:
            known = idempotency.known(work, key) if after == 0 else None
            if known is not None:
                return known, None
            if request.campaign is None:
                jobs = named[bisect_right(named, after) :][: actions.PIECE]
            else:
                jobs = actions.members(work, _campaign(work, request.campaign), states, after)
            done = deed(work, jobs) if jobs else 0
            if done:
                on = f"jobs {IntervalSet((each, each + 1) for each in jobs)}"
                if request.campaign is not None:
                    on = f"campaign {request.campaign}"
                audit_log.note(work, *by, on, changed=done, reason=request.reason)
            reply = ActionReply(changed=so_far.changed + done, unchanged=so_far.unchanged + len(jobs) - done)
            if jobs and jobs[-1:] != named[-1:]:
                return reply, jobs[-1]
            idempotency.keep(work, key, reply)
            return reply, None

        reply, after = ActionReply(changed=0, unchanged=0), 0
        while True:
            reply, last = self.write(partial(piece, so_far=reply, after=after))
            if last is None:
                return reply
            after = last

    # ---- what is counted ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that wait for the writer."""
        return self._queue.qsize()

    @property
    def dialect(self) -> str:
        """Which database it is."""
        return str(self._session.dialect)

    def _count_messages(self, request: SyncRequest, reply: SyncReply) -> None:
        for name, messages in (("reports", request.reports), ("orders", reply.orders)):
            for kind, number in Counter(map(type, messages)).items():
                self.meters.add(f"tidemill_server_{name}_total", number, kind=_TAGS[kind])

    def _count_transaction(self, answers: list[tuple[Future[Any], Any]], began_s: float) -> None:
        errors = [answer for _, answer in answers if isinstance(answer, BaseException)]
        failed = any(isinstance(error, SiteError) for error in errors)
        outcome = "failed" if failed else "refused" if len(errors) == len(answers) else "committed"
        self.meters.observe("tidemill_server_transaction_seconds", clock.monotonic_s() - began_s)
        self.meters.add("tidemill_server_transactions_total", outcome=outcome)

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
        works: list[Work] = []
        began_s = clock.monotonic_s()
        collects = gc.isenabled()
        gc.disable()  # a transaction makes tens of thousands of records, and no cycles
        try:
            self._session.begin()
            self._load()
            for act, future in entries:
                answers.append((future, self._one(act, works, alone=len(entries) == 1)))
            if all(isinstance(answer, BaseException) for _, answer in answers):
                self._session.rollback()
            else:
                self._session.commit()
                self._tallies.settle()
            self.full = any(isinstance(answer, SiteError) for _, answer in answers)
        except BaseException as error:  # whatever it was, everybody who waits is told
            self._forget()
            self.full = isinstance(error, SiteError)
            answers = [(future, error) for _, future in entries]
            works.clear()
            if not isinstance(error, Exception):
                raise
        finally:
            if collects:
                gc.enable()
            self._count_transaction(answers, began_s)
            for future, answer in answers:
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        if not self.full:
            self.on_commit()
            for each in self.listeners:
                each()
        lifelines.tell(works)

    def _one(self, act: Callable[[Work], T], works: list[Work], *, alone: bool) -> T | Exception:
        if not alone:
            self._session.savepoint()
        work = Work(self._session, self._memory, self._now_us(), kept=self.kept)
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
        if lifelines.wanted():
            works.append(work)
        return result

    def _undo(self, alone: bool) -> None:
        if not alone:
            self._session.undo()
        self._memory = Memory()
        if not alone:
            self._load()

    def _forget(self) -> None:
        self._memory = Memory()
        self._tallies.forget()
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


def _campaign(work: Work, name: str) -> int:
    rows = work.session.rows("campaign_by_name", name=name)
    if not rows:
        raise MissingError(f"there is no campaign `{name}`")
    return int(rows[0][0])


def _all_exist(work: Work, jobs: list[int]) -> None:
    if not all(0 < each < NUMBER_MAX for each in jobs):
        raise MissingError(f"there is no job {next(each for each in jobs if not 0 < each < NUMBER_MAX)}")
    missing = set(jobs) - {row[0] for row in work.session.rows("states_by_id", ids=jobs)}
    if missing:
        raise MissingError(f"there is no job {min(missing)}")
