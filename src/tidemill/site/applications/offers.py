"""The applications that the site offers to run, kept up to date: files, costs of a start, programs."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from tidemill import clock
from tidemill.site.applications.catalogue import Applications, FilesComparison
from tidemill.site.applications.checksums import RECORD
from tidemill.site.applications.profiles import Profiles
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.staff.denials import Denials
from tidemill.site.state.served_site import ServedSite
from tidemill.wire.api import AppOffer

REFRESH_S = 2.0
COMPARE_S = 30.0
"""Pause between two look-ups of the files of all programs: people see which ones changed before a job meets them."""


class ComparisonThread:
    """Compares the files of all applications with what was approved, also of those that no job asks for.

    One comparison at a time, in a thread that the agent does not wait for, not even at its end: a file system that
    hangs holds up the next comparison, and nothing else.
    """

    def __init__(self, applications: Applications, pause_s: float) -> None:
        self._applications = applications
        self._under_way: Future[FilesComparison] | None = None
        self._pause_s, self._next_s = pause_s, 0.0

    def step(self, now_s: float) -> None:
        """Take what a comparison has found, and begin the next one when it is time."""
        if self._under_way is not None and self._under_way.done():
            done, self._under_way = self._under_way, None
            self._applications.apply_comparison(done.result())
        if self._under_way is None and now_s >= self._next_s:
            self._next_s = now_s + self._pause_s
            self._under_way = Future()
            threading.Thread(
                target=_compare,
                args=(self._applications.comparison(), self._under_way),
                name="comparison",
                daemon=True,
            ).start()


def _compare(comparison: FilesComparison, done: Future[FilesComparison]) -> None:
    try:
        comparison.compare()
        done.set_result(comparison)
    except Exception as error:  # noqa: BLE001 -- a bug: raised where the result is taken, as of any pool
        done.set_exception(error)


class Offers:
    """Approved applications, profiles of their starts, and `preparer`, which makes programs of jobs for nodes of
    `shape`. `refresh_s`: pause between two reads of changed application files; `compare_s`: as COMPARE_S."""

    def __init__(
        self,
        site: ServedSite,
        shape: NodeShape,
        denials: Denials,
        *,
        refresh_s: float = REFRESH_S,
        compare_s: float = COMPARE_S,
    ) -> None:
        self._site = site
        self.applications = Applications(site.directory / "apps", site=site.config, beside=True)
        self.applications.refresh()
        areas = {area.name: area.prefixes for area in site.config.io}
        self.profiles = Profiles(site.directory / "profiles", site.fleets_dir, areas)
        self.preparer = Preparer(
            site.config, self.applications, shape, profiles=self.profiles, denials=denials
        )
        self._is_sent = False
        self._refresh_s, self._next_refresh_s = refresh_s, 0.0
        self._comparison = ComparisonThread(self.applications, compare_s)

    def step(self) -> None:
        """Read changed applications and new profiles when it is time."""
        now_s = clock.monotonic_s()
        if now_s >= self._next_refresh_s:
            self._next_refresh_s = now_s + self._refresh_s
            if self.applications.refresh() or self.profiles.take_news():
                self._is_sent = False
            self._comparison.step(now_s)
            self.applications.digests.write_known(self._site.directory / RECORD)
        if self.profiles.step(self._site.pools.profiles):
            self._is_sent = False

    def next_offers(self, *, again: bool) -> list[AppOffer] | None:
        """The offers for the next sync; None = the server has them. `again`: it may not have received the last ones."""
        if self._is_sent and not again:
            return None
        self._is_sent = True
        return self.profiles.offers(self.applications.offers({}))

    @property
    def is_busy(self) -> bool:
        """Whether checksums of large files are being computed."""
        return self.applications.digests.is_busy

    def close(self) -> None:
        """End the thread that computes checksums."""
        self.applications.digests.close()
