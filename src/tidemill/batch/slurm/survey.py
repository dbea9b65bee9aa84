"""The machine as Slurm shows it to an ordinary user: three queries per poll, and a few more now and then."""

from __future__ import annotations

import math
import os
import pwd
import secrets
from collections.abc import Callable

import msgspec

from tidemill import clock
from tidemill.batch.polite import Budget
from tidemill.batch.slurm import document, text
from tidemill.batch.slurm.limits import OwnLimit
from tidemill.config.site import Cluster
from tidemill.errors import ProtocolError
from tidemill.log import Log
from tidemill.model.machine import (
    JobCounts,
    Node,
    NodeState,
    Partition,
    Queued,
    Reservation,
    Running,
    Snapshot,
)
from tidemill.model.number import whole

SETTINGS_S = 3600.0
PARTITIONS_S = 60.0
RESERVATIONS_S = 120.0
"""How long what changes rarely is believed. Limits of partitions are read again at once when a job meets one."""

LIVING = "PD,R,CG,S,CF,ST,SI,SO,RS,RQ,RF,RH,SE"
_log = Log("slurm")

IsOurs = Callable[[str, str, str], bool]
"""Of user, name and comment."""


class Survey:
    """Queries all users' jobs and all nodes."""

    def __init__(self, budget: Budget, config: Cluster) -> None:
        self._budget = budget
        self._config = config
        self._settings: tuple[float, dict[str, str]] | None = None
        self._partitions: tuple[float, list[Partition]] | None = None
        self._reservations: tuple[float, list[Reservation]] | None = None
        self._complained = False
        self.own_limit = OwnLimit(budget, pwd.getpwuid(os.geteuid()).pw_name)

    def snapshot(self, is_ours: IsOurs) -> Snapshot:
        """The machine now. Raises SiteError, ProtocolError."""
        at_s = float(clock.now_s())
        told = self._ask("sdiag", kind="plan")  # first: what its counters do not show yet, the queue may
        planned_s = text.plan_time(told)
        nodes = self.nodes()
        running, queued = self._jobs(is_ours, len(nodes))
        partitions = self.partitions()
        self.own_limit.refresh()
        exclusive = {each.name for each in partitions if not each.is_shared}
        running = _whole(running, exclusive)
        return Snapshot(
            at_s=at_s,
            nodes=_held(nodes, running),
            running=running,
            queued=[_whole_queued(each, exclusive) for each in queued],
            reservations=self._known_reservations(),
            partitions=partitions,
            plan_age_s=None if planned_s is None else max(0.0, clock.now_s() - planned_s),
            are_jobs_hidden="jobs" in self._private(),
            hidden=self._hidden(nodes),
            array_max=array_max(self.settings()),
            counts=text.counts(told),
            walltime_max_s=self.own_limit.walltime_s,
            walltime_by=self.own_limit.reason if self.own_limit.walltime_s is not None else "",
        )

    def glance(self) -> JobCounts | None:
        """slurmctld's counters. It answers without a pass over its jobs, so this costs the same for any queue."""
        return text.counts(self._budget.glance(["sdiag"]))

    def nodes(self) -> list[Node]:
        """All nodes, each once; by text, which shows every flag in every version, else by JSON (since 23.02)."""
        output = self._ask("scontrol", "-a", "-o", "show", "nodes", kind="nodes")
        try:
            return text.nodes(output)
        except ProtocolError as error:
            self._complain(error)
            return document.nodes(self._ask("scontrol", "-a", "show", "nodes", "--json", kind="nodes"))

    def settings(self) -> dict[str, str]:
        """`scontrol show config`, believed for an hour."""
        if self._settings is None or clock.monotonic_s() - self._settings[0] > SETTINGS_S:
            output = self._ask("scontrol", "show", "config")
            self._settings = clock.monotonic_s(), text.settings(output)
        return self._settings[1]

    def partitions(self) -> list[Partition]:
        """All partitions, hidden ones too."""
        if self._partitions is None or clock.monotonic_s() - self._partitions[0] > PARTITIONS_S:
            settings = self.settings()
            preempts = settings.get("PreemptType", "preempt/none") not in ("preempt/none", "(null)")
            found = text.partitions(self._ask("scontrol", "-a", "-o", "show", "partition"), preempts=preempts)
            found = text.with_default_memory(found, settings)
            if settings.get("SelectType", "").endswith("linear"):
                found = [msgspec.structs.replace(each, is_shared=False) for each in found]
            self._partitions = clock.monotonic_s(), found
        return self._partitions[1]

    def expire(self) -> None:
        """Read the limits of partitions again with the next snapshot."""
        self._partitions = None

    def _known_reservations(self) -> list[Reservation]:
        if self._reservations is None or clock.monotonic_s() - self._reservations[0] > RESERVATIONS_S:
            output = self._ask("scontrol", "-a", "-o", "show", "reservation")
            found = text.reservations(output, self._config.reservation)
            self._reservations = clock.monotonic_s(), found
        return self._reservations[1]

    def _jobs(self, is_ours: IsOurs, nodes: int) -> tuple[list[Running], list[Queued]]:
        """By text; by JSON where the text cannot be read and the configuration allows it."""
        record = text.RECORD + secrets.token_hex(8)  # that no user can have written into a comment
        output = self._ask("squeue", "-a", "-h", "-t", LIVING, "-o", text.all_format(record), kind="queue")
        try:
            read = text.everybody(output, is_ours, nodes=nodes, record=record)
        except ProtocolError as error:
            self._complain(error)
            return document.jobs(self._ask("squeue", "-a", "--json", kind="queue"), is_ours)
        if read.unreadable:
            _log.debug("squeue.rows_unreadable", rows=read.unreadable)
        return read.running, read.queued

    def _complain(self, error: ProtocolError) -> None:
        """Log once that text cannot be read."""
        if not self._complained:
            self._complained = True
            _log.warning("slurm.text_unreadable", reason=error.message)

    def _private(self) -> set[str]:
        return set(self.settings().get("PrivateData", "none").lower().replace(" ", "").split(","))

    def _hidden(self, nodes: list[Node]) -> list[str]:
        """What an ordinary user does not see here (slurm.conf(5), PrivateData)."""
        private = self._private()
        hidden = []
        if "jobs" in private:
            hidden.append("regular jobs (PrivateData=jobs)")
        if "nodes" in private and not nodes:
            hidden.append("nodes (PrivateData=nodes)")
        if "reservations" in private:
            hidden.append("reservations (PrivateData=reservations)")
        return hidden

    def _ask(self, *words: str, kind: str = "") -> bytes:
        return self._budget.check(self._budget.query(words, kind=kind))


