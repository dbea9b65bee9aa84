"""`[quotas]` of server.toml: what one submitter may take of the server, so that the others still have it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import Duration, Size, constant, doc


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[quotas]`: limits of each submitter, who is known by a certificate, token or broker user. The server's own user
    (its socket, the secret) has none. A million jobs in a campaign meet none of them."""

    open_jobs_max: Annotated[
        int, msgspec.Meta(ge=1), doc("Jobs of one submitter that have not ended, at most")
    ] = 5_000_000
    open_kinds_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        constant(
            "Kinds of jobs of one submitter that have not ended, at most: each campaign and each combination of "
            "application, cores, memory, devices and width in it is one; every sync has to examine all of them"
        ),
    ] = 500
    campaign_kinds_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        constant("Kinds of jobs that one campaign ever has, at most: pages list them all"),
    ] = 2_000
    stored_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=1_000_000),
        constant(
            "Bytes of one submitter's jobs in the database, at most: 300 for a job, and each different specification"
        ),
    ] = 20_000_000_000
    all_stored_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=0),
        doc(
            "Bytes of all submitters' jobs in the database together, at most; 0 = half of the file system that holds "
            "an SQLite database, 100 GB with PostgreSQL"
        ),
    ] = 0
    sites_named_max: Annotated[
        int,
        msgspec.Meta(ge=0),
        constant(
            "Sites that one submitter's jobs name before these sites have joined, at most: names that no site has are "
            "a row each, for ever"
        ),
    ] = 20
    requests_per_s: Annotated[
        float,
        msgspec.Meta(gt=0),
        constant(
            "Requests of one submitter in a second, on average; ten seconds' worth may come at once. `time_share` "
            "bounds what they cost"
        ),
    ] = 100.0
    time_share: Annotated[
        float,
        msgspec.Meta(gt=0, le=1),
        constant(
            "Part of the server's time that one submitter's requests take, on average; more of them have to wait"
        ),
    ] = 0.2
    requests_max: Annotated[
        int,
        msgspec.Meta(ge=2),
        constant(
            "Requests of one submitter that are under way at once, at most; feeds of changes not counted"
        ),
    ] = 32
    feeds_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        constant(
            "Feeds of changes and logs that one submitter waits for at once, at most: one for each open page and "
            "client"
        ),
    ] = 60
    connections_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        constant(
            "Connections with one client certificate at once, at most: the process has 1,024 descriptors on many "
            "machines"
        ),
    ] = 100
    head_s: Annotated[
        Duration,
        msgspec.Meta(ge=0.1),
        constant(
            "End a request whose headers are not complete after this time: no honest client sends them one by one"
        ),
    ] = 20.0
    stall_s: Annotated[
        Duration,
        msgspec.Meta(ge=0.1),
        constant(
            "End a request when less than 1 kB of its body arrives, or none of its answer is read, in this time"
        ),
    ] = 60.0
