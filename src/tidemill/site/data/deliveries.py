"""Deliveries that the server ordered: merge steps first, then files; lost parts are run again."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import msgspec

from tidemill import clock
from tidemill.errors import JobError, TidemillError, is_transient
from tidemill.log import Log
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import JobSpec, Output, OutputKind
from tidemill.site.applications.checksums import PendingError
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.moves import MovesPendingError
from tidemill.site.data.outputs import DamagedError, Deliverer, OutputDelivery, check_complete
from tidemill.site.state import site_state as s
from tidemill.site.state.served_site import ServedSite
from tidemill.transfer.contract import TransferError
from tidemill.wire.api import OutputRow
from tidemill.wire.node import OutputRef

UNDER_WAY_MAX = 64
TRIES_MAX = 5
REPAIRS_MAX = 3
PAUSE_S = 2.0
_log = Log("deliveries")


class _Try(msgspec.Struct):
    """A delivery under way, or waiting for its next try."""

    future: Future[list[OutputRow]] | None = None
    tries: int = 0
    next_s: float = 0.0
    awaits: tuple[str, ...] = ()  #: remote files on their way
    canceled: threading.Event = msgspec.field(default_factory=threading.Event)


class Deliveries:
    """What the helper threads deliver."""

    def __init__(self, site: ServedSite, preparer: Preparer, deliverer: Deliverer) -> None:
        self._log = site.log
        self._executor = site.pools.deliveries
        self._preparer = preparer
        self._deliverer = deliverer
        self._tries: dict[int, _Try] = {}

    def step(self) -> bool:
        """Start and finish what is due; whether anything changed."""
        state = self._log.pool.state
        changed = False
        self._drop_canceled()
        now = clock.monotonic_s()
        under_way = len(self.under_way)
        for job in list(state.deliveries):
            attempt = self._tries.get(job)
            if attempt is not None and attempt.canceled.is_set():
                continue
            if attempt is not None and attempt.future is not None:
                if attempt.future.done():
                    self._finish(job, attempt)
                    changed = True
                continue
            if under_way >= UNDER_WAY_MAX:
                continue
            if attempt is not None and attempt.awaits:
                if not self._deliverer.is_done(attempt.awaits):
                    continue
                attempt.awaits = ()
            if attempt is None or now >= attempt.next_s:
                under_way += self._begin(job)
                changed |= job not in state.deliveries
        return changed

    def _drop_canceled(self) -> None:
        """Break off what is not to be delivered any more. Its thread has ended before the job is delivered again: both
        would write the same files."""
        deliveries = self._log.pool.state.deliveries
        for job, attempt in list(self._tries.items()):
            if job not in deliveries:
                attempt.canceled.set()
            if attempt.canceled.is_set() and (attempt.future is None or attempt.future.done()):
                del self._tries[job]

    def close(self) -> None:
        """Break off what is under way: it is delivered by the agent that follows."""
        for attempt in self._tries.values():
            attempt.canceled.set()

    @property
    def under_way(self) -> list[Future[list[OutputRow]]]:
        """What threads deliver now; `step` takes each that is done."""
        return [each.future for each in self._tries.values() if each.future is not None]

    def standing(self) -> list[tuple[int, int, bool]]:
        """Jobs whose outputs are to be delivered, how often that has failed, and whether they are on their way."""
        return [
            (job, attempt.tries if attempt else 0, bool(attempt and (attempt.future or attempt.awaits)))
            for job in self._log.pool.state.deliveries
            for attempt in (self._tries.get(job),)
        ]

    def _begin(self, job_id: int) -> int:
        """Hand a delivery to a thread if its parts are complete; how many were handed over."""
        job = self._log.pool.state.jobs.get(job_id)
        if job is None:
            self._fail(job_id, "this site keeps nothing of it")
            return 0
        if job.open:
            return 0  # lost parts are made again
        try:
            self._preparer.check_owner(job)
            outputs = self._preparer.outputs(job.spec)
            merged = self._merged(job, outputs)
        except PendingError:
            return 0  # asked again with the next step
        except TidemillError as error:
            self._fail(job_id, error.message)
            return 0
        if merged is None:
            return 0
        delivery = self._delivery(job, outputs, merged)
        attempt = self._tries.setdefault(job_id, _Try())
        attempt.future = self._executor.submit(self._deliverer.deliver, delivery, attempt.canceled)
        return 1

    def _delivery(
        self, job: s.SiteJob, outputs: list[Output], merged: dict[str, tuple[str, OutputRef]]
    ) -> OutputDelivery:
        return OutputDelivery(
            job=job.id,
            campaign=job.campaign,
            seed_base=job.seed_base,
            spec=job.spec,
            app_digest=self._preparer.digest(job.spec),
            outputs=outputs,
            parts=sorted(job.parts, key=lambda part: part.first),
            merged=merged,
            done=self._log.pool.state.deliveries[job.id],
            owner=job.owner,
        )

    def _merged(self, job: s.SiteJob, outputs: list[Output]) -> dict[str, tuple[str, OutputRef]] | None:
        """What the merge steps have made; None while one runs. Adds the steps that are missing."""
        merged: dict[str, tuple[str, OutputRef]] = {}
        is_waiting = False
        for index, output in enumerate(outputs[: s.STEPS_MAX]):
            if output.kind is not OutputKind.MERGE or not any(_has(part, output.name) for part in job.parts):
                continue
            step_id = s.STEP_BASE + job.id * s.STEPS_MAX + index
            evidence = self._log.pool.state.step_evidence.get(step_id)
            if evidence is not None:
                raise JobError(
                    f"merging output `{output.name}` by `{output.merge}` failed: {evidence.message}"
                )
            step = self._log.pool.state.jobs.get(step_id)
            if step is None:
                try:
                    check_complete(self._delivery(job, outputs, {}))
                except DamagedError as error:
                    self._damaged(job.id, error)
                    return None
                self._add_step(job, step_id, output)
                is_waiting = True
            elif not step.parts:
                is_waiting = True
            else:
                part = step.parts[0]
                ref = next((each for each in part.outputs if each.name == output.name), part.outputs[0])
                merged[output.name] = (part.fleet, ref)
        return None if is_waiting else merged

    def _add_step(self, job: s.SiteJob, step_id: int, output: Output) -> None:
        spec = JobSpec(app=output.merge, name=f"merge-{output.name}", events=1, retries=job.spec.retries)
        self._log.apply(s.StepAdded(job=step_id, campaign=job.campaign, spec=spec))
        _log.info("merge.started", job=job.id, output=output.name, app=output.merge)

    def _finish(self, job_id: int, attempt: _Try) -> None:
        done, attempt.future = attempt.future, None
        assert done is not None
        try:
            outputs = done.result()
        except DamagedError as error:
            self._damaged(job_id, error)
        except MovesPendingError as error:
            attempt.awaits = error.awaits
        except TidemillError as error:
            attempt.tries += 1
            if is_transient(error) and attempt.tries < TRIES_MAX:
                attempt.next_s = clock.monotonic_s() + PAUSE_S * 2**attempt.tries
                _log.warning("delivery.delayed", job=job_id, reason=error.message)
                return
            known = error.failure if isinstance(error, TransferError) else None
            self._fail(job_id, error.message + (f" ({error.hint})" if error.hint else ""), known)
        else:
            self._log.apply(s.OutputsDelivered(job=job_id, outputs=outputs, evidence=None))

    def _damaged(self, job_id: int, error: DamagedError) -> None:
        job = self._log.pool.state.jobs.get(job_id)
        if job is None or job.repairs >= REPAIRS_MAX:
            self._fail(job_id, error.message)
            return
        _log.warning("output.lost", job=job_id, first=error.first, count=error.count, reason=error.message)
        self._log.apply(s.Damaged(job=job_id, first=error.first, count=error.count, reason=error.message))

    def _fail(self, job_id: int, message: str, failure: FailureClass | None = None) -> None:
        _log.error("delivery.failed", job=job_id, reason=message)
        evidence = Evidence(failure=failure or FailureClass.STAGE_OUT, message=message, at_us=clock.now_us())
        self._log.apply(s.OutputsDelivered(job=job_id, outputs=[], evidence=evidence))


def _has(part: s.KeptPart, output: str) -> bool:
    return any(ref.name == output for ref in part.outputs)
