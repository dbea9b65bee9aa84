"""What the batch system's word for why a job waits means, in plain words. Pure.

Slurm's reasons: https://slurm.schedmd.com/job_reason_codes.html; limits: https://slurm.schedmd.com/resource_limits.html.
PBS's comments (`job_info.cpp`) are sentences already.
"""

from __future__ import annotations

import re

_SLURM = {
    "None": "the scheduler has not considered it yet",
    "Resources": "it is next, and waits for nodes to become free",
    "Priority": "jobs of a higher priority are before it",
    "PartitionTimeLimit": "its time limit is above the limit of the partition: it cannot start as it is",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows: it cannot start as it is",
    "PartitionConfig": "the partition does not allow such a job: it cannot start as it is",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it could use are down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": "its reservation was deleted",
    "BeginTime": "its time to begin has not come yet; a job that was started again waits so for some minutes",
    "Cleaning": "its last start is still being cleaned up",
    "BadConstraints": "no node has what it asks for: it cannot start as it is",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "a job that it waits for has failed: it cannot start",
    "JobArrayTaskLimit": "as many elements of its array run as may run at once",
    "JobHeldAdmin": "an administrator of the cluster holds it",
    "JobHeldUser": "it is held by its user",
    "JobHoldMaxRequeue": "it was started again too often, and is held",
    "Licenses": "it waits for a license",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not be used in the partition",
    "AssociationJobLimit": "its account has reached a limit of jobs",
    "AssociationResourceLimit": "its account has reached a limit of resources",
    "AssociationTimeLimit": "its account has used up its time",
    "InactiveLimit": "it has reached the system's limit of inactivity",
    "NodeDown": "a node that it needs is down",
    "SchedDefer": "the scheduler considers it in its next round",
    "TimeLimit": "it has used up its time",
    "QOSJobLimit": "its QOS has reached a limit of jobs",
    "QOSResourceLimit": "its QOS has reached a limit of resources",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSUsageThreshold": "its use is too high for its QOS",
    "MaxMemPerLimit": "it asks for more memory than a limit allows",
    "Prolog": "its prolog runs",
}

_LIMIT = re.compile(
    r"(?P<of>Assoc|QOS)(?P<kind>Grp|Max|Min)(?P<what>Submit|CPURunMinutes|CPUMinutes|BillingRunMinutes|BillingMinutes|"
    r"WallDuration|Wall|Cpu|CPU|Jobs|Node|Mem\w*?|GRES\w*?|Billing|License|BB|Energy)s?(?P<rest>\w*)"
)
_WHAT = {
    "Submit": "jobs that wait and run", "Jobs": "jobs at once", "Cpu": "cores at once", "CPU": "cores at once",
    "Node": "nodes at once", "Wall": "walltime", "WallDuration": "walltime", "CPUMinutes": "core-minutes",
    "CPURunMinutes": "core-minutes that running jobs may still use", "Billing": "billing units",
    "BillingMinutes": "billing minutes", "BillingRunMinutes": "billing minutes that running jobs may still use",
    "License": "licenses", "BB": "burst buffer", "Energy": "energy",
}  # fmt: skip


def _limit_meaning(word: str) -> str:
    """Of `QOSMaxCpuPerUserLimit` and its like."""
    match = _LIMIT.match(word)
    if match is None:
        return ""
    what = match["what"]
    if what.startswith("Mem"):
        named = "memory"
    elif what.startswith("GRES"):
        named = "GPUs and the like"
    else:
        named = _WHAT[what]
    owner = "the account" if match["of"] == "Assoc" else "the QOS"
    if match["kind"] == "Min":
        return f"it asks for less {named} than {owner} demands"
    if "PerJob" in match["rest"]:
        return f"it asks for more {named} than a job of {owner} may have: it cannot start as it is"
    whose = ""
    if "PerUser" in match["rest"]:
        whose = " for each user"
    elif "PerAccount" in match["rest"] or "PA" in match["rest"]:
        whose = " for each account"
    elif match["kind"] == "Grp":
        whose = " for all its users together"
    return f"{owner} has a limit of {named}{whose}, which is reached"


def slurm_meaning(reason: str) -> str:
    """The meaning of a reason of Slurm (`squeue -o %r`), where it is a known one. Of an array whose elements wait
    together there are several, with commas between."""
    found = []
    for word in reason.split(","):
        word = word.strip().partition(" ")[0].rstrip("()")
        found.append(_SLURM.get(word) or _limit_meaning(word))
    return "; ".join(dict.fromkeys(each for each in found if each))


def of_slurm(reason: str) -> tuple[str, str]:
    """A reason of Slurm and its meaning."""
    return reason, slurm_meaning(reason)


def of_pbs(comment: str) -> tuple[str, str]:
    """A comment of PBS without its first words, which say no more than that the job waits."""
    return comment.removeprefix("Not Running: "), ""
