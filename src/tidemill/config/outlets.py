"""`[metrics]` and `[mail]` of site.toml: who may read the agent's metrics, and how the contact is reached. Mail servers
of both configuration files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from tidemill.config.keys import doc

PLAIN = "smtp+plain"
FORMS = (
    "`HOST` or `HOST:PORT` (STARTTLS, port 587), `smtps://HOST:PORT` (TLS from the first byte, port 465) or "
    f"`{PLAIN}://HOST:PORT` (no encryption, port 25)"
)
_HOST_PORT = re.compile(r"(?:\[([0-9A-Za-z:.%_-]+)\]|([\w.-]+))(?::([0-9]{1,5}))?")
_EXPECTED = (
    f"expected `HOST:PORT` (STARTTLS), `smtps://HOST:PORT` (TLS) or `{PLAIN}://HOST:PORT` (no encryption)"
)


class SmtpServer(NamedTuple):
    """`mail.server`, taken apart."""

    security: Literal["starttls", "tls", "none"]
    host: str
    port: int


_SCHEMES: dict[str, tuple[Literal["starttls", "tls", "none"], int]] = {
    "smtp": ("starttls", 587),
    "smtps": ("tls", 465),
    PLAIN: ("none", 25),
}
"""Security and default port: RFC 8314 3.3, RFC 6409; 25 for a relay nearby. Encryption is left out only where the word
says so: `smtp:`, which elsewhere may mean either, asks for STARTTLS, as an address without a scheme does."""


def parse_server(text: str) -> SmtpServer:
    """Security, host and port of `mail.server`. Raises ValueError, which does not quote a password."""
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "smtp", text
    if "@" in rest:
        raise ValueError(
            "`server` names a user: write the host alone; `secret_file` of server.toml holds user and password"
        )
    if scheme.lower() not in _SCHEMES:
        raise ValueError(f"`server` is `{text[:100]}`, {_EXPECTED}")
    security, default = _SCHEMES[scheme.lower()]
    match = _HOST_PORT.fullmatch(rest)
    port = default if match is None or match[3] is None else int(match[3])
    if match is None or not 0 < port < 65536:
        raise ValueError(f"`server` is `{text[:100]}`, {_EXPECTED}")
    return SmtpServer(security, match[1] or match[2], port)


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may read the agent's metrics, besides `SITE/metrics.prom`."""

    textfile: Annotated[
        Path | None,
        doc(
            "A second copy for node_exporter's textfile collector, such as `/var/lib/.../tidemill-NAME.prom`"
        ),
    ] = None
    listen: Annotated[
        str, doc("Address `host:port` of this machine where Prometheus may read them; empty = none")
    ] = ""
    secret_file: Annotated[
        Path | None, doc("File (mode 0600) with the bearer token that `listen` wants; required with it")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a listener without a secret."""
        if self.listen and self.secret_file is None:
            raise ValueError(
                "`listen` needs `secret_file`: every user of a login node can reach its loopback"
            )


class ContactMail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where mail to the contact goes out."""

    server: Annotated[
        str,
        doc(
            f"SMTP server: {FORMS}, such as `{PLAIN}://localhost` for the relay of a login node; empty = no mail"
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Refuse what is not an address."""
        if self.server:
            parse_server(self.server)

    @property
    def place(self) -> SmtpServer:
        """Where and how to connect, of a record with `server`."""
        return parse_server(self.server)
