"""Estimates which jobs waited because of Tidemill, and for how long, from the broker's yields and the jobs' starts.

A decision lists in `yields_to` the regular jobs that could start on nodes that Tidemill holds, or has released and that
are not free yet. Tidemill causes the wait of such a job from that decision until one no longer lists it: its nodes are
free, it has started, or it could not start even without Tidemill. If it then waits on although nodes are free, it waits
for the scheduler's cycle, as it would have without Tidemill.

A job may come, wait and start between two polls. If it started on nodes that Tidemill held at the earlier one, or has
held since, Tidemill caused its wait until these were released.

Submission and start are the batch system's own times. What happened between two polls has an interval: it began at the
earlier poll at the earliest (or at the submission) and at the later one at the latest; estimates use its middle. So
the lower bound of a part counts what polls saw, the upper bound all that they cannot exclude, and no part is more than
the wait of its job. A job that vanished between two polls counts until the last poll that saw it wait: its start is
not known.
Deterministic: reads no clock and no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from tidemill.harvest.account.broker_log import AnyRecord, PlanMade, RegularStarted, file_name
from tidemill.harvest.plan.situation import Decision, Situation
from tidemill.model.figures.job_classes import ClassTotals, SizeAndLength, length_class, size_class
from tidemill.model.machine import NodeState, Queued, Running, Snapshot

PLANS_MAX = 20
"""Plans kept as evidence for one job: the first ones."""

WATCHED_MAX = 100_000
"""Jobs that wait and to which we yielded; beyond that the oldest are forgotten."""


LATENCIES_KEPT, LATENCIES_MIN = 100, 5
"""Waits that Tidemill had no part in, of which the median is taken, and the least number of them."""

GAP_POLLS = 4
"""A job that no agent saw for longer than that, while none ran, is not said to have waited for Tidemill meanwhile."""


DAYS_MAX = 3
"""Days of totals that are kept: today's are shown, and clocks may differ about midnight."""


class Yielded(msgspec.Struct, frozen=True):
    """A decision, its plan's name, and what it was made from."""

    plan: str
    situation: Situation
    decision: Decision


class OwnNodes(NamedTuple):
    """Nodes, by name, of allocations of Tidemill that yield. `held`: one runs there; `released`: when the last one on a
    node ended, of those that ended since the last poll at least."""

    held: frozenset[str] = frozenset()
    released: Mapping[str, float] = {}


NO_NODES = OwnNodes()


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over regular jobs that started (or left). `share_low_s`, `share_high_s`: bounds of `share_s`."""

    jobs: int = 0
    delayed: int = 0  #: whose wait Tidemill caused in part
    share_s: float = 0.0
    worst_s: float = 0.0
    worst_id: str = ""
    share_low_s: float = 0.0
    share_high_s: float = 0.0
    wait_s: float = 0.0  #: all that these jobs waited


class WaitPart(NamedTuple):
    """A part of a job's wait in seconds: `low` <= `likely` <= `high`."""

    low: float = 0.0
    likely: float = 0.0
    high: float = 0.0

    def within(self, wait_s: float) -> WaitPart:
        """At most the whole wait."""
        most = max(0.0, wait_s)
        high = min(max(self), most)
        likely = min(self.likely, high)
        return WaitPart(min(self.low, likely), likely, high)


class Moment(NamedTuple):
    """When something happened that polls saw afterwards."""

    earliest: float
    likely: float
    latest: float


def between(earliest: float, latest: float) -> Moment:
    """Between two polls: likely in the middle."""
    return Moment(earliest, (earliest + latest) / 2, latest)


class _Watched(msgspec.Struct):
    """A waiting job that could start without Tidemill. `free`: since when Tidemill does not delay it, None = it does.
    `since`: the start of the current delay; `earlier`: the sum of all earlier delays; `seen_s`: the last poll that saw
    it wait."""

    since: Moment
    uncertainty_s: float
    plans: list[str]
    seen_s: float
    could_start_s: float = 0.0
    earlier: WaitPart = WaitPart()
    user: str = ""
    width: int = 0
    cores: int = 0
    limit_s: float | None = None
    submitted_s: float | None = None
    free: Moment | None = None

    def __post_init__(self) -> None:
        self.could_start_s = self.could_start_s or self.since.likely

    def part(self, end_s: float, *, latency_s: float | None = None) -> WaitPart:
        """The part of its wait that Tidemill caused, if the wait ended then. `latency_s`: what jobs wait for free
        nodes without Tidemill, too; None = not known. Where it is known, a job that Tidemill delayed at the last poll
        was delayed until it started: without Tidemill it would have started before that poll, or within that time."""
        if self.free is not None:
            return self._with(Moment(*(min(end_s, each) for each in self.free)))
        if latency_s is None:
            return self._with(Moment(min(end_s, self.seen_s), end_s, end_s))
        return self._with(Moment(end_s - latency_s, end_s - latency_s, end_s))

    def block(self, since: Moment) -> None:
        """Note that the job could start again without Tidemill."""
        if self.free is not None:
            self.earlier = self._with(self.free)
            self.since, self.free = since, None

    def _with(self, end: Moment) -> WaitPart:
        low, likely, high = self.earlier
        return WaitPart(
            low + max(0.0, end.earliest - self.since.latest),
            likely + max(0.0, end.likely - self.since.likely),
            high + max(0.0, end.latest - self.since.earliest),
        )


