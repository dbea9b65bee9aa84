"""Which campaign a reference means: a submitter's name is her own campaign, `OWNER/NAME` that of an owner.

For a submitter, a campaign of another does not exist: the same answer, after the same queries, whatever others have.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.campaign import NAMED_MAX, parse_reference, reference, unknown_hint
from tidemill.server.database.store import Session
from tidemill.server.errors import MissingError, RequestError

HINTED_MAX = 1_000  #: newest campaigns that a hint chooses from


class CampaignKey(NamedTuple):
    """A campaign that exists. `number`: never another's, in the archive neither."""

    number: int
    owner: str
    name: str
    is_archived: bool

    @property
    def reference(self) -> str:
        """The campaign's name among the campaigns of all owners."""
        return reference(self.owner, self.name)


def find(session: Session, text: str, own: str | None) -> CampaignKey:
    """The campaign that `NAME` or `OWNER/NAME` means for one who sees the campaigns of `own` only (None = of all).

    Raises MissingError; RequestError for a bare name that several owners use, for one who sees them all.
    """
    key = look_up(session, text, own)
    if key is None:
        owner, _ = parse_reference(text)
        raise missing(session, text, own, of_another=own is not None and owner not in (None, own))
    return key


def look_up(session: Session, text: str, own: str | None) -> CampaignKey | None:
    """The campaign that a text names; None if no campaign has this name."""
    owner, name = parse_reference(text)
    if own is None and owner is None:
        rows = session.rows("campaigns_named", name=name, limit=NAMED_MAX + 1)
    else:  # a submitter's query is the same, whomever the reference names
        rows = session.rows("campaign_of_owner", name=name, owner=owner if own is None else own)
    if not rows or (own is not None and owner not in (None, own)):
        return None
    keys = [CampaignKey(number, of, named, bool(archived)) for number, of, named, archived in rows]
    if len(keys) > 1:
        raise _ambiguous(name, keys)
    return keys[0]


def _ambiguous(name: str, keys: list[CampaignKey]) -> RequestError:
    shown = ", ".join(f"`{each.reference}`" for each in keys[:NAMED_MAX])
    more = ", and more" if len(keys) > NAMED_MAX else ""
    return RequestError(
        f"several owners have a campaign `{name}`: {shown}{more}", hint="name one of them as OWNER/NAME"
    )


def missing(session: Session, text: str, owner: str | None, *, of_another: bool = False) -> MissingError:
    """For a campaign that does not exist; the hint names campaigns of `owner` only, None = of all."""
    rows = (
        session.rows("campaign_known")
        if owner is None
        else session.rows("campaigns_owned", owner=owner, limit=HINTED_MAX)
    )
    hint = unknown_hint(text, [(of, name) for name, of in rows])
    return MissingError(f"there is no campaign `{text}`", hint=hint, of_another=of_another)
