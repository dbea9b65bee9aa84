"""One transaction's work on jobs: loads rows once, collects what changes, and writes all of it at the end in bulk.

`flush` keeps what belongs together: rows, counters per kind and state, sums of campaigns, orders to sites and the feed
of state changes are written in the same transaction. Knows how to store, not what to decide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from tidemill import log
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.server.database.rows import (
    ACTIVE,
    COMPLETED,
    JOB_EDGES,
    JOB_STATES,
    RUNNING,
    USAGE_SUM_MAX,
    Sets,
    Site,
    StoredJob,
    StoredLease,
    enter_lease,
)
from tidemill.server.database.single_events import SingleEvents
from tidemill.server.database.store import Session, value
from tidemill.server.database.writer_memory import WriterMemory
from tidemill.server.errors import WrongEdgeError
from tidemill.wire.api import Change, LeaseOrder, Order, PayloadUsage
from tidemill.wire.hospital import Cure

FOLLOWER = "follower/"  #: in the table `meta`, the beginning of names of positions in the feed that must not be pruned
ROW_CHANGES_MAX = 1_000  #: in a row of the feed, 170 bytes each: what a follower holds of it at once
SPECS_CACHED_MAX = 20_000
_ENCODER = msgspec.json.Encoder()
COMPLAINTS_MAX = 20  #: lines of the log about the reports of one sync; the others are counted
_LOG = log.Log("server")
_UPDATED = attrgetter(
    "id", "state", "site", "place", "home", "ready", "n_done", "n_failed", "n_leased", "done", "failed", "leased",
    "started_us", "ended_us", "reason", "blocked", "attempts", "refusals", "refused", "evidences", "delivering",
    "outputs", "told", "usage", "kept", "delivered", "sent", "deliveries", "ends", "ward", "moves", "waits_us",
    "n_canceled", "canceled",
)  # fmt: skip
_LEASED = attrgetter("job", "lease", "site", "first", "count", "state", "leased_us", "cores", "event_s")
_LEASE_UPDATED = attrgetter("job", "lease", "state", "ended_us", "reason", "part")
_COUNTED = attrgetter("kind", "state", "site", "n_done", "n_failed", "n_canceled")


class FeedRetention(NamedTuple):
    """Changes that the feed keeps: `always` in any case, up to `most` for slow followers (130 bytes each)."""

    always: int = 200_000
    most: int = 2_000_000


class CampaignSums(msgspec.Struct):
    """What a transaction adds to a campaign."""

    done: int = 0
    failed: int = 0
    canceled: int = 0
    usage: PayloadUsage = msgspec.field(default_factory=PayloadUsage)
    started_us: int | None = None
    ended_us: int | None = None
    core_s: float = 0.0


class UnitOfWork:
    """One transaction: the rows that it read or changed, written at its end."""

    def __init__(
        self, session: Session, memory: WriterMemory, now_us: int, *, retention: FeedRetention | None = None
    ) -> None:
        self.session, self.memory, self.now_us = session, memory, now_us
        self._kept = retention or FeedRetention()
        self.jobs: dict[int, StoredJob] = {}
        self._before: dict[int, tuple[int, ...]] = {}  #: what `_COUNTED` has of each job
        self._sets: dict[int, Sets] = {}
        self._returned: dict[tuple[int, int], IntervalSet] = {}  #: by job and lease
        self.leases: dict[int, dict[int, StoredLease]] = defaultdict(dict)
        self._whole: set[int] = set()  #: jobs of which all leases are loaded
        self._new_leases: list[StoredLease] = []
        self._changed_leases: dict[tuple[int, int], StoredLease] = {}
        self.touched: dict[int, None] = {}
        self.singles = SingleEvents(memory, self._sets, self.touched)
        self.complaints = 0  #: about reports, in this transaction
        self.ended: list[int] = []
        self.given_back: set[int] = (
            set()
        )  #: jobs that a site returned for a reason: it does not get them again at once
        self._orders: dict[int, list[Order]] = defaultdict(list)
        self.sums: dict[int, CampaignSums] = defaultdict(CampaignSums)
        self._counts: dict[tuple[int, int, int], int] = defaultdict(int)
        self.failures: dict[tuple[int, str], int] = defaultdict(int)
        self._grown: dict[tuple[int, str], int] = defaultdict(int)
        self._tallies: Counter[str] = Counter()
        self._changes: list[StoredJob] = []
        self._progressed: set[int] = set()  #: of those, the ones whose state is what it was
        self.changes: list[Change] = []  #: the state changes that were written
        self.change_rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        #: the same for statements that may touch a row once only (PostgreSQL): by its key, so the last word counts
        self.upserts: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = defaultdict(dict)

    # ---- load ------------------------------------------------------------------------------------------------

    def load(self, ids: Iterable[int]) -> None:
        """Load these jobs; unknown ids are left out."""
        missing = []
        for each in dict.fromkeys(ids):
            if each not in self.jobs:
                held = self.singles.take_held(each)
                if held is None:
                    missing.append(each)
                    continue
                job, lease = held
                self.jobs[each] = job
                self._before[each] = _COUNTED(job)
                self.leases[each] = {lease.lease: lease}
                self._whole.add(each)
        if missing:
            self.adopt(self.session.rows("jobs_by_id", ids=missing))

    def adopt(self, stored: Sequence[StoredJob]) -> list[StoredJob]:
        """The jobs that were read; one that is loaded already stays as it is here."""
        result = []
        self.memory.find_kinds(self.session, {each.kind for each in stored})
        for each in stored:
            job = self.jobs.get(each.id)
            if job is None:
                job = self.jobs[each.id] = each
                self.singles.forget(job.id)
                self._before[job.id] = _COUNTED(job)
            result.append(job)
        return result

    def load_leases(self, ids: Iterable[int]) -> None:
        """Load all leases of these jobs."""
        missing = [each for each in dict.fromkeys(ids) if each not in self._whole]
        if missing:
            self._whole.update(missing)
            for lease in self.session.rows("leases_of_jobs", ids=missing):
                self.leases[lease.job].setdefault(lease.lease, lease)

    def leases_of(self, job: int) -> list[StoredLease]:
        """All leases of a job, oldest first."""
        self.load_leases([job])
        return [self.leases[job][number] for number in sorted(self.leases[job])]

    def sets(self, job: StoredJob) -> Sets:
        """A job's interval sets; change them, and call `keep_sets`."""
        result = self._sets.get(job.id)
        if result is None:
            result = self._sets[job.id] = self.memory.parsed.sets_of(job)
        return result

    def free(self, job: StoredJob) -> list[tuple[int, int]]:
        """The intervals of a job that may be leased, which is ready. Keeps no sets: of thousands of jobs few are leased
        in the end."""
        one = self.singles.free(job)
        if one is not None:
            return one
        sets = self._sets.get(job.id)
        if sets is None:
            if not (job.n_done or job.n_failed or job.n_leased or job.n_canceled):
                return [(0, job.events)]
            sets = self.memory.parsed.sets_of(job)
        return sets.free(0, job.events)

    def returned(self, lease: StoredLease) -> IntervalSet:
        """The events of a lease that were returned; change them, and call `change_lease`. Its `part` is the text of
        before until all is written."""
        key = (lease.job, lease.lease)
        result = self._returned.get(key)
        if result is None:
            result = self._returned[key] = self.memory.parsed.parse((lease.lease, "part"), lease.part)
        return result

    def spec(self, job: StoredJob) -> JobSpec:
        """The job's specification, as the submitter wrote it."""
        body = self.memory.specs.get(job.spec) or self.specs([job.spec])[job.spec]
        if job.events == 1 and job.rank == 0 and not job.name:
            return body
        return msgspec.structs.replace(body, events=job.events, priority=-job.rank, name=job.name or None)

    def specs(self, ids: Iterable[int]) -> dict[int, JobSpec]:
        """Specs without name, priority and events."""
        return specs(self.session, self.memory.specs, ids)

    def owner_of(self, job: StoredJob) -> str:
        """Whose job it is."""
        campaign = self.campaign_of(job)
        return self._owners({campaign})[campaign]

    def campaign_of(self, job: StoredJob) -> int:
        """The campaign's number."""
        return self.memory.kinds[job.kind].campaign

    # ---- collect ---------------------------------------------------------------------------------------------

    def touch(self, job: StoredJob) -> None:
        """The job has changed."""
        self.touched[job.id] = None

    def parsed(self, job: StoredJob) -> bool:
        """Whether the job's sets are in use, so that its texts must not be written directly."""
        return job.id in self._sets

    def keep_sets(self, job: StoredJob) -> None:
        """The job's sets have changed: count them, and write them at the end."""
        sets = self.sets(job)
        job.n_done, job.n_failed, job.n_leased = len(sets.done), len(sets.failed), len(sets.leased)
        job.n_canceled = len(sets.canceled)
        self.touched[job.id] = None

    def enter(self, job: StoredJob, state: int) -> None:
        """The only place where a job changes its state: an edge that is in no table is a bug."""
        if state != job.state:
            if (job.state, state) not in JOB_EDGES:
                raise WrongEdgeError(f"job {job.id}: {JOB_STATES[job.state]} -> {JOB_STATES[state]}")
            job.state = state

    def respecify(self, job: StoredJob, *, kind: int, spec: int) -> None:
        """The job asks for something else from now on. The caller writes both numbers."""
        job.kind, job.spec = kind, spec
        self.touch(job)

    def lease(self, lease: StoredLease) -> None:
        """A new lease."""
        self.leases[lease.job][lease.lease] = lease
        self._new_leases.append(lease)

    def end_lease(self, lease: StoredLease, state: int, reason: str = "") -> None:
        """A lease has another state."""
        enter_lease(lease, state)
        lease.reason = reason
        lease.ended_us = None if state == ACTIVE else self.now_us
        self._changed_leases[(lease.job, lease.lease)] = lease

    def change_lease(self, lease: StoredLease) -> None:
        """A lease has changed otherwise."""
        self._changed_leases[(lease.job, lease.lease)] = lease

    def complain(self, event: str, **fields: Any) -> None:
        """Log what is wrong with a report, of the first COMPLAINTS_MAX: a site sends thousands at once."""
        self.complaints += 1
        if self.complaints <= COMPLAINTS_MAX:
            _LOG.warning(event, **fields)

    def order(self, site: int, make: Callable[..., Order], **fields: Any) -> None:
        """An order to a site, with the site's next number."""
        to = self.memory.sites[site]
        to.ordered += 1
        self._orders[site].append(make(n=to.ordered, **fields))

    def lease_order(
        self,
        site: Site,
        lease: StoredLease,
        campaign: tuple[str, str],
        job: StoredJob,
        spec: tuple[JobSpec | None, dict[str, int], Cure | None],
    ) -> None:
        """The order of a new lease; `campaign`: its name and owner; `spec`: with the jobs that its inputs are of, and
        the cure with which the site gets it."""
        site.ordered += 1
        self._orders[site.id].append(
            LeaseOrder(
                n=site.ordered, lease=lease.lease, job=lease.job, first=lease.first, count=lease.count,
                campaign=campaign[0], owner=campaign[1], seed_base=job.seed_base, spec=spec[0],
                from_jobs=spec[1], cure=spec[2],
            )
        )  # fmt: skip

    def new_orders(self, site: int) -> list[Order]:
        """The orders that this transaction has made for a site."""
        return self._orders.get(site, [])

    def all_orders(self) -> Iterable[tuple[int, list[Order]]]:
        """The orders that this transaction has made, by number of the site."""
        return self._orders.items()

    def count(self, kind: int, state: int, site: int, jobs: int) -> None:
        """Change the counter of jobs."""
        self._counts[(kind, state, site)] += jobs

    def grow(self, campaign: int, *, jobs: int, events: int, is_new: bool) -> None:
        """Jobs were added to a campaign: part of the sums over everything."""
        self._grown[(campaign, "campaigns")] += int(is_new)
        self._grown[(campaign, "jobs")] += jobs
        self._grown[(campaign, "events")] += events

    def tally(self, name: str, change: int) -> None:
        """Change one of the sums over everything."""
        self._tallies[name] += change

    # ---- flush -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all changed rows."""
        many = self.session.many
        touched = [self.jobs[each] for each in self.touched]
        for job in touched:
            sets = self._sets.get(job.id)
            if sets is not None:
                self.memory.parsed.write(job, sets)
            self._account(job)
        self._account_completed()
        self.singles.write_completed(self.session)
        many("update_jobs", [_UPDATED(job) for job in touched])
        self._account_leased()
        self.singles.write_leased(self.session)
        many("insert_leases", [_LEASED(lease) for lease in self._new_leases])
        for key, lease in self._changed_leases.items():
            if key in self._returned:
                lease.part = self.memory.parsed.text((lease.lease, "part"), self._returned[key])
        many("update_leases", [_LEASE_UPDATED(lease) for lease in self._changed_leases.values()])
        many("add_counts", [(*key, number) for key, number in sorted(self._counts.items()) if number])
        self.memory.count(self._counts)
        self._drop_idle_counts()
        many("add_failure_counts", [(*key, number) for key, number in sorted(self.failures.items())])
        self._flush_campaigns()
        self._flush_totals()
        for name, latest in self.upserts.items():
            many(name, list(latest.values()))
        for name, rows in self.change_rows.items():
            many(name, rows)
        for site, orders in self._orders.items():
            body = _ENCODER.encode(orders)
            self.session.run("insert_orders", site=site, first=orders[0].n, last=orders[-1].n, body=body)
        self._flush_changes()

    def _account_completed(self) -> None:
        jobs = self.singles.completed()
        self._moved(jobs, COMPLETED)
        for kind, number in Counter(job.kind for job in jobs).items():
            sums = self.sums[self.memory.kinds[kind].campaign]
            sums.done += number
            sums.ended_us = self.now_us

    def _account_leased(self) -> None:
        jobs = self.singles.leased()
        self._moved(jobs, RUNNING)
        for kind in {job.kind for job in jobs}:
            self.sums[self.memory.kinds[kind].campaign].started_us = self.now_us

    def _moved(self, jobs: list[StoredJob], state: int) -> None:
        counts, before = self._counts, self._before
        for job in jobs:
            _, was, site, *_ = before[job.id]
            counts[(job.kind, was, site)] -= 1
            counts[(job.kind, state, job.site)] += 1
        self._changes += jobs

    def _account(self, job: StoredJob) -> None:
        kind, state, site, done, failed, canceled = self._before[job.id]
        if state != job.state or site != job.site or kind != job.kind:
            self._counts[(kind, state, site)] -= 1
            self._counts[(job.kind, job.state, job.site)] += 1
            if state != job.state:
                self._changes.append(job)
                if job.state == RUNNING:
                    self.sums[self.memory.kinds[job.kind].campaign].started_us = self.now_us
                elif job.state > RUNNING:
                    self.sums[self.memory.kinds[job.kind].campaign].ended_us = self.now_us
        if (done, failed, canceled) != (job.n_done, job.n_failed, job.n_canceled):
            sums = self.sums[self.memory.kinds[job.kind].campaign]
            sums.done += job.n_done - done
            sums.failed += job.n_failed - failed
            sums.canceled += job.n_canceled - canceled
            if state == job.state:
                self._changes.append(job)
                self._progressed.add(job.id)

    def _flush_campaigns(self) -> None:
        rows = [
            (
                campaign,
                sums.done,
                sums.failed,
                *(min(each, USAGE_SUM_MAX) for each in msgspec.structs.astuple(sums.usage)),
                sums.started_us,
                sums.ended_us,
                sums.canceled,
            )
            for campaign, sums in sorted(self.sums.items())
        ]
        self.session.many("add_campaigns", rows)

    def _drop_idle_counts(self) -> None:
        """Counters of open jobs are there while they count: what is open is found without reading what has ended."""
        opened = self.memory.open.of_kind
        idle = {
            kind
            for (kind, state, site), number in self._counts.items()
            if number < 0 and state <= RUNNING and (state, site) not in opened.get(kind, ())
        }
        if idle:
            self.session.run("delete_idle_counts", kinds=sorted(idle))

    def _flush_totals(self) -> None:
        """Add to the sums over everything there ever was, of all and of each owner."""
        changes: Counter[tuple[int, str]] = Counter(self._grown)
        of_all: Counter[str] = Counter(self._tallies)
        for (kind, state, site), jobs in self._counts.items():
            changes[(self.memory.kinds[kind].campaign, f"state/{state}")] += jobs
            if site:
                of_all[f"site/{site}/{state}"] += jobs
        for campaign, sums in self.sums.items():
            changes[(campaign, "events_done")] += sums.done
            changes[(campaign, "events_failed")] += sums.failed
            changes[(campaign, "events_canceled")] += sums.canceled
        for (_, name), failures in self.failures.items():
            of_all[f"failures/{name}"] += failures
        owners = self._owners({campaign for (campaign, _), change in changes.items() if change})
        of_owner: Counter[tuple[str, str]] = Counter()
        for (campaign, name), change in changes.items():
            if change:
                of_all[name] += change
                of_owner[(owners[campaign], name)] += change
        self.session.many("add_totals", [each for each in sorted(of_all.items()) if each[1]])
        rows = [(*key, change) for key, change in sorted(of_owner.items()) if change]
        self.session.many("add_owner_totals", rows)

    def _owners(self, campaigns: set[int]) -> dict[int, str]:
        known = self.memory.owners
        result = {each: known[each] for each in campaigns if each in known}
        if unknown := sorted(campaigns - result.keys()):
            result.update((row.id, row.owner) for row in self.session.rows("campaign_owners", ids=unknown))
        return result

    def _flush_changes(self) -> None:
        if not self._changes:
            return
        of_kind = {kind: self.memory.kinds[kind].campaign for kind in {job.kind for job in self._changes}}
        rows = self.session.rows("campaign_owners", ids=sorted(set(of_kind.values())))
        names = {row.id: row for row in rows}
        self._changes.sort(key=lambda job: of_kind[job.kind])
        first = take_numbers(self.session, "next_change", len(self._changes))
        after = first + len(self._changes)
        self.changes = [
            Change(
                number=number, at_us=self.now_us, campaign=names[of_kind[job.kind]].name, job=job.id,
                state=JOB_STATES[job.state], events_done=job.n_done, events_failed=job.n_failed,
                owner=names[of_kind[job.kind]].owner, progress=job.id in self._progressed,
                ward=self._ward_name(job.ward), events_canceled=job.n_canceled,
            )
            for number, job in enumerate(self._changes, first)
        ]  # fmt: skip
        written = [
            (batch[0].number, batch[-1].number, of_kind[job.kind], _ENCODER.encode(batch))
            for job, batch in self._change_batches(of_kind)
        ]
        self.session.many("insert_changes", written)
        slowest = value(self.session, "slowest_follower")
        told = after if slowest is None else max(int(slowest) + 1, after - self._kept.most)
        self.session.run("prune_changes", before=min(after - self._kept.always, told))

    def _change_batches(self, of_kind: dict[int, int]) -> Iterator[tuple[StoredJob, list[Change]]]:
        """The changes as the feed's rows have them: of one campaign, ROW_CHANGES_MAX at most; with the first job."""
        changed = zip(self._changes, self.changes, strict=True)
        for _, pairs in groupby(changed, lambda pair: of_kind[pair[0].kind]):
            of_one = list(pairs)
            for at in range(0, len(of_one), ROW_CHANGES_MAX):
                batch = of_one[at : at + ROW_CHANGES_MAX]
                yield batch[0][0], [change for _, change in batch]

    def _ward_name(self, ward: int) -> str:
        found = self.memory.wards.get(ward) if ward else None
        return found.name if found is not None else ""


def take_numbers(session: Session, name: str, count: int) -> int:
    """The first of `count` numbers in a row that nothing else gets; `name`: which numbers, in the table `meta`."""
    return int(value(session, "take_numbers", name=name, count=count)) - count


def specs(session: Session, cache: dict[int, JobSpec], ids: Iterable[int]) -> dict[int, JobSpec]:
    """Specs by number, remembered in `cache` within limits."""
    wanted = set(ids)
    missing = [each for each in wanted if each not in cache]
    if len(cache) + len(missing) > SPECS_CACHED_MAX:
        cache.clear()
        missing = list(wanted)
    if missing:
        for number, body in session.rows("specs_by_id", ids=missing):
            cache[number] = msgspec.json.decode(body, type=JobSpec)
    return {each: cache[each] for each in wanted}


def add(total: PayloadUsage, one: PayloadUsage) -> None:
    """Add one report to sums."""
    total.payloads += one.payloads
    total.wall_us += one.wall_us
    total.setup_us += one.setup_us
    total.user_us += one.user_us
    total.system_us += one.system_us
    total.rss_kb = max(total.rss_kb, one.rss_kb)
    total.read_bytes += one.read_bytes
    total.write_bytes += one.write_bytes
