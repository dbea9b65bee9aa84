"""Which nodes are bad: those on which start after start fails fast while others work. Pure.

Only a start that fails soon and before any work was done counts; preemption, walltime, yields and cancellations never
do. Payloads of one owner that fail count only while no other has work: what it runs may fail where it chooses. Where
more nodes fail than work, it is the application, the file system or the network, not the nodes: then starts get rarer
instead, with a bound, and it is said. A node comes back after a time, on trial: one more failure suffices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

import msgspec

from tidemill.model.quantities import counted_text

TRAIL_MAX = 1000
"""Entries of the audit trail that are kept, the newest."""

EVIDENCE_MAX = 5
"""Failures that are kept as evidence for one node, the newest."""

EVIDENCE_CHARS_MAX = 300
OWNERS_MAX = 100
"""Owners whose failures are counted apart."""

FAILED_ENDINGS = frozenset({"failed", "launch"})
"""Those of `batch.contract.Ending` that are failures of a start."""


class QuarantineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As `config.site.Harvest` and the site's back-off have them."""

    starts: int = 3  #: consecutive fast failures that put a node into quarantine
    quarantine_s: float = 86400.0
    fast_failure_s: float = 120.0
    backoff_s: float = 2.0
    backoff_max_s: float = 600.0


class Outcome(StrEnum):
    """What an ended allocation says of its nodes."""

    WORKED = "worked"
    FAILED_FAST = "failed_fast"  #: or never came to work at all
    NOTHING = "nothing"  #: it neither worked nor failed by the node's fault


class AllocationEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an allocation ended. `ending`: the value of `batch.contract.Ending`; `ordered`: we ended it."""

    ending: str
    lived_s: float
    did_work: bool  #: a range of it ran
    payloads_failed: int = 0  #: payloads that failed there
    owners: Collection[str] = ()  #: whose payloads these were; empty = not known
    ordered: bool = False
    silent: bool = False  #: it was ended because no pilot of it was ever heard
    evidence: str = ""  #: the last line that it printed, or the batch system's reason


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit trail: why a node is not used, from when until when."""

    node: str
    since_s: float
    until_s: float
    why: str
    evidence: list[str]
    owner: str = ""  #: nothing but payloads of this owner failed there


class QuarantineVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. `exclude`: nodes in quarantine, for the next submissions; `new`: those since the last verdict.

    `pause_s`: seconds to wait before the next start, 0 = no wait; then start at most `tries`. `why`: the reason, as
    text for operators.
    """

    exclude: tuple[str, ...] = ()
    new: list[Sentence] = []
    pause_s: float = 0.0
    tries: int | None = None
    why: str = ""


class NodeRecord(msgspec.Struct, kw_only=True):
    """What is remembered of a node. `on_trial`: it was in quarantine and has not worked since."""

    failures: int = 0  #: fast, one after the other
    failed_s: float = 0.0
    longest_s: float = 0.0  #: that a failing start of the row has lived
    worked_s: float = 0.0
    running_s: float = 0.0  #: start of the allocation that runs there, 0 = none
    until_s: float = 0.0
    on_trial: bool = False
    evidence: list[str] = []
    owners: list[str] = []  #: whose payloads failed, each once; an empty name: of several, or the node itself


class State(msgspec.Struct, kw_only=True):
    """All that is remembered; can be written as JSON and taken up by the next agent."""

    nodes: dict[str, NodeRecord] = {}
    trail: list[Sentence] = []
    failures: int = 0  #: fast ones anywhere, since anything worked
    of_owners: dict[str, int] = {}  #: those of payloads of one owner, by its name
    failed_s: float = 0.0


def outcome_of(end: AllocationEnd, settings: QuarantineSettings) -> Outcome:
    """Whether an allocation's end counts for or against its nodes."""
    if end.did_work:
        return Outcome.WORKED
    if end.silent:
        return Outcome.FAILED_FAST
    if end.ordered or end.lived_s > settings.fast_failure_s:
        return Outcome.NOTHING
    if end.ending in FAILED_ENDINGS or (end.ending == "done" and end.payloads_failed):
        return Outcome.FAILED_FAST
    return Outcome.NOTHING


def blamed(end: AllocationEnd) -> str:
    """Whose payloads alone made a start count as failed; empty = those of several owners, or the node itself."""
    is_of_payloads = end.ending not in FAILED_ENDINGS and not end.silent
    return next(iter(end.owners)) if is_of_payloads and len(end.owners) == 1 else ""


def counts_for(of: Collection[str], owners: Collection[str] | None) -> bool:
    """Whether failures `of` these owners' payloads (empty name = not of one alone) count, where the work of
    `owners` runs or could run: by two of them, or if no other is there. None = who has work is not known."""
    return owners is None or len(of) != 1 or "" in of or set(owners) <= set(of)


