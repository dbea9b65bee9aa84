"""Runs a stress test: submits each level, watches it, takes its window, and leaves no jobs behind.

The campaign of a level is written down before it is submitted. A run that goes on after a kill cancels that campaign
first and starts its level again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidemill import clock
from tidemill.client import Client
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.model.job import STRESS_REASON, PlannedLevel
from tidemill.wire.api import SiteRow
from tidemill.wire.server_connection import NotFoundError
from tidemill_stress import holding, store
from tidemill_stress.holding import Seen, StopRun
from tidemill_stress.plan import GuardPlan, StressStep, rounds
from tidemill_stress.run import Run, SeriesSource, StepRun
from tidemill_stress.running_level import RunningLevel, all_ended
from tidemill_stress.series import prometheus

POLL_S_MIN, POLL_S_MAX = 0.1, 2.0
GUARD_S, SITES_S = 15.0, 3.0
REASON_CHARACTERS_MAX = 200
EXIT_JOB, EXIT_SITE = 1, 3
Say = Callable[[str], None]


class Runner:
    """Runs the steps of a run that it does not have yet. `sources`: where time series come from."""

    def __init__(
        self, client: Client, run: Run, directory: Path, *, sources: Sequence[SeriesSource], say: Say
    ) -> None:
        self._client, self._run, self._directory = client, run, directory
        self._sources, self._say = sources, say
        self._guards = _Guards(run.plan.guard)
        self._sites = _Sites(client)

    def work(self, steps: Sequence[StressStep]) -> Run:
        """Run the steps; the run, which is saved after each. What interrupts it leaves no jobs, and can go on later.

        A site at which a level could not be measured gets no further levels; the other sites go on.
        """
        run = self._run
        run.stopped, run.exit_code, run.ended_us = "", 0, 0
        self._cancel_open("an interrupted stress test goes on")
        run.steps = [each for each in run.steps if each.status == "measured"]
        known = {each.step.number for each in run.steps}
        stopped: dict[str, str] = {}  # reason by site
        planned = [PlannedLevel(title=each.title, level=each.level, site=each.site) for each in steps]
        for together in rounds(run.plan, steps):
            now = [each for each in together if each.number not in known and each.site not in stopped]
            if not now or "*" in stopped:
                continue
            for level in self._round(now, planned):
                if isinstance(level.end, StopRun):
                    stopped["*" if level.end.everywhere else level.step.site] = level.record.reason
                    run.exit_code = max(run.exit_code, EXIT_JOB if level.end.job else EXIT_SITE)
            run.stopped = _stopped(stopped, many=len(run.plan.sites) > 1)
            store.save(self._directory, run)
            if not run.stopped:  # else the caller shows how it ended
                store.finish(self._directory, run)
        run.steps.sort(key=lambda each: each.step.number)
        run.ended_us = clock.now_us()
        store.save(self._directory, run)
        return run

    def _round(self, steps: Sequence[StressStep], planned: list[PlannedLevel]) -> list[RunningLevel]:
        """Run these steps at the same time; how they ended."""
        run = self._run
        levels = [RunningLevel(self._client, run, each, planned) for each in steps]
        run.open_campaigns = [each.record.campaign for each in levels]
        store.save(self._directory, run)
        try:
            for each in levels:
                self._say(f"level {each.step.title}: submitting campaign `{each.record.campaign}`")
                each.start()
            self._hold(levels)
        finally:  # also when a person or a signal interrupts it
            why = {each.record.campaign: each.why(run.plan.hold_s) for each in levels}
            self._cancel_open("it was interrupted", why)
        for each in levels:
            if each.record.status == "measured":
                self._take_series(each.record)
                self._say(f"level {each.step.title}: held for {run.plan.hold_s:g} s")
            run.steps.append(each.record)
        return levels

    def _hold(self, levels: Sequence[RunningLevel]) -> None:
        """Watch levels until each has ended: all have their window, or a reason to stop."""
        pause = min(POLL_S_MAX, max(POLL_S_MIN, self._run.plan.payload.event_s / 10))
        while going := [each for each in levels if each.end is None]:
            rows = self._sites.now()
            for source in self._sources:
                source.observe(rows)
            over = self._guards.over()
            everywhere = over.pop("", [])
            pairs: list[tuple[StressStep, Seen]] = []
            for each in going:
                each.observe(rows)
                pairs.append((each.step, each.seen(everywhere + over.get(each.step.site, []))))
            for each, end in zip(going, holding.decide_together(self._run.plan, pairs), strict=True):
                each.end = end
                if isinstance(end, StopRun) and everywhere:
                    each.end = end._replace(everywhere=True)
                each.close()
                if end is not None and len(levels) > 1 and isinstance(end, StopRun):
                    self._say(f"level {each.step.title}: {each.record.reason}")
                    reason = f"{STRESS_REASON}{each.record.reason}"[:REASON_CHARACTERS_MAX]
                    self._client.cancel(campaign=each.record.campaign, reason=reason)
            if any(each.end is None for each in levels):
                clock.sleep_s(pause)

    def _take_series(self, record: StepRun) -> None:
        for source in self._sources:
            try:
                record.series += source.series(record.step.site, record.start_s, record.end_s)
            except TidemillError as error:  # the payloads are measured all the same
                record.remarks.append(error.message)
        for remark in record.remarks:
            self._say(f"warning: {remark}")

    def _cancel_open(self, reason: str, reasons: Mapping[str, str] | None = None) -> None:
        """Cancel what the open campaigns still have, and wait until their jobs have ended, at most `ramp_down_s`."""
        run = self._run
        deadline = clock.monotonic_s() + run.plan.ramp_down_s
        left = []
        for campaign in run.open_campaigns:
            try:
                why = (reasons or {}).get(campaign) or reason
                self._client.cancel(campaign=campaign, reason=f"{STRESS_REASON}{why}"[:REASON_CHARACTERS_MAX])
                left.append(campaign)
            except NotFoundError:  # it was never submitted
                pass
        while left and clock.monotonic_s() < deadline:
            left = [each for each in left if not all_ended(self._client.campaign(each))]
            clock.sleep_s(POLL_S_MIN if left else 0.0)
        if run.open_campaigns:
            run.open_campaigns = []
            store.save(self._directory, run)


def _stopped(reasons: Mapping[str, str], *, many: bool) -> str:
    """Why steps are missing, in one line."""
    return "; ".join(
        f"at {site}: {reason}" if many and site not in ("", "*") else reason
        for site, reason in reasons.items()
    )


class _Sites:
    """All sites as the server shows them, asked for every SITES_S."""

    def __init__(self, client: Client) -> None:
        self._client, self._asked_s, self._rows = client, float("-inf"), list[SiteRow]()

    def now(self) -> list[SiteRow]:
        if clock.monotonic_s() - self._asked_s >= SITES_S:
            self._asked_s = clock.monotonic_s()
            self._rows = self._client.sites()
        return self._rows


class _Guards:
    """The test's guards. One that cannot be asked stops the run: harm would go unseen."""

    def __init__(self, guards: Sequence[GuardPlan]) -> None:
        self._guards, self._asked_s = guards, float("-inf")

    def over(self) -> dict[str, list[str]]:
        """What guards have against going on, by site; of all sites under an empty name."""
        if not self._guards or clock.monotonic_s() - self._asked_s < GUARD_S:
            return {}
        self._asked_s = clock.monotonic_s()
        found: dict[str, list[str]] = {}
        for guard in self._guards:
            try:
                why = prometheus.over(guard)
            except SiteError as error:
                why = error.message
            if why:
                found.setdefault(guard.site or "", []).append(why)
        return found


def check_sites(client: Client, run: Run, steps: Sequence[StressStep]) -> None:
    """Raises ConfigError for a site or an application that the server does not know, and where it is open at which of
    several sites the levels would run: those of different sites cannot be compared."""
    known = {row.name for row in client.sites()}
    if len(known) > 1 and not run.plan.sites:
        raise ConfigError(
            f"the test does not say at which of {len(known)} sites it runs",
            hint=f'add `sites = ["NAME"]` to it; known: {", ".join(sorted(known))}',
        )
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
