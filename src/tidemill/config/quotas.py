"""`[quotas]` of server.toml: what one submitter may take of the server, so that the others still have it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import Size, doc


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[quotas]`: limits of each submitter, who is known by a certificate, token or broker user. The server's own user
    (its socket, the secret) has none. A million jobs in a campaign meet none of them."""

    open_jobs_max: Annotated[
        int, msgspec.Meta(ge=1), doc("Jobs of one submitter that have not ended, at most")
    ] = 5_000_000
    all_stored_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=0),
        doc(
            "Bytes of all submitters' jobs in the database together, at most; 0 = half of the file system that holds "
            "an SQLite database, 100 GB with PostgreSQL"
        ),
    ] = 0
