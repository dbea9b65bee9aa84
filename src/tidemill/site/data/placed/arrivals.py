"""Outputs as they fall: files of finished events in their place while their job goes on, some of them at a time.

Only outputs of which each part becomes a file of its own come early; archives, joined and merged files, and what goes
to remote places, are made when the job ends. A part comes once the server has acknowledged its result: most results
that lose are known by then. Not all, since the order to discard one may come with a later answer: what is too much for
an answer, or for this site, is put off. Such files are removed again, like those of results that lose later (`stale`).

One batch is under way at a time, in a thread of the deliveries; the pause until a job's next one grows with its list of
files, and with the time that the last one took, so that a slow file system has its rest.

Nothing here is needed for a job to be whole: its delivery puts in place what has not arrived, and keeps what has.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from tidemill import clock
from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.model.arrival import arrives, pause_s
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Output
from tidemill.site import constants
from tidemill.site.applications.checksums import PendingError
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.outputs import DamagedError, Deliverer, OutputDelivery
from tidemill.site.data.placed.manifests import ARRIVED
from tidemill.site.data.placed.stale import StaleRemovals
from tidemill.site.state import site_state
from tidemill.site.state.served_site import ServedSite
from tidemill.wire.api import DoneReport, OutputRow, Report
from tidemill.wire.node import Done, Record

BATCH_FILES = 1_000
BATCH_BYTES = 1 << 30
BATCH_SHARE = 10
"""A batch is larger where more files are there: by this part of them. So the list of files is written anew a bounded
number of times."""

FIRST = 3
"""Part of the interval after which the first files of a job come. One that ends sooner has no work twice."""

REST = 4
"""Times as long as a batch took: how long its job then has no other one. A file system that takes seconds for a batch
gets four times as long for other work."""

BACKOFF_MAX = 6  #: powers of two by which pauses grow while batches fail
LOOKS_PER_STEP = 16  #: jobs that are examined in a tick
LATE_MAX = 100_000  #: jobs that are remembered for having no outputs that come early

_log = Log("arrivals")


def unacknowledged(reports: Iterable[Report]) -> Mapping[int, IntervalSet]:
    """Events of each job whose results the server may still refuse. Pure."""
    found: dict[int, IntervalSet] = defaultdict(IntervalSet)
    for each in reports:
        if isinstance(each, DoneReport):
            found[each.job].add(each.first, each.first + each.count)
    return found


def batch(
    job: site_state.SiteJob, outputs: Sequence[Output], *, but: IntervalSet, bytes_max: int
) -> tuple[list[site_state.KeptPart], bool]:
    """The parts of a job that come next, in event order, and whether more wait. `but`: events that are left out;
    `bytes_max`: of all outputs of the job, a larger one is not delivered at all. Pure."""
    names = {each.name for each in outputs}
    most = max(BATCH_FILES, len(job.arrived) // BATCH_SHARE)
    size = files = all_bytes = 0
    fresh: list[site_state.KeptPart] = []
    for part in job.parts:
        all_bytes += sum(ref.length for ref in part.outputs)
        first, end = part.first, part.first + part.count
        if not (job.arrived.covers(first, end) or but.touches(first, end)):
            fresh.append(part)
    if all_bytes > bytes_max:
        return [], False
    fresh.sort(key=lambda part: part.first)
    for at, part in enumerate(fresh):
        lengths = [ref.length for ref in part.outputs if ref.name in names]
        if at and (files + len(lengths) > most or size + sum(lengths) > BATCH_BYTES):
            return fresh[:at], True
        files, size = files + len(lengths), size + sum(lengths)
    return fresh, False


class Coming(msgspec.Struct):
    """A job of which parts wait to come. `skip`: events whose bytes cannot be read: the job's delivery decides."""

    next_s: float
    tries: int = 0
    why: str = ""  #: the last batch failed
    since_us: int = 0
    skip: IntervalSet = msgspec.field(default_factory=IntervalSet)


class _Batch(msgspec.Struct):
    """A batch under way."""

    job: int
    events: str
    more: bool
    future: Future[list[OutputRow]]
    began_s: float
    canceled: threading.Event


