"""Subscriptions of a campaign, as a submitter writes them. Pure."""

from __future__ import annotations

import msgspec

from tidemill.config.addressee import Occasion, Share, parse_target

SUBSCRIPTIONS_MAX = 20  #: of one campaign
USUAL = (Occasion.CAMPAIGN, Occasion.FAILURES)


class Subscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An addressee of notices of a campaign."""

    to: str  #: `mail:ADDRESS`, `hook:NAME`, `https://HOST/PATH` or `message`
    when: list[Occasion] | None = None  #: of what; none = `campaign` and `failures`
    failures_share: Share = 0.1  #: for `failures`: from which share of failed events on

    def __post_init__(self) -> None:
        """Refuse an invalid addressee."""
        parse_target(self.to)
        if self.when == []:
            raise ValueError(f"`{self.to}` has no occasion: `when` is empty")

    @property
    def occasions(self) -> frozenset[Occasion]:
        """The occasions of its notices."""
        return frozenset(USUAL if self.when is None else self.when)
