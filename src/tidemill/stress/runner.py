"""Runs a stress test: submits each level, watches it, takes its window, and leaves no jobs behind.

The campaign of a level is written down before it is submitted. Whoever goes on with a run that was killed cancels that
campaign first and starts its level again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.client import Client
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.stress import holding, prometheus, store
from tidemill.stress.holding import Seen, SteadyWindow, StopRun
from tidemill.stress.payloads import Payload, taken
from tidemill.stress.plan import GuardPlan, StressStep
from tidemill.stress.run import Run, SeriesSource, StepRun
from tidemill.stress.submission import LevelSubmission, all_ended
from tidemill.wire.http import NotFoundError

POLL_S_MIN, POLL_S_MAX = 0.1, 2.0
GUARD_S = 15.0
EXIT_JOB, EXIT_SITE = 1, 3
Say = Callable[[str], None]


class HeldLevel(NamedTuple):
    """How a level ended."""

    payloads: list[Payload]
    end: SteadyWindow | StopRun
    waits: str = ""  #: what the level's job waits for


class Runner:
    """Runs the steps of a run that it does not have yet. `sources`: where time series come from."""

    def __init__(
        self, client: Client, run: Run, directory: Path, *, sources: Sequence[SeriesSource], say: Say
    ) -> None:
        self._client, self._run, self._directory = client, run, directory
        self._sources, self._say = sources, say

    def work(self, steps: Sequence[StressStep]) -> Run:
        """Run the steps; the run, which is saved after each. What interrupts it leaves no jobs, and can go on later."""
        run = self._run
        run.stopped, run.exit_code, run.ended_us = "", 0, 0
        self._cancel_open("an interrupted stress test goes on")
        measured = [each for each in run.steps if each.status == "measured"]
        run.steps = measured
        known = {each.step.number for each in measured}
        for step in steps:
            if step.number in known:
                continue
            self._step(step)
            if run.stopped:
                break
        run.steps.sort(key=lambda each: each.step.number)
        run.ended_us = clock.now_us()
        store.save(self._directory, run)
        return run

    def _step(self, step: StressStep) -> None:
        run = self._run
        campaign = f"stress-{run.id}-{step.number}-{clock.now_us():x}"
        run.open_campaign = campaign
        store.save(self._directory, run)
        self._say(f"level {step.title}: submitting campaign `{campaign}`")
        record = StepRun(step=step, campaign=campaign, submitted_s=clock.now_us() / 1e6)
        try:
            held = self._hold(step, record)
        finally:  # also when a person or a signal interrupts it
            self._cancel_open("the level is over")
        record.payloads = held.payloads
        if isinstance(held.end, SteadyWindow):
            record.status = "measured"
            record.start_s, record.end_s = held.end
            self._take_series(record)
            self._say(f"level {step.title}: held for {run.plan.hold_s:g} s")
        else:
            record.status = "not reached" if held.end.unreached else "stopped"
            record.reason = run.stopped = held.end.reason + held.waits
            run.exit_code = EXIT_JOB if held.end.job else EXIT_SITE
        run.steps.append(record)
        store.save(self._directory, run)
        if not run.stopped:  # else the caller shows how it ended
            store.finish(self._directory, run)

    def _hold(self, step: StressStep, record: StepRun) -> HeldLevel:
        plan = self._run.plan
        submission = LevelSubmission(self._client, plan, step, record.campaign)
        submission.start()
        times = _Times(self._client)
        guards, nodes = _Guards(plan.guard), _Nodes(self._client, step.site)
        pause = min(POLL_S_MAX, max(POLL_S_MIN, plan.payload.event_s / 10))
        while True:
            for source in self._sources:
                source.look(step.site)
            payloads = times.read(submission.jobs)
            now_s = clock.now_us() / 1e6
            seen = Seen(
                payloads,
                record.submitted_s,
                now_s,
                nodes=nodes.now(),
                nodes_top=nodes.top,
                exhausted=submission.is_exhausted(),
                guards=guards.over(),
            )
            end = holding.decide(plan, step, seen)
            if end is not None:
                waits = (
                    submission.waits_for() if isinstance(end, StopRun) and end.unreached and end.waits else ""
                )
                return HeldLevel(payloads, end, waits)
            clock.sleep_s(pause)

    def _take_series(self, record: StepRun) -> None:
        for source in self._sources:
            try:
                record.series += source.series(record.step.site, record.start_s, record.end_s)
            except TidemillError as error:  # the payloads are measured all the same
                record.remarks.append(error.message)
                self._say(f"warning: {error.message}")

    def _cancel_open(self, reason: str) -> None:
        """Cancel what the open campaign still has, and wait until its jobs have ended, at most `ramp_down_s`."""
        campaign = self._run.open_campaign
        if not campaign:
            return
        deadline = clock.monotonic_s() + self._run.plan.ramp_down_s
        try:
            self._client.cancel(campaign=campaign, reason=f"stress test: {reason}")
            while not all_ended(self._client.campaign(campaign)) and clock.monotonic_s() < deadline:
                clock.sleep_s(POLL_S_MIN)
        except NotFoundError:  # it was never submitted
            pass
        self._run.open_campaign = ""
        store.save(self._directory, self._run)


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


class _Nodes:
    """How many nodes the site has, now and at most; sites are asked for every GUARD_S."""

    def __init__(self, client: Client, site: str) -> None:
        self._client, self._site, self.top = client, site, 0
        self._asked_s, self._now = float("-inf"), 0

    def now(self) -> int:
        if clock.monotonic_s() - self._asked_s >= GUARD_S / 5:
            self._asked_s = clock.monotonic_s()
            rows = [row for row in self._client.sites() if not self._site or row.name == self._site]
            self._now = sum(int(row.capacity.get("nodes", 0)) for row in rows)
            self.top = max(self.top, self._now)
        return self._now


class _Guards:
    """The test's guards. One that cannot be asked stops the run: nobody would see the harm."""

    def __init__(self, guards: Sequence[GuardPlan]) -> None:
        self._guards, self._asked_s = guards, float("-inf")

    def over(self) -> list[str]:
        if not self._guards or clock.monotonic_s() - self._asked_s < GUARD_S:
            return []
        self._asked_s = clock.monotonic_s()
        found = []
        for guard in self._guards:
            try:
                found.append(prometheus.over(guard))
            except SiteError as error:
                found.append(error.message)
        return [each for each in found if each]


def check_sites(client: Client, run: Run, steps: Sequence[StressStep]) -> None:
    """Raises ConfigError for a site or an application that the server does not know."""
    known = {row.name for row in client.sites()}
    for site in dict.fromkeys(step.site for step in steps if step.site):
        if site not in known:
            raise ConfigError(
                f"site `{site}` of the test is not known to the server",
                hint=f"known: {', '.join(sorted(known))}",
            )
    app = run.plan.payload.app
    offers = client.applications() if app is not None else []
    if app is not None and not any(each.app.name == app for each in offers):
        raise ConfigError(
            f"no site offers application `{app}`", hint="`tidemill app list` shows what there is"
        )
