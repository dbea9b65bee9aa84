"""Tidemill's allocations in a plan, in three records: one allocation (`Held`), those that are alike (`Holding`), and
what becomes of some of those (`EndOrder`). Pure data; times are seconds since 1970.
"""

from __future__ import annotations

import msgspec


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One of Tidemill's allocations, as the agent's log records it.

    `started_s`: 0 = it has not started; `ends_s`: the end that the agent ordered or the batch system reported, 0 = not
    known; `walltime_s`: what was asked for; `pool`: the pool that it was requested for, empty = not known; `loss_s`:
    node-seconds of work that ending it now throws away.
    """

    name: str
    width: int
    is_waiting: bool
    started_s: float = 0.0
    ends_s: float = 0.0
    walltime_s: float = 0.0
    loss_s: float = 0.0
    pool: str = ""
    account: str = ""  #: that it is charged to; empty = to none
    without_gpus: bool = False  #: it has none of the GPUs of its nodes
    nodes: tuple[str, ...] = ()  #: by the snapshot; none while it waits, or where they are not known


class Holding(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Tidemill's allocations that are alike: `count` of `width` nodes each. The decision refers to them by `key`.

    `loss_s`: node-seconds of work that ending one of them now throws away (work in flight, and its start-up if that has
    not paid off yet). `waiting`: queued, not started; then `ends_s` is its walltime from now. `names`: the allocations,
    the one to end first in front, for those who carry the decision out; a decision needs counts alone, and the
    simulator names none.
    """

    key: int
    width: int
    count: int
    waiting: bool
    started_s: float
    ends_s: float
    loss_s: float = 0.0
    names: tuple[str, ...] = ()

    @property
    def loss_of_node_s(self) -> float:
        """Seconds of work that ending one of them now throws away on each of its nodes."""
        return self.loss_s / self.width


class EndOrder(msgspec.Struct, frozen=True, gc=False):
    """Let `count` allocations of the holding with this key end at `ends_s`; 0 = now."""

    key: int
    count: int
    ends_s: float = 0.0
