"""Files that arrived of results that do not count: another one has won, the server had the events run elsewhere while
this site was silent, their owner discards them, or the job's outputs go to another place now.

What is to be removed is in the site's log, so that no restart forgets it, until it is removed or given up: at once
where trying again cannot help, else after `TRIES_MAX` tries. Only what is listed as arrived, and is as we left it, is
removed. One job at a time, in a thread of the deliveries; nothing of that job arrives or is delivered meanwhile: its
next result may have the same name.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import NamedTuple

from tidemill import clock
from tidemill.errors import TidemillError, is_transient
from tidemill.log import Log
from tidemill.model.arrival import arrives
from tidemill.site.applications.checksums import PendingError
from tidemill.site.applications.programs import Preparer
from tidemill.site.data.outputs import CanceledError, Deliverer, OutputDelivery
from tidemill.site.data.placed.manifests import ARRIVED
from tidemill.site.state import site_state
from tidemill.site.state.served_site import ServedSite

TRIES_MAX = 3
PAUSE_S = 2.0
"""Before another try; twice as long before each further one. The job's delivery waits for that long."""

_log = Log("arrivals")


class _Removal(NamedTuple):
    """A removal under way."""

    job: int
    events: str
    future: Future[int]
    canceled: threading.Event


class _Later(NamedTuple):
    """A removal that has failed, and is tried again."""

    tries: int
    next_s: float


class StaleRemovals:
    """Removes the stale files that the site's log has."""

    def __init__(self, site: ServedSite, preparer: Preparer, deliverer: Deliverer) -> None:
        self._log = site.log
        self._executor = site.pools.deliveries
        self._preparer = preparer
        self._deliverer = deliverer
        self._under_way: _Removal | None = None
        self._later: dict[int, _Later] = {}

    def step(self, busy: Collection[int]) -> bool:
        """Take what is done, and start what is due; whether anything changed. `busy`: jobs whose files are written."""
        changed = self._finish()
        now_s = clock.monotonic_s()
        if self._under_way is None:
            for job, stale in self._log.pool.state.stale.items():
                if job in busy or (job in self._later and now_s < self._later[job].next_s):
                    continue
                begun = self._begin(stale[0])
                if begun is not None:
                    return begun or changed
        return changed

    def holds(self, job: int) -> bool:
        """Whether files of the job are still to be removed."""
        return job in self._log.pool.state.stale

    def close(self) -> None:
        """Break off what is under way: the agent that follows does it."""
        if self._under_way is not None:
            self._under_way.canceled.set()

    @property
    def under_way(self) -> list[Future[int]]:
        """What a thread does now; `step` takes it."""
        return [] if self._under_way is None else [self._under_way.future]

    @property
    def is_to_try_again(self) -> bool:
        """Whether a removal is tried again soon: an agent that ended before would hold its job up, run after run."""
        return bool(self._later)

    def _begin(self, stale: site_state.StaleFiles) -> bool | None:
        """Hand a removal to a thread; whether anything changed, None where it cannot begin yet."""
        events = str(stale.events)
        try:
            outputs = [each for each in self._preparer.outputs(stale.spec) if arrives(stale.spec, each)]
        except PendingError:
            return None  # asked again with the next step
        except TidemillError as error:
            self._failed(stale.job, events, error)
            return True
        if not outputs:
            self._over(stale.job, events)
            return True
        delivery = OutputDelivery(
            job=stale.job, campaign=stale.campaign, seed_base=0, spec=stale.spec, app_digest="", outputs=outputs,
            parts=[], merged={}, done=events, owner=stale.owner, number=ARRIVED,
        )  # fmt: skip
        canceled = threading.Event()
        future = self._executor.submit(self._deliverer.take_back, delivery, canceled)
        self._under_way = _Removal(stale.job, events, future, canceled)
        return False

    def _finish(self) -> bool:
        """Take the removal that is done; whether there was one."""
        if self._under_way is None or not self._under_way.future.done():
            return False
        it, self._under_way = self._under_way, None
        try:
            removed = it.future.result()
        except CanceledError:
            return False  # the agent ends
        except TidemillError as error:
            self._failed(it.job, it.events, error)
            return True
        self._over(it.job, it.events)
        if removed:
            _log.info("outputs.withdrawn", job=it.job, files=removed)
        return True

    def _failed(self, job: int, events: str, error: TidemillError) -> None:
        """Try the removal again later, or give it up."""
        tries = 1 + (self._later[job].tries if job in self._later else 0)
        if is_transient(error) and tries < TRIES_MAX:
            self._later[job] = _Later(tries, clock.monotonic_s() + PAUSE_S * 2**tries)
            _log.warning("outputs.delayed", job=job, reason=error.message)
            return
        self._over(job, events)
        _log.error("outputs.left", job=job, reason=error.message, hint=error.hint)

    def _over(self, job: int, events: str) -> None:
        """Nothing of this is to be removed any more."""
        self._later.pop(job, None)
        self._log.apply(site_state.StaleRemoved(job=job, events=events))
