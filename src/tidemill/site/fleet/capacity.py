"""How much more work to ask the server for. Pure."""

from __future__ import annotations

import msgspec

EVENT_S_MIN = 1e-5
SYNCS_AHEAD = 3
"""At least what is done in so many syncs is kept leased ahead."""


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """What decides it. `open_core_s`: leased and not done. `rate_core_s`: core-seconds of estimate done per second."""

    cores: int
    open_core_s: float
    open_ranges: int
    rate_core_s: float
    sync_s: float
    lease_ahead_s: float
    core_s_max: float
    ranges_max: int


def wanted(ahead: Ahead) -> tuple[float, int]:
    """Core-seconds and ranges to ask for; (0, 0) = none.

    Work for all cores for `lease_ahead_s`, and never less than what is used up in three syncs. It asks again only when
    an eighth of that is used up, so that the server does not cut leases to crumbs.
    """
    target = max(
        ahead.cores * ahead.lease_ahead_s,
        ahead.rate_core_s * ahead.sync_s * SYNCS_AHEAD,
    )
    missing = min(target, ahead.core_s_max) - ahead.open_core_s
    ranges = ahead.ranges_max - ahead.open_ranges
    if ranges <= 0 or missing < target / 8:
        return 0.0, 0
    return missing, ranges


def event_s(measured_s: float, events: float) -> float | None:
    """Measured seconds per event, None before anything was measured."""
    return max(measured_s / events, EVENT_S_MIN) if events > 0 else None
