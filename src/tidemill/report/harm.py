"""The broker's records (`harvest/account/records.py`) as an account: each regular job's wait, our share, evidence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidemill.errors import ProtocolError, SiteError
from tidemill.harvest.account import records as r
from tidemill.harvest.account.harm import PLANS_MAX, Totals, add

DAY_S = 86400.0


class YieldAct(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that yielded to a job, and the allocations that were canceled by it."""

    plan: str
    at_s: float
    why: str
    canceled: list[str]
    canceled_s: float | None  #: when, None = nothing was canceled


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """One regular job. `wait_s` None = its submission is not known; `state`: `started`, `left` (unseen), `waiting`."""

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


class Harm(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `unreadable`: lines that are no records (a crash may tear one)."""

    jobs: list[Delay]
    totals: Totals
    unreadable: int


def read_records(directory: Path, since_s: float | None = None) -> tuple[list[r.AnyRecord], int]:
    """The records of a site's `harvest` directory, oldest first, and the number of lines that are none.

    With `since_s` files of days before the day before are passed over. Raises SiteError when a file cannot be read.
    """
    first = "" if since_s is None else r.file_name(max(0.0, since_s - DAY_S))
    found: list[r.AnyRecord] = []
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
                found.append(r.decode(line))
            except ProtocolError:
                unreadable += 1
    return found, unreadable


def harm(
    records: Iterable[r.AnyRecord], *, unreadable: int = 0, since_s: float = 0.0, job: str | None = None
) -> Harm:
    """What the records tell of regular jobs that started (or left) since then, in that order; with `job`, of one only.

    Jobs that still wait although they could start without us stand at the end; they are not in the totals.
    """
    plans: dict[str, r.PlanMade] = {}
    cancels: dict[str, list[r.Canceled]] = {}
    yields: dict[str, list[str]] = {}
    started: list[r.RegularStarted] = []
    now_s = 0.0
    for record in records:
        now_s = max(now_s, record.at_s)
        if isinstance(record, r.PlanMade):
            plans[record.plan] = record
            for name in record.yields_to:
                yields.setdefault(name, []).append(record.plan)
        elif isinstance(record, r.Canceled):
            cancels.setdefault(record.plan, []).append(record)
        elif isinstance(record, r.RegularStarted):
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
    return Harm(jobs=jobs, totals=totals, unreadable=unreadable)


def _act(name: str, plans: dict[str, r.PlanMade], cancels: dict[str, list[r.Canceled]]) -> YieldAct:
    plan, done = plans.get(name), cancels.get(name, [])
    return YieldAct(
        plan=name,
        at_s=0.0 if plan is None else plan.at_s,
        why="" if plan is None else plan.why,
        canceled=[allocation for each in done for allocation in each.names],
        canceled_s=min((each.at_s for each in done), default=None),
    )


def _delay(record: r.RegularStarted, evidence: list[YieldAct]) -> Delay:
    end_s = record.at_s if record.started_s is None else record.started_s
    return Delay(
        id=record.id,
        user=record.user,
        width=record.width,
        state="left" if record.started_s is None else "started",
        submitted_s=record.submitted_s,
        could_start_s=record.could_start_s,
        started_s=record.started_s,
        wait_s=None if record.submitted_s is None else max(0.0, end_s - record.submitted_s),
        share_s=record.share_s,
        uncertainty_s=record.uncertainty_s,
        evidence=evidence,
    )


def _waiting(name: str, evidence: list[YieldAct], now_s: float) -> Delay:
    """A job that has not started by the last record; who it is, the plans do not tell."""
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
        uncertainty_s=0.0,
        evidence=evidence,
    )
