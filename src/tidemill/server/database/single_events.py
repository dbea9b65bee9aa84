"""The short way of a job of one event: its only lease and its result change so little that one statement each says it.

Nearly all that a busy server does is to lease such jobs and to complete them. What comes of a job is the same either
way: one that is retried, canceled, or keeps outputs goes the long way, by its interval sets.
"""

from __future__ import annotations

from collections.abc import Container
from operator import attrgetter

from tidemill.server.database.rows import ACTIVE, SETTLED, StoredJob, StoredLease, enter_lease
from tidemill.server.database.store import Session
from tidemill.server.database.writer_memory import WriterMemory

HELD_MAX = 30_000  #: jobs that the writer remembers while a site has them; about 1 KB each
_ONE = [(0, 1)]
_LEASED = attrgetter("id", "site", "home", "place", "started_us")
_COMPLETED = attrgetter("id", "ended_us", "usage")

LeasedJob = tuple[StoredJob, StoredLease]


class SingleEvents:
    """The jobs of one event that a transaction leases or completes the short way. `parsed`: jobs whose interval sets
    are in use, so that their texts must not be written directly; `touched`: those that are written whole anyway."""

    def __init__(self, memory: WriterMemory, parsed: Container[int], touched: dict[int, None]) -> None:
        self._memory, self._parsed, self._touched = memory, parsed, touched
        self._leased: list[LeasedJob] = []
        self._completed: list[StoredJob] = []

    def take_held(self, job: int) -> LeasedJob | None:
        """A job with its only lease, exactly as they are stored, if the writer remembers it."""
        return self._memory.held.pop(job, None)

    def forget(self, job: int) -> None:
        """The job was read: what the writer remembers of it would be another object."""
        self._memory.held.pop(job, None)

    def free(self, job: StoredJob) -> list[tuple[int, int]] | None:
        """What may be leased of a job that is ready; None = ask its sets."""
        return _ONE if self._is_short(job) else None

    def lease(self, job: StoredJob, lease: StoredLease) -> bool:
        """The job's event is leased now; False if its sets must say so. Of the first lease nothing else is written."""
        if not self._is_short(job):
            return False
        job.n_leased, job.leased = 1, "0"
        if job.attempts == 1:
            self._leased.append((job, lease))
        else:
            self._touched[job.id] = None
        return True

    def may_complete(self, job: StoredJob, lease: StoredLease) -> bool:
        """Whether a result that left no outputs ends the job the short way."""
        return self._is_short(job) and job.n_leased == 1 and lease.state == ACTIVE and not job.ends

    def complete(self, job: StoredJob, lease: StoredLease, now_us: int) -> None:
        """The event is done, and with it the job. The lease's row stays as it is: `rows.IS_SETTLED` says what that
        means to all who read it."""
        job.n_done, job.done, job.n_leased, job.leased, job.refusals = 1, "0", 0, "", 0
        job.ended_us, job.reason = now_us, ""
        job.ready = job.told = 0
        enter_lease(lease, SETTLED)
        lease.ended_us = now_us
        self._completed.append(job)

    def completed(self) -> list[StoredJob]:
        """Those that are done, and that nothing else has touched."""
        return [job for job in self._completed if job.id not in self._touched]

    def leased(self) -> list[StoredJob]:
        """Those with a first lease, that nothing else has touched."""
        return [job for job, _ in self._leased if job.id not in self._touched]

    def write_completed(self, session: Session) -> None:
        """Write what the results have changed."""
        session.many("complete_jobs", [_COMPLETED(job) for job in self.completed()])

    def write_leased(self, session: Session) -> None:
        """Write what the leases have changed, and remember these jobs: their results come soon."""
        first = [(job, lease) for job, lease in self._leased if job.id not in self._touched]
        session.many("lease_jobs", [_LEASED(job) for job, _ in first])
        self._memory.hold(first[: max(0, HELD_MAX - len(self._memory.held))])

    def _is_short(self, job: StoredJob) -> bool:
        return job.events == 1 and job.id not in self._parsed
