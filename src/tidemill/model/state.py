"""The states of jobs, allocations and leases: one table each, drawn by `scripts/draw_states.py` into the docs."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The few states of a job; its counts of events show its progress.

    RUNNING is stored from the first lease on. Lists and pages show what is known to run: a RUNNING job is ASSIGNED
    where sites have what is leased of it and report no payload of it, and WAITING where nothing of it is leased now.
    The API has that in `phase`, beside `state`.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Phase(StrEnum):
    """What lists and pages show in place of RUNNING of a job that does not run."""

    ASSIGNED = "ASSIGNED"  #: sites have what is leased of it, and no payload of it runs there
    WAITING = "WAITING"  #: nothing of it is leased to a site now


JOB_TRANSITIONS: dict[tuple[JobState, JobState], str] = {
    (JobState.WAITING, JobState.RUNNING): "a range of it is leased to a site",
    (JobState.WAITING, JobState.FAILED): "a job that it comes after failed, or no site can ever run it",
    (
        JobState.WAITING,
        JobState.COMPLETED,
    ): "its owner needs it no more: nothing of it had run, and nothing is missing",
    (JobState.WAITING, JobState.CANCELED): "its owner canceled it",
    (
        JobState.RUNNING,
        JobState.WAITING,
    ): "every lease came back before an event was done, or a lost site took all that was kept with it",
    (
        JobState.RUNNING,
        JobState.COMPLETED,
    ): "every event is done or canceled, some are done, and all outputs are delivered; "
    "or its owner needs it no more, and no event had ended",
    (
        JobState.RUNNING,
        JobState.PARTIAL,
    ): "every event is done, failed or canceled, no more than failed_max failed, and outputs are delivered; "
    "or its owner accepts what is done",
    (
        JobState.RUNNING,
        JobState.FAILED,
    ): "more than failed_max events failed, or a step before or after them did; what is done is delivered first",
    (JobState.RUNNING, JobState.CANCELED): "its owner canceled it; what is done is delivered first",
    (JobState.COMPLETED, JobState.WAITING): "its owner retries canceled events, and nothing of it is done",
    (JobState.COMPLETED, JobState.RUNNING): "its owner retries canceled events; what was done stays done",
    (JobState.PARTIAL, JobState.WAITING): "its owner retries it, and nothing of it is done",
    (JobState.PARTIAL, JobState.RUNNING): "its owner retries the failed events; what was done stays done",
    (JobState.FAILED, JobState.WAITING): "its owner retries it, and nothing of it is done",
    (
        JobState.FAILED,
        JobState.RUNNING,
    ): "its owner retries it: done events stay done, or outputs are delivered again; or accepts what is done",
    (JobState.CANCELED, JobState.WAITING): "its owner retries it, and nothing of it is done",
    (
        JobState.CANCELED,
        JobState.RUNNING,
    ): "its owner retries it: what was done stays done; or accepts what is done",
}
JOB_FINAL = frozenset({JobState.COMPLETED, JobState.PARTIAL, JobState.FAILED, JobState.CANCELED})


def told_reason(state: str, reason: str, ends: str = "") -> str:
    """What a job's reason says: why it ended as it did, why it is about to end as `ends`, or that some of its events
    failed while others are still to come. Empty for none."""
    if not reason or state in JOB_FINAL:
        return reason
    return f"ends as {ends}: {reason}" if ends else f"last failure: {reason}"


class LeaseState(StrEnum):
    """A range handed to a site."""

    ACTIVE = "ACTIVE"
    SETTLED = "SETTLED"
    RELEASED = "RELEASED"
    LOST = "LOST"


LEASE_TRANSITIONS: dict[tuple[LeaseState, LeaseState], str] = {
    (LeaseState.ACTIVE, LeaseState.SETTLED): "every event of it is kept or failed",
    (
        LeaseState.ACTIVE,
        LeaseState.RELEASED,
    ): "the site gave the rest back, the job was canceled, or an operator reset the site",
    (LeaseState.ACTIVE, LeaseState.LOST): "the site was silent for longer than 10 minutes",
    (LeaseState.LOST, LeaseState.ACTIVE): "its site came back before another site had its events",
    (LeaseState.LOST, LeaseState.SETTLED): "late results of the site settled the rest",
    (
        LeaseState.LOST,
        LeaseState.RELEASED,
    ): "the job had ended, and its owner retries it: its site has an order to stop",
}


class AllocationState(StrEnum):
    """Nodes granted by the batch system; names as in PSI/J, plus LOST. Pages, metrics and `site status` show RELEASED
    in place of CANCELED where Tidemill itself ended an allocation: it released nodes, or withdrew what still waited."""

    INTENDED = "INTENDED"
    QUEUED = "QUEUED"
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    LOST = "LOST"


ALLOCATION_TRANSITIONS: dict[tuple[AllocationState, AllocationState], str] = {
    (
        AllocationState.INTENDED,
        AllocationState.QUEUED,
    ): "the batch system took it, or it was found there by name",
    (
        AllocationState.INTENDED,
        AllocationState.FAILED,
    ): "the batch system refused it, or it ended before it was looked for",
    (AllocationState.INTENDED, AllocationState.LOST): "not found by name after the submit was interrupted",
    (AllocationState.INTENDED, AllocationState.ACTIVE): "it ran before it was looked for",
    (AllocationState.INTENDED, AllocationState.COMPLETED): "it ran and ended before it was looked for",
    (AllocationState.INTENDED, AllocationState.CANCELED): "it was canceled before it was looked for",
    (AllocationState.QUEUED, AllocationState.ACTIVE): "the batch system says that it runs",
    (AllocationState.QUEUED, AllocationState.COMPLETED): "it ran and ended between two polls",
    (AllocationState.QUEUED, AllocationState.FAILED): "it could not start",
    (AllocationState.QUEUED, AllocationState.CANCELED): "it was canceled before it ran",
    (
        AllocationState.QUEUED,
        AllocationState.LOST,
    ): "the batch system does not know it any more, nor its accounting",
    (AllocationState.ACTIVE, AllocationState.QUEUED): "the batch system requeued it",
    (AllocationState.ACTIVE, AllocationState.COMPLETED): "its pilots left",
    (AllocationState.ACTIVE, AllocationState.FAILED): "node failure, or a pilot that could not work",
    (
        AllocationState.ACTIVE,
        AllocationState.CANCELED,
    ): "it was canceled, by Tidemill (RELEASED) or by others",
    (
        AllocationState.ACTIVE,
        AllocationState.LOST,
    ): "the batch system does not know it any more, nor its accounting",
    (
        AllocationState.LOST,
        AllocationState.QUEUED,
    ): "the batch system knows it again: it was restarted from an older state",
    (AllocationState.LOST, AllocationState.ACTIVE): "the batch system knows it again, and it runs",
    (AllocationState.LOST, AllocationState.COMPLETED): "the accounting knows of it, late",
    (AllocationState.LOST, AllocationState.FAILED): "the accounting knows of it, late",
    (AllocationState.LOST, AllocationState.CANCELED): "the accounting knows of it, late",
}
RELEASED = "RELEASED"
"""What sites report instead of CANCELED where Tidemill itself ended an allocation. The batch system does not tell these
apart, the site's log does."""

REPORTED_STATES = (*(str(each) for each in AllocationState), RELEASED)
"""The states of allocations at the server."""

ALLOCATION_FINAL = frozenset(
    {AllocationState.COMPLETED, AllocationState.FAILED, AllocationState.CANCELED, AllocationState.LOST}
)
