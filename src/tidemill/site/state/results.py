"""How the pilots' records change the pool: what is kept, failed, or to be granted again. Pure.

Each event is taken as kept once. A record with outputs that overlaps what is settled is dropped whole; one without
outputs counts for what is open. Reports of one batch are joined where that loses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.model.failure import Evidence, FailureClass, FaultKind
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import rate_key
from tidemill.node.journal import allocation_of
from tidemill.routing.attribution import FarTrouble
from tidemill.site.state import site_state
from tidemill.site.state.activities import Activities
from tidemill.site.state.failures import (
    FAR_EVENTS_MAX,
    REPORTED_MAX,
    RETURNS_MAX,
    RetryVerdict,
    decide,
    explain,
    failure_class,
    fruitless_max,
    is_of_the_way,
    with_runtime,
)
from tidemill.site.state.growing import again_larger, in_form, larger_form, told_growth
from tidemill.site.state.settlement import Settlement
from tidemill.site.state.times import Times
from tidemill.wire import node
from tidemill.wire.activity import RanRange, RanReport
from tidemill.wire.api import FailureReport, PayloadUsage

RATE_EVENTS_MAX = 1000.0
"""A measured rate's sums are halved above this number of events, so that it forgets old events."""

NOTES_MAX = 20
"""Notes of an allocation's pilots that are kept."""

NOTE_CHARS_MAX = 500
NOTES_SHOWN = 5
"""Notes that are reported with each failure."""

RATE_WALL_S_MAX = 3600.0
"""... or more than this number of payload seconds."""

NOTHING_FAR: Mapping[int, FarTrouble] = {}
RANGES_MAX = 2_000  #: in one report of what ran