def _whole(running: list[Running], exclusive: set[str]) -> list[Running]:
    """Jobs of partitions that share no nodes have theirs for themselves, whatever they asked."""
    return [
        msgspec.structs.replace(each, whole=True) if not each.whole and each.partition in exclusive else each
        for each in running
    ]


def _whole_queued(queued: Queued, exclusive: set[str]) -> Queued:
    if queued.whole or not exclusive.issuperset(queued.partitions):
        return queued
    return msgspec.structs.replace(queued, whole=True)


def _held(nodes: list[Node], running: list[Running]) -> list[Node]:
    """Mark nodes as taken that are shown idle, though a job in the later reply holds them: slurmctld renews its
    counts of used cores once a second (22.05.8, measured: up to 1 s after the job's start)."""
    taken: dict[str, bool] = {}
    for job in running:
        for name in job.nodes:
            taken[name] = taken.get(name, False) or job.whole
    return [
        msgspec.structs.replace(
            node,
            state=NodeState.BUSY if taken[node.name] or node.cores == 1 else NodeState.SHARED,
            cores_free=0,
        )
        if node.state is NodeState.IDLE and node.name in taken
        else node
        for node in nodes
    ]


def can_account(settings: dict[str, str]) -> bool:
    """Whether sacct knows of jobs that have left the queue: with slurmdbd alone (slurm.conf(5))."""
    return settings.get("AccountingStorageType", "").endswith("/slurmdbd")


def array_max(settings: dict[str, str]) -> int | None:
    """Elements that an array may have: indices stay below MaxArraySize; 0 = no arrays, None = it is not a number."""
    number = whole(settings.get("MaxArraySize", "1001"))
    return None if number is None else max(0, number - 1)


def job_age_s(settings: dict[str, str]) -> float:
    """How long squeue shows a job that has ended: MinJobAge, 300 s by default, for ever with 0 (slurm.conf(5)); 0 where
    it cannot be read."""
    number = settings.get("MinJobAge", "300").partition(" ")[0]
    if not number.isdecimal():
        return 0.0
    return float(number) or math.inf
