"""Slurm's vocabulary: states of jobs and nodes, reasons, refusals. Tables, with their sources.

States of jobs: squeue(1) JOB STATE CODES of 22.05 to 25.11, `job_state_codes` of slurm.h. Reasons: squeue(1) JOB REASON
CODES, `job_reason_string` of slurm_protocol_defs.c. Nodes: sinfo(1) NODE STATE CODES, scontrol(1). Refusals:
slurm_errno.c; those of the client's own are quoted from src/common/slurm_protocol_api.c.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from tidemill.batch.contract import Ending
from tidemill.batch.run import Refusal
from tidemill.log import Log
from tidemill.model.machine import NodeState
from tidemill.model.state import AllocationState as S

_log = Log("slurm")
_told: set[str] = set()
WORDS_TOLD_MAX = 1000

REFUSALS = (
    ("rate limit exceeded", Refusal.BUSY),  # SLURMCTLD_COMMUNICATIONS_BACKOFF, since 23.02
    ("rpc rate limited", Refusal.BUSY),  # the client, while it waits
    ("unable to contact slurm controller", Refusal.AWAY),
    ("slurm backup controller in standby", Refusal.AWAY),
    ("socket timed out", Refusal.AWAY),
    ("connection refused", Refusal.AWAY),
    ("zero bytes were transmitted", Refusal.AWAY),
    ("unexpected message received", Refusal.AWAY),
    ("munge", Refusal.AWAY),
    ("protocol authentication error", Refusal.AWAY),
    ("temporarily unable to accept job", Refusal.AWAY),
    ("resource temporarily unavailable", Refusal.AWAY),
    ("unable to connect to database", Refusal.AWAY),
    ("problem talking to the database", Refusal.AWAY),
    ("accounting storage is disabled", Refusal.UNKNOWN),
    ("maxwalldurationperjoblimit", Refusal.DENIED),  # of a QOS with DenyOnLimit
    ("job violates accounting/qos policy", Refusal.LIMIT),
    ("job submit limit", Refusal.LIMIT),
    ("maxjobcount", Refusal.LIMIT),
    ("slurm_kill_job", Refusal.UNKNOWN),
    ("invalid job id", Refusal.UNKNOWN),
    ("job/step already completing or completed", Refusal.UNKNOWN),
    ("access/permission denied", Refusal.DENIED),
    ("invalid account", Refusal.DENIED),
    ("invalid partition", Refusal.DENIED),
    ("invalid qos", Refusal.DENIED),
    ("invalid feature specification", Refusal.DENIED),
    ("invalid node name", Refusal.DENIED),
    ("invalid time limit", Refusal.DENIED),
    ("invalid wckey", Refusal.DENIED),
    ("requested time limit is invalid", Refusal.DENIED),
    ("requested node configuration is not available", Refusal.DENIED),
    ("requested partition configuration not available", Refusal.DENIED),
    ("node count specification invalid", Refusal.DENIED),
    ("more processors requested than permitted", Refusal.DENIED),
    ("memory specification can not be satisfied", Refusal.DENIED),
    ("user's group not permitted", Refusal.DENIED),
    ("not permitted to use", Refusal.DENIED),
    ("unrecognized option", Refusal.DENIED),
    ("invalid option", Refusal.DENIED),
    ("invalid job array specification", Refusal.DENIED),
    ("reservation is invalid", Refusal.DENIED),
    ("requested reservation", Refusal.DENIED),
    ("deadline", Refusal.DENIED),
)

JOB_STATES: dict[str, tuple[S, Ending]] = {
    "PENDING": (S.QUEUED, Ending.NONE),
    "CONFIGURING": (S.QUEUED, Ending.NONE),  # it has nodes; they boot
    "POWER_UP_NODE": (S.QUEUED, Ending.NONE),
    "REQUEUED": (S.QUEUED, Ending.NONE),
    "REQUEUE_FED": (S.QUEUED, Ending.NONE),
    "REQUEUE_HOLD": (S.QUEUED, Ending.NONE),
    "SPECIAL_EXIT": (S.QUEUED, Ending.NONE),
    "RESV_DEL_HOLD": (S.QUEUED, Ending.NONE),
    "RUNNING": (S.ACTIVE, Ending.NONE),
    "SUSPENDED": (S.ACTIVE, Ending.NONE),
    "STOPPED": (S.ACTIVE, Ending.NONE),
    "COMPLETING": (S.ACTIVE, Ending.NONE),
    "SIGNALING": (S.ACTIVE, Ending.NONE),
    "STAGE_OUT": (S.ACTIVE, Ending.NONE),
    "RESIZING": (S.ACTIVE, Ending.NONE),
    "EXPEDITING": (S.QUEUED, Ending.NONE),
    "COMPLETED": (S.COMPLETED, Ending.DONE),
    "TIMEOUT": (S.COMPLETED, Ending.WALLTIME),
    "FAILED": (S.FAILED, Ending.FAILED),
    "CANCELLED": (S.CANCELED, Ending.CANCELED),
    "REVOKED": (S.CANCELED, Ending.CANCELED),  # another cluster of the federation runs it
    "PREEMPTED": (S.CANCELED, Ending.PREEMPTED),
    "DEADLINE": (S.CANCELED, Ending.DEADLINE),
    "NODE_FAIL": (S.FAILED, Ending.NODE),
    "BOOT_FAIL": (S.FAILED, Ending.LAUNCH),
    "LAUNCH_FAILED": (S.FAILED, Ending.LAUNCH),
    "RECONFIG_FAIL": (S.FAILED, Ending.LAUNCH),
    "OUT_OF_MEMORY": (S.FAILED, Ending.MEMORY),
}

_ENDING_OF_REASON = {
    "JobLaunchFailure": Ending.LAUNCH,
    "Prolog": Ending.LAUNCH,
    "DeadLine": Ending.DEADLINE,
    "OutOfMemory": Ending.MEMORY,
    "NodeDown": Ending.NODE,
    "TimeLimit": Ending.WALLTIME,
}

_HELD = frozenset(
    {
        "JobHeldAdmin",
        "JobHeldUser",
        "InvalidAccount",
        "InvalidQOS",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "AccountingPolicy",
        "ReservationDeleted",
    }
)
_NOT_ELIGIBLE = frozenset(
    {
        "BadConstraints", "BeginTime", "BurstBufferOperation", "BurstBufferResources", "BurstBufferStageIn",
        "Cleaning", "DeadLine", "Dependency", "DependencyNeverSatisfied", "InactiveLimit", "JobArrayTaskLimit",
        "JobHoldMaxRequeue", "Licenses", "NodeDown", "PartitionConfig", "PartitionDown", "PartitionInactive",
        "PartitionNodeLimit", "PartitionTimeLimit", "Prolog", "Reservation", "ReservationDeleted",
        "SchedDefer", "FedJobLock", "MaxRequeue",
    }
)  # fmt: skip


def job_state(word: str, reason: str = "") -> tuple[S, Ending]:
    """What a state's word means. An unknown word counts as alive and is logged once. sacct adds more after a blank:
    `CANCELLED by 54321`."""
    first = "".join(word.split(maxsplit=1)[:1]).rstrip("+")
    known = JOB_STATES.get(first)
    if known is None:
        tell_once("job state", word)
        return S.ACTIVE, Ending.NONE
    state, ending = known
    if ending in (Ending.FAILED, Ending.CANCELED):
        ending = _ENDING_OF_REASON.get(reason, ending)
    if ending is Ending.DEADLINE:
        state = S.CANCELED
    return state, ending


def held(reason: str) -> str:
    """The reason, if staff or an account keeps the job from starting: a hold, or a grant that is used up. A limit on
    jobs or nodes at a time does not count: it passes by itself."""
    # Of an array whose elements wait together: `Resources,JobHeldAdmin` (22.05).
    for each in reason.split(","):
        used_up = each.startswith(("AssocGrp", "QOSGrp")) and "Minutes" in each and "Run" not in each
        if used_up or each in _HELD:
            return each
    return ""


_TOO_LONG = re.compile(
    r"PartitionTimeLimit|(?:Assoc|QOS)MaxWall\w*|(?:Assoc|QOS)Max\w+MinutesPerJob\w*", re.ASCII
)
_NEVER = re.compile(
    r"PartitionNodeLimit|MaxMemPerLimit|(?:Assoc|QOS)Max\w+Per(?:Job|Node)\w*|QOSMin\w+", re.ASCII
)  # limits of a job's size; those of a user or account at a time pass by themselves


def is_too_long(reason: str) -> bool:
    """Whether a job waits for ever because it asks for more time than a limit allows."""
    return any(_TOO_LONG.fullmatch(each) for each in reason.split(","))


def limit_named(errors: str) -> str:
    """Which limit an error of sbatch names: `sbatch: error: QOSMaxWallDurationPerJobLimit`; empty = none."""
    match = _TOO_LONG.search(errors)
    return match[0] if match else ""


def hopeless(reason: str) -> str:
    """The reason, if a limit of the partition, QOS or association keeps the job from ever starting as it is."""
    for each in reason.split(","):
        if _TOO_LONG.fullmatch(each) or _NEVER.fullmatch(each):
            return each
    return ""


def is_eligible(reason: str, priority: float) -> bool:
    """Whether a job that waits for this could start if nodes were free."""
    if priority <= 0 or reason in _NOT_ELIGIBLE or held(reason):
        return False
    return not reason.startswith(("Assoc", "QOS", "launch", "MaxGRES", "BurstBuffer", "Dependency"))


_AWAY_WORDS = (
    "DOWN UNKNOWN ERROR FUTURE DRAIN DRAINED DRAINING FAIL FAILING NOT_RESPONDING NO_RESPOND INVALID INVALID_REG "
    "BLOCKED POWERING_DOWN POWER_DOWN POWER_DRAIN UNK INVAL"
)
_QUIET_WORDS = (
    "CLOUD DYNAMIC_NORM DYNAMIC_FUTURE PLANNED RESUME UNDRAIN REBOOT_CANCELED PERFCTRS NPC EXTERNAL NONE "
    "IDLE ALLOCATED MIXED ALLOC MIX"
)
_AWAY = frozenset(_AWAY_WORDS.split())
_QUIET = frozenset(_QUIET_WORDS.split())
_SLEEPING = frozenset({"POWERED_DOWN", "POWER", "POWER_SAVE", "POWERED_DOWN_NODE"})
_WAKING = frozenset({"POWERING_UP", "POWER_UP", "CONFIGURING"})
_REBOOT = frozenset({"REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"})
_RESERVED = frozenset({"MAINT", "MAINTENANCE", "RESERVED", "RES"})
_SUFFIXES = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "$": "MAINT",
    "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "!": "POWER_DOWN", "-": "PLANNED",
}  # fmt: skip


def node_words(text: str) -> frozenset[str]:
    """The words of `IDLE+PLANNED`, `DOWN*`, `idle~`."""
    words = set()
    for word in text.upper().split("+"):
        while word and word[-1] in _SUFFIXES:
            words.add(_SUFFIXES[word[-1]])
            word = word[:-1]
        words.add(word)
    words.discard("")
    return frozenset(words)


def node_state(words: Collection[str]) -> NodeState:
    """The state of a node with these state words: the worst of them counts. An unknown word is logged once, and ignored
    beside a known one."""
    has = set(words)
    if has & _AWAY:
        return NodeState.AWAY
    if has & _SLEEPING:
        return NodeState.SLEEPING
    if has & _WAKING:
        return NodeState.WAKING
    if has & _REBOOT and "IDLE" in has:
        return NodeState.WAKING
    if "COMPLETING" in has or "COMP" in has:
        return NodeState.ENDING
    unknown = has - _QUIET - _REBOOT - _RESERVED
    for word in unknown:
        tell_once("node state", word)
    if has & {"ALLOCATED", "ALLOC"}:
        return NodeState.BUSY
    if has & _RESERVED:
        return NodeState.RESERVED
    if has & {"MIXED", "MIX"}:
        return NodeState.SHARED
    return NodeState.IDLE if "IDLE" in has else NodeState.AWAY


def tell_once(what: str, word: str) -> None:
    """Log a word that these tables lack, once."""
    if word not in _told and len(_told) < WORDS_TOLD_MAX:
        _told.add(word)
        _log.warning("word.unknown", what=what, word=word[:100])
