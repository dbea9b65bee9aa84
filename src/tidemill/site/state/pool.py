"""The pool of a site's work: how each entry of its log changes what is leased, granted, kept, failed and reported.

Pure: a state and an entry give the next state, so that replaying a log rebuilds the very same reports. Nothing here
reads a clock, a file or the server. Cost per record does not grow with the number of jobs or leases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.model.failure import Evidence, FailureClass, FaultKind
from tidemill.model.intervals import IntervalSet
from tidemill.site.state import site_state
from tidemill.site.state.bookings import Bookings
from tidemill.site.state.orders import apply_replied
from tidemill.site.state.results import BatchOfRecords
from tidemill.site.state.settlement import Settlement
from tidemill.wire.api import ArrivedReport, DeliveredReport, LogReport
from tidemill.wire.node import form_of, job_of

ALLOCATIONS_KEPT = 1000
"""Above this, allocations that have ended and whose lead knows it are forgotten."""


class WorkPool:
    """The state and what is derived from it. `apply` is the only way to change it."""

    def __init__(self, state: site_state.SiteState) -> None:
        self.state = state
        self.settlement = Settlement(state)
        bookings = self._bookings = Bookings(self.settlement)
        self._handlers: dict[type, Callable[[Any], None]] = {
            site_state.Opened: self._opened,
            site_state.Replied: lambda entry: apply_replied(self.settlement, entry),
            site_state.FleetOpened: self._fleet_opened,
            site_state.Granted: self._granted,
            site_state.Read: self._read,
            site_state.Refused: self._refused,
            site_state.Intended: bookings.intended,
            site_state.Ordered: bookings.ordered,
            site_state.Observed: bookings.observed,
            site_state.Stopped: bookings.stopped,
            site_state.Resumed: bookings.resumed,
            site_state.FleetFinished: self._fleet_finished,
            site_state.FleetRemoved: self._fleet_removed,
            site_state.Denied: self._denied,
            site_state.GaveBack: self._gave_back,
            site_state.StepAdded: self._step_added,
            site_state.OutputsDelivered: self._delivered,
            site_state.OutputsArrived: self._arrived,
            site_state.StaleRemoved: self._stale_removed,
            site_state.Damaged: self._damaged,
            site_state.LetGo: self._let_go,
            site_state.LogFetched: self._fetched,
            site_state.Cleaned: self._cleaned,
        }

    def apply(self, entry: site_state.Entry) -> None:
        """Take an entry over. Raises ProtocolError for one that cannot follow."""
        self._handlers[type(entry)](entry)

    def _opened(self, entry: site_state.Opened) -> None:
        self.state.epoch = entry.epoch
        self.state.next_grant = (entry.epoch << 32) + 1
        self.state.next_fleet = 1
        self.state.next_allocation = 1

    # ---- fleets and grants ----

    def _fleet_opened(self, entry: site_state.FleetOpened) -> None:
        state = self.state
        state.fleets[entry.fleet] = site_state.SiteFleet(
            name=entry.fleet, epoch=state.epoch, created_us=entry.at_us, width=entry.width
        )
        state.next_fleet += 1

    def _granted(self, entry: site_state.Granted) -> None:
        fleet = self._fleet(entry.fleet)
        fleet.open += len(entry.grants)
        fleet.closed = fleet.closed or entry.close
        sent = set(entry.cancels)
        fleet.cancels = [job for job in fleet.cancels if job not in sent]
        if entry.withdrawn:
            del fleet.withdrawn[: len(entry.withdrawn)]
        self._bookings.instructed(entry)
        if len(self.state.allocations) > ALLOCATIONS_KEPT:
            for name in [a.name for a in self.state.allocations.values() if a.told_lead]:
                del self.state.allocations[name]
        jobs = self.state.jobs
        for grant in entry.grants:
            job = jobs[job_of(grant.job)]
            piece = job.ready[0]
            if piece.first != grant.first or piece.count < grant.count:
                raise ProtocolError(f"grant {grant.grant} is not the next piece of job {job.id}")
            if piece.count == grant.count:
                del job.ready[0]
            else:
                rest = piece.count - grant.count
                job.ready[0] = site_state.UndonePiece(
                    grant.first + grant.count, rest, piece.chunk_max, piece.form
                )
            job.grants[grant.grant] = site_state.GrantState(
                entry.fleet, IntervalSet([(grant.first, grant.first + grant.count)]), form_of(grant.job)
            )
            if not job.ready:
                self.settlement.unready(job)
        if entry.grants:
            self.state.next_grant = entry.grants[-1].grant + 1

    def _read(self, entry: site_state.Read) -> None:
        fleet = self._fleet(entry.fleet)
        fleet.offsets.update(entry.offsets)
        fleet.records += len(entry.records)
        BatchOfRecords(self.settlement, fleet).apply(entry.records, entry.far)

    def _fleet_finished(self, entry: site_state.FleetFinished) -> None:
        fleet = self._fleet(entry.fleet)
        fleet.finished_us = entry.at_us
        for job in self.state.jobs.values():
            if not job.grants:
                continue
            for grant, held in list(job.grants.items()):
                if held.fleet != entry.fleet:
                    continue
                del job.grants[grant]
                undone = [piece for first, end in held.open for piece in job.open.within(first, end)]
                form = held.form if held.form in job.forms else None
                self.settlement.make_ready(
                    job, [site_state.UndonePiece(first, end - first, None, form) for first, end in undone]
                )
        fleet.open = 0
        fleet.cancels, fleet.withdrawn = [], []

    def _fleet_removed(self, entry: site_state.FleetRemoved) -> None:
        self.state.fleets.pop(entry.fleet, None)
        for name in [a.name for a in self.state.allocations.values() if a.fleet == entry.fleet]:
            del self.state.allocations[name]

    def _fleet(self, name: str) -> site_state.SiteFleet:
        fleet = self.state.fleets.get(name)
        if fleet is None:
            raise ProtocolError(f"the site's log speaks of fleet `{name}`, which it never opened")
        return fleet

    # ---- jobs ----

    def _refused(self, entry: site_state.Refused) -> None:
        job = self.state.jobs.get(entry.job)
        if job is None:
            return
        if job.id >= site_state.STEP_BASE:
            self.settlement.end_step(job, entry.evidence)
            return
        for first, end in _ready(job):
            self.settlement.release(job, first, end, reason=entry.evidence.message, evidence=entry.evidence)
        job.ready.clear()
        self.settlement.unready(job)

    def _denied(self, entry: site_state.Denied) -> None:
        evidence = Evidence(failure=FailureClass.DISPATCH, message=entry.reason, fault=FaultKind.SITE.value)
        for job_id in entry.jobs:
            job = self.state.jobs.get(job_id)
            if job is None:
                continue
            self.settlement.drop_steps(job_id)
            job.ready.clear()
            self.settlement.unready(job)
            for first, end in job.open:
                self.settlement.release(job, first, end, reason=entry.reason, evidence=evidence)
            self.settlement.forget_grants(job, cancel=True)

    def _gave_back(self, entry: site_state.GaveBack) -> None:
        for job_id in entry.jobs:
            job = self.state.jobs.get(job_id)
            if job is None or job_id >= site_state.STEP_BASE:
                continue
            for piece in job.ready:
                for first, end in job.open.within(piece.first, piece.first + piece.count):
                    self.settlement.release(job, first, end, reason=entry.reason)
            job.ready.clear()
            self.settlement.unready(job)

    def _step_added(self, entry: site_state.StepAdded) -> None:
        job = site_state.SiteJob(
            id=entry.job,
            campaign=entry.campaign,
            seed_base=0,
            spec=entry.spec,
            open=IntervalSet(),
            done=IntervalSet(),
            began=self.state.next_grant,  # a step of the same number, if there was one, had an earlier grant
        )
        self.state.jobs[job.id] = job
        self.state.steps += 1
        self.settlement.open_up(job, 0, 1)
        self.settlement.make_ready(job, [site_state.UndonePiece(0, 1)])

    def _delivered(self, entry: site_state.OutputsDelivered) -> None:
        if self.state.deliveries.pop(entry.job, None) is None:
            return
        job, lost = self.state.jobs.get(entry.job), entry.lost
        if lost and job is not None:  # with them go the other events of their parts
            lost = str(self.settlement.lose_parts(job, IntervalSet.parse(lost)))
        self.settlement.report(
            DeliveredReport(
                n=0, job=entry.job, outputs=entry.outputs, evidence=entry.evidence, done=entry.done,
                held=entry.held, lost=lost,
            )
        )  # fmt: skip
        if entry.evidence is None and not entry.held:
            # The server need not have the report yet: it follows from this entry of the log, so it is sent until it is
            # acknowledged, by whichever agent. The files that it names were durable before.
            self.settlement.drop_parts(entry.job, entry.done)

    def _arrived(self, entry: site_state.OutputsArrived) -> None:
        job = self.state.jobs.get(entry.job)
        if job is None:
            return
        # under way when they were ordered away: they are removed, and come again where they count
        stale = IntervalSet.union(each.events for each in self.state.stale.get(entry.job, []))
        for span in IntervalSet.parse(entry.events):
            arrived = IntervalSet(job.done.within(*span))
            arrived.remove_all(stale)
            job.arrived.add_all(arrived)
        if entry.outputs:
            self.settlement.report(ArrivedReport(n=0, job=entry.job, outputs=entry.outputs))

    def _stale_removed(self, entry: site_state.StaleRemoved) -> None:
        stale = self.state.stale.get(entry.job)
        if stale is None:
            return
        stale[0].events.remove_all(IntervalSet.parse(entry.events))
        if not stale[0].events:
            del stale[0]
        if not stale:
            del self.state.stale[entry.job]

    def _damaged(self, entry: site_state.Damaged) -> None:
        """Events whose outputs are lost are run again here, on our own account: the server has counted them."""
        self.settlement.drop_steps(entry.job)
        job = self.state.jobs.get(entry.job)
        if job is None:
            return
        job.repairs += 1
        gone = self.settlement.lose_parts(job, IntervalSet([(entry.first, entry.first + entry.count)]))
        lost = [piece for first, end in gone for piece in job.open.missing(first, end)]
        for at, until in lost:
            self.settlement.open_up(job, at, until)
        self.settlement.make_ready(job, [site_state.UndonePiece(at, until - at) for at, until in lost])

    def _let_go(self, entry: site_state.LetGo) -> None:
        for job_id in entry.jobs:
            job = self.state.jobs.get(job_id)
            if job is not None and job.stopping:
                self.settlement.let_go(job)

    def _fetched(self, entry: site_state.LogFetched) -> None:
        self.state.fetches = [each for each in self.state.fetches if each.request != entry.request]
        self.settlement.report(
            LogReport(
                n=0,
                request=entry.request,
                found=entry.found,
                stdout=entry.stdout,
                stderr=entry.stderr,
            )
        )

    def _cleaned(self, entry: site_state.Cleaned) -> None:
        cleaned = set(entry.jobs)
        self.state.forgotten = [job for job in self.state.forgotten if job not in cleaned]


def _ready(job: site_state.SiteJob) -> list[tuple[int, int]]:
    return [(piece.first, piece.first + piece.count) for piece in job.ready]
