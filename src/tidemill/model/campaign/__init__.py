"""How a campaign is referred to: by its name, which is its owner's, or as `OWNER/NAME`. Pure.

Names hold no `/` (`model/job`), owners may: so the last one divides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class CampaignReference(NamedTuple):
    """What a person or program wrote. `owner` None: it names none."""

    owner: str | None
    name: str


def parse_reference(text: str) -> CampaignReference:
    """The parts of `NAME` or `OWNER/NAME`. `/NAME` is a campaign without an owner."""
    owner, slash, name = text.rpartition("/")
    return CampaignReference(owner if slash else None, name)


def reference(owner: str, name: str) -> str:
    """How a campaign is named where other owners' may have the same name."""
    return f"{owner}/{name}"


def reference_or_name(owner: str, name: str) -> str:
    """The same of an answer whose `owner` is empty where an older server does not name it."""
    return reference(owner, name) if owner else name


def shown_names(campaigns: Sequence[tuple[str, str]]) -> list[str]:
    """How campaigns, as owner and name, are listed: by name, with the owner where they are of several owners."""
    several = len({owner for owner, _ in campaigns}) > 1
    return [reference(owner, name) if several else name for owner, name in campaigns]
