"""Estimates which jobs waited because of Tidemill, and for how long, from the broker's yields and the jobs' starts.

A decision lists in `yields_to` the regular jobs that could start on nodes that Tidemill holds, or has released and that
are not free yet. Tidemill causes the wait of such a job from that decision until one no longer lists it: its nodes are
free, it has started, or it could not start even without Tidemill. If it then waits on although nodes are free, it waits
for the scheduler's cycle, as it would have without Tidemill.
Deterministic: reads no clock and no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidemill.harvest.account.records import AnyRecord, PlanMade, RegularStarted, file_name
from tidemill.harvest.plan.situation import Decision, Situation
from tidemill.model.figures.job_classes import ClassTotals, SizeAndLength, length_class, size_class
from tidemill.model.machine import Queued, Running, Snapshot

PLANS_MAX = 20
"""Plans kept as evidence for one job: the first ones."""

WATCHED_MAX = 100_000
"""Jobs that wait and to which we yielded; beyond that the oldest are forgotten."""


DAYS_MAX = 3
"""Days of totals that are kept: today's are shown, and clocks may differ about midnight."""


class Yielded(msgspec.Struct, frozen=True):
    """A decision, its plan's name, and what it was made from."""

    plan: str
    situation: Situation
    decision: Decision


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over regular jobs that started (or left)."""

    jobs: int = 0
    delayed: int = 0  #: whose wait Tidemill caused in part
    share_s: float = 0.0
    worst_s: float = 0.0
    worst_id: str = ""


class _Watched(msgspec.Struct):
    """A waiting job that could start without Tidemill. `free_s`: since when Tidemill does not delay it, None = it does.
    `since_s`: the start of the current delay; `earlier_s`: the sum of all earlier delays."""

    could_start_s: float
    uncertainty_s: float
    plans: list[str]
    since_s: float = 0.0
    earlier_s: float = 0.0
    user: str = ""
    width: int = 0
    limit_s: float | None = None
    submitted_s: float | None = None
    free_s: float | None = None

    def __post_init__(self) -> None:
        self.since_s = self.since_s or self.could_start_s

    def share_s(self, end_s: float) -> float:
        """Our part of its wait, which ended then."""
        end_s = end_s if self.free_s is None else min(end_s, self.free_s)
        return self.earlier_s + max(0.0, end_s - self.since_s)

    def block(self, since_s: float) -> None:
        """It could start again, were we not here."""
        if self.free_s is not None:
            self.earlier_s += max(0.0, self.free_s - self.since_s)
            self.since_s, self.free_s = since_s, None


class Tracker:
    """Follows regular jobs from decision to start."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s  #: the uncertainty at the first poll
        self._watched: dict[str, _Watched] = {}
        self._running: set[str] | None = None
        self._looked_s: float | None = None
        self._days: dict[str, Totals] = {}
        self._seen_s = 0.0  #: our part of the waits of regular jobs that started since this tracker began
        self._classes: dict[str, dict[SizeAndLength, ClassTotals]] = {}

    def restore(self, records: Iterable[AnyRecord]) -> None:
        """Take up what an earlier agent has written, the oldest first: the last days will do."""
        for record in records:
            if isinstance(record, PlanMade):
                for job in record.yields_to:
                    found = self._watched.setdefault(job, _Watched(record.snapshot_s, self._poll_s, []))
                    _add(found.plans, record.plan)
            elif isinstance(record, RegularStarted):
                self._watched.pop(record.id, None)
                self._count(record)

    def look(self, snapshot: Snapshot, yields: Sequence[Yielded]) -> list[RegularStarted]:
        """Process one poll and the decisions made from it; return records of regular jobs started since the last poll.

        A snapshot in which regular jobs are hidden yields no records.
        """
        if snapshot.hidden:
            return []
        others = [job for job in snapshot.running if not job.ours]
        started = self._started(snapshot, others)
        self._running = {job.id for job in others}
        waiting = {job.id: job for job in snapshot.queued if not job.ours} if self._is_needed(yields) else {}
        started += self._left(snapshot, waiting)
        self._note(yields, waiting, snapshot.at_s)
        while len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        self._looked_s = snapshot.at_s
        for record in started:
            self._count(record)
            self._seen_s += record.share_s
        return started

    @property
    def share_s(self) -> float:
        """Our part of the waits of regular jobs since this tracker began, those included that waited at the last poll.
        It falls where a job turns out to wait for another reason."""
        if self._looked_s is None:
            return 0.0
        return self._seen_s + sum(each.share_s(self._looked_s) for each in self._watched.values())

    def day(self, at_s: float) -> Totals:
        """The totals of the day (UTC) that holds this time."""
        return self._days.get(file_name(at_s), Totals())

    def day_classes(self, at_s: float) -> dict[SizeAndLength, ClassTotals]:
        """The same by class of size and length."""
        return self._classes.get(file_name(at_s), {})

    @property
    def waiting(self) -> int:
        """Regular jobs that could start without us and have not started."""
        return len(self._watched)

    def _is_needed(self, yields: Sequence[Yielded]) -> bool:
        return bool(self._watched) or any(each.decision.yields_to for each in yields)

    def _started(self, snapshot: Snapshot, others: Iterable[Running]) -> list[RegularStarted]:
        records = []
        for job in others:
            watched = self._watched.pop(job.id, None)
            if watched is None and (self._running is None or job.id in self._running):
                continue  # it ran before, or we have only begun to look
            submitted_s = job.submitted_s
            if watched is None:
                interval_s = snapshot.at_s - (self._looked_s or snapshot.at_s)
                watched = _Watched(job.started_s, interval_s, [])
                could_start_s, share_s = None, 0.0
            else:
                could_start_s = watched.could_start_s
                share_s = watched.share_s(job.started_s)
                submitted_s = watched.submitted_s if submitted_s is None else submitted_s
            records.append(
                RegularStarted(
                    at_s=snapshot.at_s,
                    id=job.id,
                    user=job.user,
                    width=job.width,
                    submitted_s=submitted_s,
                    could_start_s=could_start_s,
                    started_s=job.started_s,
                    share_s=share_s,
                    uncertainty_s=watched.uncertainty_s,
                    plans=watched.plans,
                    limit_s=job.ends_s - job.started_s,
                    nodes=len(snapshot.nodes),
                )
            )
        return records

    def _left(self, snapshot: Snapshot, waiting: dict[str, Queued]) -> list[RegularStarted]:
        """Jobs that Tidemill yielded to and that vanished between two polls: canceled, or started and ended."""
        records = []
        for job in [job for job in self._watched if job not in waiting]:
            watched = self._watched.pop(job)
            records.append(
                RegularStarted(
                    at_s=snapshot.at_s,
                    id=job,
                    user=watched.user,
                    width=watched.width,
                    submitted_s=watched.submitted_s,
                    could_start_s=watched.could_start_s,
                    started_s=None,
                    share_s=watched.share_s(snapshot.at_s),
                    uncertainty_s=watched.uncertainty_s + snapshot.at_s - (self._looked_s or snapshot.at_s),
                    plans=watched.plans,
                    limit_s=watched.limit_s,
                    nodes=len(snapshot.nodes),
                )
            )
        return records

    def _note(self, yields: Sequence[Yielded], waiting: dict[str, Queued], now_s: float) -> None:
        """Record when jobs could first start, and since when Tidemill no longer delays them: once a pool's idle nodes
        suffice, or no decision yields to the job (it is held, the scheduler would not start it even without Tidemill,
        or others have taken the nodes). The delay continues if Tidemill blocks the job again."""
        free: set[str] = set()
        for each in yields:
            for name in each.decision.yields_to:
                job = waiting.get(name)
                if job is None:
                    continue
                watched = self._watched.get(name)
                if watched is None:
                    watched = self._watched[name] = self._first(job, now_s)
                watched.user, watched.width, watched.submitted_s = job.user, job.width, job.submitted_s
                watched.limit_s = job.walltime_s
                _add(watched.plans, each.plan)
            idle, blocked = each.situation.idle, set(each.decision.yields_to)
            if self._watched:
                free.update(
                    job.id for job in each.situation.queue if job.width <= idle and job.id not in blocked
                )
        blocked = {name for each in yields for name in each.decision.yields_to}
        for name, watched in self._watched.items():
            if name in free or name not in blocked:
                watched.free_s = now_s if watched.free_s is None else watched.free_s
            else:
                watched.block((now_s + (now_s if self._looked_s is None else self._looked_s)) / 2)

    def _first(self, job: Queued, now_s: float) -> _Watched:
        """A new record of a job that became able to start after the last poll: at its submission if that is later, else
        when another job released nodes, estimated as the middle of the interval."""
        before_s = now_s - self._poll_s if self._looked_s is None else self._looked_s
        if job.submitted_s is not None and job.submitted_s > before_s:
            begin_s = min(job.submitted_s, now_s)
            return _Watched(begin_s, now_s - begin_s, [])
        return _Watched((before_s + now_s) / 2, now_s - before_s, [])

    def _count(self, record: RegularStarted) -> None:
        name = file_name(record.at_s)
        self._days[name] = add(self._days.get(name, Totals()), record)
        by_class = self._classes.setdefault(name, {})
        kind = kind_of(record)
        by_class[kind] = add_class(by_class.get(kind, ClassTotals()), record)
        while len(self._days) > DAYS_MAX:
            oldest = min(self._days)
            del self._days[oldest]
            self._classes.pop(oldest, None)


