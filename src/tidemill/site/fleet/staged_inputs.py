"""Which events of a job have their inputs: has them staged by threads, and says what came, what is missing and why.

Inputs are staged ahead of the events as far as the stage has room (`budget`): what does not fit waits here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import msgspec

from tidemill import clock
from tidemill.errors import TidemillError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import InputKind
from tidemill.model.quantities import duration_text
from tidemill.routing.attribution import FarTrouble
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.moves import MovesPendingError
from tidemill.site.data.owners import Reader
from tidemill.site.data.routing import Opening
from tidemill.site.data.staging import NoRoomError, Stage, StepTooLargeError
from tidemill.site.data.way_learning import learner
from tidemill.site.fleet.fleets import Fleets
from tidemill.site.fleet.workload import WaitingLoad
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.site.state.settlement import at_once, load_key
from tidemill.wire.node import Failed, InputDef, Noted, Record

STAGED_EVENTS_PER_STEP = 500
BEGUN_MAX = 1000
"""Jobs whose inputs are inspected or brought at the same time. Bytes are bounded by the stage's budget."""

WAITING_MAX = 10_000
"""Jobs that wait for room in the stage: others are not inspected before some of them have it."""

LATE_S = 5.0
"""Whether jobs have waited for room for too long is inspected this often."""

TRIMMED_MAX = 20_000
"""Jobs that are inspected at a time for inputs of events that are over."""

IDLE_S = 1.0
"""Whether jobs whose inputs are on their way have nothing left to run is inspected this often."""

ROOM_S = 2.0
"""While jobs wait for room, what is over is removed and disks are inspected this often."""


class _JobInputs(msgspec.Struct):
    """Inputs of a job: what is there, what is under way."""

    staged: IntervalSet
    inputs: list[InputDef]
    began: int = 0  #: as of the job when they were staged
    under_way: Future[list[InputDef]] | None = None
    events: list[tuple[int, int]] = []
    tries: int = 0
    awaits: tuple[str, ...] = ()  #: files on their way
    waits_for_room: bool = False
    is_begun: bool = False  #: events were granted when its thread was asked last
    step_max: int = STAGED_EVENTS_PER_STEP