class Quarantine:
    """Takes starts and ends of allocations, gives verdicts."""

    def __init__(self, settings: QuarantineSettings, state: State | None = None) -> None:
        self._settings = settings
        self.state = state or State()
        self._new: list[Sentence] = []

    def started(self, nodes: Iterable[str], at_s: float) -> None:
        """An allocation runs on these nodes."""
        for name in nodes:
            self._record(name).running_s = at_s

    def left(self, nodes: Iterable[str]) -> None:
        """An allocation was queued again, or lost: it does not run on these nodes any more."""
        for name in nodes:
            self._record(name).running_s = 0.0

    def worked(self, nodes: Iterable[str], at_s: float) -> bool:
        """Work was done on these nodes: whatever failed there before is forgiven. Whether there was anything."""
        is_forgiven = self.state.failures > 0 or bool(self.state.of_owners)
        for name in nodes:
            record = self._record(name)
            is_forgiven |= record.failures > 0 or record.on_trial
            record.failures, record.evidence, record.on_trial, record.owners = 0, [], False, []
            record.longest_s = 0.0
            record.worked_s = at_s
        self.state.failures, self.state.of_owners = 0, {}
        return is_forgiven

    def ended(self, nodes: Iterable[str], end: AllocationEnd, at_s: float) -> Outcome:
        """Note that an allocation has ended on these nodes; return its outcome."""
        names = list(nodes)
        outcome, owner = outcome_of(end, self._settings), blamed(end)
        self.left(names)
        if outcome is Outcome.WORKED:
            self.worked(names, at_s)
        elif outcome is Outcome.FAILED_FAST:
            if not owner:
                self.state.failures += 1
            elif owner in self.state.of_owners or len(self.state.of_owners) < OWNERS_MAX:
                self.state.of_owners[owner] = self.state.of_owners.get(owner, 0) + 1
            self.state.failed_s = at_s
            for name in names:
                self._failed(self._record(name), end, at_s, owner)
        return outcome

    def judge(self, now_s: float, owners: Collection[str] | None = None) -> QuarantineVerdict:
        """What follows from all that was seen so far, where these owners have work; None = that is not known."""
        self._release(now_s)
        fresh = now_s - self._settings.quarantine_s
        records = self.state.nodes.items()
        failing = {name: r for name, r in records if r.until_s > now_s or (r.failures and r.failed_s > fresh)}
        slowest_s = max((record.longest_s for record in failing.values()), default=0.0)
        healthy = [
            name
            for name, r in records
            if name not in failing and (r.worked_s > fresh or 0 < r.running_s < now_s - slowest_s)
        ]
        # Nodes that fail are bad only as long as most others do work.
        if len(failing) <= len(healthy):
            for name, record in failing.items():
                if record.until_s <= now_s and record.failures >= self._allowed(record):
                    self._sentence(name, record, now_s, healthy=len(healthy))
        exclude = tuple(
            sorted(
                name
                for name, record in records
                if record.until_s > now_s and counts_for(record.owners, owners)
            )
        )
        new, self._new = self._new, []
        failures = self._failures(owners)
        pause_s = self._pause_s(failures, now_s)
        if len(failing) <= len(healthy) or not failures:
            return QuarantineVerdict(exclude=exclude, new=new)
        why = (
            f"starts fail on {counted_text(len(failing), 'node')} and work on {len(healthy)}: "
            "no fault of single nodes; "
            f"{counted_text(failures, 'failure')} since anything worked, {_last(failing.values())}"
        )
        return QuarantineVerdict(exclude=exclude, new=new, pause_s=pause_s, tries=1, why=why)

    def pardon(self, node: str) -> None:
        """Use a node again, for an operator has repaired it."""
        self.state.nodes.pop(node, None)

    def _record(self, name: str) -> NodeRecord:
        return self.state.nodes.setdefault(name, NodeRecord())

    def _allowed(self, record: NodeRecord) -> int:
        return 1 if record.on_trial else self._settings.starts

    def _failures(self, owners: Collection[str] | None) -> int:
        """Those since anything worked that count where these owners have work."""
        of = self.state.of_owners
        return self.state.failures + (sum(of.values()) if of and counts_for(of, owners) else 0)

    def _failed(self, record: NodeRecord, end: AllocationEnd, at_s: float, owner: str) -> None:
        record.failures += 1
        if owner not in record.owners and len(record.owners) < 2:  # two are as good as more
            record.owners.append(owner)
        record.failed_s = at_s
        record.longest_s = max(record.longest_s, end.lived_s)
        text = end.evidence.strip()[:EVIDENCE_CHARS_MAX] or end.ending
        record.evidence = [*record.evidence, f"after {end.lived_s:.1f} s: {text}"][-EVIDENCE_MAX:]

    def _sentence(self, name: str, record: NodeRecord, now_s: float, *, healthy: int) -> None:
        times = "once more after its quarantine" if record.on_trial else f"{record.failures} times in a row"
        sentence = Sentence(
            node=name,
            since_s=now_s,
            until_s=now_s + self._settings.quarantine_s,
            why=f"starts failed fast {times} while others worked ({healthy})",
            evidence=list(record.evidence),
            owner=record.owners[0] if len(record.owners) == 1 else "",
        )
        record.until_s = sentence.until_s
        self._new.append(sentence)
        self.state.trail = [*self.state.trail, sentence][-TRAIL_MAX:]

    def _release(self, now_s: float) -> None:
        """End quarantines whose time is over; forget nodes of which nothing bad is known any more."""
        fresh = now_s - self._settings.quarantine_s
        for name, record in list(self.state.nodes.items()):
            if 0 < record.until_s <= now_s:
                record.until_s, record.failures, record.on_trial, record.owners = 0.0, 0, True, []
            old = max(record.failed_s, record.worked_s, record.running_s) <= fresh
            if old and not record.until_s and not record.on_trial and not record.running_s:
                del self.state.nodes[name]

    def _pause_s(self, failures: int, now_s: float) -> float:
        """Seconds still to wait after failures everywhere: doubled with each, bounded."""
        if not failures:
            return 0.0
        doublings = min(failures - 1, 30)
        whole_s = min(self._settings.backoff_s * 2.0**doublings, self._settings.backoff_max_s)
        return max(0.0, self.state.failed_s + whole_s - now_s)


def _last(records: Iterable[NodeRecord]) -> str:
    newest = max(records, key=lambda record: record.failed_s)
    return f"the last {newest.evidence[-1]}" if newest.evidence else "no evidence left"
