"""Whether the batch system's reply is believed: does it show Tidemill's jobs, and do cancels end them? Pure.

A running job that the reply does not show may have ended between two polls. So there are two witnesses: a plainer query
(`BatchSystem.plain`), and the pilots. A pilot's record that arrives some time after a reply was written after it. While
a reply is doubted, the site submits nothing and counts no allocation as lost. If the doubt persists, the site stops: it
cannot yield nodes to jobs that it does not see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from tidemill.batch.contract import Answer, PlainReply, Status
from tidemill.model.machine import Snapshot
from tidemill.model.quantities import counted_text
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site.nodes import planning
from tidemill.site.nodes.evictions import FUTILE_CANCELS
from tidemill.site.state.site_state import Allocation

WORD_EVERY_S = 90.0
"""A pilot that was heard within this time is at work: pilots sample their nodes every 30 s."""

QUEUED_LAG_S = 60.0
"""Waiting jobs may be missing from replies for this time after they were submitted: centres cache `squeue` for up to a
minute."""

NAMES_SHOWN_MAX = 4


class Doubt(StrEnum):
    """Why a reply is not believed: the closed list."""

    NONE = ""
    #: the plain query shows running or waiting jobs of Tidemill that the usual one does not show
    QUERY = "query"
    PILOTS = "pilots"  #: neither query shows jobs whose pilots are heard
    SURVEY = "survey"  #: the survey of the machine shows no job of Tidemill, the query of its own jobs does
    CANCEL = "cancel"  #: confirmed cancels end nothing
    UNCHECKED = "unchecked"  #: no running job of Tidemill is shown, and their pilots may still be heard


class ReplySeen(msgspec.Struct, frozen=True, kw_only=True):
    """A reply and its witnesses. Times are of one monotonic clock.

    `running`, `waiting`: allocations that the reply should show; `shown`: those that it shows; `surveyed`: running
    allocations that the survey of the machine shows, None = no survey. `heard_s`: when a pilot of each allocation was
    last heard; `futile`: allocations that go on after confirmed cancels; `word_s`: as WORD_S.
    """

    at_s: float
    running: frozenset[str]
    waiting: frozenset[str] = frozenset()
    shown: frozenset[str]
    surveyed: frozenset[str] | None = None
    plain: PlainReply | None = None
    heard_s: Mapping[str, float] = {}
    futile: tuple[str, ...] = ()
    word_s: float


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """What is believed after a reply. `missing_s`: since when replies have lacked each missing allocation; `alive`:
    missing allocations that go on all the same; `unsurveyed`: running allocations that the last survey did not show, if
    it showed none."""

    doubt: Doubt = Doubt.NONE
    why: str = ""
    since_s: float = 0.0
    alive: tuple[str, ...] = ()
    missing_s: dict[str, float] = {}
    unsurveyed: frozenset[str] = frozenset()

    @property
    def is_sure(self) -> bool:
        """Whether a witness contradicts the reply."""
        return self.doubt not in (Doubt.NONE, Doubt.UNCHECKED)

    @property
    def hint(self) -> str:
        """What the user can do."""
        return HINTS.get(self.doubt, "")


HINTS = {
    Doubt.QUERY: "compare what both commands print where the agent runs: a filter in the environment or in a file of "
    "the user, or another program in place of the batch system's, hides jobs from the first command",
    Doubt.PILOTS: "ask the batch system by hand where the agent runs, and the centre's staff if it does not show them",
    Doubt.SURVEY: "the batch system shows your own jobs, but not all jobs: ask the centre's staff, and check "
    "whether another program runs in place of the batch system's",
    Doubt.CANCEL: "cancel one by hand where the agent runs, and read what the command prints: another program may "
    "run in its place",
    Doubt.UNCHECKED: "nothing: within two minutes the pilots' next reports, or their absence, decide",
}


def expected(allocations: Iterable[Allocation], now_us: int) -> tuple[frozenset[str], frozenset[str]]:
    """Allocations that the next reply has to show: running ones, and waiting ones. Leaves out those that may have
    ended: their end was ordered, their pilots have signed off, or their time limit is over."""
    running, waiting = set(), set()
    for each in allocations:
        if each.canceled_us or each.state in ALLOCATION_FINAL or planning.has_left(each):
            continue
        ends_us = min((end for end in (each.ends_us, each.ordered_end_us) if end), default=0)
        if ends_us and now_us >= ends_us:
            continue
        if each.state is AllocationState.ACTIVE or planning.is_at_work(each):
            running.add(each.name)
        elif each.state is AllocationState.QUEUED:
            waiting.add(each.name)
    return frozenset(running), frozenset(waiting)


def surveyed(snapshot: Snapshot | None, statuses: Mapping[str, Status]) -> frozenset[str] | None:
    """Tidemill's running jobs in a survey. None: no survey was made, or `statuses` has no running job that a survey
    should show."""
    if snapshot is None:
        return None
    ours = frozenset(job.name for job in snapshot.running if job.ours)
    runs = {
        name for name, each in statuses.items() if each.state is AllocationState.ACTIVE and not each.suspended
    }
    return ours if runs else None


def judge(before: Belief, reply: ReplySeen) -> Belief:
    """What is believed after this reply."""
    missing = (reply.running | reply.waiting) - reply.shown
    missing_s = {name: before.missing_s.get(name, reply.at_s) for name in sorted(missing)}
    shown = {} if reply.plain is None else reply.plain.shown
    stood_by = _stood_by(before, reply, missing)
    by_plain = [
        name
        for name, since_s in missing_s.items()
        if name in shown and (name in reply.running or reply.at_s - since_s >= QUEUED_LAG_S)
    ]
    by_pilot = [
        name
        for name, since_s in missing_s.items()
        if name in reply.running and _is_heard(name, since_s, reply)
    ]
    gone = reply.surveyed is not None and not reply.surveyed
    unsurveyed = reply.running & reply.shown if gone else frozenset()
    doubt, why, alive = Doubt.NONE, "", [*dict.fromkeys([*by_plain, *by_pilot, *stood_by])]
    if by_plain and reply.plain is not None:
        doubt, why = Doubt.QUERY, _query_text(by_plain, reply.plain)
    elif stood_by:
        doubt, why = before.doubt, before.why
    elif by_pilot and len(by_pilot) >= len(reply.running & reply.shown):
        doubt, why = Doubt.PILOTS, _pilots_text(by_pilot, reply.plain)
    elif unsurveyed & before.unsurveyed:
        doubt, why = Doubt.SURVEY, _survey_text(sorted(unsurveyed & before.unsurveyed))
    elif reply.futile:
        doubt, why = Doubt.CANCEL, _cancel_text(reply.futile)
    elif _is_unchecked(missing_s, reply):
        doubt, why = Doubt.UNCHECKED, _unchecked_text(reply)
    is_old = before.is_sure and doubt is not Doubt.UNCHECKED
    since_s = before.since_s if is_old else reply.at_s
    return Belief(
        doubt=doubt, why=why, since_s=since_s if doubt else 0.0, alive=tuple(alive), missing_s=missing_s,
        unsurveyed=unsurveyed,
    )  # fmt: skip


def believed(statuses: Mapping[str, Status], belief: Belief) -> dict[str, Status]:
    """The statuses of a reply that count. A reply that a witness contradicts makes no allocation "gone", and no reply
    makes one of `alive` so. While a reply is only being checked, UNKNOWN_S applies as usual."""
    return {
        name: each
        for name, each in statuses.items()
        if each.answer is not Answer.GONE or not (belief.is_sure or name in belief.alive)
    }


def lasts(belief: Belief, now_s: float, *, doubt_s: float) -> bool:
    """Whether the site has to stop because the doubt has persisted for `doubt_s`. An unchecked reply does not count."""
    return belief.is_sure and now_s - belief.since_s >= doubt_s


def _stood_by(before: Belief, reply: ReplySeen, missing: frozenset[str]) -> list[str]:
    """Missing allocations that went on when the plain query last answered. One that fails, as where the controller is
    slow, takes nothing back: otherwise running pilots are lost, and what they run is run again by others. A pilot that
    has been silent for longer than it may be is let go: nothing of it can come twice."""
    if reply.plain is not None or before.doubt is not Doubt.QUERY:
        return []
    return [name for name in before.alive if name in missing and _may_live(name, before, reply)]


def _may_live(name: str, before: Belief, reply: ReplySeen) -> bool:
    """Whether an allocation waits, or a pilot of it may be alive; unknown where pilots say nothing here."""
    if name in reply.waiting or not reply.word_s:
        return True
    since_s = max(reply.heard_s.get(name, -math.inf), before.missing_s.get(name, reply.at_s))
    return reply.at_s - since_s <= reply.word_s + WORD_EVERY_S


def _is_heard(name: str, since_s: float, reply: ReplySeen) -> bool:
    """Whether a pilot of the allocation wrote something after the reply of `since_s`, and not long ago."""
    heard_s = reply.heard_s.get(name)
    return heard_s is not None and heard_s >= since_s + reply.word_s and reply.at_s - heard_s <= WORD_EVERY_S


def _is_unchecked(missing_s: Mapping[str, float], reply: ReplySeen) -> bool:
    """Whether no running job is shown, while a pilot's record may still come."""
    if not reply.running or not reply.running.isdisjoint(reply.shown) or not reply.word_s:
        return False
    return any(reply.at_s - missing_s[name] < reply.word_s + WORD_EVERY_S / 2 for name in reply.running)


