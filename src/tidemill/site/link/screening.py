"""What a site takes of its server's orders. Pure.

The server is taken as hostile: it may be compromised, or not the collaboration's server at all. A legal lease is
taken; one that is not goes back with the reason; any other malformed order is passed over; what is too much is left,
and the server sends it again. So nothing that a server sends makes the agent's memory, its log or the time of a tick
grow without bound, and no text of it becomes a path, a number of a process or an argument unchecked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tidemill.model import legal
from tidemill.model.failure import ILLEGAL
from tidemill.model.job import EVENTS_MAX, JobSpec
from tidemill.site import constants
from tidemill.site.state import site_state
from tidemill.site.state.settlement import Settlement
from tidemill.wire import api
from tidemill.wire.node import FORM_BASE

NUMBER_MAX = 1 << 62
CURE_READS = ("", "file", "cache")  #: how a cure may ask that inputs are read
OWNER_CHARACTERS_MAX = 200
REASON_CHARACTERS_MAX = 500
DONE_CHARACTERS_MAX = 4_000_000
"""Of the lists of events in one reply: half a million gaps, which take a second."""

LEASES_OF_JOB_MAX = 2_000
"""Every event that is settled looks through the leases of its job."""

REPORTS_KEPT_MAX = 5 * api.REPORTS_MAX
"""With so many reports that the server has not acknowledged, nothing is taken that would make more of them."""

FETCHES_MAX = 64
"""Logs that may be asked for at the same time, those included that were answered and not acknowledged."""

_PIECE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_encode = msgspec.json.encode
Deny = Callable[[str], str | None]


class Screened(NamedTuple):
    """`orders`: to be taken; `refused`: why not, by the number of a lease among them (whose specification is left
    out); `passed`: highest number that was screened; `dropped`: how many were malformed, `why`: the first of them;
    `left`: not taken now, `full`: what there is too much of; `illegal`: the refused leases whose job is not legal."""

    orders: list[api.Order]
    refused: dict[int, str]
    passed: int
    dropped: int = 0
    why: str = ""
    left: int = 0
    full: str = ""
    illegal: Sequence[int] = ()


class OrderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that an honest server never meets, and a hostile one cannot pass. LEASE_RANGES_MAX and `stage_bytes_max`
    bound it, too."""

    jobs_max: int = msgspec.field(default_factory=lambda: constants.JOBS_MAX)
    events_max: int = msgspec.field(default_factory=lambda: constants.EVENTS_MAX)
    spec_bytes_max: int = msgspec.field(default_factory=lambda: constants.SPEC_BYTES_MAX)
    specs_bytes_max: int = msgspec.field(default_factory=lambda: constants.SPECS_BYTES_MAX)


class IntakeRoom(NamedTuple):
    """What may be added now. `paced`: leases, refused ones included; `spec_bytes`: of specifications; `characters`: of
    lists of events."""

    leases: int
    paced: int
    jobs: int
    spec_bytes: int
    reports: int
    fetches: int
    characters: int = DONE_CHARACTERS_MAX


def room_of(settlement: Settlement, limits: OrderLimits, *, leases_max: int, paced: int) -> IntakeRoom:
    """`leases_max`: ranges that may be open; `paced`: leases that the rate allows now."""
    state = settlement.state
    answered = sum(type(report) is api.LogReport for report in state.reports)
    return IntakeRoom(
        leases=leases_max - state.leases_open,
        paced=paced,
        jobs=limits.jobs_max - len(state.jobs),
        spec_bytes=limits.specs_bytes_max - settlement.spec_bytes,
        reports=REPORTS_KEPT_MAX - len(state.reports),
        fetches=FETCHES_MAX - len(state.fetches) - answered,
    )


