"""How a campaign is referred to: by its name, which is its owner's, or as `OWNER/NAME`. Pure.

Names hold no `/` (`model/job`), owners may: so the last one divides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import did_you_mean, nearest

NAMED_MAX = 10  #: campaigns that a hint names
FORM_HINT = "write NAME or OWNER/NAME"


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
    """The reference of a campaign in an answer; its name alone where the answer names no owner."""
    return reference(owner, name) if owner else name


def shown_names(campaigns: Sequence[tuple[str, str]]) -> list[str]:
    """How campaigns, as owner and name, are listed: by name, with the owner where they are of several owners."""
    several = len({owner for owner, _ in campaigns}) > 1
    return [reference(owner, name) if several else name for owner, name in campaigns]


def unknown_hint(text: str, campaigns: Sequence[tuple[str, str]]) -> str:
    """A hint for a reference to no campaign. It reads nothing but `campaigns`, as owner and name, and compares names
    alone: those of the owner that is named before those of all."""
    asked = parse_reference(text)
    of_owner = [each for each in campaigns if each[0] == asked.owner]
    if not asked.name:
        return FORM_HINT
    if not of_owner and "/" in (asked.owner or ""):
        return f"{FORM_HINT}, with one `/`"
    owners: dict[str, list[str]] = defaultdict(list)
    for owner, name in sorted(set(campaigns)):
        owners[name].append(owner)

    def shown(name: str, owner: str) -> str:
        return name if asked.owner is None and len(owners[name]) == 1 else reference(owner, name)

    for some in (of_owner, campaigns):
        best = nearest(asked.name, sorted({name for _, name in some}))
        if best is not None:
            whose = [asked.owner or ""] if some is of_owner else owners[best]
            return f"did you mean {' or '.join(f'`{shown(best, each)}`' for each in whose[:NAMED_MAX])}?"
    return did_you_mean("", {shown(name, owner) for owner, name in of_owner or campaigns}, most=NAMED_MAX)
