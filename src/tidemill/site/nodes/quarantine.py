"""Which nodes are bad, kept across restarts: `harvest/snapshot/quarantine.py` decides, this module feeds it.

SITE/quarantine.json      quarantine.State, written when something is worth remembering
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from tidemill.batch.kinds import kind_of
from tidemill.config.site import SiteConfig
from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import read_bounded, write_durable
from tidemill.harvest.snapshot.quarantine import (
    AllocationEnd,
    Outcome,
    Quarantine,
    QuarantineSettings,
    QuarantineVerdict,
    Sentence,
    State,
)
from tidemill.log import Log
from tidemill.model.job import Resources
from tidemill.site import constants
from tidemill.site.applications.programs import NodeShape
from tidemill.site.nodes.costs import Costs
from tidemill.site.state.site_state import Allocation, SiteJob

STATE_BYTES_MAX = 64 << 20

QUARANTINE_S = 86400.0
"""A node stays in quarantine for a day: the centre's staff repair nodes in working hours."""

FAST_FAILURE_S = 120.0
"""A start that fails within this time is a fast failure; slow file systems need a minute."""

_log = Log("quarantine")


def owners_at_work(
    jobs: Iterable[SiteJob], shape: NodeShape, nodes_max: int, is_waiting: Callable[[int], bool]
) -> set[str]:
    """Whose work runs at the site, or could on its nodes: a job that only lies here would keep a bad node in use."""
    found: set[str] = set()
    for job in jobs:
        if job.owner not in found and (job.grants or (job.ready and not job.stopping)):
            could_run = _fits(job.spec.resources, shape, nodes_max) and not is_waiting(job.id)
            if job.grants or could_run:
                found.add(job.owner)
    return found


def _fits(resources: Resources, shape: NodeShape, nodes_max: int) -> bool:
    """Whether the widest node of the site is enough, as far as the job itself says what it needs."""
    return (
        (resources.cores or 1) <= shape.cores
        and (not shape.memory_mb or (resources.memory_mb or 0) <= shape.memory_mb)
        and all(count <= shape.devices.get(kind, 0) for kind, count in (resources.devices or {}).items())
        and (resources.width is None or resources.width.nodes <= nodes_max)
    )


class NodeQuarantine:
    """The quarantine of one site."""

    def __init__(self, path: Path, config: SiteConfig, costs: Costs) -> None:
        self._path = path
        self._batch = config.batch
        self._costs = costs
        settings = QuarantineSettings(
            starts=constants.QUARANTINE_STARTS,
            quarantine_s=QUARANTINE_S,
            fast_failure_s=FAST_FAILURE_S,
            backoff_s=constants.START_BACKOFF_S,
            backoff_max_s=constants.START_BACKOFF_MAX_S,
        )
        self._quarantine = Quarantine(settings, _read(path))
        self._is_news = False
        self.verdict = QuarantineVerdict()

    def started(self, allocation: Allocation) -> None:
        """Note that an allocation runs."""
        self._quarantine.started(allocation.hosts, allocation.started_us / 1e6)

    def left(self, nodes: Iterable[str]) -> None:
        """Note nodes on which an allocation does not run any more, although it has not ended."""
        self._quarantine.left(nodes)

    def ended(self, allocation: Allocation, *, is_stopped: bool = False) -> None:
        """Judge the nodes of an allocation that has ended, as its record says. `is_stopped`: while its site
        was stopped, so that its pilots left."""
        done, failed = self._costs.outcomes(allocation.name)
        owners = self._costs.owners_of_failed(allocation.name)
        why = self._costs.why_failed(allocation.name)
        self._costs.forget(allocation.name)
        if not allocation.hosts:
            return
        lived_us = allocation.ended_us - (allocation.started_us or allocation.ended_us)
        end = AllocationEnd(
            ending=allocation.ending,
            lived_s=max(0, lived_us) / 1e6,
            did_work=done > 0,
            payloads_failed=failed,
            owners=owners,
            ordered=bool(allocation.canceled_us or allocation.leaves) or is_stopped,
            evidence=allocation.reason or why,
        )
        state = self._quarantine.state
        had_failed = bool(state.failures or state.of_owners)
        outcome = self._quarantine.ended(allocation.hosts, end, allocation.ended_us / 1e6)
        is_forgiven = had_failed and not (state.failures or state.of_owners)
        self._is_news |= outcome is Outcome.FAILED_FAST or is_forgiven

    def silent(self, allocation: Allocation, why: str, now_us: int) -> None:
        """Judge the nodes of an allocation that has run for long without a pilot's report, and is ended."""
        since_us = allocation.started_us or now_us
        lived_s = max(0, now_us - since_us) / 1e6
        end = AllocationEnd(ending="failed", lived_s=lived_s, did_work=False, silent=True, evidence=why)
        self._quarantine.ended(allocation.hosts, end, now_us / 1e6)
        self._is_news = True

    def on_first_work(self, allocations: Mapping[str, Allocation]) -> None:
        """First work was done in some allocations: that counts for their nodes, however long they go on."""
        for name, at_us in self._costs.take_first():
            if name in allocations and allocations[name].hosts:
                # An agent that starts later must not take up what has been forgiven.
                self._is_news |= self._quarantine.worked(allocations[name].hosts, at_us / 1e6)

    @property
    def sentenced_s(self) -> float:
        """When the newest of the nodes in quarantine went there, where later submissions exclude it; 0 = there is none,
        or the batch system cannot exclude nodes."""
        if self._batch != "local" and not kind_of(self._batch).excludes_nodes:
            return 0.0
        serving = set(self.verdict.exclude)
        since = (each.since_s for each in reversed(self._quarantine.state.trail) if each.node in serving)
        return next(since, 0.0)

    def serving(self) -> list[Sentence]:
        """The nodes in quarantine with their latest sentences, the newest first."""
        found = {each.node: each for each in self._quarantine.state.trail}
        nodes = (
            found.get(name, Sentence(node=name, since_s=0.0, until_s=0.0, why="", evidence=[]))
            for name in self.verdict.exclude
        )
        return sorted(nodes, key=lambda each: -each.since_s)

    def judge(self, now_s: float, owners: Collection[str] | None = None) -> QuarantineVerdict:
        """What follows now, where these owners have work here; None = that is not known."""
        self.verdict = self._quarantine.judge(now_s, owners)
        for each in self.verdict.new:
            _log.warning(
                "node.quarantined", node=each.node, until_s=each.until_s, why=each.why, evidence=each.evidence,
                owner=each.owner,
            )  # fmt: skip
        if self._is_news or self.verdict.new:
            self._is_news = False
            try:
                write_durable(self._path, msgspec.json.encode(self._quarantine.state))
            except SiteError as error:
                _log.error("quarantine.unwritten", reason=error.message)
        return self.verdict


def _read(path: Path) -> State | None:
    """What an earlier agent remembered. A file that cannot be read costs some failed starts, no more."""
    content = read_bounded(path, STATE_BYTES_MAX)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=State)
    except UNDECODABLE as error:
        _log.error("quarantine.unreadable", path=str(path), reason=str(error))
        return None
