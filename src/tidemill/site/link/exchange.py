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
from tidemill.wire.api import REPORTS_MAX, AppOffer, ArrivedReport, Capacity, Report, SyncRequest
from tidemill.wire.views import RawViews

Kinds = frozenset[type]
NEWER: Kinds = frozenset((ActivityReport, ArrivedReport))
"""Reports that an older server would refuse, and with them the whole request. Nothing depends on them."""


class Exchange:
    """Syncs of one agent, one after the other."""

    def __init__(self, site: ServedSite, denials: Denials) -> None:
        self._site = site
        self.sync = Sync(site.config)
        self.intake = OrderIntake(site.log, site.config, denials)
        self._has_asked = False  #: for work, with the last request
        self._unknown: Kinds | None = (
            None  #: reports that the server does not know; None = it has not answered
        )

    def take(self) -> bool:
        """Take the server's answer over into the log, if it has come; whether it changed anything."""
        reply = self.sync.take()
        if reply is None:
            return False
        takes = {ActivityReport: reply.activity, ArrivedReport: reply.arrivals}
        self._unknown = frozenset(kind for kind, is_known in takes.items() if not is_known)
        return self.intake.take(reply)

    def is_due(self, capacity: Capacity) -> bool:
        """Whether to send a request now: it is time, results wait, or the server has more and this site has room."""
        reports = self._site.state.reports
        if self._unknown:
            reports = understood(reports, self._unknown)
        is_pressing = bool(reports) or (_wants(capacity) and (self.sync.more or not self._has_asked))
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
                reports=understood(state.reports, self._unknown),
                have=state.have,
                offers=offers,
                capacity=capacity,
                allocations=allocations,
                views=views,
            )
        )


def understood(reports: list[Report], unknown: Kinds | None) -> list[Report]:
    """The next reports that the server knows: an older one gets none of those kinds that came later. Before its first
    answer (None) those in front of the first of them, so that nothing is left out of the order."""
    if unknown is None:
        return list(takewhile(lambda each: type(each) not in NEWER, reports[:REPORTS_MAX]))
    if not unknown:
        return reports[:REPORTS_MAX]
    return list(islice((each for each in reports if type(each) not in unknown), REPORTS_MAX))


def _wants(capacity: Capacity) -> bool:
    return capacity.want_core_s > 0 or capacity.wide_core_s > 0
