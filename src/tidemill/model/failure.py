"""What can go wrong, as a closed list: class, whose fault it is, what it counts against, how long to wait, what to do.

The only table of failures: server, site and pages decide by it. Pure. "Unknown" is not a class: what fits none is a bug
to be fixed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

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


class FaultKind(StrEnum):
    """Whose fault a failure is: who can mend it."""

    APPLICATION = "application"  #: the program, its parameters, or what the job asks for
    INPUT = "input"  #: a file that the job names
    SITE = "site"  #: the site's storage, images, configuration or limits
    NODE = "node"
    BATCH = "batch"
    CREDENTIAL = "credential"
    OURS = "ours"  #: Tidemill itself: a full database, a disk of its own


class Against(StrEnum):
    """What else a failure counts against, besides event and job."""

    NOTHING = "nothing"
    NODE = "node"
    SITE = "site"


JOBS_OWN = frozenset({FaultKind.APPLICATION, FaultKind.INPUT})
"""Faults of the job itself: nothing else fails a job."""


class BackOff(NamedTuple):
    """Pauses between tries at a site: the second try comes at once, the third after `first_s`, each later pause is
    twice as long, at most `longest_s`. `breaker`: different jobs (or nodes) in a row that open the site's breaker."""

    first_s: float = 1.0
    longest_s: float = 3600.0
    breaker: int = 3

    def pause_s(self, tries: int) -> float:
        """The pause after this number of failed tries."""
        if tries < 2:
            return 0.0
        return float(min(self.longest_s, self.first_s * 2 ** min(tries - 2, 40)))


