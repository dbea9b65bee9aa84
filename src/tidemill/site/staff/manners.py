"""When a guest has to go, and in which order: STOP files, cancellations that we did not order, held accounts. Pure.

Staff need no knowledge of Tidemill to stop it: a file at an agreed path, or ending a few of its allocations, is enough.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.config.site import Yielding
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site.state.site_state import Allocation, Stop


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """What may stop the site. `stop_files`: (path, text) of those that exist. `foreign_us`: when allocations were
    canceled that we had not canceled (preemption, walltime and deadlines are none). `held`: (allocation, the batch
    system's word) of those that staff or an account keep from starting."""

    stop_files: list[tuple[str, str]] = []
    foreign_us: list[int] = []
    held: list[tuple[str, str]] = []


class Retreat(msgspec.Struct, frozen=True, kw_only=True):
    """What a stopped site has to end now, by name; `why` is for the log."""

    cancel: list[str]
    why: str


def sign_of_stop(signs: Signs, limits: Yielding, *, now_us: int) -> Stop | None:
    """Why the site has to be drained now, None = it need not be."""
    if signs.stop_files:
        path, text = signs.stop_files[0]
        reason = f"`{path}` exists" + (f": {text}" if text else "")
        return Stop(cause="stop_file", reason=reason, at_us=now_us)
    since_us = now_us - int(limits.foreign_cancels_s * 1e6)
    recent = [at_us for at_us in signs.foreign_us if at_us >= since_us]
    if len(recent) >= limits.foreign_cancels:
        reason = (
            f"{len(recent)} allocations were canceled within {limits.foreign_cancels_s:.0f} s, and not by us: "
            "somebody does not want us here"
        )
        return Stop(cause="cancels", reason=reason, at_us=now_us)
    if signs.held:
        name, word = signs.held[0]
        reason = f"{len(signs.held)} allocations are held, `{name}` as `{word}`"
        return Stop(cause="held", reason=reason, at_us=now_us)
    return None


def retreat(
    stop: Stop, allocations: Iterable[Allocation], limits: Yielding, *, now_us: int, again_s: float
) -> Retreat:
    """The allocations to end now: those that wait at once, those that run when their pilots had `stop_s` to drain.
    What was told to end and is still there is told again every `again_s`."""
    is_over = now_us >= stop.at_us + int(limits.stop_s * 1e6)
    names = [
        a.name
        for a in allocations
        if a.state not in ALLOCATION_FINAL
        and (a.state is not AllocationState.ACTIVE or is_over)
        and (not a.canceled_us or now_us - a.canceled_us > again_s * 1e6)
    ]
    return Retreat(cancel=names, why=f"the site is stopped: {stop.reason}")
