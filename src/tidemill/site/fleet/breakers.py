"""For whom a cause is closed: the breakers of one owner, and those of all. Pure.

What one owner chooses, such as an input, closes nothing for others. A failure counts for up to three breakers: of the
owner below one path, of the owner at the whole place, and of all owners. The last one opens by failures of two owners,
or if the site's own probe fails (`own_probe`). A wider breaker that opens stands for the narrower ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.model.failure import POLICY, FailureClass
from tidemill.model.trouble import Scope

OWNERS_MIN = 2
"""Failures of this number of owners are not the fault of one of them."""

PREFIXES_MIN = 3
"""Failures below this number of paths of a place are the place's, for this owner: a server that is down is not asked
by each of a hundred directories."""

FAILURES_MAX = 10
"""So many failures in a row open a breaker of images even if all are of one job or node."""

BREAKERS_MAX = 256
"""Of a site, closed ones included."""

OWN_MAX = 8
"""Of one owner: who names a thousand places pushes out no other's."""

OWNERS_KEPT = 64
"""Owners of whom a breaker knows when they failed last."""


class TroubleCause(NamedTuple):
    """A cause for which jobs wait at the site."""

    failure: FailureClass
    scope: str  #: a `trouble.Scope`; empty = of single jobs, it opens no breaker
    name: str = ""
    owner: str = ""  #: whose jobs meet it; empty = those of all


class Failing(msgspec.Struct, frozen=True, array_like=True):
    """One that failed. `who`: the job, the node, or the path, by what counts."""

    owner: str
    who: str


class Breaker(msgspec.Struct, kw_only=True):
    """The state of a cause. It can be written as JSON and taken up by the next agent."""

    failure: FailureClass
    scope: str
    name: str
    owner: str = ""
    message: str = ""
    hint: str = ""
    since_us: int = 0
    tries: int = 0  #: that failed since it opened
    next_us: int = 0
    is_open: bool = False
    is_probed: bool = False  #: the site's own probe opened it, and closes it
    is_contradicted: bool = (
        False  #: a job came past it while the probe failed: that is not believed until it is well
    )
    closed_us: int = 0
    failed: int = 0  #: in a row, while it is closed
    #: different ones among them; files of before had a list of texts as `failing`, which is not read
    failing: list[Failing] = msgspec.field(default_factory=list, name="failures")
    owners: list[str] = []  #: whose jobs failed, the latest last
    trial: int = 0  #: the job that is tried now
    trial_us: int = 0
    is_granted: bool = False  #: a fleet has the trial: its records show the outcome

    @property
    def cause(self) -> TroubleCause:
        """The cause that the breaker stands for."""
        return TroubleCause(self.failure, self.scope, self.name, self.owner)

    def note_owner(self, owner: str) -> None:
        """A job of this owner failed: others come first."""
        if owner and not self.owner:
            self.owners = [*(each for each in self.owners if each != owner), owner][-OWNERS_KEPT:]


class Reason(NamedTuple):
    """Why something failed, in words. `cause`: as it would be for all; `prefix`: the path of the input that failed."""

    cause: TroubleCause
    message: str
    hint: str = ""
    owner: str = ""  #: of the job; empty = not known, so that jobs count alone
    prefix: str = ""


def ladder(reason: Reason) -> list[TroubleCause]:
    """The causes for which a failure counts, the widest first."""
    cause, owner = reason.cause, reason.owner
    if not owner:
        return [cause]
    own = cause._replace(owner=owner)
    if not cause.scope:
        return [own]
    below = [own._replace(name=reason.prefix)] if cause.scope == Scope.INPUT and reason.prefix else []
    return [cause, own, *below]


def counted(cause: TroubleCause, reason: Reason, who: str) -> Failing:
    """As whom a failure counts: for an owner at a whole place, each path once, for there are breakers below."""
    is_wide = bool(cause.owner) and bool(reason.prefix) and cause.name != reason.prefix
    return Failing(reason.owner, reason.prefix if is_wide else who)


def is_wanted(cause: TroubleCause, one: Failing, failing: Sequence[Failing], threshold: int) -> bool:
    """Whether one more that failed is to be remembered. Of one owner no more than suffices beside one of another's."""
    if one in failing or len(failing) >= threshold:
        return False
    most = threshold if cause.owner or not one.owner else threshold - 1
    return sum(each.owner == one.owner for each in failing) < most


def is_enough(cause: TroubleCause, failing: Sequence[Failing], failed: int, threshold: int) -> bool:
    """Whether these failures in a row open the breaker of a cause. `failed`: all of them, `failing`: different ones,
    `threshold`: how many it takes."""
    if not cause.scope or not threshold:
        return False
    owners = {each.owner for each in failing}
    if not cause.owner and owners != {""} and len(owners) < OWNERS_MIN:
        return False
    return len(failing) >= threshold or (cause.failure is FailureClass.IMAGE and failed >= FAILURES_MAX)


def threshold_of(cause: TroubleCause, reason: Reason) -> int:
    """How many different ones have to fail."""
    threshold = POLICY[cause.failure].back_off.breaker
    is_wide = bool(cause.owner) and bool(reason.prefix) and cause.name != reason.prefix
    return min(threshold, PREFIXES_MIN) if is_wide else threshold


def covers(wide: TroubleCause, other: TroubleCause) -> bool:
    """Whether all that meets `other` meets `wide`, too."""
    if wide == other or (wide.failure, wide.scope) != (other.failure, other.scope) or not wide.scope:
        return False
    if wide.owner and wide.owner != other.owner:
        return False
    is_below = other.name.startswith(f"{wide.name}/") and not wide.name.endswith("/")
    return wide.name == other.name or (wide.scope == Scope.INPUT and is_below)


def rank(owner: str, owners: Sequence[str]) -> int:
    """The place of an owner's jobs among those that may be tried: who never failed comes first, who failed last is the
    last."""
    return owners.index(owner) + 1 if owner in owners else 0


def passed_over(owners: Sequence[str], fresh: Iterable[str]) -> list[str] | None:
    """Whose jobs the site needs no more for a trial, of which jobs of `fresh` were not tried yet; None = it needs none
    at all. A job of any other owner would come before those that wait."""
    best = min((rank(owner, owners) for owner in fresh), default=None)
    if best is None:
        return []
    return None if best == 0 else list(owners[best - 1 :])
