"""Sites that fall silent, and sites that come back: since when each was heard, what it loses, what it gets back.

A site silent for `site_lost_s` loses its leases: undone events are free again, and so are the events whose outputs it
keeps undelivered, since no other site can deliver them. What was lost so is remembered: a site that comes back before
another site has the job takes its results and leases up again. Works on a `UnitOfWork`; writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from tidemill import log
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.server.core import ending, leasing, site_records
from tidemill.server.database.rows import ACTIVE, LOST, RUNNING, Site, StoredJob, StoredLease
from tidemill.server.database.store import values
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.api import CancelOrder, DiscardOrder

SILENT_S = 120.0  #: shown as SILENT from then on
_LOG = log.Log("server")


class SiteWatch:
    """Remembers when each site was last heard. For threads.

    Durations are of this process and its monotonic clock: a wall clock that jumps, or a server that was down, loses
    no site.
    """

    def __init__(self, site_lost_s: float, monotonic_s: Callable[[], float]) -> None:
        self._site_lost_s, self._monotonic_s = site_lost_s, monotonic_s
        self._started_s = monotonic_s()
        self._heard_s: dict[str, float] = {}
        self._rests = False

    def rest(self) -> None:
        """Judge no site: they talk to the other server of the pair."""
        self._rests = True

    def restart(self) -> None:
        """Judge sites from now on, as a server that was started now."""
        self._started_s, self._heard_s, self._rests = self._monotonic_s(), {}, False

    def on_contact(self, name: str) -> None:
        """The site was heard now."""
        self._heard_s[name] = self._monotonic_s()

    def silent_s(self, name: str) -> float:
        """Seconds since a site was heard, or since this server started; 0 on a standby."""
        return 0.0 if self._rests else self._monotonic_s() - self._heard_s.get(name, self._started_s)

    def silent(self, names: Iterable[str]) -> set[str]:
        """Those that are shown as SILENT."""
        return {name for name in names if self.silent_s(name) > SILENT_S}

    def unheard(self, names: Iterable[str]) -> set[str]:
        """Those of which nothing is known now: SILENT, or not heard since this server started."""
        known = list(names)
        return self.silent(known) | (set() if self._rests else {*known} - self._heard_s.keys())

    def overdue(self, sites: Iterable[Site]) -> dict[str, float]:
        """Names of the sites that have been silent for longer than `site_lost_s`, and for how long."""
        ages = {site.name: self.silent_s(site.name) for site in sites if site.epoch and not site.lost}
        return {name: age for name, age in ages.items() if age > self._site_lost_s}


def lose_all(work: UnitOfWork, silent_s: dict[str, float], *, half_life_s: float) -> list[str]:
    """Names of the sites that lost their leases; `silent_s`: for how long each was silent. Writes all of it."""
    lost_now = []
    for site in list(work.memory.sites.values()):
        if site.name in silent_s and not site.lost:
            reason = f"site `{site.name}` has been silent for {int(silent_s[site.name])} s"
            leases = lose(work, site, reason)
            _LOG.warning("site.lost", site=site.name, silent_s=int(silent_s[site.name]), leases=leases)
            lost_now.append(site)
    ending.pass_on(work)
    leasing.charge(work, half_life_s)
    work.flush()
    site_records.keep_sites(work)
    for site in lost_now:
        site_records.write(work, site)
    return [site.name for site in lost_now]


def lose(work: UnitOfWork, site: Site, reason: str, *, state: int = LOST) -> int:
    """The site's leases end in this state, of which it gets only LOST ones back; how many they were."""
    site.lost = 1
    leases = _leases(work, site, ACTIVE)
    evidence = Evidence(failure=FailureClass.LOST, message=reason, at_us=work.now_us)
    for lease in leases:
        job = work.jobs[lease.job]
        ending.give_back(work, job, lease, reason, state=state)
        where = ending.Where(site.id, lease.first, lease.count)
        ending.record(work, job, evidence, where=where, final=False)
    touched = {lease.job for lease in leases}
    for job in _homes(work, site):
        touched.add(job.id)
        lose_kept(work, job)
        job.delivering = 0
    for number in touched:
        job = work.jobs[number]
        if job.ends:
            ending.settle(work, job)
        else:
            ending.open_again(work, job)
    return len(leases)


