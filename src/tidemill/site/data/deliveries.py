"""Deliveries that the server ordered: merge steps first, then files; lost parts are run again."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import TidemillError, is_transient
from tidemill.log import Log
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Output, OutputKind
from tidemill.model.trouble import EXAMPLES_MAX, TROUBLES_MAX, Trouble
from tidemill.site import constants
from tidemill.site.applications.checksums import PendingError
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.moves import MovesPendingError
from tidemill.site.data.outputs import BrokenMerge, DamagedError, Deliverer, OutputDelivery, check_complete
from tidemill.site.data.placed.arrivals import Arrivals, Coming
from tidemill.site.state import site_state
from tidemill.site.state.served_site import ServedSite
from tidemill.transfer.contract import TransferError
from tidemill.wire.api import OutputRow
from tidemill.wire.node import OutputRef

UNDER_WAY_MAX = 64
TRIES_MAX = 5
REPAIRS_MAX = 3
PAUSE_S = 2.0
QUIET_S = 3.0
"""A payload of a job that is stopped is killed at once, and what others had finished is durable within a second or two.
What comes later than this is not kept, and runs again if the job is retried."""

STOP_S_MAX = 60.0
"""... and so is what still comes after this time."""

_log = Log("deliveries")


class _Asked(NamedTuple):
    """What is to be delivered of a job, and its destinations, which a retry may have changed."""

    done: str
    terms: site_state.DeliveryTerms
    output_dir: str | None = None
    urls: tuple[str | None, ...] = ()


class _Try(msgspec.Struct):
    """A delivery under way, or waiting for its next try."""

    asked: _Asked
    held: bool = False
    future: Future[list[OutputRow]] | None = None
    tries: int = 0
    next_s: float = 0.0
    awaits: tuple[str, ...] = ()  #: remote files on their way
    why: str = ""  #: the last try failed
    since_us: int = 0
    canceled: threading.Event = msgspec.field(default_factory=threading.Event)


class _Stop(msgspec.Struct):
    """A job that is being stopped: how far it was when something last came of it, and when."""

    seen: tuple[int, int]
    at_s: float
    began_s: float


class Deliveries:
    """What the helper threads deliver."""

    def __init__(
        self,
        site: ServedSite,
        preparer: Preparer,
        deliverer: Deliverer,
        arrivals: Arrivals,
    ) -> None:
        self._log = site.log
        self._arrivals = arrivals
        self._executor = site.pools.deliveries
        self._preparer = preparer
        self._deliverer = deliverer
        self._tries: dict[int, _Try] = {}
        self._stops: dict[int, _Stop] = {}
        self._quiet_s = quiet_s(site.config)

    def step(self) -> bool:
        """Start and finish what is due; whether anything changed."""
        state = self._log.pool.state
        changed = self._let_go()
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
        for job, attempt in list(self._tries.items()):
            if attempt.asked != self._asked(job):
                attempt.canceled.set()
            if attempt.canceled.is_set() and (attempt.future is None or attempt.future.done()):
                del self._tries[job]

    def _asked(self, job_id: int) -> _Asked | None:
        """What is to be delivered of a job; None = nothing."""
        state = self._log.pool.state
        done, job = state.deliveries.get(job_id), state.jobs.get(job_id)
        if done is None:
            return None
        if job is None:
            return _Asked(done, site_state.DeliveryTerms())
        urls = tuple(each.url for each in job.spec.outputs or ())
        return _Asked(done, job.terms, job.spec.output_dir, urls)

    def _let_go(self) -> bool:
        """Give back what is left of jobs that were stopped, once nothing more comes of them; whether there were any."""
        state, now_s = self._log.pool.state, clock.monotonic_s()
        if not state.stopping:
            self._stops.clear()
            return False
        for job_id in self._stops.keys() - set(state.stopping):  # a later stop of it begins its own time
            del self._stops[job_id]
        over: list[int] = []
        for job_id in state.stopping:
            job = state.jobs[job_id]
            seen = (len(job.done), len(job.open))
            stop = self._stops.setdefault(job_id, _Stop(seen, now_s, now_s))
            if stop.seen != seen:
                stop.seen, stop.at_s = seen, now_s
            is_late = now_s - stop.began_s > STOP_S_MAX + self._quiet_s
            if not job.grants or now_s - stop.at_s > self._quiet_s or is_late:
                over.append(job_id)
                del self._stops[job_id]
        if over:
            self._log.apply(site_state.LetGo(jobs=over))
        return bool(over)

    def close(self) -> None:
        """Break off what is under way: it is delivered by the agent that follows."""
        for attempt in self._tries.values():
            attempt.canceled.set()

    @property
    def under_way(self) -> list[Future[list[OutputRow]]]:
        """What threads deliver now; `step` takes each that is done."""
        return [each.future for each in self._tries.values() if each.future is not None]

    @property
    def waits_for_moves(self) -> bool:
        """Whether a delivery waits for files on their way, or has to take what came of them."""
        return any(each.awaits and not each.canceled.is_set() for each in self._tries.values())

    @property
    def written(self) -> set[int]:
        """Jobs whose files a thread writes now, also where that was called off."""
        return {
            job for job, each in self._tries.items() if each.future is not None and not each.future.done()
        }

    def standing(self) -> list[tuple[int, int, bool]]:
        """Jobs whose outputs are to be delivered, how often that has failed, and whether they are on their way."""
        return [
            (job, attempt.tries if attempt else 0, bool(attempt and (attempt.future or attempt.awaits)))
            for job in self._log.pool.state.deliveries
            for attempt in (self._tries.get(job),)
        ]

    def troubles(self) -> list[Trouble]:
        """Why deliveries wait for their next try, each cause once. They hold back no other work."""
        causes: dict[str, list[tuple[int, _Try | Coming]]] = {}
        held_up: list[tuple[int, _Try | Coming]] = [*self._tries.items(), *self._arrivals.failing()]
        for job, attempt in held_up:
            if attempt.why:
                causes.setdefault(attempt.why, []).append((job, attempt))
        now_s, now_us = clock.monotonic_s(), clock.now_us()
        return [
            Trouble(
                failure=FailureClass.STAGE_OUT,
                scope="",
                message=why,
                since_us=min(attempt.since_us for _, attempt in waiting),
                next_us=now_us + max(0, int((min(each.next_s for _, each in waiting) - now_s) * 1e6)),
                jobs=len(waiting),
                examples=[job for job, _ in waiting[:EXAMPLES_MAX]],
            )
            for why, waiting in list(causes.items())[:TROUBLES_MAX]
        ]

    def _begin(self, job_id: int) -> int:
        """Hand a delivery to a thread if its parts are complete; how many were handed over."""
        job = self._log.pool.state.jobs.get(job_id)
        asked = self._asked(job_id)
        assert asked is not None, "it is to be delivered"
        if job is None:
            self._lose(job_id, "this site has no outputs of it", asked.done)
            return 0
        if job.open:
            return 0  # lost parts are made again
        if self._arrivals.holds(job_id):
            return 0  # both would write the same files
        try:
            self._preparer.check_owner(job)
            outputs = self._preparer.outputs(job.spec)
            broken = self._broken_merge(job, outputs)
            merged = self._merged(job, outputs) if job.terms.merge and broken is None else {}
        except PendingError:
            return 0  # asked again with the next step
        except TidemillError as error:
            self._fail(job_id, error.message)
            return 0
        if merged is None:
            return 0
        delivery = self._delivery(job, outputs, merged)
        attempt = self._tries.setdefault(job_id, _Try(asked))
        attempt.held = delivery.held
        if broken is None:
            attempt.future = self._executor.submit(self._deliverer.deliver, delivery, attempt.canceled)
        else:
            attempt.future = self._executor.submit(
                self._deliverer.look_over, delivery, broken, attempt.canceled
            )
        return 1

    def _delivery(
        self, job: site_state.SiteJob, outputs: list[Output], merged: dict[str, tuple[str, OutputRef]]
    ) -> OutputDelivery:
        done, terms = IntervalSet.parse(self._log.pool.state.deliveries[job.id]), job.terms
        parts = [part for part in job.parts if done.touches(part.first, part.first + part.count)]
        return OutputDelivery(
            job=job.id,
            campaign=job.campaign,
            seed_base=job.seed_base,
            spec=job.spec,
            app_digest=self._preparer.digest(job.spec),
            outputs=outputs,
            parts=sorted(parts, key=lambda part: part.first),
            merged=merged,
            done=self._log.pool.state.deliveries[job.id],
            owner=job.owner,
            fresh=terms.fresh,
            held=not terms.merge
            and any(
                output.kind is OutputKind.MERGE and any(_has(part, output.name) for part in parts)
                for output in outputs
            ),
            number=terms.delivery,
        )

    def _broken_merge(self, job: site_state.SiteJob, outputs: list[Output]) -> BrokenMerge | None:
        """The merge step that has failed; None = none has."""
        for index, output in enumerate(outputs[: site_state.STEPS_MAX]):
            evidence = self._log.pool.state.step_evidence.get(_step_id(job, index))
            if evidence is not None and job.terms.merge:
                text = f"merging output `{output.name}` by `{output.merge}` failed: {evidence.message}"
                return BrokenMerge(output.name, text)
        return None

    def _merged(
        self, job: site_state.SiteJob, outputs: list[Output]
    ) -> dict[str, tuple[str, OutputRef]] | None:
        """What the merge steps have made; None while one runs. Adds the steps that are missing."""
        merged: dict[str, tuple[str, OutputRef]] = {}
        is_waiting = False
        for index, output in enumerate(outputs[: site_state.STEPS_MAX]):
            if output.kind is not OutputKind.MERGE or not any(_has(part, output.name) for part in job.parts):
                continue
            step_id = _step_id(job, index)
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

    def _add_step(self, job: site_state.SiteJob, step_id: int, output: Output) -> None:
        spec = JobSpec(app=output.merge, name=f"merge-{output.name}", events=1, retries=job.spec.retries)
        self._log.apply(site_state.StepAdded(job=step_id, campaign=job.campaign, spec=spec))
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
                attempt.why, attempt.since_us = error.message, attempt.since_us or clock.now_us()
                _log.warning("delivery.delayed", job=job_id, reason=error.message)
                return
            known = error.failure if isinstance(error, TransferError) else None
            self._fail(job_id, error.message + (f" ({error.hint})" if error.hint else ""), known)
        else:
            self._log.apply(
                site_state.OutputsDelivered(
                    job=job_id, outputs=outputs, evidence=None, done=attempt.asked.done, held=attempt.held
                )
            )

    def _damaged(self, job_id: int, error: DamagedError) -> None:
        """Have events whose outputs are lost run again: here, or where the job has ended by the server's order."""
        job = self._log.pool.state.jobs.get(job_id)
        if job is not None and not job.terms.merge:
            self._lose(job_id, error.message, str(IntervalSet([(error.first, error.first + error.count)])))
            return
        if job is None or job.repairs >= REPAIRS_MAX:
            self._fail(job_id, error.message)
            return
        _log.warning("output.lost", job=job_id, first=error.first, count=error.count, reason=error.message)
        self._log.apply(
            site_state.Damaged(job=job_id, first=error.first, count=error.count, reason=error.message)
        )

    def _lose(self, job_id: int, message: str, lost: str) -> None:
        _log.warning("output.lost", job=job_id, events=lost, reason=message)
        evidence = Evidence(failure=FailureClass.STAGE_OUT, message=message, at_us=clock.now_us())
        self._log.apply(site_state.OutputsDelivered(job=job_id, outputs=[], evidence=evidence, lost=lost))

    def _fail(self, job_id: int, message: str, failure: FailureClass | None = None) -> None:
        _log.error("delivery.failed", job=job_id, reason=message)
        evidence = Evidence(failure=failure or FailureClass.STAGE_OUT, message=message, at_us=clock.now_us())
        self._log.apply(site_state.OutputsDelivered(job=job_id, outputs=[], evidence=evidence))


def quiet_s(config: SiteConfig) -> float:
    """How long nothing has to come of a job that was stopped until all is taken to be there: pilots that read files
    learn late that it is, and are read late."""
    return QUIET_S + (0.0 if config.harvest.has_lead else 2 * constants.TOP_UP_S)


def _step_id(job: site_state.SiteJob, output: int) -> int:
    return site_state.STEP_BASE + job.id * site_state.STEPS_MAX + output


def _has(part: site_state.KeptPart, output: str) -> bool:
    return any(ref.name == output for ref in part.outputs)
