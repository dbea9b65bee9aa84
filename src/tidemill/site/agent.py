"""The site agent: one bounded loop that joins the parts. See `run` for how it is started.

Each tick: the server's answer, records of the fleets, news of the batch system, deliveries, grants, allocations, the
next sync, cleaning, metrics. What changes is durable in the site's log before it is acted upon, and the epoch is
checked before every action outside.
"""

from __future__ import annotations

from concurrent import futures
from concurrent.futures import Future
from typing import Any

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.site import constants
from tidemill.site.applications.offers import Offers
from tidemill.site.data.site_data import SiteData
from tidemill.site.fleet.lifecycle import Lifecycle
from tidemill.site.fleet.workload import Demand
from tidemill.site.link.exchange import Exchange
from tidemill.site.nodes.capacity import CapacityMeter
from tidemill.site.nodes.harvesting import Harvesting
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.nodes.unended import note_unended, unended
from tidemill.site.staff.denials import Denials
from tidemill.site.staff.stopping import StopControl
from tidemill.site.state import site_state
from tidemill.site.state.served_site import ServedSite
from tidemill.site.watch.board import StatusBoard
from tidemill.site.watch.cache_views import SiteCaches
from tidemill.site.watch.node_samples import NodeSamples
from tidemill.site.watch.views import Shown, Views


class Agent:
    """One agent's epoch."""

    def __init__(self, site: ServedSite, machine: SiteMachine, batch: BatchSystem) -> None:
        denials = Denials(site.directory, site.config.name)
        self.site = site
        self.stop = StopControl(site)
        self.offers = Offers(site, machine.shape, denials)
        self.data = SiteData(site, self.offers.preparer)
        self.offers.profiles.has_read = self.data.stage.routes.learning.traced
        self.fleets = Lifecycle(site, self.offers, self.data.stage, devices=machine.shape.devices)
        self.harvesting = Harvesting(site, machine, batch, self.fleets)
        self.capacity = CapacityMeter(site, self.harvesting, self.data.deliveries.troubles)
        self.exchange = Exchange(site, denials)
        caches = SiteCaches(site.config.caches, self.offers.profiles.reads)
        self.node_samples = NodeSamples(
            site.fleets_dir, constants.MONITOR_INTERVAL_S, lambda: site.state,
            on_sample=self.harvesting.doubts.sampled,
        )  # fmt: skip
        shown = Shown(caches, self.node_samples, self.offers.applications, denials)
        self.board = StatusBoard(site, self.harvesting, self.data, exchange=self.exchange, shown=shown)
        self.views = Views(site, self.harvesting, self.data, shown=shown, status=self.board.now)

    def tick(self) -> bool:
        """Do what is due; whether something happened or is under way that calls for the next tick soon."""
        self.site.epoch.check()
        self.site.epoch.beat()
        changed = self.exchange.apply_reply()
        changed |= self.fleets.forget(self.exchange.intake.deny())
        changed |= self.fleets.read(self._on_records)
        changed |= self.harvesting.poll(self._demand())
        changed |= self.stop.step(self.harvesting.book.held, doubt=self.harvesting.doubts.last())
        contested = self.exchange.sync.contested
        if not contested:
            changed |= self.data.step()
            self.fleets.granting.refit(self.harvesting.machine.shape.memory_mb)
            changed |= self.fleets.grant(self.harvesting.machine.launching)
        self.site.log.commit()
        self.fleets.write()
        changed |= self.harvesting.step(self._demand(), contested=contested)
        self.views.sample()
        self.node_samples.step(now_s=clock.monotonic_s(), now_us=clock.now_us())
        changed |= self.fleets.tend(self._on_records)
        self.site.log.commit()
        self._sync()
        self._clean()
        self.board.write()
        return changed

    def _demand(self) -> Demand:
        return self.harvesting.demand(more=self.exchange.sync.more)

    def _on_records(self, fleet: str, entry: site_state.Read) -> None:
        """What the parts make of new records, besides the pool of work."""
        self.harvesting.on_records(entry.records)
        self.offers.profiles.on_records(fleet, entry.records)
        self.board.totals.add(entry.records)
        self.data.arrivals.on_records(entry.records)
        self.views.staging.on_records(entry.records, self.site.state.allocations)
        self.fleets.granting.on_records(entry.records)
        self.fleets.granting.troubles.on_records(entry.records)
        self.fleets.granting.inputs.on_records(entry.records)

    def _sync(self) -> None:
        sync, room = self.exchange.sync, self.exchange.intake.room
        capacity = self.capacity.measure(sync_s=sync.interval_s, room=room, more=sync.more)
        if self.exchange.is_due(capacity):
            self.site.epoch.check()  # before offers and view count as sent
            offers = self.offers.next_offers(again=sync.failures > 0)
            views = self.views.next_views(is_received=not sync.failures)
            self.exchange.send(capacity, offers=offers, views=views)

    def _clean(self) -> None:
        """Forget what is over: staged inputs, finished fleets; read changed applications."""
        self.offers.step()
        self.fleets.forget(self.data.clean())
        self.fleets.clean(are_read=bool(self.data.under_way))

    def rest(self, pause_s: float) -> None:
        """Wait for the next tick: at most this long, less where the server answers or a thread is done before."""
        awaited: list[Future[Any]] = [] if self.exchange.sync.contested else self.data.under_way
        if self.exchange.sync.under_way is not None:
            awaited.append(self.exchange.sync.under_way)
        if awaited:
            futures.wait(awaited, timeout=pause_s, return_when=futures.FIRST_COMPLETED)
        else:
            clock.sleep_s(pause_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that another tick could bring on at once."""
        return not (
            self.exchange.sync.under_way
            or self.site.state.reports
            or self.fleets.granting.inputs.is_staging
            or self.harvesting.calls.is_busy
            or self.data.is_busy
            or self.offers.is_busy
        )

    def stop_pilots(self) -> None:
        """Release all allocations, take what their pilots have done until then, and end the leads. A file lists the
        jobs that may go on running; until they are known, it lists all jobs."""
        note_unended(self.site.directory, unended(self.harvesting.book.living, None))
        self.harvesting.release_all(
            lambda: self.fleets.read(self._on_records), lambda: self.fleets.send_home("the site's agent ends")
        )
        self.fleets.read(self._on_records, hurry=True)
        self.site.log.commit()
        note_unended(self.site.directory, self.harvesting.unended())
        self.fleets.stop()

    def leave(self) -> None:
        """End cleanly: everything durable and condensed; pilots and leads go on."""
        self.harvesting.finish()
        self.site.log.commit()
        self.site.log.condense()
        self.board.ran_well()
        self.board.write(at_once=True)
        self.close()
        self.site.epoch.leave()

    def close(self) -> None:
        """Let go of threads and files."""
        self.site.pools.close()
        self.exchange.sync.close()
        self.board.close()
        self.harvesting.close()
        self.offers.close()
        self.data.close()
        self.site.log.close()