NO_WAIT = BackOff(0.0, 0.0, 0)


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a class is treated: a row of the table.

    `counts`: it uses up one of the event's retries. `against_job`: a job that is returned with it several times
    fails. `next_step` may hold `{job}`, `{event}` and `{of_event}`: see `next_step`. `grows`: the key of `Resources`
    that grows for failed events, if the job permits it.
    """

    fault: FaultKind
    counts: bool
    against_job: bool
    against: Against
    back_off: BackOff
    meaning: str
    next_step: str
    grows: str = ""


POLICY: dict[FailureClass, FailurePolicy] = {
    FailureClass.DISPATCH: FailurePolicy(
        fault=FaultKind.APPLICATION,
        counts=False,
        against_job=True,
        against=Against.NOTHING,
        back_off=BackOff(),
        meaning="the site cannot take the job",
        next_step="check the application and its parameters: `tidemill app show`, at the site `tidemill app check`",
    ),
    FailureClass.BATCH: FailurePolicy(
        fault=FaultKind.BATCH,
        counts=False,
        against_job=False,
        against=Against.SITE,
        back_off=BackOff(2.0, 600.0, 0),
        meaning="the batch system refused or lost an allocation",
        next_step="see the batch system's message; at the site: `tidemill site check`",
    ),
    FailureClass.STAGE_IN: FailurePolicy(
        fault=FaultKind.INPUT,
        counts=True,
        against_job=True,
        against=Against.SITE,
        back_off=BackOff(),
        meaning="an input is missing, unreadable or corrupt",
        next_step="check URL and checksum of the input, then `tidemill job retry {job}`",
    ),
    FailureClass.IMAGE: FailurePolicy(
        fault=FaultKind.SITE,
        counts=False,
        against_job=False,
        against=Against.NODE,
        back_off=BackOff(5.0),
        meaning="the software image could not be mounted or read",
        next_step="at the site: `tidemill image verify`; the job goes on by itself once the image is sound",
    ),
    FailureClass.PAYLOAD_SETUP: FailurePolicy(
        fault=FaultKind.APPLICATION,
        counts=True,
        against_job=True,
        against=Against.NOTHING,
        back_off=NO_WAIT,
        meaning="the payload ended before it was ready for events",
        next_step="read its stderr: `tidemill job logs {job}{of_event}`",
    ),
    FailureClass.PAYLOAD: FailurePolicy(
        fault=FaultKind.APPLICATION,
        counts=True,
        against_job=True,
        against=Against.NOTHING,
        back_off=NO_WAIT,
        meaning="the payload failed on the event",
        next_step="read its stderr: `tidemill job logs {job}{of_event}`; repeat it with its seed",
    ),
    FailureClass.WALLTIME: FailurePolicy(
        fault=FaultKind.APPLICATION,
        counts=True,
        against_job=True,
        against=Against.NOTHING,
        back_off=BackOff(),
        meaning="the event ran longer than its time limit",
        next_step="if the event is sound, give it more time: `tidemill job retry {job} --wall T`; `tidemill run "
        "--wall 10m..2h` lets the time grow",
        grows="timeout_s",
    ),
    FailureClass.PREEMPTED: FailurePolicy(
        fault=FaultKind.BATCH,
        counts=False,
        against_job=False,
        against=Against.NOTHING,
        back_off=NO_WAIT,
        meaning="the allocation was released or ended first",
        next_step="nothing: the events run again elsewhere",
    ),
    FailureClass.NODE: FailurePolicy(
        fault=FaultKind.NODE,
        counts=False,
        against_job=False,
        against=Against.NODE,
        back_off=NO_WAIT,
        meaning="the node or its pilot died",
        next_step="nothing: the events run again elsewhere",
    ),
    FailureClass.MEMORY: FailurePolicy(
        fault=FaultKind.APPLICATION,
        counts=True,
        against_job=True,
        against=Against.NOTHING,
        back_off=NO_WAIT,
        meaning="the payload used more memory than its slot has",
        next_step="give it more memory: `tidemill job retry {job} --memory SIZE`; `tidemill run --memory 2G..8G` lets "
        "the memory grow",
        grows="memory_mb",
    ),
    FailureClass.DISK: FailurePolicy(
        fault=FaultKind.APPLICATION,
        counts=True,
        against_job=True,
        against=Against.NOTHING,
        back_off=NO_WAIT,
        meaning="a file system was full",
        next_step="if its work directory was full, give it more: `tidemill job retry {job} --scratch SIZE`; else "
        "free space at the site",
    ),
    FailureClass.CREDENTIAL: FailurePolicy(
        fault=FaultKind.CREDENTIAL,
        counts=False,
        against_job=False,
        against=Against.SITE,
        back_off=BackOff(5.0),
        meaning="a credential was refused or had expired",
        next_step="at the site, renew the credential that the message names; the job goes on by itself",
    ),
    FailureClass.STAGE_OUT: FailurePolicy(
        fault=FaultKind.SITE,
        counts=True,
        against_job=False,
        against=Against.SITE,
        back_off=BackOff(5.0),
        meaning="an output could not be delivered",
        next_step="check the destination's space and rights, then `tidemill job retry {job}`",
    ),
    FailureClass.LOST: FailurePolicy(
        fault=FaultKind.SITE,
        counts=False,
        against_job=False,
        against=Against.SITE,
        back_off=NO_WAIT,
        meaning="the site has been silent for too long",
        next_step="nothing: the events run again at another site",
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
    ] = []  #: how the allocation's nodes did things, as far as they reported it: images, work directories
    fault: str = (
        ""  #: a `FaultKind` where it is not the one of the class; what this version does not know is ignored
    )


GROWS = "; it runs again with "
"""Part of a failure's message if its events run again with more memory or time."""

ILLEGAL = "the job is not legal: "
"""Begins the message of a site that refuses a job for what it is, not for what the site has."""
STDERR_EMPTY = "its stderr is empty"  #: start of a next step
NO_SUCH_FILE = "No such file or directory"  #: as the C library, and so most programs, print it
NOT_FOUND = "a file that it did not find is there if an `--input` brings it, or an absolute path names it"
FOUND = "; the work directory has "
"""What precedes the names of files where an output is missing (`crates/slot`, `scratch`): events may differ in them."""