def lose_kept(work: UnitOfWork, job: StoredJob) -> None:
    """The job has no home any more: what lies there and is not delivered is to run again."""
    lost = ending.undelivered(work, job)
    if job.kept:
        ending.drop_arrived(work, job)
    if lost:
        work.change_rows["insert_lost_results"].append((job.place, job.id, str(lost)))
        sets = work.sets(job)
        sets.done.remove_all(lost)
        work.keep_sets(job)
    job.home = job.outputs = job.kept = 0
    job.place, job.told = job.berth, 0


def take_back(work: UnitOfWork, site: Site, dropped: Container[int]) -> None:
    """Take a lost site back: results count where the job has no other home, leases where their events are free.
    `dropped`: jobs of which the orders that wait for the site leave nothing there."""
    rows = work.session.rows("lost_results", site=site.id)
    work.load(row.job for row in rows)
    results = taken = 0
    for number, done in rows:
        job = work.jobs[number]
        is_free = (
            number not in dropped
            and not job.home
            and not ending.without(work.sets(job).done, job.delivered)
            and not job.ends
        )
        if job.state <= RUNNING and is_free and not job.delivering:
            results += 1
            _results_again(work, site, job, done)
        elif job.state > RUNNING or job.place != site.id:
            for first, end in IntervalSet.parse(done):
                work.order(site.id, DiscardOrder, job=number, first=first, count=end - first)
            if job.state > RUNNING:
                work.order(site.id, CancelOrder, job=number, reason="the job has ended elsewhere")
    work.session.run("delete_lost_results", site=site.id)
    touched = {row.job for row in rows}
    for lease in _leases(work, site, LOST):
        job = work.jobs[lease.job]
        taken += _lease_again(work, site, job, lease)
        touched.add(job.id)
    for number in touched:
        ending.settle(work, work.jobs[number])
    _LOG.info("site.returned", site=site.name, leases=taken, results=results)


def _results_again(work: UnitOfWork, site: Site, job: StoredJob, done: str) -> None:
    sets = work.sets(job)
    undone = IntervalSet(piece for span in IntervalSet.parse(done) for piece in sets.undone(*span))
    sets.done.add_all(undone)
    sets.leased.remove_all(undone)
    for other in work.leases_of(job.id):
        if other.state == ACTIVE and other.site != site.id:
            ending.give_back(work, job, other, "the job's outputs are at another site")
            work.order(other.site, DiscardOrder, job=job.id, first=other.first, count=other.count)
    work.keep_sets(job)
    job.home = job.outputs = job.kept = 1
    job.place = job.site = job.told = site.id


def _lease_again(work: UnitOfWork, site: Site, job: StoredJob, lease: StoredLease) -> int:
    """Take a lost lease up again if no other site has any of its events; whether that was so."""
    sets = work.sets(job)
    rest = sets.undone(lease.first, lease.end)
    elsewhere = job.place not in (0, site.id, job.berth) or sets.leased.touches(lease.first, lease.end)
    if not rest or elsewhere or work.returned(lease) or job.delivering:
        return 0
    again = IntervalSet(rest)
    sets.leased.add_all(again)
    work.sums[work.campaign_of(job)].core_s += len(again) * lease.event_s * lease.cores
    work.end_lease(lease, ACTIVE)
    job.site = site.id
    work.keep_sets(job)
    return 1


def live_leases(work: UnitOfWork, site: Site) -> set[int]:
    """Numbers of the site's active leases, as they will be after this transaction."""
    _leases(work, site, ACTIVE)
    return {
        lease.lease
        for of_job in work.leases.values()
        for lease in of_job.values()
        if lease.site == site.id and lease.state == ACTIVE
    }


def _leases(work: UnitOfWork, site: Site, state: int) -> list[StoredLease]:
    """The site's leases in a state whose jobs have not ended."""
    found: set[int] = set()
    for kind in _open_kinds(work):
        rows = work.session.rows("leases_of_site", kind=kind, site=site.id, state=state)
        found.update(row.job for row in rows)
    work.load(found)
    work.load_leases(found)
    return [
        lease
        for number in sorted(found)
        for lease in work.leases_of(number)
        if lease.site == site.id and lease.state == state and work.jobs[number].state <= RUNNING
    ]


def _homes(work: UnitOfWork, site: Site) -> list[StoredJob]:
    found: set[int] = set()
    for kind in _open_kinds(work):
        found.update(values(work.session, "homes_of_site", kind=kind, site=site.id))
    work.load(found)
    return [work.jobs[number] for number in sorted(found)]


def _open_kinds(work: UnitOfWork) -> list[int]:
    return sorted(work.memory.open.of_kind)
