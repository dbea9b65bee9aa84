"""What happened becomes notices: one per addressee, subject and occasion, however much happens. Pure.

A notice holds sums and some examples, so that a campaign of a million jobs costs one row and one mail. `first_us` 0 =
there is nothing to send now; the notice stays to remember what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from tidemill.config.addressee import Occasion
from tidemill.config.notify import Rule
from tidemill.model.notification import Subscription
from tidemill.model.state import JOB_FINAL
from tidemill.server import constants
from tidemill.server.notices.digests import NoticeKey
from tidemill.wire.api import Change
from tidemill.wire.notification import JOBS_SHOWN, MOVES_SHOWN, Move

FAILED_MIN = 10  #: failed events before a share of them means anything
AGAIN = 0.5  #: a share that fell below this part of its limit is reported again when it rises
_FINAL = frozenset(str(state) for state in JOB_FINAL)
_COMPLETED = "COMPLETED"
TOLD_SITE_STATES = frozenset(
    {"UP", "DRAINED", "LOST", "DOWN"}
)  #: a site that is SILENT may yet be heard again


class Body(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a notice holds: of jobs, of failures, or of a site."""

    ended: dict[str, int] = {}  #: jobs by state
    jobs: list[tuple[int, str]] = []  #: some of them, and their states
    limit: float = 0.0  #: share of failed events from which on the addressee is notified
    told: bool = False  #: the addressee knows that the share is above the limit
    state: str = ""  #: of a site, as last read
    reason: str = ""
    moves: list[Move] = []


class Notice(msgspec.Struct, kw_only=True):
    """A row of `notices`."""

    key: NoticeKey
    first_us: int
    last_us: int
    body: Body


Notices = dict[NoticeKey, Notice]


def wanted(
    campaign: str, subscriptions: Iterable[Subscription], rules: Iterable[Rule]
) -> dict[str, Subscription]:
    """Who wants what of a campaign, by addressee: what submitters asked for, and the rules of the configuration."""
    found: dict[str, Subscription] = {}
    matching = [
        Subscription(to=rule.to, when=rule.when, failures_share=constants.FAILURES_SHARE)
        for rule in rules
        if fnmatchcase(campaign, rule.campaign)
    ]
    for each in (*subscriptions, *matching):
        before = found.get(each.to)
        found[each.to] = each if before is None else _both(before, each)
    return found


def _both(one: Subscription, other: Subscription) -> Subscription:
    return Subscription(
        to=one.to,
        when=sorted(one.occasions | other.occasions),
        failures_share=min(one.failures_share, other.failures_share),
    )


def take_changes(
    notices: Notices, subject: str, changes: Iterable[Change], wants: Mapping[str, Subscription]
) -> set[NoticeKey]:
    """Add state changes of a campaign's jobs to the notices of those who want them; which notices changed.

    `subject`: the campaign's reference.
    """
    changed: set[NoticeKey] = set()
    for change in changes:
        if change.state not in _FINAL:
            continue
        for each in wants.values():
            if Occasion.JOB in each.occasions:
                notice = _notice(notices, NoticeKey(each.to, subject, Occasion.JOB), change.at_us)
                _add_job(notice.body, change)
                changed.add(notice.key)
            if Occasion.CAMPAIGN in each.occasions:
                changed.add(
                    _notice(notices, NoticeKey(each.to, subject, Occasion.CAMPAIGN), change.at_us).key
                )
    return changed


def _notice(notices: Notices, key: NoticeKey, at_us: int) -> Notice:
    """The notice, which has something to send from now on."""
    result = notices.get(key)
    if result is None:
        result = notices[key] = Notice(key=key, first_us=at_us, last_us=at_us, body=Body())
    result.first_us = result.first_us or at_us
    result.last_us = max(result.last_us, at_us)
    return result


def _add_job(body: Body, change: Change) -> None:
    body.ended[change.state] = body.ended.get(change.state, 0) + 1
    if len(body.jobs) < JOBS_SHOWN:
        body.jobs.append((change.job, change.state))
    elif change.state != _COMPLETED:  # an example without success says more than one with
        at = next((n for n, (_, state) in enumerate(body.jobs) if state == _COMPLETED), None)
        if at is not None:
            body.jobs[at] = (change.job, change.state)


def take_failures(
    notices: Notices,
    subject: str,
    counts: tuple[int, int],
    *,
    wants: Mapping[str, Subscription],
    now_us: int,
) -> set[NoticeKey]:
    """Compare a campaign's failed events with what its addressees want to know; which notices changed.

    `counts`: events done and failed. Reported once when the share exceeds the limit, and again only after it fell well
    below (such as after a retry).
    """
    changed: set[NoticeKey] = set()
    done, failed = counts
    share = failed / (done + failed) if failed else 0.0
    for each in wants.values():
        if Occasion.FAILURES not in each.occasions:
            continue
        key = NoticeKey(each.to, subject, Occasion.FAILURES)
        notice = notices.get(key)
        told = notice is not None and notice.body.told
        if not told and failed >= FAILED_MIN and share >= each.failures_share:
            notice = _notice(notices, key, now_us)
            notice.body.told, notice.body.limit = True, each.failures_share
            changed.add(key)
        elif notice is not None and told and share < AGAIN * each.failures_share:
            notice.body.told = False
            changed.add(key)
    return changed


class SiteNow(msgspec.Struct, frozen=True):
    """A site as it is now."""

    name: str
    state: str
    reason: str = ""


def take_sites(
    notices: Notices, sites: Sequence[SiteNow], wants: Mapping[str, Iterable[str]], now_us: int
) -> set[NoticeKey]:
    """Compare sites with what their addressees (by site) last heard; which notices changed.

    A site of which no addressee knows yet is only remembered, unless it does not work.
    """
    changed: set[NoticeKey] = set()
    for site in sites:
        if site.state not in TOLD_SITE_STATES:
            continue
        for target in wants.get(site.name, ()):
            key = NoticeKey(target, site.name, Occasion.SITE)
            notice = notices.get(key)
            before = "UP" if notice is None else notice.body.state
            if notice is not None and (before, notice.body.reason) == (site.state, site.reason):
                continue
            if notice is None and site.state == before:
                notices[key] = notice = Notice(key=key, first_us=0, last_us=now_us, body=Body())
            else:
                notice = _notice(notices, key, now_us)
                move = Move(at_us=now_us, state=site.state, reason=site.reason)
                notice.body.moves = [*notice.body.moves, move][-MOVES_SHOWN:]
            notice.body.state, notice.body.reason = site.state, site.reason
            changed.add(key)
    return changed


def without_sent(notice: Notice) -> Notice | None:
    """What is left of a notice once a message holds it; None = nothing."""
    body = notice.body
    match notice.key.what:
        case Occasion.FAILURES:
            body = Body(told=body.told, limit=body.limit)
        case Occasion.SITE:
            body = Body(state=body.state, reason=body.reason)
        case _:
            return None
    return Notice(key=notice.key, first_us=0, last_us=notice.last_us, body=body)
