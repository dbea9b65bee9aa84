"""How a level becomes jobs: one job that the lead limits, or single events that follow the ends.

With `JobSpec.at_once` a level is one job, and the site's leads keep the number running at the limit. A version without
it is fed: as many events are submitted as have ended, and some ahead, by feedback on the number that really ran.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tidemill import clock
from tidemill.client import Client
from tidemill.model.job import JobSpec
from tidemill.stress import plan as plans
from tidemill.stress.plan import Plan, StressStep
from tidemill.wire.api import CampaignRow

EVENTS_FACTOR = 3.0
"""More events than a level needs are submitted, if an event takes less time than the test says."""

GAIN = 0.5  #: of the feedback: half of what is missing is added at a time

LIMITER = "at_once" in JobSpec.__struct_fields__
HOW = "`at_once`, by the leads" if LIMITER else "fed: new events follow the ends of others"


class LevelSubmission:
    """The jobs of one level, in a campaign of its own."""

    def __init__(self, client: Client, plan: Plan, step: StressStep, campaign: str) -> None:
        self._client, self._plan, self._step, self.campaign = client, plan, step, campaign
        self.jobs: dict[int, int] = {}  #: events of each job
        self._events = 0
        self._ahead = 0.0  #: events that wait ahead of ends
        self._adjusted_s = float("-inf")

    def start(self) -> None:
        """Submit what the level starts with."""
        plan, step = self._plan, self._step
        if LIMITER:
            span = plan.hold_s + plan.ramp_up_s + 10 * plan.payload.event_s
            self._submit(math.ceil(step.level * EVENTS_FACTOR * span / plan.payload.event_s), step.level)
        else:
            self._submit(step.level, None)

    def follow(self, mean: float | None, *, lag_s: float) -> bool:
        """Submit what has to follow; whether every event has ended. `mean`: the number that ran of late, None = not
        known; `lag_s`: how old that is. Without a limiter, what is missing is added to what waits ahead of ends, once
        per lag: sooner, the effect of the last change is not known yet."""
        row = self._client.campaign(self.campaign)
        ended = row.events_done + row.events_failed
        if LIMITER:
            return ended >= self._events
        now_s = clock.monotonic_s()
        if mean is not None and now_s - self._adjusted_s > lag_s:
            self._adjusted_s = now_s
            ahead = self._ahead + GAIN * (self._step.level - mean)
            self._ahead = min(float(self._step.level), max(0.0, ahead))
        missing = self._step.level + round(self._ahead) - (self._events - ended)
        if missing > 0:
            self._submit(missing, None)
        return False

    def _submit(self, events: int, at_once: int | None) -> None:
        limit: dict[str, Any] = {} if at_once is None else {"at_once": at_once}
        spec = msgspec.structs.replace(plans.spec(self._plan, self._step, events), **limit)
        key = f"{self.campaign}-{len(self.jobs)}"  # a repetition after a lost answer submits nothing twice
        for job in self._client.submit(spec, campaign=self.campaign, key=key).jobs:
            self.jobs[job] = events
        self._events += events


def all_ended(row: CampaignRow) -> bool:
    """Whether no job of a campaign waits or runs."""
    return sum(row.states.get(state, 0) for state in ("WAITING", "RUNNING")) == 0
