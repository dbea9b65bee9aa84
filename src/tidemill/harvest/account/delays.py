"""The broker's records (`harvest/account/broker_log.py`) as an account: each regular job's wait, the part that Tidemill
caused, evidence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidemill.errors import ProtocolError, SiteError
from tidemill.harvest.account import broker_log
from tidemill.harvest.account.harm import PLANS_MAX, Totals, add, kind_of, part_of, wait_of
from tidemill.harvest.account.promise import PromiseState, class_verdict
from tidemill.harvest.account.waits import change, delay
from tidemill.model.figures.job_classes import LENGTHS, SIZES, UNKNOWN

DAY_S = 86400.0
CANNOT_KNOW = (
    "An estimate: there is no run without Tidemill to compare with. It counts how long jobs waited for nodes that "
    "Tidemill held. A part lies between its bounds: the lower one is what polls saw, the upper one adds what may have "
    "happened between two polls; submission and start are the batch system's own times, so no part is more than the "
    "wait. It does not count jobs that moved back in the queue because of that, nor jobs that started earlier."
)


class YieldAct(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that yielded to a job, and the allocations that were canceled by it."""

    plan: str
    at_s: float
    why: str
    canceled: list[str]
    canceled_s: float | None  #: when, None = nothing was canceled


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """One regular job. `wait_s` None = its submission is not known; `state`: `started`, `left` (unseen), `waiting`.
    `share_s`: the part that Tidemill caused, with its bounds `share_low_s` and `share_high_s`."""

    id: str
    user: str
    width: int
    state: str
    submitted_s: float | None
    could_start_s: float | None
    started_s: float | None
    wait_s: float | None
    share_s: float
    uncertainty_s: float
    evidence: list[YieldAct]
    share_low_s: float = 0.0
    share_high_s: float = 0.0


class ClassHarm(msgspec.Struct, frozen=True, kw_only=True):
    """Regular jobs of a class of size, of length (by the walltime that they asked for), or of both.

    Means of what they waited (`wait_s`) and of Tidemill's part of it (`share_s`), which is `share_of_wait` of all that
    they waited; `..low` and `..high` are 95 % bounds over the jobs, None with a single one. `uncertainty_s`: mean of
    what single estimates may be wrong by. `verdict`: against the promise (`harvest.account.promise`), as if the
    estimate were the truth.
    """

    size: str
    length: str
    jobs: int
    delayed: int
    wait_s: float
    share_s: float
    share_low_s: float | None
    share_high_s: float | None
    share_of_wait: float | None
    share_of_wait_low: float | None
    share_of_wait_high: float | None
    uncertainty_s: float
    verdict: PromiseState


class Harm(msgspec.Struct, frozen=True, kw_only=True):
    """The harm of all regular jobs. `unreadable`: lines that are not valid records (a crash may tear one)."""

    jobs: list[Delay]
    totals: Totals
    unreadable: int
    by_size: list[ClassHarm] = []
    by_length: list[ClassHarm] = []
    by_size_and_length: list[ClassHarm] = []
    note: str = CANNOT_KNOW


def read_records(directory: Path, since_s: float | None = None) -> tuple[list[broker_log.AnyRecord], int]:
    """The records of a site's `harvest` directory, oldest first, and the number of lines that are not valid records.

    With `since_s` files of days before the day before are passed over. Raises SiteError when a file cannot be read.
    """
    first = "" if since_s is None else broker_log.file_name(max(0.0, since_s - DAY_S))
    found: list[broker_log.AnyRecord] = []
    unreadable = 0
    for path in sorted(directory.glob("*.jsonl")):
        if path.name < first:
            continue
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise SiteError(f"failed to read `{path}`: {error.strerror}", transient=False) from error
        for line in lines:
            try:
                found.append(broker_log.decode(line))
            except ProtocolError:
                unreadable += 1
    return found, unreadable


def harm(
    records: Iterable[broker_log.AnyRecord],
    *,
    unreadable: int = 0,
    since_s: float = 0.0,
    job: str | None = None,
) -> Harm:
    """The delays of regular jobs that started (or left) since then, in that order; with `job`, of one only.

    Jobs that still wait although they could start without Tidemill come last; the totals leave them out.
    """
    plans: dict[str, broker_log.PlanMade] = {}
    cancels: dict[str, list[broker_log.Canceled]] = {}
    yields: dict[str, list[str]] = {}
    started: list[broker_log.RegularStarted] = []
    now_s = 0.0
    for record in records:
        now_s = max(now_s, record.at_s)
        if isinstance(record, broker_log.PlanMade):
            plans[record.plan] = record
            for name in record.yields_to:
                yields.setdefault(name, []).append(record.plan)
        elif isinstance(record, broker_log.Canceled):
            cancels.setdefault(record.plan, []).append(record)
        elif isinstance(record, broker_log.RegularStarted):
            yields.pop(record.id, None)
            if record.at_s >= since_s and job in (None, record.id):
                started.append(record)
    totals = Totals()
    jobs = []
    for each in started:
        totals = add(totals, each)
        jobs.append(_delay(each, [_act(name, plans, cancels) for name in each.plans]))
    for name, names in yields.items():
        if job in (None, name) and plans[names[-1]].at_s >= since_s:
            acts = [_act(plan, plans, cancels) for plan in names[:PLANS_MAX]]
            jobs.append(_waiting(name, acts, now_s))
    nodes = max((plan.nodes for plan in plans.values()), default=0)
    sizes, lengths, both = by_class(started, nodes)
    return Harm(
        jobs=jobs,
        totals=totals,
        unreadable=unreadable,
        by_size=sizes,
        by_length=lengths,
        by_size_and_length=both,
    )


