"""The bookkeeping that all entries of the site's log share: settling leases, reports, the backlog. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

import msgspec

from tidemill.model.arrival import arrives
from tidemill.model.devices import asks_gpus
from tidemill.model.failure import Evidence
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Width
from tidemill.site.state import site_state
from tidemill.wire.api import DoneReport, FailureReport, PayloadUsage, ReleaseReport, Report
from tidemill.wire.node import FORMS_MAX, Withdrawn, form_number

K = TypeVar("K", bound=Hashable)
STOPPED = "the job was stopped"
STALE_PLACES_MAX = 16
"""Places from which files of one job may wait to be removed. If its server changes its place so often that more would
wait, files stay in the others."""

_encode = msgspec.json.encode


class WideLoad(NamedTuple):
    """What makes open events of payloads that span nodes alike; 0 = not set by the job."""

    width: Width
    app: str
    event_s: float
    timeout_s: float


class EventLoad(NamedTuple):
    """What makes open events of a slot each alike."""

    app: str
    cores: int  #: of a slot; 0 = the application's
    gpus: bool | None = (
        None  #: whether the job wants GPUs; None = it says nothing, and the application decides
    )


def load_key(spec: JobSpec) -> EventLoad | WideLoad:
    """What makes open events alike: application, cores and GPUs; more for payloads that span nodes."""
    resources = spec.resources
    width = resources.width
    if width is None:
        return EventLoad(spec.app or "", resources.cores or 0, asks_gpus(resources.devices))
    return WideLoad(width, spec.app or "", resources.event_s or 0.0, float(resources.timeout_s or 0))


def at_once(spec: JobSpec, events: int) -> int:
    """How many of a job's `events` open events may run at the same time."""
    most = spec.running_max
    return events if most is None else min(events, most)


def _add(counts: dict[K, int], key: K, change: int) -> None:
    """Change a count. Zeros are dropped: users choose the keys, as many as they like."""
    number = counts.get(key, 0) + change
    if number:
        counts[key] = number
    else:
        counts.pop(key, None)


