"""A level while it runs: its job, which may run `at_once` as many events as the level, and what is known of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from tidemill import clock
from tidemill.client import Client
from tidemill.model.job import PlannedLevel, StressLevel
from tidemill.wire.api import AT_WORK, CampaignRow, SiteRow
from tidemill_stress import plan as plans
from tidemill_stress.holding import Seen, SteadyWindow, StopRun
from tidemill_stress.payloads import Payload, taken
from tidemill_stress.plan import StressStep
from tidemill_stress.run import Run, StepRun
from tidemill_stress.series.site_sums import SumsGuard

EVENTS_FACTOR = 3.0
"""More events than a level needs are submitted, if an event takes less time than the test says."""


class RunningLevel:
    """A level that runs at a site: its job in a campaign of its own, and what is known of it."""

    def __init__(self, client: Client, run: Run, step: StressStep, planned: list[PlannedLevel]) -> None:
        self.step, self._plan, self._client = step, run.plan, client
        campaign = f"stress-{run.id}-{step.number}-{clock.now_us():x}"
        self.record = StepRun(step=step, campaign=campaign, submitted_s=clock.now_us() / 1e6)
        self._of = StressLevel(run=run.id, number=step.number, planned=planned)
        self._jobs: dict[int, int] = {}  #: events of each job
        self.end: SteadyWindow | StopRun | None = None
        self._times = _Times(client)
        self._sums = SumsGuard(run.plan.stop, step.site)
        self._nodes = self._nodes_top = 0

    def start(self) -> None:
        """Submit its job."""
        plan, step, campaign = self._plan, self.step, self.record.campaign
        self.record.submitted_s = clock.now_us() / 1e6
        span_s = plan.hold_s + plan.ramp_up_s + 10 * plan.payload.event_s
        events = math.ceil(step.level * EVENTS_FACTOR * span_s / plan.payload.event_s)
        spec = msgspec.structs.replace(plans.spec(plan, step, events), at_once=step.level, stress=self._of)
        # the key: a repetition after a lost answer submits nothing twice
        sent = self._client.submit(spec, campaign=campaign, key=f"{campaign}-0")
        self._jobs = dict.fromkeys(sent.jobs, events)

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Note how the site is."""
        here = [row for row in rows if self.step.site in ("", row.name)]
        self._nodes = sum(int(row.capacity.get("nodes", 0)) for row in here)
        self._nodes_top = max(self._nodes_top, self._nodes)
        self._sums.observe(here)

    def seen(self, guards: Sequence[str]) -> Seen:
        """Payloads, nodes and guards of the level, as known now."""
        self.record.payloads = self._times.read(self._jobs)
        return Seen(
            self.record.payloads, self.record.submitted_s, clock.now_us() / 1e6, nodes=self._nodes,
            nodes_top=self._nodes_top, exhausted=self._is_exhausted(), guards=guards, sums=self._sums.over(),
        )  # fmt: skip

    def why(self, hold_s: float) -> str:
        """Why its job is canceled, for the job's page; empty = it was interrupted."""
        return f"held for {hold_s:g} s" if self.record.status == "measured" else self.record.reason

    def close(self) -> None:
        """Note in the record how it ended."""
        end, record = self.end, self.record
        if isinstance(end, SteadyWindow):
            record.status = "measured"
            record.start_s, record.end_s = end
        elif end is not None:
            record.status = "not reached" if end.unreached else "stopped"
            record.reason = end.reason + (self._waits_for() if end.unreached and end.waits else "")

    def _is_exhausted(self) -> bool:
        """Whether every event has ended."""
        row = self._client.campaign(self.record.campaign)
        return row.events_done + row.events_failed + row.events_canceled >= sum(self._jobs.values())

    def _waits_for(self) -> str:
        """What keeps the job from running more, as a part of a sentence; empty where nothing does that is known."""
        for job in self._jobs:
            detail = self._client.job(job)
            if detail.waits_for and detail.waits_for != AT_WORK:
                return f"; its job waits: {detail.waits_hint or detail.waits_for}"
        return ""


class _Times:
    """Reads payload times as they arrive."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._after: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self._payloads: list[Payload] = []

    def read(self, jobs: Mapping[int, int]) -> list[Payload]:
        """All payloads so far of these jobs, given with their events. Jobs of which all is known are not asked for."""
        new: list[Payload] = []
        for job, events in jobs.items():
            while self._events.get(job, 0) < events:
                page = self._client.times(job, after=self._after.get(job, 0))
                if not page.times:
                    break
                self._after[job] = page.next
                self._events[job] = self._events.get(job, 0) + sum(each.count for each in page.times)
                new += taken(page.times)
        if new:
            self._payloads = sorted([*self._payloads, *new], key=lambda each: each.start_s)
        return self._payloads


def all_ended(row: CampaignRow) -> bool:
    """Whether no job of a campaign waits or runs."""
    return sum(row.states.get(state, 0) for state in ("WAITING", "RUNNING")) == 0
