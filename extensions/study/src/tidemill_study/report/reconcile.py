"""Whether Tidemill's own account of a month agrees with the batch system's, by batch id. Pure.

Hours are those between the month's first and last second (UTC), on both sides. What was charged to an account that is
named as a grant is granted, everything else that is known is harvested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from tidemill.batch.names import is_allocation_name
from tidemill_study.accounting.past_jobs import PastJob

HOUR_S = 3600.0
AGREE_SHARE = 0.01
TIMES_DIFFER_S = 60
"""Starts and ends that lie closer are the same: Tidemill sees them by polls."""


class Charge(StrEnum):
    """To whom hours are charged."""

    GRANTED = "granted"
    HARVESTED = "harvested"
    UNKNOWN = "account not known"  #: only Tidemill knows the allocation, and not its account


class Mismatch(StrEnum):
    """Why an allocation's hours differ."""

    ONLY_HERE = "only in Tidemill"
    ONLY_THERE = "only in the accounting"
    NODES = "numbers of nodes differ"
    START = "starts differ"
    END = "ends differ"
    RUNNING = "has not ended in one of them"


class OwnAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation as Tidemill knows it. `cores` of a node, 0 = not known; times in seconds."""

    batch_id: str
    name: str
    nodes: int
    cores: int
    start_s: int
    end_s: int | None


class AccountMonth(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: a site, a month such as `2026-10`, and the accounts that are grants."""

    site: str
    month: str
    grants: frozenset[str] = frozenset()


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation in one of the two accounts, in the month: several runs of one id are one."""

    nodes: int
    start_s: int
    end_s: int | None
    node_h: float
    core_h: float | None


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation on both sides, or on one. `reason` None: they agree."""

    batch_id: str
    name: str
    account: str
    kind: Charge
    here: Side | None
    there: Side | None
    reason: Mismatch | None

    @property
    def difference_h(self) -> float:
        """Node-hours here minus there."""
        return (self.here.node_h if self.here else 0.0) - (self.there.node_h if self.there else 0.0)


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one kind, or of all; core-hours are None where a part of them is not known."""

    kind: str
    allocations: int
    node_h_here: float
    node_h_there: float
    core_h_here: float | None
    core_h_there: float | None


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """A month. `difference`: share of the accounting's node-hours by which the totals differ, None = it has none."""

    site: str
    month: str
    start_s: int
    end_s: int
    totals: list[Total]
    difference: float | None
    is_agreed: bool
    differing: list[Pair]
    pairs: list[Pair]
    remarks: list[str] = []


def month_span(month: str) -> tuple[int, int]:
    """First second of a month such as `2026-10`, and of the next (UTC). Raises ValueError."""
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp()), int(after.timestamp())


def plain_id(batch_id: str) -> str:
    """A batch id without the server that PBS adds to it: `123.server`, `12[3].server`."""
    return batch_id.partition(".")[0]


def own_jobs(
    jobs: Iterable[PastJob], ids: Collection[str], *, user: str | None, span: tuple[int, int]
) -> list[PastJob]:
    """The jobs of an accounting log that are Tidemill's and held nodes in the span: by id, by name, or all of a user.

    `ids` are plain ones.
    """
    first_s, last_s = span
    result = []
    for job in jobs:
        if job.start_s is None or job.start_s >= last_s or (job.end_s is not None and job.end_s <= first_s):
            continue
        is_users = user is not None and job.user == user
        if plain_id(job.id) in ids or is_allocation_name(job.name) or is_users:
            result.append(job)
    return result


