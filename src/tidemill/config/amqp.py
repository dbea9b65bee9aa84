"""Sections of `server.toml` and `site.toml`: the message queue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Duration, constant, doc


class Amqp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[amqp]`: messages by RabbitMQ, beside HTTP."""

    url: Annotated[
        str | None,
        doc(
            "The broker: `amqps://HOST:PORT/VHOST` (default: port 5671, virtual host `tidemill`); none = no messages"
        ),
    ] = None
    certificate: Annotated[
        Path | None, doc("The server's client certificate (PEM): its identity at the broker")
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate (PEM, mode 0600); none = in the same file")] = (
        None
    )
    ca: Annotated[
        Path | None,
        doc("Certificates of the authorities that the broker's certificate may be from; none = the system's"),
    ] = None
    user: Annotated[
        str,
        doc("The broker's user that the server is, by its certificate; for `tidemill server broker-setup`"),
    ] = "tidemill-server"
    submitters: Annotated[
        dict[str, str],
        doc('Who may submit by message: `NAME = "the broker\'s user"`, empty = the user has the same name'),
    ] = {}
    sites: Annotated[
        dict[str, str],
        doc('Sites that may sync by message: `SITE = "the broker\'s user"`, empty = the same name'),
    ] = {}
    operators: Annotated[
        dict[str, str], doc('Who may read dead letters: `NAME = "the broker\'s user"`, empty = the same name')
    ] = {}
    progress: Annotated[
        bool,
        doc("Tell submitters also how many events of a running job are done, not only changes of its state"),
    ] = False
    queue_type: Annotated[
        Literal["classic", "quorum"],
        doc("Type of the queues that `broker-setup` declares; `quorum` where the broker is a cluster"),
    ] = "classic"
    messages_max: Annotated[
        int,
        msgspec.Meta(ge=100),
        constant(
            "Messages that a queue holds at most, so that a reader that has stopped does not fill the broker's disk; "
            "then submitters are refused, and state changes wait in the database"
        ),
    ] = 100_000
    heartbeat_s: Annotated[
        Duration,
        msgspec.Meta(ge=1, le=600),
        constant(
            "A connection that is silent for two heartbeats is given up: within a minute, at two small frames a "
            "minute"
        ),
    ] = 30.0
    reconnect_max_s: Annotated[
        Duration,
        msgspec.Meta(ge=0.1),
        constant(
            "Longest pause between attempts to reach the broker: short beside an outage, and no load on a broker that "
            "comes back"
        ),
    ] = 30.0


class AtBroker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[broker]` of a site whose `server` is `amqps://...`."""

    user: Annotated[str, doc("The broker's user that `certificate` stands for; empty = the site's name")] = ""
    heartbeat_s: Annotated[
        Duration,
        msgspec.Meta(ge=1, le=600),
        constant(
            "A connection that is silent for two heartbeats is given up: within a minute, at two small frames a "
            "minute"
        ),
    ] = 30.0