class Tracker:
    """Follows regular jobs from decision to start."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s  #: the uncertainty at the first poll
        self._watched: dict[str, _Watched] = {}
        self._running: set[str] | None = None
        self._looked_s: float | None = None
        self._days: dict[str, Totals] = {}
        self._seen_s = (
            0.0  #: Tidemill's part of the waits of regular jobs that started since this tracker began
        )
        self._classes: dict[str, dict[SizeAndLength, ClassTotals]] = {}
        self._held: frozenset[str] = frozenset()  #: Tidemill's nodes at the last poll
        self._open: frozenset[str] = frozenset()  #: nodes that took jobs then
        self._undelayed: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._latency_s: float | None = None  #: None = to be computed again

    def restore(self, records: Iterable[AnyRecord]) -> None:
        """Take up what an earlier agent has written, the oldest first: the last days will do."""
        for record in records:
            if isinstance(record, PlanMade):
                for job in record.yields_to:
                    found = self._watched.get(job)
                    if found is None:
                        since = Moment(record.snapshot_s - self._poll_s, record.snapshot_s, record.snapshot_s)
                        found = self._watched[job] = _Watched(since, self._poll_s, [], record.snapshot_s)
                    found.seen_s = record.snapshot_s
                    _add(found.plans, record.plan)
            elif isinstance(record, RegularStarted):
                self._watched.pop(record.id, None)
                self._count(record)

    def on_poll(
        self, snapshot: Snapshot, yields: Sequence[Yielded], nodes: OwnNodes = NO_NODES
    ) -> list[RegularStarted]:
        """Process one poll and the decisions made from it; return records of regular jobs started since the last poll.

        A snapshot in which regular jobs are hidden yields no records.
        """
        if snapshot.hidden:
            return []
        if self._looked_s is None:
            self._resume(snapshot.at_s)
        others = [job for job in snapshot.running if not job.ours]
        started = self._started(snapshot, others, nodes.released)
        self._running = {job.id for job in others}
        self._held = nodes.held
        self._open = frozenset(
            node.name
            for node in snapshot.nodes
            if node.state in (NodeState.IDLE, NodeState.SHARED) and node.name not in self._held
        )
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
        """Tidemill's part of the waits of regular jobs since this tracker began, those included that waited at the
        last poll. It falls where a job turns out to wait for another reason."""
        looked_s = self._looked_s
        if looked_s is None:
            return 0.0
        return self._seen_s + sum(each.part(looked_s).likely for each in self._watched.values())

    @property
    def latency_s(self) -> float | None:
        """How long jobs wait for the scheduler where nothing is in their way: the median of those that started within
        an interval of polls and that Tidemill did not delay. None = too few are known."""
        if self._latency_s is None and len(self._undelayed) >= LATENCIES_MIN:
            self._latency_s = median(self._undelayed)
        return self._latency_s

    def day(self, at_s: float) -> Totals:
        """The totals of the day (UTC) that holds this time."""
        return self._days.get(file_name(at_s), Totals())

    def day_classes(self, at_s: float) -> dict[SizeAndLength, ClassTotals]:
        """Totals of a day's regular jobs by class of size and length."""
        return self._classes.get(file_name(at_s), {})

    @property
    def waiting(self) -> int:
        """Regular jobs that could start without Tidemill and have not started."""
        return len(self._watched)

    def _is_needed(self, yields: Sequence[Yielded]) -> bool:
        return bool(self._watched) or any(each.decision.yields_to for each in yields)

    def _resume(self, now_s: float) -> None:
        """At the first poll: what has delayed jobs that an agent saw wait long ago is not known."""
        for watched in self._watched.values():
            if now_s - watched.seen_s > GAP_POLLS * self._poll_s:
                watched.free = Moment(watched.seen_s, watched.seen_s, now_s)

    def _started(
        self, snapshot: Snapshot, others: Iterable[Running], released: Mapping[str, float]
    ) -> list[RegularStarted]:
        records = []
        cores = sum(node.cores for node in snapshot.nodes)
        for job in others:
            watched = self._watched.pop(job.id, None)
            if watched is None and (self._running is None or job.id in self._running):
                continue  # it ran before, or we have only begun to look
            submitted_s = job.submitted_s
            could_start_s, part, plans = None, WaitPart(), []
            uncertainty_s = snapshot.at_s - (self._looked_s or snapshot.at_s)
            if watched is not None:
                submitted_s = watched.submitted_s if submitted_s is None else submitted_s
                could_start_s, uncertainty_s, plans = (
                    watched.could_start_s,
                    watched.uncertainty_s,
                    watched.plans,
                )
                part = watched.part(job.started_s, latency_s=self.latency_s)
                begin_s = watched.since.earliest if submitted_s is None else submitted_s
                part = part.within(job.started_s - begin_s)
            elif (unseen := self._unseen(job, released)) is not None:
                part = unseen
                could_start_s = self._begun_s(job) if part.likely else None
            else:
                self._learn(job, uncertainty_s)
            records.append(
                RegularStarted(
                    at_s=snapshot.at_s,
                    id=job.id,
                    user=job.user,
                    width=job.width,
                    submitted_s=submitted_s,
                    could_start_s=could_start_s,
                    started_s=job.started_s,
                    share_s=part.likely,
                    share_low_s=part.low,
                    share_high_s=part.high,
                    uncertainty_s=uncertainty_s,
                    plans=plans,
                    limit_s=job.ends_s - job.started_s,
                    nodes=len(snapshot.nodes),
                    cores=0 if job.whole else job.cores,
                    machine_cores=cores,
                )
            )
        return records

    def _left(self, snapshot: Snapshot, waiting: dict[str, Queued]) -> list[RegularStarted]:
        """Jobs that Tidemill yielded to and that vanished between two polls: canceled, or started and ended. They
        waited at least until the last poll that saw them wait, and at most until now."""
        records = []
        cores = sum(node.cores for node in snapshot.nodes)
        for job in [job for job in self._watched if job not in waiting]:
            watched = self._watched.pop(job)
            seen, now = watched.part(watched.seen_s), watched.part(snapshot.at_s)
            records.append(
                RegularStarted(
                    at_s=snapshot.at_s,
                    id=job,
                    user=watched.user,
                    width=watched.width,
                    submitted_s=watched.submitted_s,
                    could_start_s=watched.could_start_s,
                    started_s=None,
                    share_s=seen.likely,
                    share_low_s=seen.low,
                    share_high_s=now.high,
                    uncertainty_s=watched.uncertainty_s + snapshot.at_s - watched.seen_s,
                    plans=watched.plans,
                    limit_s=watched.limit_s,
                    nodes=len(snapshot.nodes),
                    cores=watched.cores,
                    machine_cores=cores,
                    seen_s=watched.seen_s,
                )
            )
        return records

    def _note(self, yields: Sequence[Yielded], waiting: dict[str, Queued], now_s: float) -> None:
        """Record when jobs could first start, and since when Tidemill no longer delays them: once a pool's idle nodes
        suffice for the job and those before it, or no decision yields to the job (it is held, the scheduler would not
        start it even without Tidemill, or others have taken the nodes). The delay continues if Tidemill blocks the job
        again."""
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
                watched.limit_s, watched.cores = job.walltime_s, 0 if job.whole else job.cores
                _add(watched.plans, each.plan)
            free.update(_ready(each, waiting))
        blocked = {name for each in yields for name in each.decision.yields_to}
        before_s = now_s if self._looked_s is None else self._looked_s
        for name, watched in self._watched.items():
            watched.seen_s = now_s
            if name in free or name not in blocked:
                if watched.free is None:
                    watched.free = between(max(before_s, watched.since.earliest), now_s)
            else:
                watched.block(between(before_s, now_s))

    def _first(self, job: Queued, now_s: float) -> _Watched:
        """A new record of a job that became able to start after the last poll: likely at its submission if that is
        later, else when another job released nodes, in the middle of the interval."""
        before_s = now_s - self._poll_s if self._looked_s is None else self._looked_s
        if job.submitted_s is not None and job.submitted_s > before_s:
            begin_s = min(job.submitted_s, now_s)
            return _Watched(Moment(begin_s, begin_s, now_s), now_s - begin_s, [], now_s)
        return _Watched(between(before_s, now_s), now_s - before_s, [], now_s)

    def _begun_s(self, job: Running) -> float:
        """Since when a job has waited, at most since the last poll."""
        looked_s = self._looked_s or 0.0
        return looked_s if job.submitted_s is None else max(looked_s, job.submitted_s)

    def _unseen(self, job: Running, released: Mapping[str, float]) -> WaitPart | None:
        """Tidemill's part of the wait of a job that no poll saw wait for it; None where it has none: none of its nodes
        was Tidemill's. One that waited at the last poll already could not start then without Tidemill either: what it
        waited since is the upper bound."""
        looked_s = self._looked_s
        if looked_s is None:
            return None
        ends_s = {name: end_s for name in job.nodes if (end_s := released.get(name, 0.0)) >= looked_s}
        mine = [name for name in job.nodes if name in self._held or name in ends_s]
        begun_s = self._begun_s(job)
        wait_s = max(0.0, job.started_s - begun_s)
        if not mine:
            return None
        if job.submitted_s is None or job.submitted_s <= looked_s:
            return WaitPart(0.0, 0.0, wait_s)
        if len(ends_s) == len(mine) and (last_s := max(ends_s.values())) < job.started_s:
            likely_s = last_s - begun_s
        else:  # until it started, but for what the scheduler takes
            likely_s = wait_s / 2 if self.latency_s is None else wait_s - self.latency_s
        if any(name not in self._open and name not in mine for name in job.nodes):
            likely_s /= 2  # it waited for nodes of others, too, and which it waited for longer is not known
        return WaitPart(0.0, max(0.0, likely_s), wait_s).within(wait_s)

    def _learn(self, job: Running, interval_s: float) -> None:
        """Take the wait of a job on nodes that were free at the last poll as the scheduler's own, unless it is long:
        in a long pause between polls another job may have had these nodes."""
        if job.submitted_s is None:
            return
        wait_s = job.started_s - job.submitted_s
        if 0 <= wait_s <= min(interval_s, self._poll_s) and self._open.issuperset(job.nodes):
            self._undelayed.append(wait_s)
            self._latency_s = None

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


