"""What a transaction did to single jobs, as lines of the server's log at DEBUG, once it is committed."""

from __future__ import annotations

from tidemill import log
from tidemill.server.database.work import Work
from tidemill.wire.api import LeaseOrder

_LOG = log.Log("server")


def wanted() -> bool:
    """Whether anybody reads them."""
    return _LOG.explains


def tell(works: list[Work]) -> None:
    """Tell of these transactions. The ids have the names of `log.JOINED`, as in the agents' logs."""
    for work in works:
        for number, orders in work.all_orders():
            site = work.memory.sites[number]
            for order in orders:
                if isinstance(order, LeaseOrder):
                    _LOG.debug(
                        "lease.made", campaign=order.campaign, job=order.job, first=order.first, count=order.count,
                        lease=order.lease, site=site.name, epoch=site.epoch,
                    )  # fmt: skip
        for change in work.changes:
            _LOG.debug(
                "job.changed", campaign=change.campaign, job=change.job, state=change.state,
                events_done=change.events_done, events_failed=change.events_failed,
            )  # fmt: skip
