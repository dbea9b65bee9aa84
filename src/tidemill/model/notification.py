"""What a submitter writes down of who wants to be told of a campaign. Pure."""

from __future__ import annotations

import msgspec

from tidemill.config.addressee import Occasion, Share, parse_target

SUBSCRIPTIONS_MAX = 20  #: of one campaign
USUAL = (Occasion.CAMPAIGN, Occasion.FAILURES)


class Subscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody wants to be told of a campaign."""

    to: str  #: `mail:ADDRESS`, `hook:NAME`, `https://HOST/PATH` or `message`
    when: list[Occasion] | None = None  #: of what; none = `campaign` and `failures`
    failures_share: Share = 0.1  #: for `failures`: from which share of failed events on

    def __post_init__(self) -> None:
        """Refuse an addressee that is none."""
        parse_target(self.to)
        if self.when == []:
            raise ValueError(f"`{self.to}` wants to be told of nothing: `when` is empty")

    @property
    def occasions(self) -> frozenset[Occasion]:
        """What it is to be told of."""
        return frozenset(USUAL if self.when is None else self.when)
