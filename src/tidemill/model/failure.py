"""What can go wrong, as a closed list: class, what it means, what to do next, who tries again.

Pure. "Unknown" is not a class: what fits none is a bug to be fixed.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FailureClass(StrEnum):
    """DESIGN decision 14: the closed list of failure classes."""

    DISPATCH = "dispatch"
    BATCH = "batch"
    STAGE_IN = "stage_in"
    IMAGE = "image"
    PAYLOAD_SETUP = "payload_setup"
    PAYLOAD = "payload"
    WALLTIME = "walltime"
    PREEMPTED = "preempted"
    NODE = "node"
    MEMORY = "memory"
    DISK = "disk"
    CREDENTIAL = "credential"
    STAGE_OUT = "stage_out"
    LOST = "lost"


class FailurePolicy(msgspec.Struct, frozen=True):
    """How a class is treated: `counts` = it uses up one of the event's retries; `next_step` is told to people."""

    counts: bool
    meaning: str
    next_step: str


POLICY: dict[FailureClass, FailurePolicy] = {
    FailureClass.DISPATCH: FailurePolicy(
        False,
        "the site cannot take the job",
        "check the application and its parameters: `tidemill app check`",
    ),
    FailureClass.BATCH: FailurePolicy(
        False,
        "the batch system refused or lost an allocation",
        "see the batch system's message; `tidemill site check`",
    ),
    FailureClass.STAGE_IN: FailurePolicy(
        True,
        "an input is missing, unreadable or corrupt",
        "check URL and checksum of the input, then `tidemill job retry`",
    ),
    FailureClass.IMAGE: FailurePolicy(
        False, "the software image could not be mounted or read", "`tidemill image verify`, then retry"
    ),
    FailureClass.PAYLOAD_SETUP: FailurePolicy(
        True, "the payload ended before it was ready for events", "read its stderr: `tidemill job logs`"
    ),
    FailureClass.PAYLOAD: FailurePolicy(
        True,
        "the payload failed on the event",
        "read its stderr: `tidemill job logs ID --event N`; repeat it with its seed",
    ),
    FailureClass.WALLTIME: FailurePolicy(
        True,
        "the event ran longer than its time limit",
        "raise `timeout` of the application if the event is sound",
    ),
    FailureClass.PREEMPTED: FailurePolicy(
        False, "the allocation was given back or ended first", "nothing: the events run again elsewhere"
    ),
    FailureClass.NODE: FailurePolicy(
        False, "the node or its pilot died", "nothing: the events run again elsewhere"
    ),
    FailureClass.MEMORY: FailurePolicy(
        True, "the payload used more memory than its slot has", "raise `memory` of the application or job"
    ),
    FailureClass.DISK: FailurePolicy(
        True, "a file system was full", "raise `scratch` of the application, or free space at the site"
    ),
    FailureClass.CREDENTIAL: FailurePolicy(
        False, "a credential was refused or had expired", "renew it, then retry"
    ),
    FailureClass.STAGE_OUT: FailurePolicy(
        True, "an output could not be delivered", "check the destination's space and rights, then retry"
    ),
    FailureClass.LOST: FailurePolicy(
        False, "the site has been silent for too long", "nothing: the events run again at another site"
    ),
}


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one failure. Texts are bounded by the writer (stderr_tail: 4 KiB)."""

    failure: FailureClass
    message: str
    exit_status: int | None = None
    signal: int | None = None
    stderr_tail: str = ""
    node: str = ""
    allocation: str = ""
    at_us: int = 0
    notes: list[
        str
    ] = []  #: how the allocation's nodes did things, as far as they told: images, work directories