class Arrivals:
    """What comes of jobs before they end."""

    def __init__(self, site: ServedSite, preparer: Preparer, deliverer: Deliverer) -> None:
        self._log = site.log
        self._every_s = constants.OUTPUTS_EVERY_S
        self._bytes_max = constants.DELIVERY_BYTES_MAX
        self._executor = site.pools.deliveries
        self._preparer = preparer
        self._deliverer = deliverer
        self._stale = StaleRemovals(site, preparer, deliverer)
        self._waiting: dict[int, Coming] = {}
        self._due: list[tuple[float, int]] = []
        self._batch: _Batch | None = None
        self._late: set[int] = set()  #: jobs of which nothing comes early
        for job in self._log.pool.state.jobs.values():
            if any(not job.arrived.covers(part.first, part.first + part.count) for part in job.parts):
                self._note(
                    job.id, at_once=True
                )  # an agent that runs for seconds only, from cron, has no later

    def on_records(self, records: Iterable[Record]) -> None:
        """Records were taken into the site's log: outputs of these events may come."""
        for record in records:
            if isinstance(record, Done) and record.outputs:
                self._note(record.job)

    def step(self, written: Collection[int] = ()) -> bool:
        """Take what has come, and start what is due; whether anything changed. `written`: jobs whose files a delivery
        writes, even one that was called off."""
        if self._batch is not None and self._batch.job not in self._log.pool.state.jobs:
            self._batch.canceled.set()
        changed = self._finish()
        changed |= self._stale.step([*written, *([] if self._batch is None else [self._batch.job])])
        now_s = clock.monotonic_s()
        unacked: Mapping[int, IntervalSet] | None = None
        for _ in range(LOOKS_PER_STEP):
            if self._batch is not None or not self._due or self._due[0][0] > now_s:
                break
            at_s, job = heapq.heappop(self._due)
            waiting = self._waiting.get(job)
            if waiting is None or waiting.next_s != at_s:
                continue
            if job in written or self._stale.holds(job):  # both would write the same files
                self._again(job, waiting, self._every_s)
                continue
            if unacked is None:
                unacked = unacknowledged(self._log.pool.state.reports)
            self._begin(job, waiting, unacked.get(job) or IntervalSet())
        return changed

    def holds(self, job: int) -> bool:
        """Whether files of this job are written or removed here; breaks a batch off, since the job's delivery waits."""
        if self._batch is None or self._batch.job != job:
            return self._stale.holds(job)
        self._batch.canceled.set()
        return True

    def close(self) -> None:
        """Break off what is under way: it comes later."""
        if self._batch is not None:
            self._batch.canceled.set()
        self._stale.close()

    @property
    def under_way(self) -> list[Future[Any]]:
        """What threads do now; `step` takes each that is done."""
        return [*([] if self._batch is None else [self._batch.future]), *self._stale.under_way]

    @property
    def is_to_try_again(self) -> bool:
        """Whether files are still to be removed that could not be, and hold up their job."""
        return self._stale.is_to_try_again

    def failing(self) -> Iterator[tuple[int, Coming]]:
        """Jobs that go on, and whose last batch failed."""
        state = self._log.pool.state
        going = (
            each
            for each in self._waiting.items()
            if each[0] in state.jobs and each[0] not in state.deliveries
        )
        return ((job, each) for job, each in going if each.why)

    def _note(self, job_id: int, *, at_once: bool = False) -> None:
        job = self._log.pool.state.jobs.get(job_id)
        if job_id in self._waiting or job_id in self._late or job is None:
            return
        if job.spec.events > 1 and job_id < site_state.STEP_BASE and self._outputs(job) != []:
            first_s = self._every_s / FIRST  # nodes keep results for some seconds before they are known here
            pause = pause_s(self._every_s, len(job.arrived)) if job.arrived else first_s
            self._again(job_id, Coming(0.0), 0.0 if at_once else pause)
            return
        if len(self._late) >= LATE_MAX:
            self._late.clear()
        self._late.add(job_id)

    def _outputs(self, job: site_state.SiteJob) -> list[Output] | None:
        """The outputs of a job that come early; None = not known now."""
        try:
            outputs = job.spec.outputs or self._preparer.outputs(job.spec)
        except TidemillError:
            return None
        return [each for each in outputs if arrives(job.spec, each)]

    def _again(self, job: int, waiting: Coming, for_s: float) -> None:
        """Examine the job after this time."""
        waiting.next_s = clock.monotonic_s() + for_s
        self._waiting[job] = waiting
        heapq.heappush(self._due, (waiting.next_s, job))

    def _begin(self, job_id: int, waiting: Coming, unacked: IntervalSet) -> None:
        state = self._log.pool.state
        job = state.jobs.get(job_id)
        if job is None or job.stopping or job_id in state.deliveries:
            del self._waiting[job_id]  # its delivery puts all of it in place
            return
        try:
            self._preparer.check_owner(job)
            early = self._outputs(job) or []
            but = IntervalSet.union([unacked, waiting.skip])
            parts, more = batch(job, early, but=but, bytes_max=self._bytes_max)
            if not parts or not early:
                self._rest(job, waiting, is_awaited=bool(unacked))
                return
            delivery = self._delivery(job, parts)
        except PendingError:
            self._again(job.id, waiting, 0.0)
            return
        except TidemillError as error:
            self._failed(job, waiting, error)
            return
        canceled = threading.Event()
        self._batch = _Batch(
            job=job_id, events=delivery.done, more=more, began_s=clock.monotonic_s(), canceled=canceled,
            future=self._executor.submit(self._deliverer.arrive, delivery, canceled),
        )  # fmt: skip

    def _rest(self, job: site_state.SiteJob, waiting: Coming, *, is_awaited: bool) -> None:
        """Nothing can come now. `is_awaited`: the server has not answered for some of it."""
        if is_awaited:
            self._again(job.id, waiting, self._every_s)
        elif not waiting.skip:
            del self._waiting[job.id]
        else:
            self._again(job.id, waiting, pause_s(self._every_s, len(job.arrived)))

    def _delivery(self, job: site_state.SiteJob, parts: list[site_state.KeptPart]) -> OutputDelivery:
        return OutputDelivery(
            job=job.id,
            campaign=job.campaign,
            seed_base=job.seed_base,
            spec=job.spec,
            app_digest=self._preparer.digest(job.spec),
            outputs=self._preparer.outputs(job.spec),
            parts=parts,
            merged={},
            done=str(IntervalSet((part.first, part.first + part.count) for part in parts)),
            owner=job.owner,
            number=ARRIVED,
        )

    def _finish(self) -> bool:
        """Take the batch that is done; whether there was one."""
        if self._batch is None or not self._batch.future.done():
            return False
        it, self._batch = self._batch, None
        job, waiting = self._log.pool.state.jobs.get(it.job), self._waiting[it.job]
        try:
            outputs = it.future.result()
        except TidemillError as error:
            if job is None or it.canceled.is_set():
                del self._waiting[it.job]
            else:
                self._failed(job, waiting, error)
            return True
        self._log.apply(site_state.OutputsArrived(job=it.job, events=it.events, outputs=outputs))
        _log.info("outputs.arrived", job=it.job, events=len(IntervalSet.parse(it.events)))
        if job is None:  # should it come back, it is examined as a new one
            del self._waiting[it.job]
            return True
        waiting.tries, waiting.why, waiting.since_us = 0, "", 0
        took_s = clock.monotonic_s() - it.began_s
        rest_s = REST * took_s
        pause = rest_s if it.more else max(rest_s, pause_s(self._every_s, len(job.arrived)))
        self._again(job.id, waiting, pause)
        return True

    def _failed(self, job: site_state.SiteJob, waiting: Coming, error: TidemillError) -> None:
        if isinstance(error, DamagedError):
            waiting.skip.add(error.first, error.first + error.count)
        else:
            waiting.tries += 1
            waiting.why, waiting.since_us = error.message, waiting.since_us or clock.now_us()
        _log.warning("outputs.delayed", job=job.id, reason=error.message)
        self._again(job.id, waiting, self._every_s * 2 ** min(waiting.tries, BACKOFF_MAX))
