"""What the broker carries from tick to tick: one value, whose steps each return the next one. Pure."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple


class NodesWanted(Enum):
    """Whether nodes are wanted, and whether for new work."""

    NONE = "none"  #: no nodes are wanted
    NEW = "new"  #: for work that has come, or of a site that was resumed, since the last poll began
    POLLED = "polled"  #: a poll has begun since


class NextPoll(IntEnum):
    """When the next poll comes, the more urgent the larger."""

    REGULAR = 0
    HURRIED = 1  #: as soon as no call is under way
    PAID = 2  #: the same, because a glance has shown a change and paid for the poll


class Undecided(Enum):
    """What the answer to the last poll still calls for."""

    NOTHING = "nothing"
    EVICTIONS = "evictions"  #: it came without a snapshot, or a stopped site has used the snapshot
    PLAN = "plan"  #: evictions took the tick, and the snapshot waits
    BOTH = "both"


class LastReply(NamedTuple):
    """What the batch system last replied, as people were shown it. It does not answer (`unreachable`: why not), or it
    does: then each of the others may say something, why it is not believed and why it starts no jobs."""

    unreachable: str = ""
    doubted: str = ""
    starts_nothing: str = ""


class TickState(NamedTuple):
    """The state of the broker between two ticks. Its parts are independent of each other; within each, this is legal:

    ============ ========= ======================================= ===========================================
    part         value     from                                    until
    ============ ========= ======================================= ===========================================
    `work`       NONE      the start, `wants(False)`               `wants(True)`
    ..           NEW       `wants(True)` after NONE, `resumed`     `polling`, `wants(False)`
    ..           POLLED    `polling`                               `resumed`, `wants(False)`
    `next_poll`  REGULAR   the start, `polling`                    `hurried`, `seen_change`
    ..           HURRIED   `hurried`                               `polling`, `seen_change`
    ..           PAID      `seen_change`                           `polling`
    `undecided`  NOTHING   the start, `evicted`, `planned`         `answered`
    ..           EVICTIONS `answered` without a snapshot,          `evicted`, `answered` with a snapshot
                           `planned` after BOTH
    ..           PLAN      `evicted` after BOTH                    `planned`, `answered`
    ..           BOTH      `answered` with a snapshot or after one `evicted`, `planned`
    `again`      names     `answered`: cancels to repeat           `repeated`, the next `answered`
    `is_stopped` True      `stopped`                               `resumed`
    `reply`      no answer `lost`: `unreachable` alone             `answered`
    ..           answer    the start, `answered`: the other two    `lost`
    ============ ========= ======================================= ===========================================
    """

    work: NodesWanted = NodesWanted.NONE
    next_poll: NextPoll = NextPoll.REGULAR
    undecided: Undecided = Undecided.NOTHING
    again: tuple[str, ...] = ()
    is_stopped: bool = False
    reply: LastReply = LastReply()

    @property
    def is_wanted(self) -> bool:
        """Whether nodes are wanted."""
        return self.work is not NodesWanted.NONE

    @property
    def has_new_work(self) -> bool:
        """Whether work has come that the last poll did not know of."""
        return self.work is NodesWanted.NEW

    @property
    def owes_evictions(self) -> bool:
        """Whether the last answer has not been searched for what has to go whatever the plan says."""
        return self.undecided in (Undecided.EVICTIONS, Undecided.BOTH)

    @property
    def owes_plan(self) -> bool:
        """Whether no plan has been made on the last snapshot."""
        return self.undecided in (Undecided.PLAN, Undecided.BOTH)

    def wants(self, is_wanted: bool) -> TickState:
        """Nodes are wanted, or no more. Work is new when nodes come to be wanted."""
        if not is_wanted:
            return self._replace(work=NodesWanted.NONE)
        return self if self.is_wanted else self._replace(work=NodesWanted.NEW)

    def hurried(self) -> TickState:
        """The next poll does not wait for its time."""
        return self._replace(next_poll=max(self.next_poll, NextPoll.HURRIED))

    def seen_change(self) -> TickState:
        """A glance has shown a change that is worth a poll, and has paid for it."""
        return self._replace(next_poll=NextPoll.PAID)

    def polling(self) -> TickState:
        """The state when a poll begins: that poll sees the present work, which is not new to the next one."""
        work = NodesWanted.POLLED if self.work is NodesWanted.NEW else self.work
        return self._replace(work=work, next_poll=NextPoll.REGULAR)

    def lost(self, why: str) -> TickState:
        """The batch system did not answer. What an earlier answer calls for remains."""
        return self._replace(reply=LastReply(unreachable=why))

    def answered(
        self, *, has_snapshot: bool, again: tuple[str, ...] = (), doubted: str = "", starts_nothing: str = ""
    ) -> TickState:
        """A poll was answered. `again`: allocations to cancel once more; the others are as in `LastReply`."""
        return self._replace(
            undecided=_undecided(evictions=True, plan=has_snapshot or self.owes_plan),
            again=again,
            reply=LastReply(doubted=doubted, starts_nothing=starts_nothing),
        )

    def evicted(self) -> TickState:
        """What has to go is ordered to go."""
        return self._replace(undecided=_undecided(evictions=False, plan=self.owes_plan))

    def planned(self) -> TickState:
        """The last snapshot is used."""
        return self._replace(undecided=_undecided(evictions=self.owes_evictions, plan=False))

    def repeated(self) -> TickState:
        """The cancels of `again` are on their way."""
        return self._replace(again=())

    def stopped(self) -> TickState:
        """The site is stopped."""
        return self._replace(is_stopped=True)

    def resumed(self) -> TickState:
        """The site goes on. People who resume a site watch it, as those do who submit: the work counts as new."""
        return self._replace(is_stopped=False, work=NodesWanted.NEW if self.is_wanted else self.work)


def _undecided(*, evictions: bool, plan: bool) -> Undecided:
    if evictions:
        return Undecided.BOTH if plan else Undecided.EVICTIONS
    return Undecided.PLAN if plan else Undecided.NOTHING