class Settlement:
    """A state with what is derived from it: `backlog`, the jobs that have something to grant, in order of arrival, and
    `load`, the number of open events by what their slots need, without those of jobs that are being stopped. What has
    to wait for other events of its job (`at_once`) is not in `load` and `wide_load` but in `behind`, by the same keys.

    Jobs whose payloads span nodes stand apart: `wide`, their backlogs by number of nodes; `wide_load`, their open
    events alike."""

    def __init__(self, state: site_state.SiteState) -> None:
        self.state = state
        self.backlog: dict[int, None] = {}
        self.wide: dict[int, dict[int, None]] = {}
        for job in state.jobs.values():
            if job.ready:
                self._backlog(job)[job.id] = None
        self.spec_bytes = sum(job.spec_bytes for job in state.jobs.values())
        self.load: dict[EventLoad, int] = {}
        self.wide_load: dict[WideLoad, int] = {}
        self.behind: dict[Hashable, int] = {}
        for job in state.jobs.values():
            self._weigh(job, len(job.open))

    def open_up(self, job: site_state.SiteJob, first: int, end: int) -> None:
        """These events are to be run here."""
        self._weigh(job, job.open.add(first, end))

    def close(self, job: site_state.SiteJob, first: int, end: int) -> None:
        """These events are no longer to be run here."""
        self._weigh(job, -job.open.remove(first, end))

    def _weigh(self, job: site_state.SiteJob, change: int, after: int | None = None) -> None:
        """Take over that a job's number of open events has changed. `after`: the number now, if that is not
        what is in `open`. Events of a job that is being stopped weigh nothing: they need no nodes."""
        if job.stopping:
            return
        key = load_key(job.spec)
        events = change
        if job.spec.running_max is not None:
            now = len(job.open) if after is None else after
            events = at_once(job.spec, now) - at_once(job.spec, now - change)
            _add(self.behind, key, change - events)
        if isinstance(key, WideLoad):
            _add(self.wide_load, key, events)
        else:
            _add(self.load, key, events)

    def _backlog(self, job: site_state.SiteJob) -> dict[int, None]:
        width = job.spec.resources.width
        return self.backlog if width is None else self.wide.setdefault(width.nodes, {})

    def specify(self, job: site_state.SiteJob, spec: JobSpec) -> None:
        """Take the specification that the server sent."""
        size = len(_encode(spec))
        self.spec_bytes += size - job.spec_bytes
        self._weigh(job, -len(job.open), 0)
        job.spec, job.spec_bytes = spec, size
        self._weigh(job, len(job.open))

    def redefine(self, job: site_state.SiteJob) -> None:
        """Grant the job as another form from now on, because leads keep the program of a job that they know. Earlier
        grants run on unchanged."""
        job.arrived = IntervalSet()  # its outputs may go elsewhere now
        job.base_form = min(job.next_form, FORMS_MAX - 1)
        job.next_form = job.base_form + 1
        job.forms = {}
        job.ready = [site_state.UndonePiece(each.first, each.count, each.chunk_max) for each in job.ready]

    def unready(self, job: site_state.SiteJob) -> None:
        """The job has nothing to grant."""
        self._backlog(job).pop(job.id, None)

    def report(self, report: Report) -> None:
        """Number a report and keep it until the server acknowledges it."""
        report.n = self.state.next_report
        self.state.next_report += 1
        self.state.reports.append(report)

    def make_ready(self, job: site_state.SiteJob, pieces: list[site_state.UndonePiece]) -> None:
        """Put undone events into the backlog. What failed already waits behind what did not; of a job that is being
        stopped they go back to the server."""
        if job.stopping:
            for piece in pieces:
                for first, end in job.open.within(piece.first, piece.first + piece.count):
                    self.release(job, first, end, reason=STOPPED)
        elif pieces:
            job.ready += pieces
            self._backlog(job)[job.id] = None

    def lease_of(self, job: site_state.SiteJob, event: int) -> site_state.SiteLease | None:
        """The newest lease that holds the event."""
        for lease in reversed(job.leases):
            if lease.first <= event < lease.first + lease.count:
                return lease
        return None

    def settle(self, job: site_state.SiteJob, first: int, end: int) -> list[tuple[int, int, int]]:
        """Take events that are open out of their leases; the pieces (lease, first, count) to report on."""
        self.close(job, first, end)
        pieces: list[tuple[int, int, int]] = []
        at = first
        while at < end:
            lease = self.lease_of(job, at)
            if lease is None:  # events of a step have no lease
                break
            until = min(end, lease.first + lease.count)
            for other in job.leases:  # a newer lease of the same events begins inside this one
                if other is not lease and at < other.first < until and _newer(job, other, lease):
                    until = other.first
            pieces.append((lease.lease, at, until - at))
            self._close(job, lease, until - at)
            at = until
        return pieces

    def done(
        self, job: site_state.SiteJob, first: int, end: int, *, outputs: bool, usage: PayloadUsage
    ) -> None:
        """Report events as kept; the usage goes with the first piece."""
        rest = usage
        for lease, at, count in self.settle(job, first, end):
            self.report(
                DoneReport(n=0, lease=lease, job=job.id, first=at, count=count, outputs=outputs, usage=rest)
            )
            rest = PayloadUsage()

    def fail(self, job: site_state.SiteJob, event: int, evidence: Evidence) -> None:
        """Report an event as failed for good."""
        for lease, first, count in self.settle(job, event, event + 1):
            self.report(
                FailureReport(
                    n=0,
                    lease=lease,
                    job=job.id,
                    first=first,
                    count=count,
                    event=event,
                    final=True,
                    evidence=evidence,
                )
            )

    def release(
        self, job: site_state.SiteJob, first: int, end: int, *, reason: str, evidence: Evidence | None = None
    ) -> None:
        """Give open events back to the server."""
        for lease, at, count in self.settle(job, first, end):
            self.report(
                ReleaseReport(
                    n=0, lease=lease, job=job.id, first=at, count=count, reason=reason, evidence=evidence
                )
            )

    def forget_grants(
        self, job: site_state.SiteJob, *, cancel: bool, form: int | None = None
    ) -> list[site_state.GrantState]:
        """Drop the grants of a job, or of one form of it, and return them. With `cancel`, leads stop their payloads."""
        gone = {number: held for number, held in job.grants.items() if form in (None, held.form)}
        if cancel:
            self._cancel_grants(job, gone.values())
        for number, held in gone.items():
            self.state.fleets[held.fleet].open -= 1
            del job.grants[number]
        return [*gone.values()]

    def _cancel_grants(self, job: site_state.SiteJob, grants: Iterable[site_state.GrantState]) -> None:
        """Have the leads stop what they were granted of the job. A number is listed twice if the job is stopped again:
        a search among those of thousands of jobs would cost time that grows with their square."""
        for name, form in {(held.fleet, held.form): None for held in grants}:
            fleet, number = self.state.fleets[name], form_number(job.id, form)
            if number not in fleet.cancels[-1:]:
                fleet.cancels.append(number)

    def withdraw(self, job: site_state.SiteJob, events: IntervalSet) -> None:
        """Run these events no more, and report nothing of them: their owner has canceled them. Leads stop the payloads
        that run them. What is done stays."""
        for first, end in [piece for span in job.open for piece in events.within(*span)]:
            self.settle(job, first, end)
        ready = [
            site_state.UndonePiece(at, until - at, piece.chunk_max, piece.form)
            for piece in job.ready
            for at, until in events.missing(piece.first, piece.first + piece.count)
        ]
        if ready != job.ready:
            job.ready = ready
            if not ready:
                self.unready(job)
        for number, held in list(job.grants.items()):
            fleet = self.state.fleets[held.fleet]
            for first, end in [piece for span in held.open for piece in events.within(*span)]:
                held.open.remove(first, end)
                fleet.withdrawn.append(
                    Withdrawn(
                        grant=number, job=form_number(job.id, held.form), first=first, count=end - first
                    )
                )
            if not held.open:
                fleet.open -= 1
                del job.grants[number]

    def stop(self, job: site_state.SiteJob) -> None:
        """Run nothing more of a job. What is done stays; its grants wait for what pilots have finished of them."""
        self.state.deliveries.pop(job.id, None)
        self.drop_steps(job.id)
        pieces, job.ready = job.ready, []
        self.unready(job)
        if not job.stopping:
            self._weigh(job, -len(job.open), 0)
            job.stopping = True
            self.state.stopping.append(job.id)
        self.make_ready(job, pieces)
        self._cancel_grants(job, job.grants.values())

    def let_go(self, job: site_state.SiteJob) -> None:
        """A job is stopped: what its pilots have not kept goes back to the server."""
        self.forget_grants(job, cancel=False)
        for first, end in list(job.open):
            self.release(job, first, end, reason=STOPPED)
        self._go_on(job)

    def _go_on(self, job: site_state.SiteJob) -> None:
        if job.stopping:
            job.stopping = False
            self._weigh(job, len(job.open))
            self.state.stopping.remove(job.id)

    def drop(self, job_id: int) -> None:
        """Forget a job: leases, grants (its payloads are stopped), parts, delivery, steps."""
        self.state.deliveries.pop(job_id, None)
        self.drop_steps(job_id)
        job = self.state.jobs.pop(job_id, None)
        if job is None:
            return
        self._go_on(job)
        self.unready(job)
        self._weigh(job, -len(job.open), 0)
        self.spec_bytes -= job.spec_bytes
        self.state.leases_open -= len(job.leases)
        self.forget_grants(job, cancel=True)

    def drop_parts(self, job_id: int, done: str) -> None:
        """The outputs of these events are delivered: their parts and the job's steps go. Empty = of all."""
        self.drop_steps(job_id)
        job = self.state.jobs.get(job_id)
        if job is not None:
            job.arrived = IntervalSet()
            delivered = IntervalSet.parse(done)
            job.parts = [
                part
                for part in job.parts
                if done and not delivered.covers(part.first, part.first + part.count)
            ]

    def disown(self, job: site_state.SiteJob, parts: Iterable[site_state.KeptPart]) -> None:
        """Files of these parts that have arrived, or are about to, are to be removed: their results do not count, or
        will be elsewhere. To be called while the specification says where they are."""
        events = IntervalSet((part.first, part.first + part.count) for part in parts)
        if not events or not _may_arrive(job):
            return
        job.arrived.remove_all(events)
        stale = self.state.stale.setdefault(job.id, [])
        here = next((each for each in stale if each.is_at(job)), None)
        if here is not None:
            here.events.add_all(events)
        elif len(stale) < STALE_PLACES_MAX:
            stale.append(
                site_state.StaleFiles(
                    job=job.id, campaign=job.campaign, owner=job.owner, spec=job.spec, events=events
                )
            )

    def lose_parts(self, job: site_state.SiteJob, lost: IntervalSet) -> IntervalSet:
        """Outputs of these events are gone, and with them whole parts; the events that are not done any more."""
        gone, kept = lost.copy(), list[site_state.KeptPart]()
        for part in job.parts:
            end = part.first + part.count
            if lost.touches(part.first, end):
                gone.add(part.first, end)
            else:
                kept.append(part)
        job.parts = kept
        for first, end in gone:
            job.done.remove(first, end)
            job.arrived.remove(first, end)
        return gone

    def drop_steps(self, job_id: int) -> None:
        """Forget the job's own steps, which are few."""
        if job_id >= site_state.STEP_BASE or not self.state.steps:
            return
        start = site_state.STEP_BASE + job_id * site_state.STEPS_MAX
        for step in range(start, start + site_state.STEPS_MAX):
            if step in self.state.jobs:
                self.drop(step)
                self.state.steps -= 1
                self.state.step_evidence.pop(step, None)
                self.state.forgotten.append(step)

    def end_step(self, job: site_state.SiteJob, evidence: Evidence) -> None:
        """A step failed for good, and with it the delivery that needs it: reported by `OutputsDelivered`."""
        self._weigh(job, -len(job.open), 0)
        job.open = IntervalSet()
        job.ready.clear()
        self.unready(job)
        self.forget_grants(job, cancel=True)
        self.state.step_evidence[job.id] = evidence

    def _close(self, job: site_state.SiteJob, lease: site_state.SiteLease, count: int) -> None:
        lease.open -= count
        if lease.open <= 0:
            job.leases.remove(lease)
            self.state.leases_open -= 1


def _may_arrive(job: site_state.SiteJob) -> bool:
    """Whether files of the job may come before it ends. What outputs an application has is not known here."""
    if job.id >= site_state.STEP_BASE or job.spec.events == 1:
        return False
    return job.spec.outputs is None or any(arrives(job.spec, each) for each in job.spec.outputs)


def _newer(job: site_state.SiteJob, one: site_state.SiteLease, other: site_state.SiteLease) -> bool:
    return job.leases.index(one) > job.leases.index(other)
