"""Occasions and addressees of notifications, as configuration and submitters write them. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"
TARGET_MAX = 500  #: characters of an addressee
# Not every legal address (RFC 5321 4.1.2): the forms that people have. No quotes, no blanks, no line ends, so that
# nothing of it can become another header or another recipient.
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,63}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")
_NAME = re.compile(NAME_PATTERN)


class Occasion(StrEnum):
    """An event that can be notified."""

    JOB = "job"
    CAMPAIGN = "campaign"
    FAILURES = "failures"
    SITE = "site"


OCCASIONS: dict[Occasion, str] = {
    Occasion.JOB: "a job ended, however it did",
    Occasion.CAMPAIGN: "nothing of the campaign waits or runs any more",
    Occasion.FAILURES: "more than a share of the campaign's events failed",
    Occasion.SITE: "a site was drained, fell silent for too long, or works again",
}


class Channel(StrEnum):
    """How a notice reaches its addressee."""

    MAIL = "mail"
    HOOK = "hook"
    MESSAGE = "message"


class Target(NamedTuple):
    """An addressee, taken apart: `where` is an address, the name of a hook or its URL, or who gets messages (empty =
    the campaign's owner)."""

    channel: Channel
    where: str

    @property
    def is_url(self) -> bool:
        """Whether a hook is named by its URL, not by the name that the server's configuration gives it."""
        return self.channel is Channel.HOOK and "://" in self.where


def parse_target(text: str) -> Target:
    """`mail:me@example.org`, `hook:NAME`, `https://host/path` or `message`. Raises ValueError that quotes the text."""
    kind, _, where = text.partition(":")
    if len(text) <= TARGET_MAX and text.isascii() and text.isprintable() and " " not in text:
        if kind == "mail" and _ADDRESS.fullmatch(where):
            return Target(Channel.MAIL, where)
        if kind == "hook" and _NAME.fullmatch(where):
            return Target(Channel.HOOK, where)
        if kind == "https" and _is_url(text):
            return Target(Channel.HOOK, text)
        if kind == "message" and (text == kind or _NAME.fullmatch(where)):
            return Target(Channel.MESSAGE, where)
    raise ValueError(
        f"`{text[:100]}` is not a valid addressee: expected `mail:me@example.org`, `hook:NAME`, "
        "`https://host/path` or `message`"
    )


def shown(target: str) -> str:
    """An addressee for logs: of a URL only the host, for with many services the path is the credential."""
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}/..." if "://" in target else target


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.username is None and parts.port != 0 and not parts.fragment
    except ValueError:  # a port that is not a number
        return False


Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