_NUMBER = re.compile(r"(?P<digest>sha256:[0-9a-f]+)|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_APPROVAL = re.compile(r"`tidemill app approve [^`]+`")  #: what a site that refuses a changed program says
_NOT_FILLED = re.compile(
    r"(?:line|column \d+) of event \d+ cannot become an argument: "
    r"|the line of event \d+ has no column \d+|no input line for event \d+|no input named `"
)
"""Begins the message of a payload that was not started: a template had no value (crates/slot/src/template.rs)."""
_ENDING = re.compile(r"(?:status|signal) $")  #: what stands before an exit status or a signal


def cause_of(evidence: Evidence) -> str:
    """A failure's message and last line of stderr without its numbers and digests, so that like causes are equal."""
    # An exit status or signal tells causes apart; the other numbers (events, seeds, sizes, addresses) do not, although
    # an event's may be the same.
    kept = {str(each) for each in (evidence.exit_status, evidence.signal) if each is not None}

    def without(match: re.Match[str]) -> str:
        is_ending = match[0] in kept and _ENDING.search(match.string, 0, match.start())
        return match[0] if is_ending else _masked(match)

    message = _NUMBER.sub(without, evidence.message.strip().partition(FOUND)[0])
    lines = evidence.stderr_tail.strip().splitlines()
    last = _NUMBER.sub(_masked, lines[-1].strip().partition(FOUND)[0][:200]) if lines else ""
    return message if not last or last in message else f"{message}: {last}"


def _masked(match: re.Match[str]) -> str:
    return "sha256:..." if match["digest"] else "N"


def fault_of(evidence: Evidence) -> FaultKind:
    """Whose fault a failure is: as its evidence says, else as its class has it."""
    try:
        return FaultKind(evidence.fault)
    except ValueError:
        return POLICY[evidence.failure].fault


def is_jobs_own(evidence: Evidence) -> bool:
    """Whether a job that a site returns with this evidence caused the failure itself."""
    return POLICY[evidence.failure].against_job and fault_of(evidence) in JOBS_OWN


def next_step(failure: str, *, job: int | None = None, event: int | None = None, stderr: bool = True) -> str:
    """What to do about a failure of this class, for this job and event as far as they are known; `stderr`: whether it
    wrote something there, as far as that is known."""
    text = POLICY[FailureClass(failure)].next_step
    if not stderr:
        text = text.replace("read its stderr", f"{STDERR_EMPTY}, read its stdout, if any")
    return text.format(
        job="JOB" if job is None else job,
        event="N" if event is None else event,
        of_event="" if event is None else f" --event {event}",
    )


def step_after(evidence: Evidence, *, job: int | None = None, event: int | None = None) -> str:
    """The next step where there is evidence of the failure: it says whether there is anything to read, or to
    approve."""
    if GROWS in evidence.message:
        return "nothing: the event runs again with more memory or time"
    if evidence.message.startswith(ILLEGAL):
        return "submit the job again, changed as the message says"
    if _is_not_filled(evidence):
        return "correct the line or input that the reason names, and submit again"
    approval = _APPROVAL.search(evidence.message) if evidence.failure is FailureClass.DISPATCH else None
    if approval is not None:
        return f"at the site, the owner of its application files runs {approval[0]}"
    step = next_step(evidence.failure, job=job, event=event, stderr=bool(evidence.stderr_tail.strip()))
    return f"{step}; {NOT_FOUND}" if lacks_file(evidence) else step


def lacks_file(evidence: Evidence) -> bool:
    """Whether a payload failed after the system did not find a file for it."""
    return evidence.failure is FailureClass.PAYLOAD and NO_SUCH_FILE in evidence.stderr_tail


def _is_not_filled(evidence: Evidence) -> bool:
    """Whether no program was started, because no argument could be made of a line or input."""
    never_ran = evidence.exit_status is None and evidence.signal is None
    is_setup = evidence.failure is FailureClass.PAYLOAD_SETUP
    return is_setup and never_ran and _NOT_FILLED.match(evidence.message) is not None
