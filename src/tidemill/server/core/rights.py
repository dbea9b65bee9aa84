"""Whether the one who asks may do it: looks up who owns the thing, and lets `model/identity.py` decide.

The dispatcher asks before it changes anything, inside the same transaction, whichever way a request came.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.identity import Act, Identity, may, own_name
from tidemill.server.core.leasing import job_input
from tidemill.server.database.store import Session
from tidemill.server.errors import ForbiddenError
from tidemill.wire.api import SubmitRequest

SHARES_OWN_MAX = 1.0  #: of a submitter's own campaigns; more is for the server's user to give


def check(identity: Identity, act: Act, *, owner: str | None = None, site: str | None = None) -> None:
    """Raises ForbiddenError."""
    decision = may(identity, act, owner=owner, site=site)
    if not decision.allowed:
        raise ForbiddenError(decision.reason, hint="ask the server's operator which role your credential has")


def check_jobs(session: Session, identity: Identity, act: Act, jobs: Iterable[int]) -> None:
    """Raises ForbiddenError unless all of these jobs, as far as they exist, are open to the one who asks."""
    check(identity, act)
    numbers = sorted(set(jobs))
    if own_name(identity, act) is not None and numbers:
        for (owner,) in session.rows("owners_of_jobs", ids=numbers):
            check(identity, act, owner=owner)


def check_campaign(session: Session, identity: Identity, act: Act, name: str | None) -> None:
    """Raises ForbiddenError if the campaign exists and belongs to another; None names no campaign."""
    check(identity, act)
    if name is not None and own_name(identity, act) is not None:
        for (owner,) in session.rows("campaign_owner", name=name):
            check(identity, act, owner=owner)


def check_submit(session: Session, identity: Identity, request: SubmitRequest) -> None:
    """Raises ForbiddenError. What a submitter sends belongs to that submitter, whatever the request says."""
    check_campaign(session, identity, Act.SUBMIT, request.campaign)
    if identity.is_everybody:
        return
    request.owner = identity.name
    if request.shares is not None and request.shares > SHARES_OWN_MAX:
        raise ForbiddenError(
            f"`shares` is {request.shares}, a submitter may give a campaign at most {SHARES_OWN_MAX}",
            hint="the operator can raise it on the server's own socket",
        )
    jobs: set[int] = set()
    campaigns: set[str] = set()
    for spec in request.jobs:
        jobs |= {each for each in spec.after if isinstance(each, int)}
        campaigns |= {each for each in spec.after if isinstance(each, str)}
        jobs |= {number for each in spec.inputs if (number := _of_job(each.url)) is not None}
    check_jobs(session, identity, Act.SUBMIT, jobs)  # an input `job:ID/NAME` is another job's output
    for name in sorted(campaigns):
        check_campaign(session, identity, Act.SUBMIT, name)


def _of_job(url: str) -> int | None:
    try:
        named = job_input(url)
    except ValueError:
        return None  # the submission itself is refused for it
    return None if named is None else named[0]
