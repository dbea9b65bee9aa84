"""The exchange with the server as one part of the agent: replies taken over, requests composed and sent when due."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile

from tidemill import __version__
from tidemill.site.link.replies import OrderIntake
from tidemill.site.link.sync import Sync
from tidemill.site.staff.denials import Denials
from tidemill.site.state.served_site import ServedSite
from tidemill.wire.activity import ActivityReport
from tidemill.wire.api import REPORTS_MAX, AppOffer, Capacity, Report, SiteView, SyncRequest


class Exchange:
    """Syncs of one agent, one after the other."""

    def __init__(self, site: ServedSite, denials: Denials) -> None:
        self._site = site
        self.sync = Sync(site.config)
        self.intake = OrderIntake(site.log, site.config, denials)
        self._has_asked = False  #: for work, with the last request
        self._takes_activity: bool | None = (
            None  #: whether the server knows ActivityReport; None = it has not answered
        )

    def take(self) -> bool:
        """Take the server's answer over into the log, if it has come; whether it changed anything."""
        reply = self.sync.take()
        if reply is None:
            return False
        self._takes_activity = reply.activity
        return self.intake.take(reply)

    def is_due(self, capacity: Capacity) -> bool:
        """Whether to send a request now: it is time, results wait, or the server has more and this site has room."""
        reports = self._site.state.reports
        if self._takes_activity is False:
            reports = understood(reports, takes_activity=False)
        is_pressing = bool(reports) or (_wants(capacity) and (self.sync.more or not self._has_asked))
        return self.sync.is_due(presses=is_pressing)

    def send(self, capacity: Capacity, *, offers: list[AppOffer] | None, view: SiteView | None) -> None:
        """Send a request; `offers` and `view` are None where the server has them."""
        site, state = self._site, self._site.state
        self._has_asked = _wants(capacity)
        allocations = dict(Counter(each.reported for each in state.allocations.values()))
        self.sync.start(
            SyncRequest(
                site=site.config.name,
                epoch=site.epoch.number,
                host=site.epoch.owner.host,
                version=__version__,
                reports=understood(state.reports, takes_activity=self._takes_activity),
                have=state.have,
                offers=offers,
                capacity=capacity,
                allocations=allocations,
                view=view,
            )
        )


def understood(reports: list[Report], *, takes_activity: bool | None) -> list[Report]:
    """The next reports that the server knows: an older one gets no ActivityReport. Before its first answer those in
    front of the first of them, so that nothing is left out of the order."""
    if takes_activity:
        return reports[:REPORTS_MAX]
    if takes_activity is None:
        return list(takewhile(_is_old, reports[:REPORTS_MAX]))
    return list(islice(filter(_is_old, reports), REPORTS_MAX))


def _is_old(report: Report) -> bool:
    return not isinstance(report, ActivityReport)


def _wants(capacity: Capacity) -> bool:
    return capacity.want_core_s > 0 or capacity.wide_core_s > 0
