"""What single jobs and pilots go through, as lines of the agent's log at DEBUG. Pure: an entry of the site's log in,
events and their fields out. Ids have the names of `log.JOINED`, so that they join with the server's lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill.node.journal import allocation_of
from tidemill.site.state import site_state
from tidemill.wire import api, node

Line = tuple[str, dict[str, Any]]


def lines(entry: site_state.Entry, have: int) -> Iterator[Line]:
    """What an entry does to jobs and pilots. `have`: the number of the last order that was carried out before it."""
    match entry:
        case site_state.Replied():
            for order in entry.orders:
                if order.n > have:
                    yield from _order(order)
        case site_state.Granted():
            for grant in entry.grants:
                yield "range.granted", {**_range(grant), "grant": grant.grant, "fleet": entry.fleet}
        case site_state.Read():
            for record in entry.records:
                yield from _record(record, entry.fleet)
        case site_state.OutputsDelivered() if entry.evidence is None:
            yield "job.delivered", {"job": entry.job, "files": len(entry.outputs)}


def _order(order: api.Order) -> Iterator[Line]:
    match order:
        case api.LeaseOrder():
            yield "lease.received", {"campaign": order.campaign, **_range(order), "lease": order.lease}
        case api.DeliverOrder():
            yield "delivery.asked", {"job": order.job}
        case api.CancelOrder():
            yield "job.canceled", {"job": order.job, "reason": order.reason}
        case api.CancelEventsOrder():
            yield "events.canceled", {"job": order.job, "events": order.events}
        case api.DiscardOrder():
            yield "range.discarded", _range(order)
        case api.ForgetOrder():
            yield "job.forgotten", {"job": order.job}


def _record(record: node.Record, fleet: str) -> Iterator[Line]:
    where = {"pilot": record.p, "allocation": allocation_of(record.p), "fleet": fleet}
    match record:
        case node.Started():
            where["allocation"] = record.allocation
            yield "pilot.started", {**where, "node": record.node, "cores": record.cores}
        case node.Done():
            wall_s = record.wall_us / 1e6
            yield "range.kept", {**_range(record), "grant": record.grant, **where, "wall_s": wall_s}
        case node.Failed():
            told = {"failure": record.failure, "reason": record.message}
            yield "range.failed", {**_range(record), "grant": record.grant, **where, **told}
        case node.Returned():
            yield (
                "range.returned",
                {**_range(record), "grant": record.grant, **where, "reason": record.reason},
            )
        case node.Ended():
            yield "pilot.ended", {**where, "reason": record.reason}


def _range(of: Any) -> dict[str, int]:
    return {"job": of.job, "first": of.first, "count": of.count}
