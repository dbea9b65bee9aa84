"""Which of the jobs that sites have run there: of the others nothing runs yet, which lists and pages call ASSIGNED.

The state that is stored says only that a range is leased. What is shown follows from what sites say in each sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tidemill.model.intervals import IntervalSet
from tidemill.model.state import Phase
from tidemill.server.database.rows import RUNNING, Site, StoredJob
from tidemill.server.database.store import Session

TEXTS_KEPT = 64


class LeasedJob(NamedTuple):
    """A RUNNING job: the site that had it last, and how many of its events sites have."""

    id: int
    site: int
    n_leased: int


@lru_cache(maxsize=TEXTS_KEPT)
def _parsed(jobs: str) -> IntervalSet:
    return IntervalSet.parse(jobs)  # checked when it was stored


def is_unstarted(site: Site, job: int) -> bool:
    """Whether nothing of a job that a site has runs there now, by the last word of the site: no pilot is at work, or
    none runs it."""
    capacity = site.capacity
    if capacity is None:
        return False
    return capacity.awaits is not None or job in _parsed(capacity.unstarted)


def has_unstarted(site: Site) -> bool:
    """Whether any job of a site is such a one."""
    return site.capacity is not None and (site.capacity.awaits is not None or bool(site.capacity.unstarted))


def phases_of(session: Session, jobs: Iterable[StoredJob], sites: Iterable[Site]) -> dict[int, Phase]:
    """What is shown in place of RUNNING, of jobs that do not run."""
    running = [job for job in jobs if job.state == RUNNING and not (job.delivering or job.ends)]
    return phases_of_running(session, [LeasedJob(job.id, job.site, job.n_leased) for job in running], sites)


def phases_of_running(
    session: Session, running: Sequence[LeasedJob], sites: Iterable[Site]
) -> dict[int, Phase]:
    """The phases of jobs that are neither delivered nor stopped: ASSIGNED where sites have all that is leased and run
    none of it, WAITING where nothing is leased."""
    phases = {job.id: Phase.WAITING for job in running if not job.n_leased}
    known = {site.id: site for site in sites}
    doubtful = [
        job.id
        for job in running
        if job.n_leased and job.site in known and is_unstarted(known[job.site], job.id)
    ]
    if not doubtful:
        return phases
    at_work = {
        job
        for job, site in session.rows("sites_of_jobs", ids=doubtful)
        if site in known and not is_unstarted(known[site], job)
    }
    return phases | {job: Phase.ASSIGNED for job in doubtful if job not in at_work}
