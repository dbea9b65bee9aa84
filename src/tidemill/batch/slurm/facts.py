"""What `site init` finds out about a Slurm, as an ordinary user."""

from __future__ import annotations

from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.batch.launch import describe
from tidemill.batch.polite import Budget
from tidemill.batch.run import CommandResult, Refusal
from tidemill.batch.slurm import text
from tidemill.batch.slurm.survey import Survey, array_max, can_account
from tidemill.errors import SiteError
from tidemill.model.machine import Node, NodeState, Partition
from tidemill.model.number import whole

_TELLING = (
    "ClusterName", "SchedulerType", "SchedulerParameters", "KillWait", "OverTimeLimit", "CompleteWait", "MinJobAge",
    "PreemptType", "PreemptMode", "PriorityType", "SelectType", "SelectTypeParameters", "JobRequeue",
    "SlurmctldParameters", "EnforcePartLimits", "PrologFlags", "SuspendTime",
)  # fmt: skip
"""Settings that matter to a guest (slurm.conf(5))."""


_OF_ACCOUNT = ("MaxWall", "MaxTRES", "GrpTRES", "GrpJobs", "GrpWall")
_OF_QOS = (*_OF_ACCOUNT, "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU", "MinTRES")
"""Limits that jobs of whole nodes can meet (sacctmgr(1)), besides the numbers of jobs that `_associations` reads."""

LIMITS_MAX = 12
"""More lines of limits are of accounts and QOS that the site does not use."""


def find_facts(budget: Budget, survey: Survey, user: str) -> Facts:
    """Asks what is needed; what cannot be asked is a note. Raises SiteError when Slurm does not answer at all."""
    notes: list[str] = []
    settings = survey.settings()
    nodes = survey.nodes()
    partitions = survey.partitions()
    granted = _associations(budget, user, notes) if can_account(settings) else None
    accounts, qos, jobs_max, submits_max = granted or ([], [], None, None)
    if granted is None:
        notes.append("no accounting (slurmdbd): what left the queue is known from Tidemill's journals only")
    private = settings.get("PrivateData", "none")
    hidden = "jobs" in private.lower().split(",")
    if hidden:
        notes.append("regular jobs are hidden (PrivateData=jobs): only windows can be used")
    preempts = settings.get("PreemptType", "preempt/none").removeprefix("preempt/")
    return Facts(
        system=f"Slurm {settings.get('SLURM_VERSION', '')}".strip(),
        partitions=[_partition(each, nodes) for each in partitions],
        nodes=nodes,
        accounts=accounts,
        qos=qos,
        array_max=array_max(settings) or 0,
        jobs_max=jobs_max,
        submits_max=submits_max,
        limits=[] if granted is None else _limits(budget, user, qos, notes),
        is_accounted=granted is not None,
        others_hidden=hidden,
        preempts="" if preempts == "none" else preempts,
        architectures=_architectures(budget, notes),
        launchers=describe(),
        scheduler={key: settings[key] for key in _TELLING if key in settings},
        notes=notes,
    )


def _partition(partition: Partition, nodes: list[Node]) -> PartitionFacts:
    inside = [node for node in nodes if partition.name in node.partitions]
    working = [node for node in inside if node.state is not NodeState.AWAY] or inside
    features: set[str] = set()
    for node in inside:
        features.update(node.features)
    why = "" if partition.is_up else "it is not up"
    return PartitionFacts(
        name=partition.name,
        is_default=partition.is_default,
        nodes=len(inside),
        cores_per_node=min((node.cores for node in working), default=0),
        memory_mb_per_node=min((node.memory_mb for node in working), default=0),
        features=sorted(features),
        walltime_max_s=partition.walltime_max_s,
        width_max=partition.width_max,
        is_shared=partition.is_shared,
        sharing=partition.sharing,
        accounts=list(partition.accounts),
        tier=partition.tier,
        preempted=partition.preempted,
        usable=partition.is_up and bool(inside),
        why_not=why or ("" if inside else "it has no nodes"),
    )


def _associations(
    budget: Budget, user: str, notes: list[str]
) -> tuple[list[str], list[str], int | None, int | None]:
    """Accounts (the default first), QOS, and the user's least limits of jobs and of submissions."""
    fields = "Account,DefaultAccount,QOS,MaxJobs,MaxSubmitJobs"
    command = ["sacctmgr", "-n", "-P", "show", "user", user, "withassoc", f"format={fields}"]
    reply = _asked(budget, command, notes)
    accounts: list[str] = []
    qos: list[str] = []
    limits: tuple[list[int], list[int]] = ([], [])
    for line in reply.output.decode(errors="replace").splitlines() if reply else []:
        row = line.split("|")
        if len(row) != 5:
            continue
        accounts = [row[1], *accounts, row[0]] if row[1] else [*accounts, row[0]]
        qos += row[2].split(",")
        for found, word in zip(limits, row[3:], strict=True):
            limit = whole(word)
            if limit is not None:
                found.append(limit)
    return (
        list(dict.fromkeys(filter(None, accounts))),
        list(dict.fromkeys(filter(None, qos))),
        min(limits[0], default=None),
        min(limits[1], default=None),
    )


def _limits(budget: Budget, user: str, qos: list[str], notes: list[str]) -> list[str]:
    """Limits in Slurm's words, such as `account phys: MaxWall=02:00:00, GrpTRES=cpu=64`."""
    found = []
    for kind, fields, words in (
        ("account", _OF_ACCOUNT, ["assoc", f"user={user}"]),
        ("QOS", _OF_QOS, ["qos", *qos]),
    ):
        if kind == "QOS" and not qos:
            continue
        first = "Account" if kind == "account" else "Name"
        command = ["sacctmgr", "-n", "-P", "show", *words, f"format={','.join([first, *fields])}"]
        reply = _asked(budget, command, notes)
        for line in reply.output.decode(errors="replace").splitlines() if reply else []:
            name, *values = line.split("|")
            told = [f"{key}={value}" for key, value in zip(fields, values, strict=False) if value]
            if told:
                found.append(f"{kind} {name}: {', '.join(told)}")
    return list(dict.fromkeys(found))[:LIMITS_MAX]


def find_refusal(budget: Budget, words: list[str], script: bytes) -> str:
    """Why `sbatch` would refuse this job now; empty where it would not, or cannot be asked. `--test-only` submits
    nothing: slurmctld checks account, QOS, partition and limits (sbatch(1))."""
    try:
        reply = budget.act([*words, "--test-only"], stdin=script)
        number = reply.output.decode(errors="replace").strip().partition(";")[0]
        if reply.status == 0 and number.isdecimal():  # a wrapper of the centre has dropped the option
            budget.act(["scancel", number])
    except SiteError:
        return ""
    is_refused = reply.status != 0 and budget.refusal(reply) in (Refusal.DENIED, Refusal.LIMIT)
    return reply.last_words if is_refused else ""


def _architectures(budget: Budget, notes: list[str]) -> list[str]:
    """The architectures of the nodes: `x86_64`, `aarch64`."""
    reply = _asked(budget, ["scontrol", "-a", "-o", "show", "nodes"], notes)
    lines = text.records(reply.output, "NodeName=") if reply else iter(())
    return sorted({text.value(line, "Arch") for line in lines} - {""})


def _asked(budget: Budget, command: list[str], notes: list[str]) -> CommandResult | None:
    """A reply, or a note of why there is none."""
    try:
        reply = budget.query(command)
        budget.check(reply)
    except SiteError as error:
        notes.append(error.message)
        return None
    return reply
