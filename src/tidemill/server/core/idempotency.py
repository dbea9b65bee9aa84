"""A cancel or retry that comes with a key counts once: what was answered is kept in the transaction that ended it.

Messages come twice, and clients ask again when they heard no answer. Without this the second `retry` would start what
has failed since, and the second `cancel` would end what was retried since.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from tidemill.model.identity import Act, Identity
from tidemill.server.core.submission import KEY_MAX
from tidemill.server.database.work import Work
from tidemill.server.errors import ConflictError, RequestError
from tidemill.wire.api import ActionReply, ActionRequest

KEPT_US = 30 * 86_400_000_000
_ENCODER = msgspec.json.Encoder()


class Once(NamedTuple):
    """The key, as its sender's own, and what it stands for."""

    key: str
    digest: bytes


def once_of(request: ActionRequest, identity: Identity, act: Act) -> Once | None:
    """None without a key. Raises RequestError."""
    if not request.key:
        return None
    if len(request.key) > KEY_MAX or "\0" in request.key:
        raise RequestError(f"key `{request.key[:50]}` is longer than {KEY_MAX}")
    content = _ENCODER.encode([act, request])
    return Once(f"{identity.role}/{identity.name}/{request.key}", hashlib.sha256(content).digest())


def known(work: Work, once: Once | None) -> ActionReply | None:
    """What was answered to the key. Raises ConflictError if that was for other content."""
    rows = [] if once is None else work.session.rows("act_by_key", key=once.key)
    if once is None or not rows:
        return None
    digest, changed, unchanged = rows[0]
    if bytes(digest) != once.digest:
        raise ConflictError(
            f"key `{once.key.partition('/')[2].partition('/')[2]}` was used for another cancel or retry",
            hint="a new request needs a new key",
        )
    return ActionReply(changed=int(changed), unchanged=int(unchanged), repeated=True)


def keep(work: Work, once: Once | None, reply: ActionReply) -> None:
    """Remember what is answered."""
    if once is None:
        return
    work.session.run(
        "insert_act",
        key=once.key,
        digest=once.digest,
        changed=reply.changed,
        unchanged=reply.unchanged,
        now_us=work.now_us,
    )
    work.session.run("prune_acts", before_us=work.now_us - KEPT_US)