def by_class(
    started: Iterable[broker_log.RegularStarted], nodes: int
) -> tuple[list[ClassHarm], list[ClassHarm], list[ClassHarm]]:
    """Jobs by size, by length, and by both. `nodes`: of the machine, for records that lack it."""
    sizes: dict[tuple[str, str], list[broker_log.RegularStarted]] = {}
    lengths: dict[tuple[str, str], list[broker_log.RegularStarted]] = {}
    both: dict[tuple[str, str], list[broker_log.RegularStarted]] = {}
    for each in started:
        size, length = kind_of(each, nodes=nodes)
        sizes.setdefault((size, ""), []).append(each)
        lengths.setdefault(("", length), []).append(each)
        both.setdefault((size, length), []).append(each)
    return _classes(sizes), _classes(lengths), _classes(both)


def _classes(found: dict[tuple[str, str], list[broker_log.RegularStarted]]) -> list[ClassHarm]:
    order_of_size = {name: k for k, name in enumerate((*SIZES, UNKNOWN, ""))}
    order_of_length = {name: k for k, name in enumerate((*LENGTHS, UNKNOWN, ""))}
    keys = sorted(found, key=lambda key: (order_of_size[key[0]], order_of_length[key[1]]))
    return [_class(key, found[key], is_largest=key == (SIZES[-1], "")) for key in keys]


def _class(key: tuple[str, str], records: list[broker_log.RegularStarted], *, is_largest: bool) -> ClassHarm:
    jobs = len(records)
    waits, shares = [wait_of(each) for each in records], [each.share_s for each in records]
    without = [wait_s - share_s for wait_s, share_s in zip(waits, shares, strict=True)]
    part, later = change(waits, shares), delay([0.0] * jobs, shares)
    verdict = class_verdict(change(without, waits), later, is_largest=is_largest)
    return ClassHarm(
        size=key[0],
        length=key[1],
        jobs=jobs,
        delayed=sum(share_s > 0 for share_s in shares),
        wait_s=sum(waits) / jobs,
        share_s=later.mean,
        share_low_s=None if later.low is None else max(0.0, later.low),
        share_high_s=later.high,
        share_of_wait=_part(part.mean),
        share_of_wait_low=_part(part.low),
        share_of_wait_high=_part(part.high),
        uncertainty_s=sum(each.uncertainty_s for each in records) / jobs,
        verdict=verdict,
    )


def _part(change_of_ratio: float | None) -> float | None:
    """A relative change from waits to Tidemill's parts, as a share."""
    return None if change_of_ratio is None else max(0.0, 1.0 + change_of_ratio)


def _act(
    name: str, plans: dict[str, broker_log.PlanMade], cancels: dict[str, list[broker_log.Canceled]]
) -> YieldAct:
    plan, done = plans.get(name), cancels.get(name, [])
    return YieldAct(
        plan=name,
        at_s=0.0 if plan is None else plan.at_s,
        why="" if plan is None else plan.why,
        canceled=[allocation for each in done for allocation in each.names],
        canceled_s=min((each.at_s for each in done), default=None),
    )


def _delay(record: broker_log.RegularStarted, evidence: list[YieldAct]) -> Delay:
    part = part_of(record)
    return Delay(
        id=record.id,
        user=record.user,
        width=record.width,
        state="left" if record.started_s is None else "started",
        submitted_s=record.submitted_s,
        could_start_s=record.could_start_s,
        started_s=record.started_s,
        wait_s=None if record.submitted_s is None else wait_of(record),
        share_s=part.likely,
        share_low_s=part.low,
        share_high_s=part.high,
        uncertainty_s=record.uncertainty_s,
        evidence=evidence,
    )


def _waiting(name: str, evidence: list[YieldAct], now_s: float) -> Delay:
    """A job that has not started by the last record; the plans do not show whose it is."""
    could_start_s = evidence[0].at_s
    return Delay(
        id=name,
        user="",
        width=0,
        state="waiting",
        submitted_s=None,
        could_start_s=could_start_s,
        started_s=None,
        wait_s=None,
        share_s=now_s - could_start_s,
        share_high_s=now_s - could_start_s,
        uncertainty_s=0.0,
        evidence=evidence,
    )
