"""The site protocol on the server's side: one verb, idempotent. See wire/api.py for the messages.

Reports are applied once, by number; orders are kept until the site has them; leases are made in the same transaction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from tidemill import log
from tidemill.errors import UNDECODABLE
from tidemill.model.job import NAME_PATTERN
from tidemill.server.audit import traces
from tidemill.server.core import breakers, ending, leasing, settling, silent_sites, site_records, site_views
from tidemill.server.core.leasing import LeaseRules
from tidemill.server.database.rows import Site, clean
from tidemill.server.database.unit_of_work import COMPLAINTS_MAX, UnitOfWork
from tidemill.server.errors import ConflictError, RequestError
from tidemill.server.hospital import nearness
from tidemill.wire.api import (
    EPOCH_JUMP_MAX,
    ORDER_JUMP_MAX,
    ORDER_NUMBER_MAX,
    ORDERS_BYTES_MAX,
    ORDERS_MAX,
    REPORTS_MAX,
    AppOffer,
    CancelEventsOrder,
    CancelOrder,
    DeliverOrder,
    ForgetOrder,
    LeaseOrder,
    Order,
    Report,
    SyncReply,
    SyncRequest,
)
from tidemill.wire.protocol import PROTOCOL, mismatch, spoken

ORDER_BYTES = (
    300  #: of an order besides specification and lists: 209 with numbers of 19 digits and a name of 20
)
LEASES_MAX = 10_000  #: per sync
PENDING_MAX = 2 * ORDERS_MAX  #: unacknowledged orders; beyond it a site gets no more leases
UNTAKEN_MAX = (
    2 * PENDING_MAX
)  #: unacknowledged orders; beyond it reports of a site wait until it has taken them
_LOG = log.Log("server")
_ENCODER = msgspec.json.Encoder()
_ORDERS = msgspec.json.Decoder(list[Order])
_REQUEST = msgspec.json.Decoder(SyncRequest)
_NAME = re.compile(NAME_PATTERN)


def decode(body: bytes) -> SyncRequest:
    """A site's request. Raises RequestError, which says which side to upgrade if the site speaks another protocol."""
    try:
        return _REQUEST.decode(body)
    except UNDECODABLE as error:
        _check_protocol(spoken(body))
        raise RequestError(f"SyncRequest cannot be read: {error}") from error


def _check_protocol(protocol: int) -> None:
    if (found := mismatch(protocol, PROTOCOL)) is not None:
        raise RequestError(found[0], hint=found[1])


def sync(work: UnitOfWork, request: SyncRequest, *, rules: LeaseRules) -> SyncReply:
    """Apply the reports, and answer with the orders that the site does not have."""
    site = _admit(work, request)
    if not -1 < site.ordered - request.have < ORDER_JUMP_MAX:
        _number_on(work, site, request.have)
    returned = bool(site.lost)
    if returned:
        site.lost = 0
        silent_sites.take_back(work, site, _dropped(work, site, request.have))
    fresh = _fresh(site, request)
    if any(a.n >= b.n for a, b in pairwise(fresh)):
        raise RequestError(f"reports of site `{site.name}` are not numbered in ascending order")
    settling.apply(work, site, fresh)
    if work.complaints > COMPLAINTS_MAX:
        _LOG.warning("reports.refused", site=site.name, unlogged=work.complaints - COMPLAINTS_MAX)
    if fresh:
        site.acked = fresh[-1].n
    if request.views:
        site_views.store(work, site, request.views)
    pending = _pending(work, site, request.have, returned=returned)
    room = min(LEASES_MAX, PENDING_MAX - len(pending) - len(work.new_orders(site.id)))
    more = leasing.lease(work, site, room, rules)
    ending.pass_on(work)
    leasing.charge(work, rules.half_life_s)
    work.flush()
    site_records.write(work, site)
    orders = pending + work.new_orders(site.id)
    told = orders[: fitting(orders)]
    more = more or len(told) < len(orders)
    return SyncReply(acked=site.acked, orders=told, more=more, now_us=work.now_us)