class BatchOfRecords:
    """Takes the records of one read of one fleet's journals."""

    def __init__(self, settlement: Settlement, fleet: site_state.SiteFleet) -> None:
        self._settlement = settlement
        self._fleet = fleet
        self._jobs = settlement.state.jobs
        self._plain: dict[int, tuple[site_state.SiteJob, IntervalSet, PayloadUsage]] = {}
        self._ran = Ran()
        self._times = Times(self._jobs, fleet.pilot_nodes)
        self._activities = Activities()
        self._far: FarTrouble | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            node.Done: self._done,
            node.Failed: self._failed,
            node.Returned: self._returned,
            node.Started: self._started,
            node.Ended: self._ended,
            node.Noted: self._noted,
        }

    def apply(self, records: list[node.Record], far: Mapping[int, FarTrouble] = NOTHING_FAR) -> None:
        """Apply the records, then report what is kept without outputs, joined. `far`: see `Read`."""
        seen = self._fleet.seen  # the journal's own: it has these already, but where the log is replayed
        for at, record in enumerate(records):
            self._far = far.get(at)
            numbers = seen.get(record.p)
            if numbers is None:
                numbers = seen[record.p] = IntervalSet()
            numbers.add(record.s, record.s + 1)
            if isinstance(record, node.Done | node.Failed):
                self._ran.add(record)
                self._times.add(record)
            self._handlers[type(record)](record)
        for report in self._ran.reports():
            self._settlement.report(report)
        for timed in self._times.reports():
            self._settlement.report(timed)
        for activity in self._activities.reports():
            self._settlement.report(activity)
        for job, events, usage in self._plain.values():
            told = usage
            for first, end in events:
                self._settlement.done(job, first, end, outputs=False, usage=told)
                told = PayloadUsage()

    def _done(self, record: node.Done) -> None:
        job = self._jobs.get(record.job)
        if job is None:
            return
        first, end = record.first, record.first + record.count
        if self._ungrant(job, record.grant, first, end):
            self._measure(job, record)
        if record.outputs:
            self._done_with_outputs(job, record)
            return
        taken = self._plain.get(job.id)
        if taken is None:
            taken = self._plain[job.id] = (job, IntervalSet(), PayloadUsage())
        undone = job.open.within(first, end)
        self._activities.done(job, record, sum(until - at for at, until in undone))
        for at, until in undone:
            self._settlement.close(job, at, until)
            job.done.add(at, until)
            taken[1].add(at, until)
        if undone:
            _succeeded(job, first, end)
            _add(taken[2], record)

    def _done_with_outputs(self, job: site_state.SiteJob, record: node.Done) -> None:
        first, end = record.first, record.first + record.count
        is_whole = job.open.covers(first, end)
        self._activities.done(job, record, record.count if is_whole else 0)
        if not is_whole:
            self._again(job, self._free(job, first, end))
            return
        _succeeded(job, first, end)
        job.parts.append(site_state.KeptPart(first, record.count, self._fleet.name, record.outputs))
        job.done.add(first, end)
        usage = PayloadUsage()
        _add(usage, record)
        self._settlement.done(job, first, end, outputs=True, usage=usage)

    def _failed(self, record: node.Failed) -> None:
        job = self._jobs.get(record.job)
        if job is None:
            return
        first, end = record.first, record.first + record.count
        self._activities.failed(job, record)
        held = job.grants.get(record.grant)
        if held is None:
            return  # taken back already: those events are granted again or done
        self._ungrant(job, record.grant, first, end)
        undone = self._free(job, first, end)
        if not undone:
            return
        failure, message = _why(job, record)
        is_sites = is_of_the_way(self._far, undone, job.far)
        larger = None if is_sites else larger_form(job, held.form, failure, message)
        if larger is None:
            verdict = self._verdict(job, record, undone, None if is_sites else failure)
            verdict = in_form(job, verdict, form=held.form)
        else:
            verdict = again_larger(job, larger, undone, form=held.form, culprit=record.event)
        message += told_growth(job, held.form, failure, larger)
        evidence = self._evidence(record, failure, message, is_sites=is_sites)
        job.fruitless += not verdict.counted and larger is None
        self._take_verdict(job, record, verdict, evidence)
        if job.fruitless > fruitless_max(failure) and failure is not FailureClass.PREEMPTED:
            self._give_back(job, evidence)

    def _take_verdict(
        self, job: site_state.SiteJob, record: node.Failed, verdict: RetryVerdict, evidence: Evidence
    ) -> None:
        for event in verdict.counted:
            job.failures[event] = job.failures.get(event, 0) + 1
        if job.id >= site_state.STEP_BASE and verdict.failed:
            self._settlement.end_step(job, evidence)
            return
        for event in verdict.failed:
            self._flush(job)
            self._settlement.fail(job, event, evidence)
        if not verdict.failed:
            self._report(job, record, evidence)
        self._settlement.make_ready(job, verdict.again)

    def _returned(self, record: node.Returned) -> None:
        """The lead gives it to another pilot. Only work that pilot after pilot cannot fit in is taken from it."""
        job = self._jobs.get(record.job)
        if job is None or record.reason not in ("no_fit", "walltime") or record.p == job.returned_by:
            return
        job.returned_by = record.p
        job.returns += 1
        if job.returns < RETURNS_MAX:
            return
        why = [note for note in self._notes(record.p) if note.startswith("memory ")]
        message = (
            f"{RETURNS_MAX} pilots in turn returned events {record.first}-{record.first + record.count - 1} as "
            f"`{record.reason}`: they fit into no allocation of this site"
            + "".join(f"; {each.removeprefix('memory no_fit: ')}" for each in why[-1:])
        )
        held = job.grants.get(record.grant)  # other forms of the job may fit, and run
        gone = self._settlement.forget_grants(job, cancel=True, form=None if held is None else held.form)
        pieces = [piece for each in gone for piece in each.open]
        self._again(job, [piece for at, until in pieces for piece in job.open.within(at, until)])
        evidence = Evidence(failure=FailureClass.WALLTIME, message=message, fault=FaultKind.SITE.value)
        self._give_back(job, evidence)

    def _started(self, record: node.Started) -> None:
        self._fleet.pilot_nodes[record.p] = record.node
        allocation = self._settlement.state.allocations.get(record.allocation)
        if allocation is not None:
            allocation.pilots += 1

    def _ended(self, record: node.Ended) -> None:
        self._fleet.ended[record.p] = record.s
        allocation = self._settlement.state.allocations.get(allocation_of(record.p))
        if allocation is not None:
            allocation.pilots_ended += 1
            allocation.busy_us += record.busy_us
            allocation.slot_us += record.slot_us

    def _noted(self, record: node.Noted) -> None:
        """Counts for nothing: it is kept for people, beside what happened there."""
        allocation = self._settlement.state.allocations.get(allocation_of(record.p))
        if allocation is not None:
            allocation.notes = with_note(allocation.notes, record)

    # ---- steps they share ----

    def _ungrant(self, job: site_state.SiteJob, grant: int, first: int, end: int) -> bool:
        """These events wait for nothing more; whether this fleet was at any of them."""
        held = job.grants.get(grant)
        if held is None:  # taken back long ago, or of another life of the job
            _unready(job, first, end)
            if not job.ready:
                self._settlement.unready(job)
            return False
        was_held = held.open.remove(first, end) > 0
        if not held.open:
            del job.grants[grant]
            self._settlement.state.fleets[held.fleet].open -= 1
        return was_held and held.fleet == self._fleet.name

    def _free(self, job: site_state.SiteJob, first: int, end: int) -> list[tuple[int, int]]:
        """The open events that neither another grant nor the backlog holds: someone else may be at them already."""
        undone = job.open.within(first, end)
        if not undone or not (job.grants or job.ready):
            return undone
        busy = IntervalSet()
        for held in job.grants.values():
            for at, until in held.open.within(first, end):
                busy.add(at, until)
        for piece in job.ready:
            if piece.first < end and piece.first + piece.count > first:
                busy.add(piece.first, piece.first + piece.count)
        return [gap for at, until in undone for gap in busy.missing(at, until)]

    def _again(self, job: site_state.SiteJob, undone: list[tuple[int, int]]) -> None:
        self._settlement.make_ready(job, [site_state.UndonePiece(at, until - at) for at, until in undone])

    def _give_back(self, job: site_state.SiteJob, evidence: Evidence) -> None:
        """Nothing succeeds here: what no pilot holds goes back to the server."""
        if job.id >= site_state.STEP_BASE:
            self._settlement.end_step(job, evidence)
            return
        self._flush(job)
        for piece in job.ready:
            for first, end in job.open.within(piece.first, piece.first + piece.count):
                self._settlement.release(job, first, end, reason=evidence.message, evidence=evidence)
        job.ready.clear()
        job.fruitless = job.returns = 0
        self._settlement.unready(job)

    def _flush(self, job: site_state.SiteJob) -> None:
        """Report what is kept of the job so far, so that its reports stay in the order of what happened."""
        taken = self._plain.pop(job.id, None)
        if taken is None:
            return
        usage = taken[2]
        for first, end in taken[1]:
            self._settlement.done(job, first, end, outputs=False, usage=usage)
            usage = PayloadUsage()

    def _report(self, job: site_state.SiteJob, record: node.Failed, evidence: Evidence) -> None:
        if job.reported >= REPORTED_MAX or job.id >= site_state.STEP_BASE:
            return
        job.reported += 1
        lease = self._settlement.lease_of(job, record.first)
        self._settlement.report(
            FailureReport(
                n=0,
                lease=lease.lease if lease else 0,
                job=job.id,
                first=record.first,
                count=record.count,
                event=record.event,
                final=False,
                evidence=evidence,
            )
        )

    def _notes(self, pilot: str) -> list[str]:
        allocation = self._settlement.state.allocations.get(allocation_of(pilot))
        return [] if allocation is None else allocation.notes[-NOTES_SHOWN:]

    def _verdict(
        self,
        job: site_state.SiteJob,
        record: node.Failed,
        undone: list[tuple[int, int]],
        failure: FailureClass | None,
    ) -> RetryVerdict:
        """What becomes of the events; `failure`: None = the way to a far input caused it."""
        if failure is None:
            _note_far(job, undone)
            return RetryVerdict([site_state.UndonePiece(at, until - at) for at, until in undone], [], [])
        return decide(failure, undone, culprit=record.event, failures=job.failures, retries=job.spec.retries)

    def _evidence(
        self, record: node.Failed, failure: FailureClass, message: str, *, is_sites: bool
    ) -> Evidence:
        if self._far is not None:
            message = f"{message}; {self._far.text}"
        return Evidence(
            failure=failure,
            message=message,
            exit_status=record.exit_status,
            signal=record.signal,
            stderr_tail=record.stderr_tail,
            node=record.p,
            allocation=allocation_of(record.p),
            at_us=record.at_us,
            notes=self._notes(record.p),
            fault=FaultKind.SITE.value if is_sites else self._fault(record.job, failure),
        )

    def _fault(self, number: int, failure: FailureClass) -> str:
        """Files or a launcher that an approved application lacks on a node are the site's; empty = as the class."""
        job = self._jobs.get(number)
        is_approved = job is not None and job.spec.app is not None
        return FaultKind.SITE.value if failure is FailureClass.DISPATCH and is_approved else ""

    def _measure(self, job: site_state.SiteJob, record: node.Done) -> None:
        app = rate_key(job.spec.app or "", job.spec.resources.width)
        rate = self._settlement.state.rates.get(app)
        if rate is None:
            rate = self._settlement.state.rates[app] = site_state.Rate()
        rate.wall_s += (record.wall_us - record.setup_us) / 1e6
        rate.events += record.count
        while rate.events > RATE_EVENTS_MAX or (rate.wall_s > RATE_WALL_S_MAX and rate.events > 2):
            rate.events /= 2
            rate.wall_s /= 2


