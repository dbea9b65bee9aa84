"""The fleets of a site from day to day: read, granted work, kept under a lead, finished and removed.

The standing fleet takes new work of one node; fleets of earlier epochs are brought to their end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill import clock
from tidemill.batch.contract import BatchSubmission
from tidemill.errors import SiteError
from tidemill.log import Log
from tidemill.site import constants
from tidemill.site.applications.launching import Launching
from tidemill.site.applications.offers import Offers
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.fleets import Fleets, OpenFleet, is_over, orders_of
from tidemill.site.fleet.granting import Granting
from tidemill.site.fleet.io_budget import IoShares
from tidemill.site.fleet.wide import Wide
from tidemill.site.fleet.workload import Workload
from tidemill.site.state import site_state
from tidemill.site.state.epoch import SupersededError
from tidemill.site.state.served_site import ServedSite

CLEAN_S = 5.0
FLEET_RECORDS_MAX = 2_000_000
"""A fleet with this many records (about 700 MB of journal) gets no new work: a new fleet does."""

_log = Log("agent")


OnRecords = Callable[[str, site_state.Read], None]


class Lifecycle:
    """The fleets of one agent's epoch, the work that they are granted, and what of it is open."""

    def __init__(self, site: ServedSite, offers: Offers, stage: Stage, *, devices: dict[str, int]) -> None:
        """`devices`: of a node."""
        self._site = site
        self._log = site.log
        self._epoch = site.epoch
        self._fleets = Fleets(site.fleets_dir, site.config, binary=site.binary, devices=devices)
        self._fleets.adopt(site.state)
        self.granting = Granting(site.log, offers.preparer, stage, self._fleets, site.pools.stage_in)
        self.workload = Workload(site.log, offers.applications, *self.granting.waiting)
        self.wide = Wide(site.log, self._fleets, self.granting, estimate_s=self.workload.estimate_s)
        self._drained: set[str] = set()
        self._standing: OpenFleet | None = None
        self._next_clean_s = 0.0

    @property
    def io(self) -> IoShares:
        """What the fleets may do to shared file systems."""
        return self._fleets.io

    @property
    def standing(self) -> str | None:
        """Name of the fleet that takes new work; None before there was any."""
        return self._standing.record.name if self._standing else None

    def at_work(self, fleet: str) -> set[int] | None:
        """The jobs that pilots of a fleet run; None = that is not known."""
        return self._fleets.at_work(fleet)

    def _stand(self) -> OpenFleet:
        """The fleet of this epoch for new work, made when it is first needed."""
        if self._standing is not None and self._standing.record.records > FLEET_RECORDS_MAX:
            self._standing = None  # it ends when its work is done; journals and bundles do not grow for ever
        if self._standing is None:
            self._standing = self._fleets.open_new(self._log, self._epoch.check)
        return self._standing

    # ---- records of pilots ----

    def read(self, on_records: OnRecords, *, hurry: bool = False) -> bool:
        """Take what is new in all journals; whether there was anything. `on_records` gets each with its fleet."""
        return any([self._read_records(opened, on_records, hurry=hurry) for opened in self._working()])

    def _working(self) -> list[OpenFleet]:
        return [opened for opened in self._fleets.open.values() if opened.record.finished_us is None]

    def _read_records(self, opened: OpenFleet, on_records: OnRecords, *, hurry: bool = False) -> bool | None:
        """Take what is new in a fleet's journals; whether there was anything, None where they cannot be read now."""
        try:
            entries = self._fleets.read(opened, hurry=hurry)
        except SiteError as error:
            _log.warning("journal.unreadable", fleet=opened.record.name, reason=error.message)
            return None
        for entry in entries:
            if opened.mailbox is not None:
                opened.mailbox.on_records(entry.records)
            entry.far = self.granting.inputs.attributed(entry.records)
            self._log.apply(entry)
        for entry in entries:  # once all are in the log: what is seen and is not there would be lost
            on_records(opened.record.name, entry)
        return bool(entries)

    # ---- work and orders ----

    def write(self) -> None:
        """Write the work files that are noted."""
        if self.granting.unwritten:
            self._epoch.check()
            try:
                self.granting.write()
            except SiteError as error:
                _log.error("work.unwritten", reason=error.message, hint=error.hint)

    def grant(self, launching: Launching) -> bool:
        """Note grants of what is ready, or drain the fleets of a stopped site; whether anything was noted. `launching`:
        how payloads that span nodes are started now."""
        self.granting.tend()
        if self._site.state.stop is not None:
            return self._drain()
        self._drained.clear()  # another stop drains them again
        if self.granting.unwritten:
            return False
        changed = self.wide.grant(launching, self._epoch.check)
        if not self._log.pool.settlement.backlog:
            return changed
        return self.granting.plan(self._stand(), launching) or changed

    def first_work(self, submissions: list[BatchSubmission]) -> list[BatchSubmission]:
        """Submissions with the work file that their pilots start with, where pilots read files."""
        return self._fleets.first_work(self._site.state, submissions, self._epoch.check)

    def forget(self, jobs: Iterable[int]) -> bool:
        """Drop what was prepared for jobs that are over; whether there were any."""
        known = list(jobs)
        self.granting.forget(*known)
        self.granting.inputs.tend()
        if known:
            self.granting.troubles.freed()
        return bool(known)

    def _drain(self) -> bool:
        """Drain the fleets of a stopped site: leads hand out nothing more, pilots leave, later work gets another fleet.
        Returns whether anything was ordered, or returned to the server."""
        self._standing = None
        self.wide.forget_fleets()
        is_news = False
        for opened in self._working():
            if opened.record.name not in self._drained:
                self._drained.add(opened.record.name)
                self.granting.drain(opened)
                is_news = True
        return is_news or (not self._working() and self._give_back())

    def _give_back(self) -> bool:
        """Nothing works here any more: what is leased may run elsewhere. Steps of our own wait."""
        settlement, stop = self._log.pool.settlement, self._log.pool.state.stop
        backlogs = [settlement.backlog, *settlement.wide.values()]
        jobs = [job for backlog in backlogs for job in backlog if job < site_state.STEP_BASE]
        if jobs:
            reason = f"the site is stopped: {stop.reason if stop else ''}"
            self._log.apply(site_state.GaveBack(jobs=jobs, reason=reason))
        return bool(jobs)

    # ---- their life ----

    def tend(self, on_records: OnRecords) -> bool:
        """Keep leads alive, order what ends and leaves, finish fleets of earlier epochs. `on_records` as for `read`."""
        changed = False
        for opened in self._working():
            opened.fleet.beat(self._epoch.number)
            changed |= self._tend(opened, on_records)
        self._fleets.share_io(self._log.pool.state, self._epoch.check)
        return changed

    def _tend(self, opened: OpenFleet, on_records: OnRecords) -> bool:
        state, name = self._log.pool.state, opened.record.name
        is_standing = opened is self._standing or self.wide.owns(opened)
        over = is_over(state, name)
        close = not is_standing and (over or not opened.has_work)
        ended, ends, leave = orders_of(state, name, now_us=clock.now_us())
        if ended and opened.mailbox is not None:  # what they did comes before what they did not do
            self._read_records(opened, on_records, hurry=True)
        told = self.granting.orders(opened, ended=ended, ends=ends, leave=leave, close=close)
        if told:
            self._log.commit()
            self.write()
        if is_standing or not over:
            if not over or opened.record.open:
                self._keep_lead(opened)
            return told
        return self._finish(opened, on_records) or told

    def _keep_lead(self, opened: OpenFleet) -> None:
        try:
            opened.lead.keep_alive(self._epoch)
            self._fleets.hand_out(opened, self._log.pool.state, self._epoch.check)
        except SupersededError:
            raise
        except SiteError as error:
            _log.error("lead.not_started", fleet=opened.record.name, reason=error.message)

    def _finish(self, opened: OpenFleet, on_records: OnRecords) -> bool:
        """An old fleet is over: when its lead has ended and all is read, what is left is taken back."""
        if not self._fleets.has_ended(opened, self._log.pool.state):
            return False
        if self._read_records(opened, on_records, hurry=True) is False:  # not where they cannot be read now
            self._log.apply(site_state.FleetFinished(fleet=opened.record.name, at_us=clock.now_us()))
            self._fleets.open.pop(opened.record.name, None)
            _log.info("fleet.finished", fleet=opened.record.name)
        return True

    def clean(self, *, are_read: bool) -> None:
        """Remove the directories of fleets that were finished `fleet_keep_s` ago, and of which no output is needed. Not
        while bundles `are_read`."""
        now_s = clock.monotonic_s()
        if now_s < self._next_clean_s:
            return
        self._next_clean_s = now_s + CLEAN_S
        if not are_read:
            self._remove(constants.FLEET_KEEP_S)

    def _remove(self, keep_s: float) -> None:
        state = self._log.pool.state
        limit_us = clock.now_us() - int(keep_s * 1e6)
        over = [
            fleet.name
            for fleet in state.fleets.values()
            if fleet.finished_us is not None and fleet.finished_us <= limit_us
        ]
        if not over:
            return
        needed = {part.fleet for job in state.jobs.values() for part in job.parts}
        for name in over:
            if name not in needed:
                self._log.apply(site_state.FleetRemoved(fleet=name))
                self._log.commit()
                self._epoch.check()
                self._fleets.remove(name)

    def send_home(self, reason: str) -> None:
        """Order all pilots to leave by a file, without the batch system."""
        for opened in self._working():
            try:
                opened.fleet.stop(reason)
            except SiteError as error:
                _log.error("fleet.not_stopped", fleet=opened.record.name, reason=error.message)

    def stop(self) -> None:
        """End the leads with the agent."""
        for opened in self._fleets.open.values():
            opened.lead.stop()