def reconcile(
    asked: AccountMonth, ours: Iterable[OwnAllocation], theirs: Iterable[PastJob], *, now_s: int
) -> Reconciliation:
    """Compare both accounts of a month; `now_s` ends what still runs."""
    span = month_span(asked.month)
    end_s = min(span[1], max(now_s, span[0]))
    here: dict[str, list[OwnAllocation]] = {}
    for own in ours:
        if own.start_s < span[1] and (own.end_s is None or own.end_s > span[0]):
            here.setdefault(plain_id(own.batch_id) or own.name, []).append(own)
    there: dict[str, list[PastJob]] = {}
    for job in theirs:
        there.setdefault(plain_id(job.id), []).append(job)
    pairs = [
        _pair(id, here.get(id, []), there.get(id, []), grants=asked.grants, span=(span[0], end_s))
        for id in sorted({*here, *there}, key=lambda each: (len(each), each))
    ]
    totals = [_total(kind.value, [each for each in pairs if each.kind is kind]) for kind in Charge]
    totals = [*(each for each in totals if each.allocations), _total("all", pairs)]
    whole = totals[-1]
    off = abs(whole.node_h_here - whole.node_h_there)
    return Reconciliation(
        site=asked.site,
        month=asked.month,
        start_s=span[0],
        end_s=end_s,
        totals=totals,
        difference=off / whole.node_h_there if whole.node_h_there > 0 else None,
        is_agreed=off <= AGREE_SHARE * whole.node_h_there,
        differing=sorted((each for each in pairs if each.reason), key=lambda each: -abs(each.difference_h)),
        pairs=pairs,
    )


def _pair(
    id: str,
    ours: Sequence[OwnAllocation],
    theirs: Sequence[PastJob],
    *,
    grants: Collection[str],
    span: tuple[int, int],
) -> Pair:
    own = [(each.start_s, each.end_s, each.nodes, each.nodes * each.cores) for each in ours]
    here = _side(own, span)
    there = _side([(each.start_s or 0, each.end_s, each.nodes, each.cores) for each in theirs], span)
    account = theirs[0].account if theirs else ""
    kind = Charge.UNKNOWN if not theirs else Charge.GRANTED if account in grants else Charge.HARVESTED
    return Pair(
        batch_id=ours[0].batch_id if ours else theirs[0].id if theirs else id,
        name=ours[0].name if ours else theirs[0].name if theirs else "",
        account=account,
        kind=kind,
        here=here,
        there=there,
        reason=_reason(here, there),
    )


def _side(runs: Sequence[tuple[int, int | None, int, int]], span: tuple[int, int]) -> Side | None:
    """Node-hours and core-hours of runs (start, end, nodes, cores): cores 0 = not known."""
    if not runs:
        return None
    node_s = core_s = 0
    for start_s, end_s, nodes, cores in runs:
        held_s = max(0, min(span[1], span[1] if end_s is None else end_s) - max(span[0], start_s))
        node_s += held_s * nodes
        core_s += held_s * cores
    last = max(runs, key=lambda each: each[0])
    return Side(
        nodes=last[2],
        start_s=min(each[0] for each in runs),
        end_s=last[1],
        node_h=node_s / HOUR_S,
        core_h=core_s / HOUR_S if all(each[3] for each in runs) else None,
    )


def _reason(here: Side | None, there: Side | None) -> Mismatch | None:
    if here is None:
        return Mismatch.ONLY_THERE
    if there is None:
        return Mismatch.ONLY_HERE
    if here.nodes != there.nodes:
        return Mismatch.NODES
    if abs(here.start_s - there.start_s) > TIMES_DIFFER_S:
        return Mismatch.START
    if (here.end_s is None) != (there.end_s is None):
        return Mismatch.RUNNING
    if here.end_s is not None and there.end_s is not None and abs(here.end_s - there.end_s) > TIMES_DIFFER_S:
        return Mismatch.END
    return None


def _total(kind: str, pairs: Sequence[Pair]) -> Total:
    here = [each.here for each in pairs if each.here is not None]
    there = [each.there for each in pairs if each.there is not None]
    return Total(
        kind=kind,
        allocations=len(pairs),
        node_h_here=sum(each.node_h for each in here),
        node_h_there=sum(each.node_h for each in there),
        core_h_here=_sum([each.core_h for each in here]),
        core_h_there=_sum([each.core_h for each in there]),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None
