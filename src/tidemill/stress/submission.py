"""How a level becomes a job: one that may run `at_once` as many events as the level, with more events than it needs."""

from __future__ import annotations

import math

import msgspec

from tidemill.client import Client
from tidemill.model.job import StressLevel
from tidemill.stress import plan as plans
from tidemill.stress.plan import Plan, StressStep
from tidemill.wire.api import CampaignRow

EVENTS_FACTOR = 3.0
"""More events than a level needs are submitted, if an event takes less time than the test says."""


class LevelSubmission:
    """The job of one level, in a campaign of its own."""

    def __init__(
        self, client: Client, plan: Plan, step: StressStep, *, campaign: str, of: StressLevel
    ) -> None:
        """`of`: the run that the level belongs to."""
        self._client, self._plan, self._step, self.campaign, self._of = client, plan, step, campaign, of
        self.jobs: dict[int, int] = {}  #: events of each job

    def start(self) -> None:
        """Submit the level."""
        plan, step = self._plan, self._step
        span_s = plan.hold_s + plan.ramp_up_s + 10 * plan.payload.event_s
        events = math.ceil(step.level * EVENTS_FACTOR * span_s / plan.payload.event_s)
        spec = msgspec.structs.replace(plans.spec(plan, step, events), at_once=step.level, stress=self._of)
        # the key: a repetition after a lost answer submits nothing twice
        sent = self._client.submit(spec, campaign=self.campaign, key=f"{self.campaign}-0")
        self.jobs = dict.fromkeys(sent.jobs, events)

    def is_exhausted(self) -> bool:
        """Whether every event has ended."""
        row = self._client.campaign(self.campaign)
        return row.events_done + row.events_failed >= sum(self.jobs.values())

    def waits_for(self) -> str:
        """What keeps the job from starting, as a part of a sentence; empty where it has started."""
        for job in self.jobs:
            detail = self._client.job(job)
            if detail.waits_for:
                return f"; its job waits for {detail.waits_for}: {detail.waits_hint or 'see `tidemill job explain`'}"
        return ""


def all_ended(row: CampaignRow) -> bool:
    """Whether no job of a campaign waits or runs."""
    return sum(row.states.get(state, 0) for state in ("WAITING", "RUNNING")) == 0
