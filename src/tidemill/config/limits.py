"""`[limits]` of site.toml: what the site takes from its server at most, whatever that says."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import Size, doc


class OrderLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that an honest server never meets, and a hostile one cannot pass. `lease_ranges_max`, `stage_bytes_max`
    and `stage_file_bytes_max` bound it, too."""

    leases_per_min_max: Annotated[
        int, msgspec.Meta(ge=1), doc("Leases taken in a minute, at most; more have to wait")
    ] = 1_000_000
    jobs_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        doc("Jobs known at a time, those included that are done and not yet delivered"),
    ] = 1_000_000
    events_max: Annotated[int, msgspec.Meta(ge=1), doc("Events of one lease, at most")] = 1_000_000_000
    spec_bytes_max: Annotated[
        Size, msgspec.Meta(ge=1_000), doc("Bytes of one job's specification, at most")
    ] = 8_000_000
    specs_bytes_max: Annotated[
        Size, msgspec.Meta(ge=1_000), doc("Bytes of all jobs' specifications together, at most")
    ] = 1_000_000_000
    reply_bytes_max: Annotated[
        Size, msgspec.Meta(ge=100_000), doc("Bytes of one answer of the server, at most")
    ] = 32_000_000