def _fresh(site: Site, request: SyncRequest) -> list[Report]:
    """The reports to apply: those that are new; none while the site has too many orders to take first. What is refused
    is answered with orders, so a site that takes none could make them without end, and each sync reads them all."""
    if site.ordered - request.have > UNTAKEN_MAX:
        _LOG.warning("reports.wait", site=site.name, orders=site.ordered - request.have)
        return []
    return [report for report in request.reports if report.n > site.acked]


def fitting(orders: list[Order]) -> int:
    """How many of the orders go into one reply: sites take no answer of any length."""
    left, sizes = ORDERS_BYTES_MAX, dict[int, int]()
    for number, order in enumerate(orders[:ORDERS_MAX]):
        if left <= 0:
            return number
        left -= ORDER_BYTES
        kind = type(order)
        if kind is LeaseOrder:
            spec = order.spec  # type: ignore[union-attr]  # mypy does not narrow by `type(...) is`
            if spec is not None:
                size = sizes.get(id(spec))  # jobs that are alike share it
                if size is None:
                    size = sizes[id(spec)] = len(_ENCODER.encode(spec))
                left -= size
        elif kind is DeliverOrder:
            left -= len(order.done) + len(order.fresh or "")  # type: ignore[union-attr]
        elif kind is CancelEventsOrder:
            left -= len(order.events)  # type: ignore[union-attr]
    return min(len(orders), ORDERS_MAX)


def _admit(work: UnitOfWork, request: SyncRequest) -> Site:
    """The site's record, brought up to what the request says."""
    _check(request)
    request.host, request.version = clean(request.host), clean(request.version)
    site = work.memory.sites[site_records.site_id(work, request.site)]
    if request.epoch < site.epoch:
        raise ConflictError(
            f"site `{site.name}` belongs to epoch {site.epoch} on host `{site.host}`; this is epoch {request.epoch}",
            hint="another agent has taken the site over: this one must stop; if there is none, the credential is known "
            f"to others: have the operator revoke it and run `tidemill site reset-epoch {site.name}`",
        )
    if request.epoch - site.epoch > EPOCH_JUMP_MAX:
        raise ConflictError(
            f"site `{site.name}` is in epoch {site.epoch}; epoch {request.epoch} is more than {EPOCH_JUMP_MAX} later",
            hint="agents count by one: another process may have the site's credential",
        )
    if request.epoch == site.epoch and site.host not in ("", request.host):
        raise ConflictError(
            f"epoch {site.epoch} of site `{site.name}` belongs to host `{site.host}`, not to `{request.host}`",
            hint="two agents run with copies of one site directory: stop one",
        )
    if request.epoch > site.epoch:
        _LOG.info(
            "site.epoch", site=site.name, epoch=request.epoch, host=request.host, version=request.version
        )
    site.epoch, site.host, site.version = request.epoch, request.host, request.version
    request.capacity.troubles = breakers.bounded(request.capacity.troubles)
    nearness.bounded(request.capacity)
    request.capacity.awaits = site_views.awaited(request.capacity.awaits)
    request.capacity.more = site_views.awaited(request.capacity.more)
    request.capacity.unstarted = site_views.unstarted(request.capacity.unstarted)
    site.seen_us, site.capacity, site.allocations = work.now_us, request.capacity, request.allocations
    if request.offers is not None:
        offers = {offer.name: offer for offer in request.offers}
        if offers != site.offers:
            traces.keep_offers(work, site, offers.values())
            site.approved_us = _approved(site, offers, now_us=work.now_us)
            site.offers = offers
            work.session.run("update_offers", id=site.id, offers=site_records.text_of(list(offers.values())))
    return site


