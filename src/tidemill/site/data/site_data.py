"""The site's data as one part of the agent: inputs staged, files moved, outputs and logs delivered, all cleaned."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from tidemill import clock
from tidemill.files import current_umask, make_directories
from tidemill.site import constants
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.deliveries import Deliveries
from tidemill.site.data.leftovers import sweep_leftovers
from tidemill.site.data.masks import private_paths
from tidemill.site.data.outputs import Deliverer, FileMask
from tidemill.site.data.owners import OwnedPlaces, person_of
from tidemill.site.data.payload_logs import LogFetches
from tidemill.site.data.placed.arrivals import Arrivals
from tidemill.site.data.remote_outputs import Departures
from tidemill.site.data.staging import Stage
from tidemill.site.data.transfer_node import open_moves
from tidemill.site.state import site_state
from tidemill.site.state.served_site import ServedSite
from tidemill.site.state.status import DataFigures
from tidemill.transfer.file import Roots

TIDY_S = 5.0
JOBS_CLEANED_PER_TICK = 500


class SiteData:
    """Files of the site's jobs, before they run and after."""

    def __init__(self, site: ServedSite, preparer: Preparer) -> None:
        config, directory = site.config, site.directory
        base = config.output_dir or directory / "out"  # where outputs go that name no place
        roots = Roots(config.data_roots, private=private_paths(directory, config), closed=base)
        places = OwnedPlaces(roots, base, person=person_of(config), site=config.name)
        if config.serves_others:  # it is covered in slots, so it has to be there before them
            with suppress(OSError):
                make_directories(base, 0o022)
        self._site = site
        self._moves = open_moves(directory, config)
        self.stage = Stage(directory / "stage", config, places, self._moves, site.pools.copies)
        site.pools.stage_in.submit(self.stage.count_parts)
        self._is_closed = threading.Event()
        site.pools.copies.submit(
            sweep_leftovers, directory / "stage", base, started_us=clock.now_us(), canceled=self._is_closed
        )
        self._departures = Departures(directory / "stage" / "out", self._moves, self.stage.outgoing)
        site.pools.stage_in.submit(self._departures.count)
        deliverer = Deliverer(
            site.fleets_dir, places, bytes_max=constants.DELIVERY_BYTES_MAX, departures=self._departures,
            umask=FileMask(site=current_umask(), bounds=config.serves_others),
        )  # fmt: skip
        self.arrivals = Arrivals(site, preparer, deliverer)
        self.deliveries = Deliveries(site, preparer, deliverer, self.arrivals)
        self._logs = LogFetches(site)
        self._next_tidy_s = 0.0

    def step(self) -> bool:
        """Start and finish deliveries and fetches of logs that are due; whether anything changed."""
        changed = self._logs.step()
        changed |= self.arrivals.step(self.deliveries.written)
        return self.deliveries.step() or changed

    def clean(self) -> list[int]:
        """Remove the files of jobs that are over, of some in each tick, and copies that nothing needs; these jobs."""
        jobs = self._site.state.forgotten[:JOBS_CLEANED_PER_TICK]
        if jobs:  # all at once: no place that a move of one leaves goes to another of them
            self.stage.release(*jobs)
        for job in jobs:
            self.stage.clean(job)
            self._departures.forget(job)
        if jobs:
            self._site.log.apply(site_state.Cleaned(jobs=jobs))
        self.stage.sweep()
        now_s = clock.monotonic_s()
        if now_s >= self._next_tidy_s:
            self._next_tidy_s = now_s + TIDY_S
            self.stage.tidy()
            self.stage.routes.links.write()
        return jobs

    def figures(self) -> DataFigures:
        """What the cache holds and did, and what was moved. One stat for each copy."""
        return self.stage.figures(self.moved())

    def moved(self) -> list[tuple[str, int, int, int]]:
        """What was moved since the agent's start: (way, done, failed, bytes)."""
        counts = self._moves.counts.items()
        return [(way.value, each.done, each.failed, each.bytes) for way, each in counts]

    @property
    def under_way(self) -> list[Future[Any]]:
        """What threads do in the fleets' directories; `step` takes each that is done."""
        return [*self.deliveries.under_way, *self.arrivals.under_way, *self._logs.under_way]

    @property
    def is_busy(self) -> bool:
        """Whether a thread is at work, or a file on its way, or files are soon to be removed."""
        is_waiting = self.deliveries.waits_for_moves or self.arrivals.is_to_try_again
        return bool(self.under_way) or is_waiting or self._moves.is_busy

    def close(self) -> None:
        """Start no move any more, end those that run, and deliveries; keep what was learned."""
        self._is_closed.set()
        self.stage.routes.links.write(at_once=True)
        self.arrivals.close()
        self.deliveries.close()
        self._moves.close()
