"""Ways between server, sites and submitters beside HTTP: extensions add them by entry points of `tidemill.transports`.

A way is known by the scheme of a server's address (docs/extensions.md). Messages are those of wire/api.py on every way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemill import extensions
from tidemill.config.keys import HTTP
from tidemill.config.tables import added, tables_of
from tidemill.errors import ConfigError
from tidemill.wire.api import SyncReply, SyncRequest

if TYPE_CHECKING:  # clients import this, and have no such files
    from tidemill.config.server import ServerConfig
    from tidemill.config.site import SiteConfig
    from tidemill.wire.credentials import Credentials


class Transport(Protocol):
    """How a site's syncs reach the server; one exchange at a time, of at most `timeout_s`."""

    def sync(self, request: SyncRequest) -> SyncReply:
        """The server's answer to this very request.

        Raises ConflictError when it knows a newer epoch; SiteError (transient) if no answer comes, and it is not
        known whether the server has the request; TooLongError when fewer reports may pass; ConfigError, JobError,
        ProtocolError for what stays wrong by itself.
        """

    def close(self) -> None:
        """Let go of connections; an exchange under way fails."""


class SyncBounds(NamedTuple):
    """What a site grants a transport: time for an exchange, the longest pause between attempts to connect, bytes of an
    answer."""

    timeout_s: float
    pause_max_s: float
    reply_bytes_max: int


class ServedTransport(Protocol):
    """What the server runs of a transport while it may write. Not to be started again after `close`."""

    #: sends notifications to submitters (a `Sender` of `tidemill.server.notices.sender`)
    courier: Any

    def start(self) -> None:
        """Begin; does not wait for the other side."""

    def close(self) -> None:
        """End. What was not acknowledged comes again to the next server."""

    def is_up(self) -> bool:
        """Whether messages go in and out."""


class TransportKind(NamedTuple):
    """A way, under the schemes of its addresses as names of entry points."""

    open: Callable[[SiteConfig, Credentials, SyncBounds], Transport]
    """At a site whose `server` has the scheme. Raises ConfigError; does not wait for the server."""
    examine: Callable[[SiteConfig, Credentials], str]
    """What `site check` says of it. Raises ConfigError; connects to nothing."""
    is_wanted: Callable[[ServerConfig], bool]
    """Whether the settings of a server ask for it."""
    serve: Callable[[ServerConfig, Any], ServedTransport]
    """At such a server, with a `TransportHost` of `tidemill.server.transports`. Raises ConfigError; begins nothing."""
    hint: str
    """What commands are for it, where another one is given such an address."""


def scheme_of(address: str) -> str:
    """The scheme of an address that belongs to a transport, installed or not; empty for HTTP and Unix sockets."""
    scheme = address.partition(":")[0].lower()
    return scheme if scheme in extensions.names(extensions.TRANSPORTS) - HTTP else ""


def kind_of(address: str) -> TransportKind | None:
    """The transport of an address; None for HTTP and Unix sockets.

    Raises ConfigError if its extension is missing or at fault, or has something else under this scheme.
    """
    scheme = scheme_of(address)
    if not scheme:
        return None
    result = extensions.find(extensions.TRANSPORTS, scheme)
    if not isinstance(result, TransportKind):
        raise ConfigError(f"no transport for a server at `{scheme}:`")
    return result


def wanted(config: ServerConfig) -> TransportKind | None:
    """The transport that a server's settings ask for, if they ask for one.

    Raises ConfigError for two, since notices go by one, and for one that is at fault where settings of its extension
    are made: without it, jobs would wait at a broker, and no one would know.
    """
    found: dict[TransportKind, str] = {}
    for scheme in sorted(extensions.names(extensions.TRANSPORTS) - HTTP):
        extension = extensions.owner(extensions.TRANSPORTS, scheme)
        if not extension:
            continue
        try:
            kind = kind_of(f"{scheme}:")
        except ConfigError as error:
            if _has_settings(config, extension):
                raise
            extensions.warn(extension, error.message)
            continue
        if kind is not None and kind not in found and kind.is_wanted(config):
            found[kind] = scheme
    if len(found) > 1:
        listed = " and ".join(f"`{each}:`" for each in found.values())
        raise ConfigError(
            f"server.toml asks for {listed}: a server has one transport beside HTTP",
            hint="remove the settings of the others",
        )
    return next(iter(found), None)


def _has_settings(config: ServerConfig, extension: str) -> bool:
    """Whether a server's file has settings of an extension that are not the defaults."""
    names = extensions.installed()[extension].entries.get(extensions.SETTINGS, {})
    read = tables_of(config)
    return any(name in names and read[name] != table.record() for name, table in added(type(config)).items())
