"""Pages of sites: their tide, allocations, bad nodes, transfers; the applications that they offer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import did_you_mean
from tidemill.model.figures.job_classes import LENGTHS, SIZES, length_bounds, length_text, size_text
from tidemill.model.identity import Act, own_name
from tidemill.model.state import REPORTED_STATES
from tidemill.server.core import site_views
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.read import api_pages, web_pages
from tidemill.server.web.files import may_download
from tidemill.server.web.jobs import Form
from tidemill.server.web.query import to
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.api import AppOffer, DrainRequest, SiteRow
from tidemill.wire.monitoring import BadNode, RegularWaits, TransferView
from tidemill.wire.views import BAD_NODES, BAD_NODES_TOTAL, TRANSFERS, TRANSFERS_TOTAL, WAITS, SiteViews

SPANS = {"24h": 1_440, "1h": 60, "6h": 360, "7d": 7 * 1_440, "30d": 30 * 1_440}
SPAN_ORDER = ("1h", "6h", "24h", "7d", "30d")
ALLOCATIONS_SHOWN = 10
SPARK_STEPS = 96  #: of a small drawing: quarters of an hour of a day


class SiteCard(NamedTuple):
    """A site with what it reported. `shares`: of its nodes, mean over the drawing: regular, harvested, idle, away."""

    row: SiteRow
    jobs: dict[str, int]
    view: SiteViews
    seen_us: int
    tide: site_views.TideSeries | None
    shares: tuple[float, float, float, float]


class WaitRow(NamedTuple):
    """Regular jobs of a class that started today: means in seconds; `share`: our estimated part of what they waited."""

    name: str
    jobs: int
    delayed: int
    wait_s: float
    ours_s: float
    share: float


def wait_rows(waits: Sequence[RegularWaits]) -> list[WaitRow]:
    """The classes of size, then those of length, each over the other; without jobs none."""
    rows = []
    for size in SIZES:
        rows.append(_wait_row(size_text(size), [each for each in waits if each.size == size]))
    for length in LENGTHS:
        name = f"asked for {length_text(*length_bounds(length))}"
        rows.append(_wait_row(name, [each for each in waits if each.length == length]))
    return [row for row in rows if row.jobs]


def _wait_row(name: str, waits: Sequence[RegularWaits]) -> WaitRow:
    jobs = sum(each.jobs for each in waits)
    wait_s, share_s = sum(each.wait_s for each in waits), sum(each.share_s for each in waits)
    number = max(1, jobs)
    part = share_s / wait_s if wait_s > 0 else 0.0
    return WaitRow(name, jobs, sum(each.delayed for each in waits), wait_s / number, share_s / number, part)


def cards(ask: PageRequest, *, minutes: int, only: str | None = None) -> list[SiteCard]:
    """Sites that the user may see, by name."""
    own = ask.own(Act.SITES)
    owner = own_name(ask.identity, Act.READ)  # a site sees the troubles of all owners
    rows = [
        row
        for row in api_pages.site_rows(ask.session, ask.silent(), counts_leased=False, owner=owner)
        if own in (None, row.name) and only in (None, row.name)
    ]
    ids = {row.name: row.id for row in ask.session.rows("site_names")}
    steps = SPARK_STEPS if only is None else site_views.BINS
    numbers = [ids[row.name] for row in rows]
    tides = site_views.tides(ask.session, numbers, now_us=ask.now_us, minutes=minutes, steps=steps)
    shown = web_pages.running(ask.session)
    made = []
    for row in sorted(rows, key=lambda each: each.name):
        tide, more = tides.get(ids[row.name]), shown[row.name]
        made.append(SiteCard(row, more.jobs, more.view, more.seen_us, tide, shares(tide)))
    return made


def shares(tide: site_views.TideSeries | None) -> tuple[float, float, float, float]:
    """Mean parts of the nodes over a drawing, 0 to 1 each."""
    points = [point for point in tide.points if point] if tide else []
    sums = [sum(point[k] for point in points) for k in range(4)]
    whole = sum(sums) or 1.0
    return (sums[0] / whole, sums[1] / whole, sums[2] / whole, sums[3] / whole)


def listing(ask: PageRequest, made: Pages) -> str:
    """`/sites`: all of them with the tide of a day."""
    found = cards(ask, minutes=SPANS["24h"])
    return made.show(ask, "sites.html", sites=found, after=web_pages.reached(ask.session))


def site(ask: PageRequest, made: Pages) -> str:
    """`/sites/NAME`: one site."""
    name = ask.at["name"]
    span = ask.query.choice("span", tuple(SPANS))
    found = cards(ask, minutes=SPANS[span], only=name)
    if not found:
        own = ask.own(Act.SITES)
        known = [row.name for row in ask.session.rows("site_names") if own in (None, row.name)]
        raise MissingError(f"there is no site `{name}` that you may see", hint=did_you_mean(name, known))
    card = found[0]
    sees = ask.may(Act.ALLOCATIONS, site=name)
    allocations = []
    if sees:
        page = web_pages.allocations(ask.session, site=name, state="", after=None, size=ALLOCATIONS_SHOWN)
        allocations = page.rows
    return made.show(
        ask, "site.html", site=card, row=card.row, view=card.view, span=span, spans=SPAN_ORDER,
        sees=sees, allocations=allocations, waits=wait_rows(WAITS.decode(card.view.raw)), can_drain=ask.may(Act.DRAIN),
        after=web_pages.reached(ask.session),
    )  # fmt: skip


def drain(ask: PageRequest, form: Form) -> str:
    """Drain a site, or resume it; where to go on."""
    ask.require(Act.DRAIN)
    word = form.get("act", [""])[0]
    if word not in ("drain", "resume"):
        raise RequestError(f"`{word[:40]}` is nothing that can be done to a site")
    reason = form.get("reason", [""])[0].strip()[:200]
    ask.dispatcher.handle_drain(
        ask.at["name"], DrainRequest(drain=word == "drain", reason=reason), ask.identity
    )
    return to("sites", ask.at["name"])


def allocations(ask: PageRequest, made: Pages) -> str:
    """`/allocations`: of a site or of all, newest first."""
    own = ask.own(Act.ALLOCATIONS)
    chosen = ask.query.text("site")
    states = list(REPORTED_STATES)
    state = ask.query.text("state") or ""
    if state and state not in states:
        raise RequestError(f"`{state}` is not a state of an allocation", hint=did_you_mean(state, states))
    page = web_pages.allocations(
        ask.session, site=own or chosen, state=state, after=ask.query.text("after"), size=ask.query.size()
    )
    sums = web_pages.allocation_states(ask.session)
    names = sorted(row.name for row in ask.session.rows("site_names"))
    return made.show(
        ask, "allocations.html", page=page, rows=page.rows, states=states, names=[own] if own else names,
        sums={name: sums[name] for name in sorted(sums) if own in (None, name) and chosen in (None, name)},
        after=web_pages.reached(ask.session),
    )  # fmt: skip


def nodes(ask: PageRequest, made: Pages) -> str:
    """`/nodes`: those in quarantine, of all sites."""
    own = ask.own(Act.ALLOCATIONS)
    rows: list[tuple[str, BadNode]] = []
    total = 0
    for name, more in sorted(web_pages.running(ask.session).items()):
        if own in (None, name) and ask.query.text("site") in (None, name):
            bad = BAD_NODES.decode(more.view.raw)
            rows += [(name, each) for each in bad]
            total += max(BAD_NODES_TOTAL.decode(more.view.raw), len(bad))
    rows.sort(key=lambda each: -each[1].since_us)
    size, page = ask.query.size(), ask.query.number("page") or 0
    begin = page * size
    return made.show(
        ask, "nodes.html", rows=rows[begin : begin + size], total=total, after=web_pages.reached(ask.session),
        next=page + 1 if begin + size < len(rows) else None,
    )  # fmt: skip


def transfers(ask: PageRequest, made: Pages) -> str:
    """`/transfers`: what is on its way, and what was delivered."""
    owner = ask.own(Act.READ)
    moving: list[tuple[str, int, TransferView]] = []
    more = 0
    for name, shown in sorted(web_pages.running(ask.session).items()):
        of_site = TRANSFERS.decode(shown.view.raw)
        moving += [(name, shown.seen_us, each) for each in of_site]
        if owner is None:  # the view does not name the owners of the others
            more += max(0, TRANSFERS_TOTAL.decode(shown.view.raw) - len(of_site))
    owners = web_pages.owners(
        ask.session, sorted({each.job for _, _, each in moving if 0 < each.job < 2**62})
    )
    key = ask.campaign()
    files: list[web_pages.DeliveredFile] = []
    after = None
    if owner is None or key is not None:
        number = None if key is None else key.number
        files, after = web_pages.delivered(
            ask.session, campaign=number, after=ask.query.text("after"), size=ask.query.size()
        )
    return made.show(
        ask, "transfers.html", more=more, files=files, next=after, owner=owner, after=web_pages.reached(ask.session),
        gets=[may_download(ask.identity, each.url) for each in files],
        moving=[each for each in moving if owner in (None, owners.get(each[2].job))],
    )  # fmt: skip


class Offered(NamedTuple):
    """An application and the sites that offer it."""

    name: str
    offers: list[tuple[str, AppOffer]]


def offered(ask: PageRequest) -> list[Offered]:
    """All applications by name."""
    own = ask.own(Act.SITES)
    found: dict[str, list[tuple[str, AppOffer]]] = defaultdict(list)
    for each in api_pages.applications(ask.session):
        if own in (None, each.site):
            found[each.app.name].append((each.site, each.app))
    return [Offered(name, found[name]) for name in sorted(found)]


def applications(ask: PageRequest, made: Pages) -> str:
    """`/applications`: searched by name and help."""
    held = (ask.query.text("q") or "").lower()
    chosen = ask.query.text("site")
    rows = [
        each
        for each in offered(ask)
        if (held in each.name.lower() or any(held in app.help.lower() for _, app in each.offers))
        and (chosen is None or any(site == chosen for site, _ in each.offers))
    ]
    names = sorted(row.name for row in ask.session.rows("site_names"))
    return made.show(ask, "applications.html", rows=rows, names=names, after=web_pages.reached(ask.session))


def application(ask: PageRequest, made: Pages) -> str:
    """`/applications/NAME`: parameters, and what each site says of it."""
    name = ask.at["name"]
    known = offered(ask)
    found = next((each for each in known if each.name == name), None)
    if found is None:
        raise MissingError(f"no site offers `{name}`", hint=did_you_mean(name, [each.name for each in known]))
    return made.show(
        ask, "application.html", app=found, first=found.offers[0][1], after=web_pages.reached(ask.session)
    )
