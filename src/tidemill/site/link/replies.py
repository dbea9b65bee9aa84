"""What the agent makes of a server's reply, and of the staff's denials of submitters: the acting side of `screening`.

Refusals are logged, at most `TOLD` of them in `TOLD_S` seconds, with the number of the rest.
"""

from __future__ import annotations

from collections import defaultdict

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.log import Log
from tidemill.site import constants
from tidemill.site.link.screening import OrderLimits, Pace, Screen, Screened, room_of
from tidemill.site.staff.denials import Denials
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.wire.api import LeaseOrder, SyncReply

TOLD = 20
TOLD_S = 10.0
_log = Log("intake")


class OrderIntake:
    """Takes orders over into the site's log, as far as they are legal, allowed, and not too many."""

    def __init__(self, log: SiteLog, config: SiteConfig, denials: Denials) -> None:
        self._log = log
        self._limits = OrderLimits()
        self._leases_max = constants.LEASE_RANGES_MAX
        self._pace = Pace(constants.LEASES_PER_MIN_MAX)
        self._denials = denials
        self._is_first = True
        self._logged = 0
        self._unlogged = 0
        self._window_s = 0.0
        self._full = ""

    @property
    def room(self) -> int:
        """Ranges that would be taken now."""
        jobs = self._limits.jobs_max - len(self._log.pool.state.jobs)
        return max(0, min(jobs, self._pace.left(clock.monotonic_s())))

    def apply(self, reply: SyncReply) -> bool:
        """Take a reply over; whether it changed anything."""
        state = self._log.pool.state
        now_s = clock.monotonic_s()
        settlement = self._log.pool.settlement
        room = room_of(settlement, self._limits, leases_max=self._leases_max, paced=self._pace.left(now_s))
        screened = Screen(state, self._limits, room, self._denials.why).screen_orders(reply.orders)
        self._pace.spend(sum(isinstance(order, LeaseOrder) for order in screened.orders))
        has_acked = bool(state.reports) and reply.acked >= state.reports[0].n
        if has_acked or screened.passed > state.have:
            self._log.apply(
                site_state.Replied(
                    acked=min(reply.acked, state.next_report),
                    orders=screened.orders,
                    at_us=clock.now_us(),
                    refused=screened.refused,
                    passed=screened.passed,
                    illegal=list(screened.illegal),
                )
            )
        self._log_screened(screened, now_s)
        return has_acked or bool(screened.orders)

    def deny(self) -> list[int]:
        """Check whom the staff deny now, and end their work; the jobs that were ended."""
        if not self._denials.reload_if_changed(clock.monotonic_s()) and not self._is_first:
            return []
        first, self._is_first = self._is_first, False
        if not first:
            _log.warning("denied.changed", submitters=self._denials.names(), problem=self._denials.problem)
        found: defaultdict[str, list[int]] = defaultdict(list)
        for job in self._log.pool.state.jobs.values():
            why = (
                self._denials.why(job.owner)
                if (job.open or job.grants) and job.id < site_state.STEP_BASE
                else None
            )
            if why is not None:
                found[why].append(job.id)
        for why, jobs in found.items():
            self._log.apply(site_state.Denied(jobs=jobs, reason=why))
            _log.warning("jobs.denied", jobs=len(jobs), first=jobs[0], reason=why)
        return [job for jobs in found.values() for job in jobs]

    def _log_screened(self, screened: Screened, now_s: float) -> None:
        if now_s >= self._window_s:
            if self._unlogged:
                _log.warning("orders.untold", refused=self._unlogged)
            self._window_s, self._logged, self._unlogged = now_s + TOLD_S, 0, 0
        for order in screened.orders if screened.refused else ():
            if order.n not in screened.refused:
                continue
            if self._logged >= TOLD:
                self._unlogged += 1
                continue
            self._logged += 1
            why = screened.refused[order.n]
            assert isinstance(order, LeaseOrder), "only leases are refused"
            _log.warning("lease.refused", job=order.job, submitter=order.owner, reason=why)
        if screened.dropped:
            if self._logged < TOLD:
                self._logged += 1
                _log.error("orders.senseless", orders=screened.dropped, reason=screened.why)
            else:
                self._unlogged += screened.dropped
        if screened.full != self._full:
            self._full = screened.full
            if screened.full:
                _log.warning("orders.left", orders=screened.left, reason=f"too many: {screened.full}")
