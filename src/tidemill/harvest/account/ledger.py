"""What our allocations cost of the centre's grants, and which grant the next ones are charged to. Pure.

Node-seconds are settled (allocations that ended), in flight (what running ones have used) or committed (what running
and waiting ones may still use up to their limits). Nothing is asked for that could pass an account's stop line; what is
committed and not used comes back when it settles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from tidemill.config.site import Account
from tidemill.harvest.plan.ours import Held

HOUR_S = 3600.0
WARN_AT = 0.9
"""Share of a grant from which on the site warns: time enough to ask for more."""

STOP_AT = 0.98
"""Share of a grant from which on nothing more is asked for; the next account follows. Centres count by their own rules
(prolog, epilog, whole minutes), and some fine those who pass their grant."""

UNBOUNDED_S = 1e18
"""Node-seconds left where nothing bounds them."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """`node_hours_max`: what we may use in all, whatever was granted; `least_node_s`: less than that is of no use."""

    node_hours_max: float | None = None
    least_node_s: float = 60.0


class Standing(StrEnum):
    """How an account stands."""

    OPEN = "open"
    WARN = "warn"  #: the warning line is passed
    STOP = "stop"  #: nothing more is asked for


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One account, in node-seconds. `left_s`: what may still be asked for."""

    account: str
    granted_s: float
    settled_s: float
    in_flight_s: float
    committed_s: float
    left_s: float
    standing: Standing

    @property
    def used_s(self) -> float:
        """What Tidemill has used by now."""
        return self.settled_s + self.in_flight_s


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All accounts in the order in which they are used up. `account`: for new submissions, None = drain.

    `node_s_left`: what new submissions may use at most. `notes`: what the operator should know, in words.
    """

    lines: list[Line]
    account: str | None
    node_s_left: float
    notes: list[str]


def balance(
    accounts: Sequence[Account],
    settled_s: Mapping[str, float],
    living: Iterable[Held],
    *,
    now_s: float,
    bounds: Bounds,
) -> Ledger:
    """The ledger now. `settled_s`: node-seconds of ended allocations by account (empty name: charged to none)."""
    in_flight: dict[str, float] = {}
    committed: dict[str, float] = {}
    for each in living:
        flown_s, coming_s = cost(each, now_s)
        in_flight[each.account] = in_flight.get(each.account, 0.0) + flown_s
        committed[each.account] = committed.get(each.account, 0.0) + coming_s
    lines = [
        _line(
            account,
            settled_s=settled_s.get(account.name, 0.0),
            in_flight_s=in_flight.get(account.name, 0.0),
            committed_s=committed.get(account.name, 0.0),
            least_s=bounds.least_node_s,
        )
        for account in accounts
    ]
    ours_s = sum(settled_s.values()) + sum(in_flight.values()) + sum(committed.values())
    bound_s = UNBOUNDED_S if bounds.node_hours_max is None else bounds.node_hours_max * HOUR_S - ours_s
    chosen, left_s = _choose(lines, bound_s, bounds.least_node_s)
    return Ledger(
        lines=lines,
        account=chosen,
        node_s_left=left_s,
        notes=_notes(lines, chosen, bound_s=bound_s, bounds=bounds),
    )


def cost(each: Held, now_s: float) -> tuple[float, float]:
    """Node-seconds in flight and committed of one allocation."""
    if not each.started_s:
        return 0.0, each.width * each.walltime_s
    return each.width * max(0.0, now_s - each.started_s), each.width * max(0.0, each.ends_s - now_s)


def _line(
    account: Account, *, settled_s: float, in_flight_s: float, committed_s: float, least_s: float
) -> Line:
    granted_s = account.node_hours * HOUR_S
    used_s = settled_s + in_flight_s
    left_s = max(0.0, STOP_AT * granted_s - used_s - committed_s)
    standing = Standing.OPEN
    if used_s >= WARN_AT * granted_s:
        standing = Standing.WARN
    if left_s < least_s:
        standing = Standing.STOP
    return Line(
        account=account.name,
        granted_s=granted_s,
        settled_s=settled_s,
        in_flight_s=in_flight_s,
        committed_s=committed_s,
        left_s=left_s,
        standing=standing,
    )


def _choose(lines: Sequence[Line], bound_s: float, least_s: float) -> tuple[str | None, float]:
    if bound_s < least_s:
        return None, 0.0
    if not lines:
        return "", bound_s
    for line in lines:
        if line.standing is not Standing.STOP:
            return line.account, min(line.left_s, bound_s)
    return None, 0.0


def _notes(lines: Sequence[Line], chosen: str | None, *, bound_s: float, bounds: Bounds) -> list[str]:
    notes = []
    for line in lines:
        if line.standing is Standing.OPEN:
            continue
        part = f"{line.used_s / HOUR_S:,.1f} of {line.granted_s / HOUR_S:,.1f} node-hours are used"
        if line.standing is Standing.STOP:
            part += f", {line.committed_s / HOUR_S:,.1f} committed: nothing more is asked for there"
        notes.append(f"account `{line.account}`: {part}")
    if bound_s < bounds.least_node_s:
        notes.append(f"`harvest.node_hours_max` = {bounds.node_hours_max:g} is reached")
    elif lines and chosen is None:
        notes.append("no account is left: what runs may finish, nothing new is asked for")
    return notes
