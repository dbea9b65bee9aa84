"""`[metrics]` and `[mail]` of site.toml: who may read the agent's metrics, and how the contact is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.config.keys import doc
from tidemill.config.smtp import FORMS, PLAIN, SmtpServer, parse_server


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
