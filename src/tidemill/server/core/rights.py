"""Whether the one who asks may do it: looks up who owns the thing, and lets `model/identity.py` decide.

What belongs to another does not exist for the one who asks: the same answer, after the same queries. The dispatcher
asks before it changes anything, inside the same transaction, whichever way a request came.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.identity import Act, Identity, may, own_name
from tidemill.server.archive import lookup
from tidemill.server.core import campaign_names
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.database.store import Session
from tidemill.server.errors import ForbiddenError, MissingError
from tidemill.wire.api import SubmitRequest

SHARES_OWN_MAX = 1.0  #: of a submitter's own campaigns; more is for the server's user to give


def check(identity: Identity, act: Act, *, owner: str | None = None, site: str | None = None) -> None:
    """Raises ForbiddenError."""
    decision = may(identity, act, owner=owner, site=site)
    if not decision.allowed:
        raise ForbiddenError(decision.reason, hint="ask the server's operator which role your credential has")


def check_jobs(session: Session, identity: Identity, act: Act, jobs: Iterable[int]) -> None:
    """Raises MissingError unless all of these jobs exist and belong to the one who asks. For an identity that may act
    on the jobs of all owners, their existence is not checked."""
    check(identity, act)
    own, numbers = own_name(identity, act), sorted(set(jobs))
    if own is None or not numbers:
        return
    owners = owners_of(session, numbers)
    for number in numbers:
        if owners.get(number) != own:
            raise missing_job(number, of_another=number in owners)


def check_campaign(session: Session, identity: Identity, act: Act, reference: str) -> CampaignKey:
    """The campaign that a reference means for the one who asks. Raises ForbiddenError, MissingError, or RequestError if
    it may be several."""
    check(identity, act)
    return campaign_names.find(session, reference, own_name(identity, act))


def owners_of(session: Session, jobs: list[int]) -> dict[int, str]:
    """Whose each of these jobs is, in the database or in the archive; those that there are not are left out."""
    if not jobs:
        return {}
    found: dict[int, str] = dict(session.rows("job_owners", ids=jobs))
    return found | lookup.owners_of(session, jobs)  # of all jobs: the queries do not reveal what exists


def missing_job(number: int, *, of_another: bool = False) -> MissingError:
    """For a job that does not exist, or not for the one who asks."""
    return MissingError(f"there is no job {number}", of_another=of_another)


def check_submit(identity: Identity, request: SubmitRequest) -> None:
    """Raises ForbiddenError. What a submitter sends belongs to that submitter, whatever the request
    says; what it comes after is checked with the rest of it, see `submission.resolve_after`."""
    check(identity, Act.SUBMIT)
    if identity.is_local_admin:
        return
    request.owner = identity.name
    if request.shares is not None and request.shares > SHARES_OWN_MAX:
        raise ForbiddenError(
            f"`shares` is {request.shares}, a submitter may give a campaign at most {SHARES_OWN_MAX}",
            hint="the operator can raise it on the server's own socket",
        )