def add(totals: Totals, record: RegularStarted) -> Totals:
    """The totals with one more job."""
    worst = record.share_s > totals.worst_s
    return Totals(
        jobs=totals.jobs + 1,
        delayed=totals.delayed + (record.share_s > 0),
        share_s=totals.share_s + record.share_s,
        worst_s=record.share_s if worst else totals.worst_s,
        worst_id=record.id if worst else totals.worst_id,
    )


def kind_of(record: RegularStarted, *, nodes: int = 0) -> SizeAndLength:
    """The class of a job by size and by the walltime that it asked for; `nodes`: of the machine,
    for records that do not have it.

    By what it asked for, because that is known when it starts, and because scheduler and broker act on nothing else.
    """
    return SizeAndLength(size_class(record.width, record.nodes or nodes), length_class(record.limit_s))


def wait_of(record: RegularStarted) -> float:
    """Seconds that a job waited, at least our share: more is not known of a job whose submission is not."""
    end_s = record.at_s if record.started_s is None else record.started_s
    return max(record.share_s, 0.0 if record.submitted_s is None else end_s - record.submitted_s)


def add_class(totals: ClassTotals, record: RegularStarted) -> ClassTotals:
    """The totals of a class with one more job."""
    return ClassTotals(
        jobs=totals.jobs + 1,
        delayed=totals.delayed + (record.share_s > 0),
        wait_s=totals.wait_s + wait_of(record),
        share_s=totals.share_s + record.share_s,
    )


def _add(plans: list[str], plan: str) -> None:
    if len(plans) < PLANS_MAX and plan not in plans:
        plans.append(plan)