def _approved(site: Site, offers: Mapping[str, AppOffer], *, now_us: int) -> dict[str, int]:
    """When each application that a site offers came with another digest. Of what it no longer offers nothing is kept: a
    site could name others without end."""
    result = {name: at_us for name, at_us in site.approved_us.items() if name in offers}
    for name, offer in offers.items():
        if name not in site.offers or site.offers[name].digest != offer.digest:
            result[name] = now_us
    return result


def _check(request: SyncRequest) -> None:
    """Raises RequestError for another protocol, and for numbers and names that cannot be."""
    _check_protocol(request.protocol)
    if len(request.reports) > REPORTS_MAX:
        raise RequestError(f"{len(request.reports)} reports in one sync, at most {REPORTS_MAX}")
    if not _NAME.fullmatch(request.site):
        raise RequestError(
            f"`{request.site[:100]}` is not a valid name of a site",
            hint="letters, digits and `._+-`, at most 100",
        )
    if not 0 <= request.have < ORDER_NUMBER_MAX:
        raise RequestError(f"site `{request.site}` says that it has order {request.have}")
    for offer in request.offers or ():
        if not _NAME.fullmatch(offer.name):  # jobs cannot ask for it, and pages have names in their addresses
            raise RequestError(
                f"site `{request.site}` offers `{clean(offer.name)[:100]}`, not a valid name of an application",
                hint="letters, digits and `._+-`, at most 100",
            )
    capacity = request.capacity
    if not all(map(math.isfinite, [capacity.want_core_s, capacity.wide_core_s, *capacity.event_s.values()])):
        raise RequestError(f"capacity of site `{request.site}` holds a number that is not finite")


def _number_on(work: UnitOfWork, site: Site, have: int) -> None:
    """Number orders on from the number that the site has, where it would refuse the server's: it takes higher ones
    only, and no long jumps. The site is ahead if this database is an older copy, or if another server sent orders in
    this one's name. It is far behind if another client synced in the site's name. Orders that it has not acknowledged
    are sent again: it may never have received them."""
    is_ahead = have > site.ordered
    rows = work.session.rows("orders_of", site=site.id)
    orders = [order for _, _, body in rows for order in _ORDERS.decode(body) if is_ahead or order.n > have]
    if orders and 0 < orders[0].n - have < ORDER_JUMP_MAX:
        return  # it has just not taken many of them yet
    hint = {"hint": f"is the database a copy? `tidemill site reset-epoch {site.name}`"} if is_ahead else {}
    _LOG.warning("site.renumbered", site=site.name, have=have, ordered=site.ordered, **hint)
    site.ordered = have
    work.session.run("delete_all_orders", site=site.id)
    if not orders:
        return
    for order in orders:
        site.ordered += 1
        order.n = site.ordered
    body = _ENCODER.encode(orders)
    work.session.run("insert_orders", site=site.id, first=orders[0].n, last=orders[-1].n, body=body)


def _dropped(work: UnitOfWork, site: Site, have: int) -> set[int]:
    """The jobs of which the orders that the site does not have yet leave nothing there."""
    return {
        order.job
        for _, _, body in work.session.rows("orders_of", site=site.id)
        for order in _ORDERS.decode(body)
        if order.n > have
        and isinstance(order, ForgetOrder | CancelOrder)
        and not getattr(order, "keep", False)
    }


def _pending(work: UnitOfWork, site: Site, have: int, *, returned: bool) -> list[Order]:
    """Earlier orders that the site does not have. A returning site gets none for a lease that is over."""
    work.session.run("delete_orders", site=site.id, have=have)
    orders = [
        order
        for _, _, body in work.session.rows("orders_of", site=site.id)
        for order in _ORDERS.decode(body)
        if order.n > have
    ]
    if returned and orders:
        live = silent_sites.live_leases(work, site)
        orders = [order for order in orders if not isinstance(order, LeaseOrder) or order.lease in live]
        work.session.run("delete_all_orders", site=site.id)
        if orders:
            body = _ENCODER.encode(orders)
            work.session.run("insert_orders", site=site.id, first=orders[0].n, last=orders[-1].n, body=body)
    return orders