class Ran:
    """What ran in which allocation and for how long, of the records of one read: for the audit and for core-hours."""

    def __init__(self) -> None:
        self._events: dict[str, dict[int, IntervalSet]] = defaultdict(lambda: defaultdict(IntervalSet))
        self._wall_us: dict[tuple[str, int], int] = defaultdict(int)

    def add(self, record: node.Done | node.Failed) -> None:
        """Events that are done or failed: their payload ran there."""
        allocation = allocation_of(record.p)
        if allocation and record.count:
            self._events[allocation][record.job].add(record.first, record.first + record.count)
            self._wall_us[allocation, record.job] += record.wall_us

    def reports(self) -> list[RanReport]:
        """One report for each allocation, several if there are many jobs."""
        found: list[RanReport] = []
        for allocation, jobs in self._events.items():
            ranges = [
                _ran_range(job, str(events), self._wall_us[allocation, job]) for job, events in jobs.items()
            ]
            for at in range(0, len(ranges), RANGES_MAX):
                found.append(RanReport(n=0, allocation=allocation, ran=ranges[at : at + RANGES_MAX]))
        return found


def with_note(notes: list[str], record: node.Noted) -> list[str]:
    """An allocation's remarks, the newest last, with one more. What comes again with other numbers takes the place of
    what was there; what a node's counters saw each minute is for metrics alone."""
    if (record.topic, record.mode) == ("io", "usage"):
        return notes
    text = note_text(record)
    head = f"io {record.mode}" if record.topic == "io" else text.partition(" (")[0]
    return [*(each for each in notes if not each.startswith(head)), text][-NOTES_MAX:]


