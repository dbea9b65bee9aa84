"""`[limits]` of site.toml: what the site takes from its server at most, whatever that says."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import Size, constant


class OrderLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that an honest server never meets, and a hostile one cannot pass. `lease_ranges_max` and
    `stage_bytes_max` bound it, too."""

    leases_per_min_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        constant("Leases taken in a minute, at most; more than an honest server gives"),
    ] = 1_000_000
    jobs_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        constant(
            "Jobs known at a time, those included that are done and not yet delivered: they are in the agent's memory"
        ),
    ] = 1_000_000
    events_max: Annotated[
        int, msgspec.Meta(ge=1), constant("Events of one lease, at most: more than a campaign has")
    ] = 1_000_000_000
    spec_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=1_000),
        constant("Bytes of one job's specification, at most: it may carry a list of 100,000 inputs"),
    ] = 8_000_000
    specs_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=1_000),
        constant("Bytes of all jobs' specifications together, at most: they are in the agent's memory"),
    ] = 1_000_000_000
    reply_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=100_000),
        constant("Bytes of one answer of the server, at most: an honest one is cut into smaller answers"),
    ] = 32_000_000