class Screen:
    """Screens one reply. `deny`: why a submitter's jobs do not run here, None = they may."""

    def __init__(
        self, state: site_state.SiteState, limits: OrderLimits, room: IntakeRoom, deny: Deny
    ) -> None:
        self._jobs = state.jobs
        self._have = state.have
        self._limits = limits
        self._room = dict(room._asdict())
        self._deny = deny
        self._specs: dict[int, JobSpec] = {}
        self._spec_bytes = 0  #: of the one screened last
        self._leases: Counter[int] = Counter()
        self._orders: list[api.Order] = []
        self._refused: dict[int, str] = {}
        self._illegal: list[int] = []

    def screen_orders(self, orders: Sequence[api.Order]) -> Screened:
        """What to take of them."""
        passed, dropped, why = self._have, 0, ""
        end = min(api.ORDER_NUMBER_MAX, self._have + api.ORDER_JUMP_MAX)
        for at, order in enumerate(orders):
            if not passed < order.n < end:
                if order.n >= end:
                    number = legal.shown(order.n)
                    dropped, why = dropped + 1, why or f"an order has number {number}, after {passed}"
                continue
            fault = _fault(order)
            if fault is not None:
                dropped, why = dropped + 1, why or f"order {order.n}: {fault}"
                passed = order.n
                continue
            full = self._full(order)
            if full:
                left = len(orders) - at
                return self._screened(passed, dropped, why)._replace(left=left, full=full)
            self._accept(order)
            passed = order.n
        return self._screened(passed, dropped, why)

    def _screened(self, passed: int, dropped: int, why: str) -> Screened:
        return Screened(self._orders, self._refused, passed, dropped, why, illegal=self._illegal)

    def _accept(self, order: api.Order) -> None:
        room = self._room
        if isinstance(order, api.LeaseOrder):
            room["paced"] -= 1
            refusal = self._refusal(order)
            if refusal is not None:
                self._refused[order.n] = refusal
                order = _stripped(order)
                room["reports"] -= 1
            else:
                room["leases"] -= 1
                self._leases[order.job] += 1
                if order.spec is not None:
                    room["jobs"] -= order.job not in self._jobs and order.job not in self._specs
                    room["spec_bytes"] -= self._spec_bytes
                    self._specs[order.job] = order.spec
        elif isinstance(order, api.FetchLogOrder):
            room["fetches"] -= 1
        elif isinstance(order, api.CancelEventsOrder):
            room["characters"] -= _characters(order)
        elif isinstance(order, api.DeliverOrder):
            room["reports"] -= 1
            room["characters"] -= _characters(order)
        elif isinstance(order, api.DrainOrder):
            order = msgspec.structs.replace(order, reason=_line(order.reason))
        elif isinstance(order, api.CancelOrder):
            order = msgspec.structs.replace(order, reason="")
        self._orders.append(order)

    def _full(self, order: api.Order) -> str:
        """What there is too much of to take this order now."""
        room = self._room
        if isinstance(order, api.LeaseOrder | api.DeliverOrder) and room["reports"] <= 0:
            return f"{REPORTS_KEPT_MAX} reports wait for an answer"
        if isinstance(order, api.FetchLogOrder) and room["fetches"] <= 0:
            return f"{FETCHES_MAX} logs are asked for"
        has_list = isinstance(order, api.DeliverOrder | api.CancelEventsOrder)
        if has_list and _characters(order) > room["characters"]:
            return "lists of events"
        if not isinstance(order, api.LeaseOrder):
            return ""
        if room["leases"] <= 0 or room["paced"] <= 0:
            return "leases, in all or in a minute"
        job = self._jobs.get(order.job)
        if self._leases[order.job] + (0 if job is None else len(job.leases)) >= LEASES_OF_JOB_MAX:
            return f"{LEASES_OF_JOB_MAX} leases of one job"
        if room["jobs"] <= 0 or room["spec_bytes"] <= 0:
            return "jobs, or bytes of them"
        return ""

    def _refusal(self, order: api.LeaseOrder) -> str | None:
        """Why this site does not run these events."""
        fault = _lease_fault(order)
        if fault is not None:
            return fault
        job = self._jobs.get(order.job)
        owners = {order.owner} if job is None else {order.owner, job.owner}
        for owner in sorted(owners):
            why = self._deny(owner)
            if why is not None:
                return why
        spec, known = order.spec, self._specs.get(order.job) or (None if job is None else job.spec)
        if spec is None:
            spec = known
        else:
            if known is not None and known.events != spec.events:
                return f"it had {known.events} events before, and has {legal.shown(spec.events)} now"
            wrong = legal.row_fault(spec) or legal.spec_fault(spec) or _origin_fault(order, spec)
            if wrong is not None:
                self._illegal.append(order.n)
                return f"{ILLEGAL}{wrong.text}"
            self._spec_bytes = len(_encode(spec))
            if self._spec_bytes > self._limits.spec_bytes_max:
                return f"its specification has more than {self._limits.spec_bytes_max} bytes"
        if spec is not None and order.first + order.count > spec.events:
            return f"it has {spec.events} events, and event {order.first + order.count - 1} is leased"
        if order.count > self._limits.events_max:
            return f"{order.count} events are leased at a time, this site takes at most {self._limits.events_max}"
        return None


