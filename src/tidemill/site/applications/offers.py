"""The applications that the site offers to run, kept up to date: files, costs of a start, programs."""

from __future__ import annotations

from tidemill import clock
from tidemill.site.applications.catalogue import Applications
from tidemill.site.applications.checksums import RECORD
from tidemill.site.applications.profiles import Profiles
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.staff.denials import Denials
from tidemill.site.state.served_site import ServedSite
from tidemill.wire.api import AppOffer

REFRESH_S = 2.0
LOOK_S = 30.0
"""Pause between two look-ups of the files of all programs: people see which ones changed before a job meets them."""


class Offers:
    """Approved applications, profiles of their starts, and `preparer`, which makes programs of jobs for nodes of
    `shape`."""

    def __init__(self, site: ServedSite, shape: NodeShape, denials: Denials) -> None:
        self._site = site
        self.applications = Applications(site.directory / "apps", site=site.config, beside=True)
        self.applications.refresh()
        areas = {area.name: area.prefixes for area in site.config.io}
        self.profiles = Profiles(site.directory / "profiles", site.fleets_dir, areas)
        self.preparer = Preparer(
            site.config, self.applications, shape, profiles=self.profiles, denials=denials
        )
        self._is_sent = False
        self._next_refresh_s = 0.0
        self._next_look_s = 0.0

    def step(self) -> None:
        """Read changed applications and new profiles when it is time."""
        now_s = clock.monotonic_s()
        if now_s >= self._next_refresh_s:
            self._next_refresh_s = now_s + REFRESH_S
            if self.applications.refresh():
                self._is_sent = False
            if now_s >= self._next_look_s:
                self._next_look_s = now_s + LOOK_S
                self.applications.look()
            self.applications.digests.write_known(self._site.directory / RECORD)
        if self.profiles.step(self._site.pools.profiles):
            self._is_sent = False

    def take(self, *, again: bool) -> list[AppOffer] | None:
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
