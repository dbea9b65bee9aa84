"""What a message broker holds for Tidemill, as one table: exchanges, queues, routing keys, types and headers.

    who        writes to exchange   routing key      queue                    who reads
    submitter  tidemill.submit.NAME any (fanout)     tidemill.submit.NAME     server      jobs in
    server     tidemill.replies     NAME             tidemill.replies.NAME    submitter   what became of a message
    server     tidemill.states      NAME             tidemill.states.NAME     submitter   state changes, notices
    server     tidemill.dead        any (fanout)     tidemill.dead            operator    what was refused, and why
    site       tidemill.sync.NAME   any (fanout)     tidemill.sync.NAME       server      reports in
    server     (default)            the reply queue  amq.rabbitmq.reply-to    site        orders out

NAME is the name of submitter or site in `server.toml`; a submitter's is the owner of its campaigns. Bodies are the JSON
messages of `wire/api.py`; the property `type` says which. The property `user_id` names the sender: RabbitMQ
refuses a name that is not the user of the connection (https://www.rabbitmq.com/docs/validated-user-id).

Submitters and sites write to an exchange of their own, which ignores routing keys: rights to the keys of a common one
do not hold, since the headers `CC` and `BCC` of a message add keys that RabbitMQ 3.10 does not check
(https://www.rabbitmq.com/docs/sender-selected).
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

VHOST = "tidemill"
CONTENT_TYPE = "application/json"
PERSISTENT = 2  #: delivery mode of AMQP 0-9-1: the broker writes the message to disk

SUBMIT = "tidemill.submit"
REPLIES = "tidemill.replies"
STATES = "tidemill.states"
DEAD = "tidemill.dead"
SYNC = "tidemill.sync"
DIRECT_REPLY = "amq.rabbitmq.reply-to"
"""A queue that the broker makes for a channel, no right needed (https://www.rabbitmq.com/docs/direct-reply-to)."""

SYNC_AGE_S = 60.0  #: a request that the server has not read by then is dropped: its site has sent another
SYNC_QUEUE_MAX = 100  #: of one site; one request at a time waits for an answer


class Type(StrEnum):
    """The property `type`, with the body."""

    SUBMIT = "submit"  #: SubmitRequest
    CANCEL = "cancel"  #: ActionRequest
    RETRY = "retry"  #: ActionRequest
    SUBMITTED = "submitted"  #: SubmitReply
    ACTED = "acted"  #: ActionReply
    REFUSED = "refused"  #: ErrorReply, with the header `status` as in HTTP
    CHANGE = "change"  #: Change
    GAP = "gap"  #: Gap
    NOTICE = "notice"  #: Digest of wire/notification.py
    SYNC = "sync"  #: SyncRequest
    SYNCED = "synced"  #: SyncReply


class Header(StrEnum):
    """Headers of our messages."""

    STATUS = "status"  #: of a refusal: the status that the HTTP API would have answered
    REASON = "reason"  #: of a dead letter: why it was refused
    HINT = "hint"  #: of a dead letter: what can be done about it
    USER = "user"  #: of a dead letter: the broker's user who sent it
    TAG = "tag"  #: number of a message on its channel, so that one that comes back is known again


class Gap(msgspec.Struct, kw_only=True):
    """Changes that can no longer be sent, since they waited too long for the broker: query the jobs themselves."""

    first: int
    last: int


def submit_queue(name: str) -> str:
    """Where a submitter's messages wait for the server, and the exchange that only this submitter writes to."""
    return f"{SUBMIT}.{name}"


def replies_queue(name: str) -> str:
    """Where answers wait for a submitter."""
    return f"{REPLIES}.{name}"


def states_queue(name: str) -> str:
    """Where state changes wait for a submitter."""
    return f"{STATES}.{name}"


def sync_queue(name: str) -> str:
    """Where a site's requests wait for the server, and the exchange that only this site writes to."""
    return f"{SYNC}.{name}"


def is_name(name: str) -> bool:
    """Whether a name may stand in those of queues."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@:._+ -]{0,99}", name) is not None
