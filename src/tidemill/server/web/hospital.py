"""`/hospital`: wards with the share of cured jobs, and downtimes of sites."""

from __future__ import annotations

from tidemill.model.identity import Act
from tidemill.server.hospital import downtimes
from tidemill.server.read import hospital, web_pages
from tidemill.server.web.render import PageRequest, Pages

DOWNTIMES_SHOWN = 100


def overview(ask: PageRequest, made: Pages) -> str:
    """`/hospital`: all wards, and the next downtimes."""
    own, rules = ask.own(Act.SITES), ask.dispatcher.rules
    found = downtimes.listed(ask.session, rules.downtimes, now_us=ask.now_us)
    rows = [each for each in found.downtimes if own in (None, each.site)]
    return made.show(
        ask, "hospital.html", wards=hospital.ward_rows(ask.session, rules.wards), downtimes=rows[:DOWNTIMES_SHOWN],
        total=len(rows), sources=found.sources if own is None else [], after=web_pages.reached(ask.session),
    )  # fmt: skip
