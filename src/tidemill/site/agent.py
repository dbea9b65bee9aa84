"""The site agent: one bounded loop that joins the parts. See `run` for how it is started.

Each tick: answers of the server, records of the fleets, news of the batch system, deliveries, grants, allocations. What
changes is durable in the site's log before it is acted upon, and the epoch is looked at before every action outside.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemill import __version__, clock
from tidemill.batch.contract import BatchSystem
from tidemill.config.site import SiteConfig
from tidemill.model.state import AllocationState
from tidemill.node.binary import find_binary
from tidemill.site.applications.catalogue import Applications
from tidemill.site.applications.checksums import RECORD
from tidemill.site.applications.launching import Launching, find_launcher
from tidemill.site.applications.memory import largest_slot_mb
from tidemill.site.applications.profiles import Profiles
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.deliveries import Deliveries
from tidemill.site.data.masks import private_paths
from tidemill.site.data.outputs import Deliverer
from tidemill.site.data.remote_outputs import Departures
from tidemill.site.data.staging import Stage, of_data
from tidemill.site.data.transfer_node import open_moving
from tidemill.site.fleet.capacity import Ahead, wanted
from tidemill.site.fleet.fleets import Fleets
from tidemill.site.fleet.granting import Granting
from tidemill.site.fleet.lifecycle import Lifecycle
from tidemill.site.fleet.throughput import Throughput
from tidemill.site.fleet.wide import Wide
from tidemill.site.link.replies import OrderIntake
from tidemill.site.link.sync import Sync
from tidemill.site.nodes.allocations import Allocations
from tidemill.site.nodes.batch_calls import BatchCalls
from tidemill.site.nodes.harvesting import Harvesting
from tidemill.site.nodes.machine import SiteMachine
from tidemill.site.nodes.planning import Demand
from tidemill.site.nodes.workload import Workload
from tidemill.site.staff.guest import Guest
from tidemill.site.state import site_state as s
from tidemill.site.state.epoch import Epoch
from tidemill.site.state.log import SiteLog, restore
from tidemill.site.watch.metrics import MetricsFile, Sources
from tidemill.site.watch.remarks import Remarks
from tidemill.site.watch.summary import RecordTotals
from tidemill.site.watch.views import Views
from tidemill.transfer.file import Roots
from tidemill.wire.api import REPORTS_MAX, AppOffer, Capacity, SyncRequest
from tidemill.wire.node import Started

HELPERS = 2
APPLICATIONS_S = 2.0
CLEAN_S = 5.0
STOP_PILOTS_S = 30.0
STOP_LOOK_S = 3.0
JOBS_CLEANED_PER_TICK = 500


class Agent:
    """One agent's epoch."""

    def __init__(
        self, config: SiteConfig, site_dir: Path, *, identity: Epoch, batch: BatchSystem, machine: SiteMachine
    ) -> None:
        self.config = config
        self.site_dir = site_dir
        self.identity = identity
        binary = config.node_binary or find_binary()
        restored = restore(site_dir / "log", config.name)
        self.log = SiteLog(
            site_dir / "log", identity.epoch, restored.pool, lines_max=config.log_snapshot_lines
        )
        owner = identity.owner
        self.log.apply(
            s.Opened(
                epoch=owner.epoch, host=owner.host, pid=owner.pid, at_us=clock.now_us(), read=restored.read
            )
        )
        self.log.commit()
        self.intake = OrderIntake(self.log, config, site_dir)
        self.executor = ThreadPoolExecutor(HELPERS, thread_name_prefix="hands")
        self.applications = Applications(site_dir / "apps", site=config, beside=True)
        self.applications.refresh()
        self.allocations = Allocations(
            self.log, config, binary=binary, fleets=site_dir / "fleets", nodes=machine.bad
        )
        self.machine = machine
        self.errands = BatchCalls(batch, identity.check, inline=machine.is_local)
        self.harvesting = Harvesting(
            self.log, self.allocations, config=config, errands=self.errands, machine=machine
        )
        self.guest = Guest(self.log, config, site_dir=site_dir, executor=self.executor)
        self.workload = Workload(self.log, self.applications)
        self.shape = machine.shape
        areas = {area.name: area.prefixes for area in config.io}
        self.profiles = Profiles(site_dir / "profiles", site_dir / "fleets", areas)
        self.preparer = Preparer(
            config, self.applications, self.shape, profiles=self.profiles, denials=self.intake.denials
        )
        base = config.output_dir or site_dir / "out"
        roots = Roots(config.data_roots, private=private_paths(site_dir, config), own=base)
        self.moving = open_moving(site_dir, config)
        self.stage = Stage(site_dir / "stage", config, roots, self.moving)
        self.fleets = Fleets(site_dir / "fleets", config, binary=binary, devices=self.shape.devices)
        self.fleets.adopt(self.log.pool.state)
        self.granting = Granting(self.log, self.preparer, self.stage, self.fleets, self.executor)
        self.wide = self.harvesting.wide = Wide(
            self.log, self.fleets, self.granting, estimate_s=self.workload.estimate_s
        )
        self.tending = Lifecycle(self.log, self.fleets, self.granting, wide=self.wide, identity=identity)
        self.harvesting.outfit = lambda asked: self.fleets.first_work(
            self.log.pool.state, asked, self.identity.check
        )
        self.launcher = find_launcher(config)
        self._set_launching()
        self.departures = Departures(site_dir / "stage" / "out", self.moving)
        self.deliveries = self._deliveries(base, roots)
        self.sync = Sync(config)
        self.views = Views(machine, self.harvesting, self.granting, self.deliveries, mode=config.mode)
        self.views.denied = self.intake.denials.names
        self.throughput = Throughput()
        self.remarks = Remarks()
        self.summary = RecordTotals()
        self.metrics = self._metrics()
        self._offers_told = self._asked = False
        self._next_applications_s = self._next_clean_s = 0.0

    def _deliveries(self, base: Path, roots: Roots) -> Deliveries:
        """What takes outputs to their places. `base`: where they go that name none."""
        fleets, config = self.site_dir / "fleets", self.config
        deliverer = Deliverer(
            fleets, base, roots=roots, template=config.output_name, departures=self.departures
        )
        return Deliveries(self.log, self.preparer, deliverer, fleets=fleets, executor=self.executor)

    def _metrics(self) -> MetricsFile:
        path = self.site_dir / "metrics.prom"
        sources = Sources(self.sync, self.fleets.io, lambda: of_data(self.stage, self.moving))
        return MetricsFile(path, self.config, self.remarks, summary=self.summary, sources=sources)

    # ---- the tick ----

    def tick(self) -> bool:
        """Do what is due; whether something happened or is under way that calls for the next tick soon."""
        self.identity.check()
        self.identity.beat()
        changed = self._take_reply()
        changed |= self._deny()
        changed |= self._read_fleets()
        changed |= self.harvesting.poll(wants=self._wants_nodes)
        changed |= self.guest.look(self.allocations.held)
        if not self.sync.contested:
            changed |= self.deliveries.step()
            changed |= self._grant()
        self.log.commit()
        self.tending.write()
        changed |= self._harvest()
        self.views.look(self.log.pool.state)
        changed |= self.tending.tend(self._heard)
        self.log.commit()
        self._start_sync()
        self._clean()
        self.metrics.write(self.log.pool.state, self.harvesting, self.machine, calls=self.errands.batch.calls)
        return changed

    @property
    def is_drained(self) -> bool:
        """Whether no new work is taken: told by the server, or stopped."""
        return self.log.pool.state.drained is not None or self.guest.is_stopped

    @property
    def demand(self) -> Demand:
        """What is open here."""
        return self.workload.demand(cores=self.machine.shape.cores, more=self.sync.more)

    @property
    def _wants_nodes(self) -> bool:
        is_needed = self.demand.events > 0 or bool(self.wide.needs())
        return is_needed or self.guest.is_stopped or self.config.mode == "observe"

    def _set_launching(self) -> None:
        """Tell those that make programs what payloads that span nodes have here."""
        self.preparer.launching = Launching(self.launcher, self.machine.wide_nodes_max)

    def _take_reply(self) -> bool:
        was_under_way = self.sync.is_under_way
        reply = self.sync.take()
        if reply is None:
            if was_under_way and not self.sync.is_under_way:
                self.views.unanswered()
            return False
        self.views.answered()
        return self.intake.take(reply)

    def _deny(self) -> bool:
        """End the work of submitters whom the site's staff deny by now."""
        jobs = self.intake.look()
        for job in jobs:
            self.granting.forget(job)
        return bool(jobs)

    def _read_fleets(self, *, hurry: bool = False) -> bool:
        return self.tending.read(self._heard, hurry=hurry)

    def _heard(self, fleet: str, entry: s.Read) -> None:
        """What others make of new records, besides the pool."""
        records = entry.records
        self.machine.costs.heard(records, self.log.pool.state.allocations)
        self.profiles.heard(fleet, records)
        if any(type(record) is Started for record in records):
            self.allocations.worked()
        self.remarks.take(records)
        self.summary.take(records)

    def _grant(self) -> bool:
        if self.guest.is_stopped:
            return self.tending.drain()
        self.tending.resume()
        if self.granting.unwritten:
            return False
        self._set_launching()
        changed = self.wide.grant(self.identity.check)
        if not self.log.pool.settlement.backlog:
            return changed
        return self.granting.plan(self.tending.stand()) or changed

    def _harvest(self) -> bool:
        """The broker's step. Where the site only observes there is no fleet, and nothing is submitted; nor is it while
        the server takes another agent for the site's, but nodes are given back as ever."""
        self.harvesting.contested = self.sync.contested
        return self.harvesting.step(self.tending.standing, self.demand)

    # ---- the server ----

    def _start_sync(self) -> None:
        state = self.log.pool.state
        capacity = self._capacity(*self._wanted())
        wants = capacity.want_core_s > 0 or capacity.wide_core_s > 0
        presses = bool(state.reports) or (wants and (self.sync.more or not self._asked))
        if not self.sync.is_due(presses=presses and not self.sync.is_under_way):
            return
        self.identity.check()
        offers = None if self._offers_told and not self.sync.failures else self._offers()
        self._offers_told = True
        self._asked = wants
        self.sync.start(
            SyncRequest(
                site=self.config.name,
                epoch=self.identity.epoch,
                host=self.identity.owner.host,
                version=__version__,
                reports=state.reports[:REPORTS_MAX],
                have=state.have,
                offers=offers,
                capacity=capacity,
                allocations=self._allocation_states(),
                view=self.views.take(state),
            )
        )

    def _wanted(self) -> tuple[float, int]:
        if self.config.mode != "run" or self.is_drained:
            return 0.0, 0
        done = self.demand
        rate = self.throughput.update(done.core_s, clock.monotonic_s())
        return wanted(
            Ahead(
                cores=self.machine.cores,
                open_core_s=done.core_s,
                open_ranges=self.log.pool.state.leases_open,
                rate_core_s=rate,
                sync_s=self.sync.interval_s,
                lease_ahead_s=self.config.lease_ahead_s,
                core_s_max=self.config.lease_core_s_max,
                ranges_max=self.config.lease_ranges_max,
            )
        )

    def _wide_core_s(self) -> float:
        if self.config.mode != "run" or self.is_drained or not self.launcher:
            return 0.0
        return self.wide.wanted_core_s(
            nodes=self.machine.wide_nodes_max, cores=self.shape.cores, walltime_s=self.config.walltime_s
        )

    def _capacity(self, want_core_s: float, want_ranges: int) -> Capacity:
        rates, wide_core_s = self.log.pool.state.rates, self._wide_core_s()
        if wide_core_s > 0:
            want_ranges = max(0, self.config.lease_ranges_max - self.log.pool.state.leases_open)
        active = [a for a in self.allocations.living if a.state is AllocationState.ACTIVE]
        return Capacity(
            want_core_s=want_core_s,
            want_ranges_max=min(want_ranges, self.intake.room),
            slot_cores_max=self.shape.cores,
            slot_memory_mb_max=largest_slot_mb(self.shape.memory_mb),
            devices=self.shape.devices,
            event_s=self.workload.measured(),
            nodes=min(self.config.nodes_max, self.machine.nodes),
            busy_cores=sum(a.cores * a.nodes for a in active) if rates or active else 0,
            adhoc=self.config.allow_adhoc,
            wide_core_s=wide_core_s,
            wide_nodes_max=self.machine.wide_nodes_max if self.launcher else 0,
            launcher=self.launcher,
        )

    def _offers(self) -> list[AppOffer]:
        return self.profiles.offers(self.applications.offers({}))

    def _allocation_states(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for allocation in self.log.pool.state.allocations.values():
            counts[allocation.state.value] = counts.get(allocation.state.value, 0) + 1
        return counts

    # ---- cleaning ----

    def _clean(self) -> None:
        """Forget what is over: staged inputs, finished fleets; look for changed applications."""
        now = clock.monotonic_s()
        if now >= self._next_applications_s:
            self._next_applications_s = now + APPLICATIONS_S
            if self.applications.refresh():
                self._offers_told = False
            self.applications.digests.write_known(self.site_dir / RECORD)
        if self.profiles.step(self.executor):
            self._offers_told = False
        forgotten = self.log.pool.state.forgotten[:JOBS_CLEANED_PER_TICK]
        if forgotten:
            for job in forgotten:
                self.granting.forget(job)
                self.stage.clean(job)
                self.departures.forget(job)
            self.log.apply(s.Cleaned(jobs=forgotten))
        self.stage.sweep()
        if now >= self._next_clean_s:
            self._next_clean_s = now + CLEAN_S
            self.stage.tidy()
            if not self.deliveries.is_busy:
                self.tending.remove(self.config.fleet_keep_s)

    # ---- the end ----

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that another tick could bring on at once."""
        return not (
            self.sync.is_under_way
            or self.log.pool.state.reports
            or self.granting.is_staging
            or self.errands.is_busy
            or self.deliveries.is_busy
            or self.applications.digests.is_busy
            or self.moving.is_busy
        )

    def stop_pilots(self) -> None:
        """Give all allocations back and wait, bounded, for what they have done until then."""
        is_asked, next_look_s = False, 0.0
        deadline = clock.monotonic_s() + STOP_PILOTS_S
        while self.allocations.living and clock.monotonic_s() < deadline:
            self.harvesting.poll(wants=False)
            names = [a.name for a in self.allocations.living]
            if not is_asked:
                is_asked = self.harvesting.cancel(names, why="the agent ends and takes its pilots with it")
            elif clock.monotonic_s() > next_look_s:
                next_look_s = clock.monotonic_s() + STOP_LOOK_S
                self.harvesting.hurry()
            self._read_fleets()
            self.log.commit()
            clock.sleep_s(self.config.tick_s)
        self._read_fleets(hurry=True)
        self.log.commit()
        self.tending.stop()

    def leave(self) -> None:
        """End cleanly: everything durable and condensed; pilots and leads go on."""
        self.harvesting.finish()
        self.log.commit()
        self.log.condense()
        self.close()
        self.identity.leave()

    def close(self) -> None:
        """Let go of threads and files."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.sync.close()
        self.metrics.close()
        self.errands.close()
        self.applications.digests.close()
        self.moving.close()
        self.harvesting.planlog.close()
        self.log.close()
