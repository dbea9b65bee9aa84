"""Notifications of a server: the channels that its configuration gives, and their threads."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tidemill import clock
from tidemill.config.addressee import Channel, parse_target
from tidemill.config.server import ServerConfig
from tidemill.errors import ConfigError
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.notices.sender import Parcel, Sender
from tidemill.server.notify.hook import Poster
from tidemill.server.notify.mail import Mailer
from tidemill.server.notify.notifier import Notifier
from tidemill.wire.notification import Digest, TrialNews


def senders_of(config: ServerConfig) -> dict[Channel, Sender]:
    """The channels that the configuration gives. Raises ConfigError when a file of theirs cannot be read."""
    found: dict[Channel, Sender] = {}
    if config.mail.server:
        found[Channel.MAIL] = Mailer(config.mail)
    if config.notify.hooks or config.notify.allowed_in("https"):
        found[Channel.HOOK] = Poster(config.notify)
    return found


def check_rules(config: ServerConfig, *, messages: bool) -> None:
    """Raises ConfigError when a rule names a channel that is not configured. `messages`: a transport brings them."""
    channels = {*senders_of(config), *([Channel.MESSAGE] if messages else [])}
    for rule in config.notify.rules:
        channel = parse_target(rule.to).channel
        if channel not in channels:
            raise ConfigError(
                f"a rule of `[notify]` names `{rule.to}`, but this server has no {channel}",
                hint="set `[mail] server`, `[[notify.hooks]]` or, with the extension `messages`, `[amqp]`; or remove "
                "the rule",
            )


@contextmanager
def telling(
    store: Store,
    dispatcher: Dispatcher,
    config: ServerConfig,
    *,
    more: Mapping[Channel, Sender] | None = None,
) -> Iterator[Notifier]:
    """Send notifications inside the block. `more`: channels of transports.

    Raises ConfigError when a rule names a channel that is not configured.
    """
    check_rules(config, messages=Channel.MESSAGE in (more or {}))
    senders = {**senders_of(config), **(more or {})}
    notifier = Notifier(store, dispatcher, config.notify, senders=senders, server=socket.gethostname())
    notifier.start()
    try:
        yield notifier
    finally:
        notifier.close()


def send_test(config: ServerConfig, to: str) -> None:
    """Send a test message now, past the queue. Raises ConfigError, or SiteError with what the other side said."""
    try:
        target = parse_target(to)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    sender = senders_of(config).get(target.channel)
    if sender is None:
        raise ConfigError(
            f"this server cannot notify `{to}`: its server.toml configures no channel for it",
            hint="set `[mail] server` or `[[notify.hooks]]`",
        )
    now_us = clock.now_us()
    digest = Digest(
        id=f"{now_us:x}.test", server=socket.gethostname(), made_us=now_us,
        items=[TrialNews(first_us=now_us, last_us=now_us)],
    )  # fmt: skip
    try:
        sender.send(Parcel(target.where, digest))
    finally:
        sender.release()