def _fault(order: api.Order) -> str | None:
    """Why an order is malformed, whatever the state."""
    if isinstance(order, api.DrainOrder):
        return None
    if not 0 < order.job < FORM_BASE:
        return f"there is no job {legal.shown(order.job)}"
    if not all(0 <= number < NUMBER_MAX for number in _numbers(order)):
        return "a number in it is out of range"
    if isinstance(order, api.CancelEventsOrder):
        return _done_fault(order.events)
    if not isinstance(order, api.DeliverOrder):
        return None
    if not legal.is_place(order.output_dir):
        return "its directory for outputs is not legal"
    return _done_fault(order.done) or _done_fault(order.fresh or "")


def _numbers(order: api.Order) -> list[int]:
    if isinstance(order, api.FetchLogOrder):
        return [order.request, order.event or 0]
    if isinstance(order, api.LeaseOrder):
        return [order.lease, order.first, order.count - 1, order.seed_base, *order.from_jobs.values()]
    if isinstance(order, api.DeliverOrder):
        return [order.delivery, order.delivery - 1]  # the first is 1
    return [order.first, order.count] if isinstance(order, api.DiscardOrder) else []


def _characters(order: api.Order) -> int:
    if isinstance(order, api.CancelEventsOrder):
        return len(order.events)
    return len(order.done) + len(order.fresh or "") if isinstance(order, api.DeliverOrder) else 0


def _origin_fault(order: api.LeaseOrder, spec: JobSpec) -> legal.Fault | None:
    if order.from_jobs.keys() <= {each.name for each in spec.inputs}:
        return None
    return legal.Fault("the server names other jobs for inputs that it does not have")


def _lease_fault(order: api.LeaseOrder) -> str | None:
    if not legal.is_name(order.campaign):
        return f"`{legal.shown(order.campaign)}` is not a valid name of a campaign"
    if len(order.owner) > OWNER_CHARACTERS_MAX or not (order.owner == "" or order.owner.isprintable()):
        return f"`{legal.shown(order.owner)}` is not a valid name of a submitter"
    if order.seed_base >= 2**31 or order.first + order.count > EVENTS_MAX:
        return "its events or seeds are beyond what a campaign may have"
    if order.cure is not None and not (legal.is_name(order.cure.ward) and order.cure.read in CURE_READS):
        return f"its cure in ward `{legal.shown(order.cure.ward)}` is not legal"
    return None


def _done_fault(done: str) -> str | None:
    """In ascending order, as `IntervalSet` writes it: what comes in another takes it time that grows as the square."""
    if len(done) > DONE_CHARACTERS_MAX:
        return f"its list of events has more than {DONE_CHARACTERS_MAX} characters"
    pieces = done.split(",") if done else []
    firsts: list[int] = []
    for piece in pieces:
        match = _PIECE.fullmatch(piece)
        if match is None:
            return f"its list of events holds `{legal.shown(piece)}`"
        firsts.append(int(match[1]))
        if not firsts[-1] <= int(match[2] or match[1]) < EVENTS_MAX:
            return f"its list of events holds `{legal.shown(piece)}`"
    if any(a >= b for a, b in pairwise(firsts)):
        return "its list of events is not in ascending order"
    return None


def _stripped(order: api.LeaseOrder) -> api.LeaseOrder:
    """What the log needs of a lease that is refused."""
    return msgspec.structs.replace(
        order,
        spec=None,
        owner=_line(order.owner),
        campaign=legal.shown(order.campaign),
        from_jobs={},
        cure=None,
    )


def _line(text: str) -> str:
    """A foreign text for people: short, without control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:REASON_CHARACTERS_MAX])


class Pace:
    """How many leases the rate allows: what a minute allows at once, filled up as time goes by."""

    def __init__(self, per_min: int) -> None:
        self._per_min = per_min
        self._left = float(per_min)
        self._at_s: float | None = None

    def left(self, now_s: float) -> int:
        """Leases that may be taken now."""
        if self._at_s is not None:
            grown = self._left + (now_s - self._at_s) * self._per_min / 60
            self._left = min(float(self._per_min), grown)
        self._at_s = now_s
        return int(self._left)

    def spend(self, leases: int) -> None:
        """Count leases that were accepted."""
        self._left -= leases
