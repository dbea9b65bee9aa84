"""Allocations: asked for as the plan says, followed by one query per poll, found again by name after a crash."""

from __future__ import annotations

from pathlib import Path

from tidemill import clock
from tidemill.batch.contract import Answer, BatchSystem, Machine, Status, Submission
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.harvest.plan import Demand, Held, Limits, Plan, plan
from tidemill.log import Log
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site import state as s
from tidemill.site.identity import Identity
from tidemill.site.log import SiteLog

INTENT_LOST_S = 10.0
"""An intent that the batch system does not know so long after our submit call ended has come to nothing."""

SUBMITS_PER_TICK = 20
_log = Log("allocations")


class Allocations:
    """What we hold in the batch system."""

    def __init__(self, log: SiteLog, batch: BatchSystem, config: SiteConfig, *, binary: Path) -> None:
        self._log = log
        self._batch = batch
        self._config = config
        self._binary = binary
        self._next_poll_s = 0.0
        self._starts_failed = 0
        self._last_failed_s = 0.0
        self._gone_since: dict[str, float] = {}
        self.machine = batch.machine()
        self.waits_for: str | None = None

    @property
    def living(self) -> list[s.Allocation]:
        """Those that have not ended, oldest first."""
        return [a for a in self._log.pool.state.allocations.values() if a.state not in ALLOCATION_FINAL]

    @property
    def cores(self) -> int:
        """Cores of all nodes that we may hold."""
        return min(self._config.nodes_max, self.machine.nodes) * self.machine.cores_per_node

    def poll(self) -> bool:
        """Ask the batch system for news when it is time; note them in the log. Whether anything changed."""
        now = clock.monotonic_s()
        living = self.living
        if now < self._next_poll_s or not living:
            return False
        self._next_poll_s = now + self._config.batch_poll_s
        try:
            answers = self._batch.status([a.name for a in living])
            self.machine = self._batch.machine()
        except SiteError as error:
            _log.warning("batch.away", reason=error.message)
            return False
        return any([self._observe(a, answers.get(a.name)) for a in living])

    def hurry(self) -> None:
        """Poll at the next tick."""
        self._next_poll_s = 0.0

    def step(self, fleet: str, demand: Demand, identity: Identity) -> bool:
        """Submit and cancel what the plan says. Whether anything was done."""
        decided = self._plan(demand)
        if decided.waits_for != self.waits_for:
            self.waits_for = decided.waits_for
            if decided.waits_for:
                _log.warning("allocation.waits", reason=decided.waits_for)
        if decided.cancel:
            self.cancel(decided.cancel, identity)
        names = [self._intend(fleet) for _ in range(min(decided.submit, SUBMITS_PER_TICK))]
        if names:
            self._log.commit()
        for name in names:
            self._submit(name, identity)
        return bool(names or decided.cancel)

    def cancel(self, names: list[str], identity: Identity) -> None:
        """Give allocations back."""
        identity.check()
        try:
            self._batch.cancel(names)
        except SiteError as error:
            _log.warning("cancel.failed", names=names, reason=error.message)
            return
        self.hurry()
        _log.info("allocation.canceled", names=names)

    def _plan(self, demand: Demand) -> Plan:
        living = self.living
        active = sum(a.state is AllocationState.ACTIVE for a in living)
        waiting = [a.name for a in reversed(living) if a.state is not AllocationState.ACTIVE]
        return plan(
            demand,
            Held(active=active, waiting=waiting),
            Limits(
                nodes_max=self._config.nodes_max,
                machine_nodes=self.machine.nodes,
                cores_per_node=self.machine.cores_per_node,
                starts_failed=self._starts_failed,
                last_failed_s=self._last_failed_s,
                backoff_s=self._config.start_backoff_s,
                backoff_max_s=self._config.start_backoff_max_s,
            ),
            now_s=clock.monotonic_s(),
        )

    def _intend(self, fleet: str) -> str:
        state = self._log.pool.state
        name = f"tm-{self._config.name}-e{state.epoch}-{state.next_allocation}"
        self._log.apply(
            s.Intended(
                allocation=name,
                fleet=fleet,
                nodes=1,
                cores=self.machine.cores_per_node,
                at_us=clock.now_us(),
            )
        )
        return name

    def _submit(self, name: str, identity: Identity) -> None:
        """Ask for an allocation whose intent is durable."""
        allocation = self._log.pool.state.allocations[name]
        machine: Machine = self.machine
        fleet = self._fleet_directory(allocation.fleet)
        command = [str(self._binary), "run", "--fleet", str(fleet), "--allocation", name]
        command += ["--cores", str(allocation.cores), "--memory-mb", str(machine.memory_mb_per_node)]
        command += ["--wall-s", str(int(self._config.walltime_s))]
        identity.check()
        try:
            batch_id = self._batch.submit(
                Submission(
                    name=name,
                    command=command,
                    nodes=1,
                    cores=allocation.cores,
                    memory_mb=machine.memory_mb_per_node,
                    walltime_s=self._config.walltime_s,
                )
            )
        except SiteError as error:
            if not error.transient:
                self._note(allocation, AllocationState.FAILED, "", error.message)
            self._failed_start(allocation, error.message)
            return
        self._note(allocation, AllocationState.QUEUED, batch_id, "")
        self.hurry()
        _log.info("allocation.submitted", name=name, batch_id=batch_id)

    def _fleet_directory(self, fleet: str) -> Path:
        return self.fleets_directory / fleet

    fleets_directory: Path = Path()

    def _observe(self, allocation: s.Allocation, status: Status | None) -> bool:
        if status is None or status.answer is Answer.UNCLEAR:
            return False
        if status.answer is Answer.GONE:
            return self._gone(allocation)
        self._gone_since.pop(allocation.name, None)
        if status.state is allocation.state:
            return False
        reason = status.reason + (f": {status.output_tail}" if status.output_tail else "")
        self._note(allocation, status.state, status.batch_id, reason)
        if status.state in ALLOCATION_FINAL:
            if allocation.pilots == 0 and status.state is not AllocationState.CANCELED:
                self._failed_start(allocation, reason)
            _log.info("allocation.ended", name=allocation.name, state=status.state.value, reason=reason)
        elif status.state is AllocationState.ACTIVE:
            _log.info("allocation.active", name=allocation.name)
        return True

    def _gone(self, allocation: s.Allocation) -> bool:
        """The batch system does not know it. A submit that was under way may still appear for a while."""
        now = clock.monotonic_s()
        since = self._gone_since.setdefault(allocation.name, now)
        if allocation.state is AllocationState.INTENDED and now - since < INTENT_LOST_S:
            return False
        del self._gone_since[allocation.name]
        self._note(allocation, AllocationState.LOST, "", "the batch system does not know it")
        _log.warning("allocation.lost", name=allocation.name)
        return True

    def _note(self, allocation: s.Allocation, state: AllocationState, batch_id: str, reason: str) -> None:
        self._log.apply(
            s.Observed(
                allocation=allocation.name,
                state=state,
                batch_id=batch_id,
                reason=reason,
                at_us=clock.now_us(),
            )
        )

    def worked(self) -> None:
        """A pilot has worked: allocations start."""
        self._starts_failed = 0

    def _failed_start(self, allocation: s.Allocation, reason: str) -> None:
        self._starts_failed += 1
        self._last_failed_s = clock.monotonic_s()
        _log.warning(
            "allocation.start_failed", name=allocation.name, times=self._starts_failed, reason=reason
        )