class StagedInputs:
    """Inputs of the jobs in the backlog. Everything here can be staged again after a restart."""

    def __init__(
        self, log: SiteLog, preparer: Preparer, stage: Stage, fleets: Fleets, executor: Executor
    ) -> None:
        self._log = log
        self._preparer = preparer
        self._stage = stage
        self._fleets = fleets
        self._executor = executor
        self._jobs: dict[int, _JobInputs] = {}
        self._begun: set[int] = set()
        self._asking: set[int] = set()  #: jobs whose inputs a thread was asked for, and did not all come yet
        self._next_idle_s = 0.0
        self._waiting: set[int] = set()
        self._waiting_max = WAITING_MAX
        self._ending: dict[int, Future[Any]] = {}  #: before these have ended, nothing begins for their jobs
        self._trimmed: dict[int, int] = {}  #: job -> its open events when its files were trimmed last
        self._untrimmed: list[int] = []
        self._trimmed_max = TRIMMED_MAX
        self._next_room_s = 0.0
        self._next_late_s = 0.0
        self.waiting_load = WaitingLoad()  #: what waits for room: nodes would be idle

    def forget(self, *jobs: int) -> None:
        """Drop what was staged of jobs, and what is reserved for them."""
        idle: list[int] = []
        for job in jobs:
            inputs = self._jobs.pop(job, None)
            self._begun.discard(job)
            self._asking.discard(job)
            self._waiting.discard(job)
            self.waiting_load.drop(job)
            if inputs is not None and inputs.under_way is not None and not inputs.under_way.done():
                self._ending[job] = inputs.under_way
            elif inputs is not None:
                idle.append(job)
        if idle:
            self._stage.release(*idle)

    def tend(self) -> None:
        """Free what ended jobs hold; while jobs wait for room, look for some now and then."""
        for job, future in list(self._ending.items()):
            if future.done():
                del self._ending[job]
                if job not in self._log.pool.state.jobs:  # its thread may have made its directory again
                    self._stage.clean(job)
                elif job not in self._jobs:
                    self._stage.release(job)
        now_s = clock.monotonic_s()
        if self._asking and now_s >= self._next_idle_s:
            self._next_idle_s = now_s + IDLE_S
            self._let_go()
        if self._waiting and now_s >= self._next_room_s:
            self._next_room_s = now_s + ROOM_S
            self._trim()
            self._executor.submit(self._stage.look_for_room)

    def _let_go(self) -> None:
        """Break off what comes for jobs that have nothing left to run: one that is stopped, or that went back to the
        server, stays in our state for what it keeps, and is never asked for again. Merge steps move nothing."""
        jobs = self._log.pool.state.jobs
        moving = [each for each in self._asking if each < site_state.STEP_BASE]
        self.forget(*(each for each in moving if each not in jobs or not jobs[each].ready))

    def late(self, wait_max_s: float) -> list[tuple[site_state.SiteJob, str]]:
        """Jobs that have waited for room for too long, and for what."""
        now_s = clock.monotonic_s()
        if not self._waiting or now_s < self._next_late_s:
            return []
        self._next_late_s = now_s + LATE_S
        waited = duration_text(wait_max_s)
        jobs = self._log.pool.state.jobs
        return [
            (jobs[job], f"this site has waited {waited} for {self._stage.waits_for(job)}")
            for job in self._stage.late(wait_max_s)
            if job in self._waiting and job in jobs
        ]

    @property
    def is_staging(self) -> bool:
        """Whether inputs are being copied, or come."""
        return any(each.under_way is not None or each.awaits for each in self._jobs.values())

    def staging_now(self) -> list[tuple[int, int]]:
        """Jobs whose inputs are being copied or wait for room, and how often that has failed before."""
        return [
            (job, each.tries)
            for job, each in self._jobs.items()
            if each.under_way is not None or each.awaits or each.waits_for_room
        ]

    def waits_for(self, job: int) -> str:
        """What a job of `staging_now` waits for, in words; empty while its inputs are being copied."""
        return self._stage.waits_for(job) if job in self._waiting else ""

    def is_under_way(self, job: int) -> bool:
        """Whether inputs of this job are being copied, or come: what came of that is still to be taken."""
        inputs = self._jobs.get(job)
        return inputs is not None and (inputs.under_way is not None or bool(inputs.awaits))

    def attributed(self, records: Sequence[Record]) -> dict[int, FarTrouble]:
        """What is known of the ways by which failed payloads read far files, by the record's place."""
        return self._stage.routes.reads.attributed(records)

    def on_records(self, records: Iterable[Record]) -> None:
        """Events that failed: what their program opens is laid out again, by another way, before they are granted. So
        is a shared input as soon as it is known how long payloads wait for it: another way may be quicker."""
        records = list(records)
        for number in self._stage.routes.learning.on_records(records):
            job, inputs = self._log.pool.state.jobs.get(number), self._jobs.get(number)
            if job is not None and inputs is not None and _opens_shared(job):
                inputs.staged = IntervalSet()
        for record in records:
            if type(record) is Noted and record.topic == "cache":
                self._stage.routes.heard_node(record)
            job = self._log.pool.state.jobs.get(record.job) if type(record) is Failed else None
            inputs = None if job is None else self._jobs.get(job.id)
            if job is None or inputs is None or not any(each.is_opened for each in job.spec.inputs):
                continue
            assert type(record) is Failed
            self._stage.routes.doubt(job.id)
            if _opens_shared(job):
                inputs.staged = IntervalSet()
            else:
                inputs.staged.remove(record.first, record.first + record.count)

    def is_blocked(self, job: site_state.SiteJob) -> bool:
        """Whether nothing has happened to the job's inputs since they were last inspected, and nothing can start for
        them now: then the job need not be defined. Cheap."""
        inputs = self._jobs.get(job.id)
        if inputs is None:
            if len(self._waiting) >= self._waiting_max and job.id not in self._stage.jobs_before:
                self._weigh(job, IntervalSet())
                return True
            return len(self._begun) >= BEGUN_MAX or job.id in self._ending
        if inputs.under_way is not None:
            return not inputs.under_way.done()
        if inputs.began != job.began or not job.ready:
            return False
        first = job.ready[0].first
        return not inputs.staged.touches(first, first + 1) and not self._may_begin(job, inputs)

    def inputs_of(self, job: int) -> list[InputDef]:
        """The inputs of a job that `is_ready`."""
        return self._jobs[job].inputs

    def is_ready(self, job: site_state.SiteJob) -> bool:
        """Whether the first ready events are staged; has a thread stage them if not. Raises TidemillError once if that
        failed; the next call tries again."""
        inputs = self._jobs.get(job.id)
        if inputs is None:
            # what an earlier agent staged is in use: its job is inspected, or others would wait for it
            if len(self._waiting) >= self._waiting_max and job.id not in self._stage.jobs_before:
                self._weigh(job, IntervalSet())
                return False
            inputs = self._jobs[job.id] = _JobInputs(IntervalSet(), [], job.began)
        if inputs.under_way is not None:
            if not inputs.under_way.done():
                return False
            self._begun.discard(job.id)
            if not self._has_no_room(job, inputs):
                self._apply_staged(job.id, inputs)
        if inputs.began != job.began:  # its owner may have repaired them since
            self.forget(job.id)
            self._ending[job.id] = self._executor.submit(self._stage.clean, job.id)
            return False
        if not job.ready:
            return False
        if inputs.staged.touches(job.ready[0].first, job.ready[0].first + 1):
            return True
        if self._may_begin(job, inputs):
            inputs.awaits = ()
            inputs.waits_for_room = False
            self._waiting.discard(job.id)
            self._begun.add(job.id)
            self._asking.add(job.id)
            inputs.is_begun = bool(job.grants)
            inputs.events = self._next_events(job, inputs.step_max)
            inputs.under_way = self._start(job, inputs.events)
        return False

    def _may_begin(self, job: site_state.SiteJob, inputs: _JobInputs) -> bool:
        """Whether a thread may be asked for the next inputs now."""
        if job.id in self._ending:
            return False
        if inputs.awaits and not self._stage.is_done(inputs.awaits):
            self._begun.add(job.id)
            return False
        if inputs.waits_for_room:
            self._weigh(job, inputs.staged)
            if not self._stage.may_try(job.id):
                return False
        return len(self._begun) < BEGUN_MAX or job.id in self._begun

    def covered(self, job: site_state.SiteJob, piece: site_state.UndonePiece) -> int:
        """How many events of the piece, from its first, have their inputs."""
        inputs = self._jobs.get(job.id)
        if inputs is None:
            return piece.count
        inside = inputs.staged.within(piece.first, piece.first + piece.count)
        return inside[0][1] - piece.first if inside and inside[0][0] == piece.first else 0

    def _has_no_room(self, job: site_state.SiteJob, inputs: _JobInputs) -> bool:
        """Whether the thread found no room for what it was asked for; then it is asked again later."""
        assert inputs.under_way is not None
        error = inputs.under_way.exception()
        if isinstance(error, NoRoomError):
            inputs.waits_for_room = True
            if not inputs.is_begun:  # it holds nothing while it waits
                inputs.staged = IntervalSet()
            self._waiting.add(job.id)
            self._weigh(job, inputs.staged)
        elif isinstance(error, StepTooLargeError):
            inputs.step_max = error.events_max
        else:
            inputs.step_max = min(2 * inputs.step_max, STAGED_EVENTS_PER_STEP)
            self.waiting_load.drop(job.id)
            return False
        inputs.under_way = None
        return True

    def _weigh(self, job: site_state.SiteJob, staged: IntervalSet) -> None:
        """Note how many ready events of the job wait for room: those that are staged do not."""
        ready = sum(piece.count for piece in job.ready)
        for piece in job.ready if staged else ():
            ready -= sum(end - first for first, end in staged.within(piece.first, piece.first + piece.count))
        self.waiting_load.note(job.id, load_key(job.spec), at_once(job.spec, ready))

    def _trim(self) -> None:
        """Have inputs removed that no event needs any more: room is scarce. Jobs without ready events wait no more."""
        jobs = self._log.pool.state.jobs
        for number in [each for each in self._waiting if each not in jobs or not jobs[each].ready]:
            self.forget(number)
        if not self._untrimmed:
            self._trimmed = {job: count for job, count in self._trimmed.items() if job in jobs}
            self._untrimmed = list(jobs)
        some, self._untrimmed = (
            self._untrimmed[: self._trimmed_max],
            self._untrimmed[self._trimmed_max :],
        )
        for job in (jobs[number] for number in some if number in jobs):
            inputs = self._jobs.get(job.id)
            is_busy = job.id in self._ending or (inputs is not None and inputs.under_way is not None)
            has_inputs = bool(job.spec.inputs) or job.id >= site_state.STEP_BASE
            if is_busy or not has_inputs or self._trimmed.get(job.id) == len(job.open):
                continue
            self._trimmed[job.id] = len(job.open)
            if not job.open:
                self.forget(job.id)
                self._ending[job.id] = self._executor.submit(self._stage.clean, job.id)
            elif any(each.kind is InputKind.EACH for each in job.spec.inputs):
                if inputs is not None:
                    inputs.staged = _common(inputs.staged, job.open)
                self._ending[job.id] = self._executor.submit(self._stage.drop_events, job.id, job.open.copy())

    def _apply_staged(self, job: int, inputs: _JobInputs) -> None:
        done, inputs.under_way = inputs.under_way, None
        assert done is not None
        try:
            inputs.inputs = done.result()
        except MovesPendingError as error:
            inputs.awaits = error.awaits
            return
        except TidemillError:
            inputs.tries += 1
            if not inputs.is_begun:  # it holds nothing while its trouble lasts
                inputs.staged = IntervalSet()
            raise
        self._asking.discard(job)
        for first, end in inputs.events:
            inputs.staged.add(first, end)

    def _next_events(self, job: site_state.SiteJob, events_max: int) -> list[tuple[int, int]]:
        if not any(each.kind is InputKind.EACH for each in job.spec.inputs):
            return [(0, max(1, job.spec.events))]
        events: list[tuple[int, int]] = []
        left = events_max
        for piece in job.ready:
            count = min(piece.count, left)
            events.append((piece.first, piece.first + count))
            left -= count
            if left <= 0:
                break
        return events

    def _start(self, job: site_state.SiteJob, events: list[tuple[int, int]]) -> Future[list[InputDef]]:
        if job.id < site_state.STEP_BASE:
            reader = Reader(job.owner, job.from_jobs, self._opening(job))
            return self._executor.submit(
                self._stage.stage, job.id, job.spec, events, reader, bool(job.grants)
            )
        source, index = divmod(job.id - site_state.STEP_BASE, site_state.STEPS_MAX)
        owner = self._log.pool.state.jobs[source]
        output = self._preparer.outputs(owner.spec)[index]
        parts = sorted(owner.parts, key=lambda part: part.first)
        executor = self._stage.copiers or self._executor
        return executor.submit(self._stage.stage_parts, job.id, parts, output.name, self._fleets.directory)

    def _opening(self, job: site_state.SiteJob) -> Opening:
        """By which program the job's inputs are read, and which tries have failed."""
        if not any(each.is_opened for each in job.spec.inputs):
            return Opening()
        opens, why_closed = self._preparer.opening(job.spec)
        ready = [(each.first, each.count) for each in job.ready]
        failures = Counter(job.failures) + Counter(job.far)
        asked = "its ward reads through the cache" if job.cure_read == "cache" else ""
        return Opening(opens, why_closed, failures, ready, learner(job.spec), asked, job.owner)


def _opens_shared(job: site_state.SiteJob) -> bool:
    return any(each.is_opened and each.kind is InputKind.SHARED for each in job.spec.inputs)


def _common(one: IntervalSet, other: IntervalSet) -> IntervalSet:
    return IntervalSet(each for first, end in one for each in other.within(first, end))
