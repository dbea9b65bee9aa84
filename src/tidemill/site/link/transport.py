"""How `sync` reaches the server: one contract, by HTTP or by a transport of an extension. The message is the same
(wire/api.py).

Whatever the way does to a message - loses it, repeats it, brings it late - the caller sends the next one from what is
durable at the site, so an exchange that failed is simply followed by another.
"""

from __future__ import annotations

from tidemill.config.site import SiteConfig
from tidemill.site import constants
from tidemill.wire.api import SyncReply, SyncRequest
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import Connection
from tidemill.wire.transports import SyncBounds, Transport, kind_of

LONGEST_S = 300.0  #: for a whole exchange, however slowly it comes: as long as 32 MB take at 1 Mbit/s


def credentials_of(config: SiteConfig) -> Credentials:
    """What the site shows to its server."""
    return Credentials(
        secret_file=config.secret_file, certificate=config.certificate, key=config.key, ca=config.ca,
        token_file=config.token_file,
    )  # fmt: skip


def open_transport(config: SiteConfig) -> Transport:
    """The way that the address of the site's server asks for. Raises ConfigError; does not wait for the server."""
    kind = kind_of(config.server)
    if kind is not None:
        bounds = SyncBounds(
            constants.SYNC_TIMEOUT_S, constants.SYNC_INTERVAL_MAX_S, constants.SYNC_REPLY_BYTES_MAX
        )
        return kind.open(config, credentials_of(config), bounds)
    return HttpTransport(
        Connection(
            config.server,
            credentials=credentials_of(config),
            timeout_s=constants.SYNC_TIMEOUT_S,
            longest_s=LONGEST_S,
            reply_bytes_max=constants.SYNC_REPLY_BYTES_MAX,
        )
    )


class HttpTransport:
    """`POST /v1/sync`, on a Unix socket or TCP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sync(self, request: SyncRequest) -> SyncReply:
        """Post the request."""
        return self._connection.call("POST", "/v1/sync", SyncReply, body=request)

    def close(self) -> None:
        """Close the connections, also one that waits."""
        self._connection.break_off()
        self._connection.close()
