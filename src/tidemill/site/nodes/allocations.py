"""The book of allocations: what we asked for, what the batch system says of it, why it ended, what to fear.

Every allocation is found by its name; each answer of the batch system ends in one named state with a reason. Acts are
in `batch_calls`, what to ask for in `planning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch import constants as batch_constants
from tidemill.batch.contract import (
    ELEMENT,
    FAR_FUTURE_S,
    Answer,
    BatchSubmission,
    Ending,
    Status,
    split_element,
)
from tidemill.batch.kinds import shown_reason
from tidemill.config.site import SiteConfig
from tidemill.errors import TidemillError, is_transient
from tidemill.log import Log
from tidemill.model.figures.awaited import REASON_CHARACTERS_MAX, REASONS_MAX, QueuedReason
from tidemill.model.machine import Snapshot
from tidemill.model.state import ALLOCATION_FINAL, ALLOCATION_TRANSITIONS, AllocationState
from tidemill.site import constants as site_constants
from tidemill.site.nodes.batch_calls import ActionsDone
from tidemill.site.nodes.quarantine import NodeQuarantine
from tidemill.site.nodes.retention import Leftovers
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog

INTENT_LOST_S = 10.0
"""An intent that the local batch system does not know this long after the submit call ended has come to nothing; with
others the call of a killed agent may go on for COMMAND_TIMEOUT_S."""

LOST_WATCHED_S = 3600.0
"""A lost allocation is polled for this time: a controller that was restarted from an old state may know it again."""

STARTED_FAILED = frozenset({Ending.FAILED, Ending.LAUNCH})
"""Endings that are failures of a start, where no pilot has worked. Preemption and walltime never are."""

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Empty, they name no GPU for the pilot: those that it leaves to others may be open to its processes all the same."""

_log = Log("allocations")


