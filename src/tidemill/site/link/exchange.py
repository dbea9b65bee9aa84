"""The exchange with the server as one part of the agent: replies taken over, requests composed and sent when due."""

from __future__ import annotations

from collections import Counter

from tidemill import __version__
from tidemill.site.link.replies import OrderIntake
from tidemill.site.link.sync import Sync
from tidemill.site.staff.denials import Denials
from tidemill.site.state.served_site import ServedSite
from tidemill.wire.api import REPORTS_MAX, AppOffer, Capacity, SyncRequest
from tidemill.wire.views import RawViews


class Exchange:
    """Syncs of one agent, one after the other."""

    def __init__(self, site: ServedSite, denials: Denials) -> None:
        self._site = site
        self.sync = Sync(site.config)
        self.intake = OrderIntake(site.log, site.config, denials)
        self._has_asked = False  #: for work, with the last request

    def apply_reply(self) -> bool:
        """Take the server's answer over into the log, if it has come; whether it changed anything."""
        reply = self.sync.poll_reply()
        if reply is None:
            return False
        return self.intake.apply(reply)

    def is_due(self, capacity: Capacity) -> bool:
        """Whether to send a request now: it is time, results wait, or the server has more and this site has room."""
        is_pressing = bool(self._site.state.reports) or (
            _wants(capacity) and (self.sync.more or not self._has_asked)
        )
        return self.sync.is_due(presses=is_pressing)

    def send(self, capacity: Capacity, *, offers: list[AppOffer] | None, views: RawViews) -> None:
        """Send a request; `offers` is None and `views` empty where the server has them."""
        site, state = self._site, self._site.state
        self._has_asked = _wants(capacity)
        allocations = dict(Counter(each.shown for each in state.allocations.values()))
        self.sync.start(
            SyncRequest(
                site=site.config.name,
                epoch=site.epoch.number,
                host=site.epoch.owner.host,
                version=__version__,
                reports=state.reports[:REPORTS_MAX],
                have=state.have,
                offers=offers,
                capacity=capacity,
                allocations=allocations,
                views=views,
            )
        )


def _wants(capacity: Capacity) -> bool:
    return capacity.want_core_s > 0 or capacity.wide_core_s > 0