def _ready(yielded: Yielded, waiting: Mapping[str, Queued]) -> list[str]:
    """The jobs that idle nodes of this pool are enough for, after those before them. One that needs nodes of several
    pools has all that each can give (`harvest.snapshot.charges`): of such a part it is not ready."""
    ready = set(yielded.decision.ready)
    if not ready:
        return []
    situation = yielded.situation
    most = situation.idle + situation.ending
    most += sum(each.width * each.count for each in situation.holdings if not each.waiting)
    return [
        job.id
        for job in situation.queue
        if job.id in ready
        and (job.width < most or job.id not in waiting or job.width >= waiting[job.id].width)
    ]


def add(totals: Totals, record: RegularStarted) -> Totals:
    """The totals with one more job."""
    worst = record.share_s > totals.worst_s
    part = part_of(record)
    return Totals(
        jobs=totals.jobs + 1,
        delayed=totals.delayed + (record.share_s > 0),
        share_s=totals.share_s + record.share_s,
        worst_s=record.share_s if worst else totals.worst_s,
        worst_id=record.id if worst else totals.worst_id,
        share_low_s=totals.share_low_s + part.low,
        share_high_s=totals.share_high_s + part.high,
        wait_s=totals.wait_s + wait_of(record),
    )


def part_of(record: RegularStarted) -> WaitPart:
    """Tidemill's part of a job's wait with its bounds; of a record without bounds, by its uncertainty."""
    if record.share_low_s is not None and record.share_high_s is not None:
        return WaitPart(record.share_low_s, record.share_s, record.share_high_s)
    if record.could_start_s is None:
        return WaitPart(record.share_s, record.share_s, record.share_s)
    spread_s = record.uncertainty_s
    part = WaitPart(max(0.0, record.share_s - spread_s), record.share_s, record.share_s + spread_s)
    return part.within(wait_of(record))


def kind_of(record: RegularStarted, *, nodes: int = 0) -> SizeAndLength:
    """The class of a job by size and by the walltime that it asked for; `nodes`: of the machine,
    for records that do not have it. A job that shares its nodes is as large as its cores.

    By what it asked for, because that is known when it starts, and because scheduler and broker act on nothing else.
    """
    size = (
        size_class(record.cores, record.machine_cores)
        if record.cores and record.machine_cores
        else size_class(record.width, record.nodes or nodes)
    )
    return SizeAndLength(size, length_class(record.limit_s))


def wait_of(record: RegularStarted) -> float:
    """Seconds that a job waited, at least Tidemill's part: more is not known of a job whose submission is not. One that
    vanished between two polls: until the last poll that saw it wait."""
    end_s = record.started_s
    if end_s is None:
        end_s = record.at_s if record.seen_s is None else record.seen_s
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
