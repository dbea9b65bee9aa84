"""The version of what sites and servers say to each other, and what to do where two of them differ. Pure."""

from __future__ import annotations

import msgspec

from tidemill.errors import UNDECODABLE

PROTOCOL = 1
"""A change of `SyncRequest`, `SyncReply` or what they hold that the other side would refuse or misread raises it.
`tests/golden` has messages of each release that must stay readable while it is the same."""


class Spoken(msgspec.Struct):
    """What every version can read of a message of any other."""

    protocol: int = PROTOCOL


def spoken(body: bytes) -> int:
    """Which protocol a message speaks that cannot be read otherwise; this version's if the message does not say."""
    try:
        return msgspec.json.decode(body, type=Spoken).protocol
    except UNDECODABLE:
        return PROTOCOL


def mismatch(site: int, server: int) -> tuple[str, str] | None:
    """What is wrong between a site and a server that speak these protocols, and what to do; None = nothing is."""
    if site == server:
        return None
    older = "site" if site < server else "server"
    return (
        f"the site speaks protocol {site}, the server protocol {server}",
        f"upgrade the {older}: it is of an older version of Tidemill. Its work goes on meanwhile",
    )