def _named(names: Iterable[str]) -> str:
    chosen = [f"`{name}`" for name in names]
    more = f" and {len(chosen) - NAMES_SHOWN_MAX} more" if len(chosen) > NAMES_SHOWN_MAX else ""
    return ", ".join(chosen[:NAMES_SHOWN_MAX]) + more


def _query_text(names: list[str], plain: PlainReply) -> str:
    jobs = counted_text(len(names), "job")
    return f"`{plain.usual}` does not show {jobs} of Tidemill that `{plain.command}` shows: {_named(names)}"


def _pilots_text(names: list[str], plain: PlainReply | None) -> str:
    asked = "" if plain is None else f": neither `{plain.usual}` nor `{plain.command}` does"
    jobs = counted_text(len(names), "job")
    return (
        f"the batch system does not show {jobs} of Tidemill whose pilots are at work, {_named(names)}{asked}"
    )


def _survey_text(names: list[str]) -> str:
    jobs = counted_text(len(names), "running job")
    return (
        f"the survey of the machine shows no job of Tidemill, but the query of its own jobs shows {jobs}: "
        f"{_named(names)}"
    )


def _cancel_text(names: tuple[str, ...]) -> str:
    jobs = counted_text(len(names), "job")
    return f"{FUTILE_CANCELS} cancels that the batch system confirmed did not end {jobs}: {_named(names)}"


def _unchecked_text(reply: ReplySeen) -> str:
    jobs = counted_text(len(reply.running), "running job")
    return f"the batch system shows none of {jobs} of Tidemill: {_named(sorted(reply.running))}"
