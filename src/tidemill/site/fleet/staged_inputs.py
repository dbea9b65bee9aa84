"""Which events of a job have their inputs: has them staged by threads, and says what came, what is missing and why."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import msgspec

from tidemill.errors import TidemillError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import InputKind
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.moves import MovesPendingError
from tidemill.site.data.owners import Reader
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.fleets import Fleets
from tidemill.site.state import site_state as s
from tidemill.site.state.log import SiteLog
from tidemill.wire.node import InputDef

STAGED_EVENTS_PER_STEP = 500


class _JobInputs(msgspec.Struct):
    """Inputs of a job: what is there, what is under way."""

    staged: IntervalSet
    inputs: list[InputDef]
    under_way: Future[list[InputDef]] | None = None
    events: list[tuple[int, int]] = []
    tries: int = 0
    awaits: tuple[str, ...] = ()  #: remote files on their way


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

    def forget(self, job: int) -> None:
        """Drop what was staged of a job."""
        self._jobs.pop(job, None)

    @property
    def is_staging(self) -> bool:
        """Whether inputs are being copied, or come."""
        return any(each.under_way is not None or each.awaits for each in self._jobs.values())

    def staging_now(self) -> list[tuple[int, int]]:
        """Jobs whose inputs are being copied, and how often that has failed before."""
        return [
            (job, each.tries) for job, each in self._jobs.items() if each.under_way is not None or each.awaits
        ]

    def is_under_way(self, job: int) -> bool:
        """Whether inputs of this job are being copied, or come: what came of that is still to be taken."""
        known = self._jobs.get(job)
        return known is not None and (known.under_way is not None or bool(known.awaits))

    def of(self, job: int) -> list[InputDef]:
        """The inputs of a job that `is_ready`."""
        return self._jobs[job].inputs

    def is_ready(self, job: s.SiteJob) -> bool:
        """Whether the first events that are ready are staged; has a thread stage them if not. Raises TidemillError once
        if that failed; whoever asks again has it tried again."""
        known = self._jobs.get(job.id)
        if known is None:
            known = self._jobs[job.id] = _JobInputs(IntervalSet(), [])
        if known.under_way is not None:
            if not known.under_way.done():
                return False
            self._take(known)
        if not job.ready:
            return False
        if known.staged.touches(job.ready[0].first, job.ready[0].first + 1):
            return True
        if known.awaits and not self._stage.is_done(known.awaits):
            return False
        known.awaits = ()
        known.events = self._next_events(job)
        known.under_way = self._start(job, known.events)
        return False

    def covered(self, job: s.SiteJob, piece: s.UndonePiece) -> int:
        """How many events of the piece, from its first, have their inputs."""
        known = self._jobs.get(job.id)
        if known is None:
            return piece.count
        inside = known.staged.within(piece.first, piece.first + piece.count)
        return inside[0][1] - piece.first if inside and inside[0][0] == piece.first else 0

    def _take(self, known: _JobInputs) -> None:
        done, known.under_way = known.under_way, None
        assert done is not None
        try:
            known.inputs = done.result()
        except MovesPendingError as error:
            known.awaits = error.awaits
            return
        except TidemillError:
            known.tries += 1
            raise
        for first, end in known.events:
            known.staged.add(first, end)

    def _next_events(self, job: s.SiteJob) -> list[tuple[int, int]]:
        if not any(each.kind is InputKind.EACH for each in job.spec.inputs):
            return [(0, max(1, job.spec.events))]
        events: list[tuple[int, int]] = []
        left = STAGED_EVENTS_PER_STEP
        for piece in job.ready:
            count = min(piece.count, left)
            events.append((piece.first, piece.first + count))
            left -= count
            if left <= 0:
                break
        return events

    def _start(self, job: s.SiteJob, events: list[tuple[int, int]]) -> Future[list[InputDef]]:
        if job.id < s.STEP_BASE:
            reader = Reader(job.owner, job.from_jobs)
            return self._executor.submit(self._stage.stage, job.id, job.spec, events, reader)
        source, index = divmod(job.id - s.STEP_BASE, s.STEPS_MAX)
        owner = self._log.pool.state.jobs[source]
        output = self._preparer.outputs(owner.spec)[index]
        parts = sorted(owner.parts, key=lambda part: part.first)
        return self._executor.submit(
            self._stage.stage_parts, job.id, parts, output.name, self._fleets.directory
        )
