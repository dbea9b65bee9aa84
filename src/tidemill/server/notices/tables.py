"""Notices and messages in the database. Changes run in the writer's transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidemill.config.addressee import Channel, Occasion, parse_target
from tidemill.model.notification import SUBSCRIPTIONS_MAX, Subscription
from tidemill.server.database.store import Session, value
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import RequestError
from tidemill.server.notices.digests import HOUR_US, NoticeKey
from tidemill.server.notices.gathering import Body, Notice, Notices
from tidemill.wire.api import SubmitRequest
from tidemill.wire.notification import Digest, News

WAITS, SENT, GIVEN_UP = range(3)
WAITING_MAX = 100  #: messages that are read at a time
ERROR_MAX = 500
_ENCODER = msgspec.json.Encoder()
_BODY = msgspec.json.Decoder(Body)
_WANTS = msgspec.json.Decoder(Subscription)
_ITEMS = msgspec.json.Decoder(list[News])


class WaitingMessage(NamedTuple):
    """A message that is to be sent."""

    id: int
    target: str
    made_us: int
    items: list[News]


class Made(NamedTuple):
    """A message that was decided: what it says, the notices that stand in it, and what is left of them."""

    target: str
    items: list[News]
    gone: list[NoticeKey]
    left: list[Notice]


def subscribe(work: UnitOfWork, number: int, request: SubmitRequest) -> None:
    """Store who is to be notified of a campaign. In the transaction that submits its jobs."""
    if not request.notify:
        return
    wanted = [_named(each, request.owner) for each in request.notify]
    known = {row.target for row in work.session.rows("subscriptions_of", ids=[number])}
    if len(known | {each.to for each in wanted}) > SUBSCRIPTIONS_MAX:
        raise RequestError(f"more than {SUBSCRIPTIONS_MAX} addressees of campaign `{request.campaign}`")
    rows = [(number, each.to, int(Occasion.SITE in each.occasions), _ENCODER.encode(each)) for each in wanted]
    work.session.many("insert_subscriptions", rows)


def _named(wanted: Subscription, owner: str) -> Subscription:
    """The same subscription, with the name of the submitter who gets the messages."""
    if wanted.to != str(Channel.MESSAGE):
        return wanted
    try:
        parse_target(f"{Channel.MESSAGE}:{owner}")
    except ValueError:
        raise RequestError(
            "the campaign has no owner whom messages could be sent to", hint="`owner`"
        ) from None
    return msgspec.structs.replace(wanted, to=f"{Channel.MESSAGE}:{owner}")


def subscriptions(session: Session, campaigns: Iterable[int]) -> dict[int, list[Subscription]]:
    """What submitters asked for, by campaign."""
    found: dict[int, list[Subscription]] = defaultdict(list)
    for number, _, wants in session.rows("subscriptions_of", ids=sorted(set(campaigns))):
        found[number].append(_WANTS.decode(wants))
    return found


def notices(session: Session) -> Notices:
    """Everything that is gathered or remembered."""
    result = {}
    for target, subject, what, first_us, last_us, body in session.rows("notices"):
        key = NoticeKey(target, subject, what)
        result[key] = Notice(key=key, first_us=first_us, last_us=last_us, body=_BODY.decode(body))
    return result


def write(work: UnitOfWork, changed: Sequence[Notice], notified: int | None) -> None:
    """Write notices that have changed, and up to which state change they were gathered."""
    work.session.many("upsert_notices", [_row(each) for each in changed])
    if notified is not None:
        work.session.run("set_notified", value=notified)


def _row(notice: Notice) -> tuple[str, str, str, int, int, bytes]:
    return (*notice.key, notice.first_us, notice.last_us, _ENCODER.encode(notice.body))


def post(work: UnitOfWork, made: Sequence[Made], now_us: int) -> list[int]:
    """Messages into the outbox, and what stands in them out of the notices; their numbers. All or nothing."""
    numbers = []
    for each in made:
        channel = str(parse_target(each.target).channel)
        body = _ENCODER.encode(each.items)
        number = value(
            work.session, "insert_outbox", channel=channel, target=each.target, made_us=now_us, body=body
        )
        numbers.append(int(number))
    work.session.many("delete_notices", [key for each in made for key in each.gone])
    work.session.many("upsert_notices", [_row(notice) for each in made for notice in each.left])
    return numbers


def recent(session: Session, now_us: int) -> dict[str, list[int]]:
    """When each addressee was notified within the last hour."""
    found: dict[str, list[int]] = defaultdict(list)
    for target, made_us in session.rows("outbox_recent", since=now_us - HOUR_US):
        found[target].append(made_us)
    return found


def waiting(session: Session, channel: str, besides: Sequence[str] = ()) -> list[WaitingMessage]:
    """The oldest messages that are to be sent, to others than `besides`."""
    rows = session.rows("outbox_waiting", channel=channel, besides=list(besides), limit=WAITING_MAX)
    return [
        WaitingMessage(number, target, made_us, _ITEMS.decode(body)) for number, target, made_us, body in rows
    ]


def end(work: UnitOfWork, number: int, state: int, error: str = "") -> None:
    """A message was sent, or given up."""
    work.session.run("end_outbox", id=number, state=state, now_us=work.now_us, error=error[:ERROR_MAX])


def digest(message: WaitingMessage, server: str) -> Digest:
    """The message as it is sent. Its id holds when it was made: numbers of an emptied outbox come again."""
    return Digest(
        id=f"{message.made_us:x}.{message.id}", server=server, made_us=message.made_us, items=message.items
    )


class ChannelBacklog(NamedTuple):
    """Messages of a channel: how many wait and since when, how many were given up."""

    waiting: int
    oldest_us: int | None
    given_up: int


def standing(session: Session) -> Mapping[str, ChannelBacklog]:
    """How every channel stands."""
    found: dict[str, ChannelBacklog] = {}
    for channel, state, count, oldest_us in session.rows("outbox_counts"):
        before = found.get(channel, ChannelBacklog(0, None, 0))
        if state == WAITS:
            found[channel] = before._replace(waiting=count, oldest_us=oldest_us)
        elif state == GIVEN_UP:
            found[channel] = before._replace(given_up=count)
        else:
            found[channel] = before
    return found