def note_text(record: node.Noted) -> str:
    """A remark of a pilot in words: `image fuse: image `sw` (bytes 81800000, show_ms 12)`."""
    numbers = ", ".join(f"{name} {number}" for name, number in sorted(record.numbers.items()))
    text = f"{record.topic} {record.mode}" + (f": {record.message}" if record.message else "")
    return (text + (f" ({numbers})" if numbers else ""))[:NOTE_CHARS_MAX]


def _why(job: site_state.SiteJob, record: node.Failed) -> tuple[FailureClass, str]:
    failure = failure_class(record.failure)
    is_wide = job.spec.resources.width is not None
    found, message = explain(record, failure) if is_wide else (failure, record.message)
    return found, with_runtime(message)


def _succeeded(job: site_state.SiteJob, first: int, end: int) -> None:
    """Events are kept: what failed before counts no more for what is to come."""
    job.fruitless = job.returns = 0
    if job.far:
        job.far = {event: n for event, n in job.far.items() if not first <= event < end}


def _note_far(job: site_state.SiteJob, undone: list[tuple[int, int]]) -> None:
    left = FAR_EVENTS_MAX
    for first, end in undone:
        for event in range(first, min(end, first + left)):
            job.far[event] = job.far.get(event, 0) + 1
        left -= min(left, end - first)


def _unready(job: site_state.SiteJob, first: int, end: int) -> None:
    """Events that turn out to be done wait for nothing more."""
    if not any(piece.first < end and piece.first + piece.count > first for piece in job.ready):
        return
    ready: list[site_state.UndonePiece] = []
    for piece in job.ready:
        last = piece.first + piece.count
        for at, until in ((piece.first, min(last, first)), (max(piece.first, end), last)):
            if at < until:
                ready.append(site_state.UndonePiece(at, until - at, piece.chunk_max, piece.form))
    job.ready = ready


def _add(usage: PayloadUsage, record: node.Done) -> None:
    usage.payloads += record.payloads
    usage.wall_us += record.wall_us
    usage.setup_us += record.setup_us
    usage.user_us += record.user_us
    usage.system_us += record.system_us
    usage.rss_kb = max(usage.rss_kb, record.rss_kb)
    usage.read_bytes += record.read_bytes or 0
    usage.write_bytes += record.write_bytes or 0


def _ran_range(job: int, events: str, wall_us: int) -> RanRange:
    if job < site_state.STEP_BASE:
        return RanRange(job, events, wall_us=wall_us)
    source, step = divmod(job - site_state.STEP_BASE, site_state.STEPS_MAX)
    return RanRange(source, "", step, wall_us)
