"""Faults by a schedule that a seed gives whole, so that the same seed does the same harm whatever the machine's speed.

An act is bound to what the campaign has done, never to the clock: the test submits a job for each act and acts when a
drawn number of its events is done. Which process an act meets is an ordinal among those of its role, the oldest first.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.worlds.home.processes import send
from tests.worlds.home.world import World

ROLES = ("server", "agent", "lead", "pilot", "slot", "payload", "batch")
VICTIM_S = 10.0


class Trouble(Protocol):
    """Something that goes wrong for a while: it begins, lasts, and is over."""

    name: str

    def begin(self, it: World) -> None:
        """From now on it is wrong."""

    def end(self, it: World) -> None:
        """From now on it is right again."""


@dataclass(frozen=True)
class Act:
    """One act: after `done` events of its job and a pause, `what` is killed or begins, to last for `lasts_s`."""

    done: int
    pause_s: float
    what: tuple[str, ...]  #: roles to kill at once, or the name of one trouble
    ordinal: int = 0  #: which of a role's processes, modulo their number
    lasts_s: float = 0.0


def schedule(seed: int, *, events: int, troubles: Sequence[str] = ()) -> list[Act]:
    """What is done to a campaign whose jobs have that many events. Pure."""
    rng = random.Random(seed)
    acts = []
    for _ in range(rng.randint(2, 6)):
        what: tuple[str, ...] = tuple(rng.sample(ROLES, k=rng.choice((1, 1, 2))))
        if troubles and rng.random() < 0.5:
            what = (rng.choice(sorted(troubles)),)
        acts.append(
            Act(
                done=rng.randint(1, events // 2),
                pause_s=round(rng.uniform(0.0, 0.3), 3),
                what=what,
                ordinal=rng.randrange(6),
                lasts_s=round(rng.uniform(0.5, 4.0), 3),
            )
        )
    return acts


def perform(it: World, act: Act, troubles: dict[str, Trouble]) -> list[str]:
    """Do it; what was met: the role, or the trouble and how long it lasted."""
    time.sleep(act.pause_s)
    met = []
    for name in act.what:
        if name in troubles:
            troubles[name].begin(it)
            try:
                time.sleep(act.lasts_s)
            finally:
                troubles[name].end(it)
            met.append(f"{name} for {act.lasts_s} s")
        else:
            met.append(_kill(it, name, act.ordinal))
    return met


def _kill(it: World, role: str, ordinal: int) -> str:
    """Kill one process of a role as soon as there is one: what was just killed comes again."""
    deadline = time.monotonic() + VICTIM_S
    while time.monotonic() < deadline:
        victims = sorted(it.processes(role), key=lambda each: (each.start, each.pid))
        if victims and send(victims[ordinal % len(victims)], signal.SIGKILL):
            return role
        time.sleep(0.01)
    return f"no {role}"