class GpuUse(StrEnum):
    """What an allocation has of the GPUs of its nodes."""

    ALL = "all"  #: what the site's settings say, else all that the batch system gives
    NONE = "none"  #: its nodes have none
    LEAVE = "leave"  #: its nodes have GPUs, and it leaves them to others


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`count` allocations of `nodes` nodes to be asked for, alike."""

    fleet: str
    nodes: int
    cores: int
    memory_mb: int
    walltime_s: float
    count: int = 1
    pool: str = ""
    partition: str = ""
    features: tuple[str, ...] = ()
    account: str = ""
    exclude: tuple[str, ...] = ()
    gpus: GpuUse = GpuUse.ALL
    avoid: tuple[str, ...] = ()  #: nodes of other pools
    avoid_by: tuple[str, ...] = ()  #: features of the pool's nodes that none of `avoid` has
    wide: bool = False  #: for payloads that span its nodes: one pilot with one slot, which may wait long


class Allocations:
    """Tidemill's allocations in the batch system."""

    def __init__(
        self, log: SiteLog, config: SiteConfig, *, binary: Path, fleets: Path, nodes: NodeQuarantine
    ) -> None:
        self._log = log
        self._config = config
        self._binary = binary
        self._fleets = fleets
        self._gone_since: dict[str, float] = {}
        self._is_local = config.batch == "local"
        self.starts_failed = 0
        self.last_failed_s = 0.0
        self.why_failed = ""
        self._held: list[tuple[str, str]] = []  #: (allocation, the batch system's word), at the last poll
        self._waiting: dict[str, str] = {}  #: allocation -> the batch system's word for why, at the last poll
        self.suspended: list[str] = []  #: at the last poll
        self.hopeless: dict[str, str] = {}  #: allocation -> why it can never start, at the last poll
        self.gpus_of_node: dict[str, int] = {}  #: by name, at the last poll that showed the nodes
        self.nodes = nodes
        self.leftovers = Leftovers(log.pool.state.allocations.values())

    @property
    def living(self) -> list[site_state.Allocation]:
        """Those that have not ended, oldest first."""
        return [a for a in self._log.pool.state.allocations.values() if a.state not in ALLOCATION_FINAL]

    @property
    def held(self) -> list[tuple[str, str]]:
        """Those that wait and that the last poll found held, with the batch system's word. What Tidemill has canceled
        since is left out: it would stop a site again that an operator resumes before the next poll."""
        known = self._log.pool.state.allocations
        return [
            (name, word)
            for name, word in self._held
            if name in known and known[name].state is AllocationState.QUEUED and not known[name].canceled_us
        ]

    def queued_reasons(self) -> list[QueuedReason]:
        """Why those wait that the last poll found in the queue, in the batch system's word; the commonest first."""
        known = self._log.pool.state.allocations
        counts = Counter(
            word
            for name, word in self._waiting.items()
            if name in known and known[name].state is AllocationState.QUEUED and not known[name].canceled_us
        )
        result = []
        for word, number in counts.most_common(REASONS_MAX):
            shown, meaning = shown_reason(self._config.batch, word)
            if shown:
                reason = shown[:REASON_CHARACTERS_MAX]
                result.append(QueuedReason(reason=reason, allocations=number, meaning=meaning))
        return result

    def singles(self, names: Iterable[str], *, waiting: bool = False) -> int:
        """How many of these are jobs of their own in the batch system, which counts an array once; of those that still
        wait, with `waiting`."""
        known = self._log.pool.state.allocations
        found = [known[name] for name in names if name in known and split_element(name)[1] is None]
        return sum(not waiting or each.state is AllocationState.QUEUED for each in found)

    def watched(self, now_us: int) -> list[site_state.Allocation]:
        """Those to ask for: the living, and those that were lost not long ago."""
        since_us = now_us - int(LOST_WATCHED_S * 1e6)
        return [
            a
            for a in self._log.pool.state.allocations.values()
            if a.state not in ALLOCATION_FINAL
            or (a.state is AllocationState.LOST and a.ended_us >= since_us and not self._is_local)
        ]

    # ---- asking ----

    def intend(self, ask: AllocationRequest) -> BatchSubmission:
        """Note the intent, one entry whatever the count; the submission may be made once that is durable."""
        state = self._log.pool.state
        name = f"tm-{self._config.name}-e{state.epoch}-{state.next_allocation}"
        now_us = clock.now_us()
        self._log.apply(
            site_state.Intended(
                allocation=name,
                fleet=ask.fleet,
                nodes=ask.nodes,
                cores=ask.cores,
                at_us=now_us,
                count=ask.count,
                walltime_s=ask.walltime_s,
                account=ask.account,
                pool=ask.pool,
                without_gpus=ask.gpus is not GpuUse.ALL,
            )
        )
        element = name if ask.count == 1 else ELEMENT
        command = [
            str(self._binary),
            "run",
            "--fleet",
            str(self._fleets / ask.fleet),
            "--allocation",
            element,
        ]
        command += ["--cores", "1" if ask.wide else str(ask.cores), "--wall-s", str(int(ask.walltime_s))]
        if ask.memory_mb:
            command += ["--memory-mb", str(ask.memory_mb)]
        start_by_s = None
        if not self._is_local and not ask.wide:
            start_by_s = now_us // 1_000_000 + site_constants.START_BY_S
            command += ["--start-by", str(int(start_by_s))]
        contact = self._config.contact
        return BatchSubmission(
            name=name,
            command=command,
            nodes=ask.nodes,
            cores=ask.cores,
            memory_mb=ask.memory_mb,
            walltime_s=ask.walltime_s,
            gpus=(self._config.node.gpus or 0) if ask.gpus is GpuUse.ALL else 0,
            leaves_gpus=ask.gpus is GpuUse.LEAVE,
            environment=dict.fromkeys(GPU_VARIABLES, "") if ask.gpus is GpuUse.LEAVE else {},
            has_gpus=ask.gpus is GpuUse.ALL,
            count=ask.count,
            start_by_s=start_by_s,
            comment=f"site={self._config.name}" + (f" contact={contact}" if contact else ""),
            exclude=ask.exclude,
            avoid=ask.avoid,
            avoid_by=ask.avoid_by,
            features=ask.features,
            partition=ask.partition,
            account=ask.account,
            polite=not ask.wide,
            ranks=not ask.wide,
        )

    def note(self, acted: ActionsDone) -> None:
        """Note what came of acts. What was refused for good has failed; what may have been taken all the same is
        looked for by its name."""
        allocations = self._log.pool.state.allocations
        for submission in acted.acts.submissions:
            elements = [a for a in allocations.values() if a.submission == submission.name]
            batch_id = acted.submitted.get(submission.name)
            if batch_id is not None:
                self._submitted(submission, elements, batch_id)
            elif submission.name in acted.refused:
                self._refused(submission, elements, acted.refused[submission.name])
        for name, end_s in acted.ends_s.items():
            if name in allocations:
                self._shortened(allocations[name], end_s)
        if acted.canceled:
            _log.info("allocation.canceled", allocations=acted.acts.cancel)
        for error in acted.errors:
            _log.warning("batch.refused", reason=error.message, hint=error.hint)

    def _submitted(
        self, submission: BatchSubmission, elements: list[site_state.Allocation], batch_id: str
    ) -> None:
        for allocation in elements:
            if allocation.state is AllocationState.INTENDED:
                self._note(allocation, AllocationState.QUEUED, batch_id, "")
        count, walltime_s = submission.count, submission.walltime_s
        _log.info(
            "allocation.submitted",
            allocation=submission.name,
            batch_id=batch_id,
            count=count,
            walltime_s=walltime_s,
        )

    def _refused(
        self, submission: BatchSubmission, elements: list[site_state.Allocation], error: TidemillError
    ) -> None:
        if not is_transient(error):
            for allocation in elements:
                self._note(allocation, AllocationState.FAILED, "", error.message)
        self._failed_start(submission.name, error.message)

    def _shortened(self, allocation: site_state.Allocation, end_s: float) -> None:
        """Note the end that the batch system has set; its fleet gets its order from that."""
        if allocation.state is AllocationState.ACTIVE:
            self._log.apply(
                site_state.Observed(
                    allocation=allocation.name,
                    state=allocation.state,
                    batch_id=allocation.batch_id,
                    reason=allocation.reason,
                    at_us=clock.now_us(),
                    ends_us=_us(end_s),
                )
            )

    # ---- answers ----

    def apply_statuses(self, statuses: dict[str, Status]) -> bool:
        """Note the states that the batch system reports. Whether anything changed."""
        allocations = self._log.pool.state.allocations
        changed = False
        held: list[tuple[str, str]] = []
        for name, status in statuses.items():
            allocation = allocations.get(name)
            if allocation is not None:
                changed |= self._observe(allocation, status)
                if status.answer is Answer.FOUND and status.held and status.state is AllocationState.QUEUED:
                    held.append((name, status.held))
        self._held = held
        self._waiting = {
            name: status.reason
            for name, status in statuses.items()
            if status.answer is Answer.FOUND and status.state is AllocationState.QUEUED
        }
        self.suspended = [
            name for name, status in statuses.items() if status.suspended and name in allocations
        ]
        self.hopeless = {
            name: status.hopeless
            for name, status in statuses.items()
            if status.hopeless and name in allocations
        }
        return changed

    def silent(self, name: str, why: str) -> None:
        """No pilot of it was ever heard, and we end it: a failed start, of its nodes where there is a quarantine."""
        allocation = self._log.pool.state.allocations[name]
        if allocation.hosts and not self._is_local:
            _log.warning("allocation.silent", allocation=name, nodes=allocation.hosts, reason=why)
            self.nodes.silent(allocation, why, clock.now_us())
        else:
            self._failed_start(name, why)

    def worked(self) -> None:
        """A pilot has worked: allocations start."""
        self.starts_failed = 0

    def _observe(self, allocation: site_state.Allocation, status: Status) -> bool:
        if status.answer is Answer.UNCLEAR:
            self._gone_since.setdefault(allocation.name, clock.monotonic_s())
            return False
        if status.answer is Answer.GONE:
            return self._gone(allocation)
        self._gone_since.pop(allocation.name, None)
        if not _is_news(allocation, status):
            return False
        if (
            allocation.state,
            status.state,
        ) not in ALLOCATION_TRANSITIONS and status.state is not allocation.state:
            _log.warning(
                "allocation.odd",
                allocation=allocation.name,
                was=allocation.state.value,
                told=status.state.value,
            )
            return False
        before, hosts = allocation.state, allocation.hosts
        reason = status.reason + (f": {status.output_tail}" if status.output_tail else "")
        requeued = status.requeued > allocation.requeued
        self._log.apply(
            site_state.Observed(
                allocation=allocation.name,
                state=status.state,
                batch_id=status.batch_id,
                reason=reason,
                at_us=clock.now_us(),
                ending=status.ending.value if status.ending is not Ending.NONE else "",
                hosts=list(status.nodes),
                started_us=_us(status.started_s),
                ends_us=_us(status.ends_s),
                requeued=status.requeued,
                ended_us=_us(status.ended_s),
                cores=status.cores,
                gpus=self._gpus_of(status),
                by=status.canceled_by,
            )
        )
        if before is AllocationState.LOST:
            _log.warning("allocation.found_again", allocation=allocation.name, state=status.state.value)
        if requeued:
            _log.info("allocation.requeued", allocation=allocation.name, times=status.requeued)
        has_moved = allocation.hosts != hosts
        if (
            has_moved or status.state is AllocationState.QUEUED
        ):  # it was queued again, perhaps between two polls
            self.nodes.left(hosts)
        if status.state in ALLOCATION_FINAL:
            self._ended(allocation, status.ending, reason)
        elif status.state is AllocationState.ACTIVE and (before is not status.state or has_moved):
            _log.info(
                "allocation.active",
                allocation=allocation.name,
                batch_id=allocation.batch_id,
                nodes=list(status.nodes),
            )
            self.nodes.started(allocation)
        return True

    def _gpus_of(self, status: Status) -> int:
        """GPUs that an allocation holds: as the batch system says, else those of its nodes."""
        if status.gpus is not None:
            return status.gpus
        return sum(self.gpus_of_node.get(each, 0) for each in status.nodes)

    def _ended(self, allocation: site_state.Allocation, ending: Ending, reason: str) -> None:
        _log.info(
            "allocation.ended",
            allocation=allocation.name,
            state=allocation.state.value,
            ending=ending.value,
            ours=bool(allocation.canceled_us),
            reason=reason,
        )
        if self._is_failed_start(allocation, ending):
            self._failed_start(allocation.name, reason)
        self.nodes.ended(allocation, is_stopped=self._is_stopped)
        self.leftovers.ended(allocation)

    @property
    def _is_stopped(self) -> bool:
        """Whether people have stopped the site: pilots leave then by themselves, and nothing has failed."""
        return self._log.pool.state.stop is not None

    def _is_failed_start(self, allocation: site_state.Allocation, ending: Ending) -> bool:
        if allocation.pilots or allocation.canceled_us or allocation.leaves or self._is_stopped:
            return False
        if allocation.hosts and not self._is_local:
            return False  # it had a node: the quarantine knows whether it is the node or everything
        if ending in (
            Ending.NONE,
            Ending.DONE,
        ):  # a command that ends without a pilot at work did not start one
            return allocation.state is not AllocationState.CANCELED
        return ending in STARTED_FAILED

    def _gone(self, allocation: site_state.Allocation) -> bool:
        """Neither queue nor accounting know it. A submit that was under way may still appear for a while; for one that
        was submitted the adapter has waited. Pilots that reported their end have ended it."""
        if allocation.state is AllocationState.LOST:
            return False
        now = clock.monotonic_s()
        since = self._gone_since.setdefault(allocation.name, now)
        if now - since < self._patience_s(allocation):
            return False
        del self._gone_since[allocation.name]
        if allocation.pilots and allocation.pilots_ended >= allocation.pilots:
            reason = "the batch system has forgotten it; its pilots reported their end"
            if allocation.state is not AllocationState.INTENDED:
                self._note(allocation, AllocationState.COMPLETED, "", reason)
                _log.info("allocation.ended", allocation=allocation.name, state="COMPLETED", reason=reason)
                return True
        reason = "the batch system does not know it"
        self._note(allocation, AllocationState.LOST, "", reason)
        _log.warning("allocation.lost", allocation=allocation.name, reason=reason)
        return True

    def _patience_s(self, allocation: site_state.Allocation) -> float:
        """How long what is gone may still come, since it was not found first."""
        if allocation.state is not AllocationState.INTENDED:
            return 0.0  # adapters say UNCLEAR for UNKNOWN_S
        return INTENT_LOST_S if self._is_local else max(INTENT_LOST_S, batch_constants.COMMAND_TIMEOUT_S)

    def _note(
        self, allocation: site_state.Allocation, state: AllocationState, batch_id: str, reason: str
    ) -> None:
        self._log.apply(
            site_state.Observed(
                allocation=allocation.name,
                state=state,
                batch_id=batch_id,
                reason=reason,
                at_us=clock.now_us(),
                ending=Ending.UNKNOWN.value if state in ALLOCATION_FINAL else "",
            )
        )
        if state in ALLOCATION_FINAL:
            self.nodes.ended(allocation, is_stopped=self._is_stopped)
            self.leftovers.ended(allocation)

    def _failed_start(self, name: str, reason: str) -> None:
        self.starts_failed += 1
        self.last_failed_s = clock.monotonic_s()
        self.why_failed = reason
        _log.warning("allocation.start_failed", allocation=name, times=self.starts_failed, reason=reason)


def gpus_of_node(snapshot: Snapshot) -> dict[str, int]:
    """GPUs by node, of nodes that have any."""
    found = {node.name: dict(node.devices).get("gpu", 0) for node in snapshot.nodes if node.devices}
    return {name: gpus for name, gpus in found.items() if gpus}


def _is_news(allocation: site_state.Allocation, status: Status) -> bool:
    """Whether the status has more than the log."""
    return (
        status.state is not allocation.state
        or status.requeued > allocation.requeued
        or (bool(status.nodes) and list(status.nodes) != allocation.hosts)
        or _differs(status.started_s, allocation.started_us)
        or _differs(status.ends_s, allocation.ends_us)
        or (status.state is AllocationState.ACTIVE and status.cores not in (0, allocation.held_cores))
    )


def _us(at_s: float | None) -> int:
    """Microseconds since 1970; 0 for what is not known and for no limit."""
    return 0 if at_s is None or at_s >= FAR_FUTURE_S else int(at_s * 1e6)


def _differs(status_s: float | None, known_us: int) -> bool:
    """Whether a time differs by more than the second to which batch systems report it."""
    status_us = _us(status_s)
    return bool(status_us) and abs(status_us - known_us) > 1_500_000
