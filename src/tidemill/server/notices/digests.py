"""When an addressee is notified, and of what in one message: digests instead of floods. Pure.

The first news after a quiet time waits `gather_us`, so that what happens together is in one message; after that no
addressee is notified more often than every `digest_us`, nor more than `per_hour_max` times an hour. Everything that
waits is in the next message, up to `items_max`; the rest stays for the one after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

HOUR_US = 3_600_000_000
ITEMS_MAX = 50


class NoticeKey(NamedTuple):
    """What an addressee is notified of: `subject` is a campaign's reference or a site's name."""

    target: str
    subject: str
    what: str


class Pending(NamedTuple):
    """A notice that waits, and since when."""

    key: NoticeKey
    first_us: int


class DigestLimits(NamedTuple):
    """How often an addressee may be notified."""

    gather_us: int
    digest_us: int
    per_hour_max: int
    items_max: int = ITEMS_MAX


class DueDigest(NamedTuple):
    """One message to send now: to whom, and of what."""

    target: str
    keys: tuple[NoticeKey, ...]


def decide(
    pending: Iterable[Pending], sent: Mapping[str, Sequence[int]], now_us: int, limits: DigestLimits
) -> list[DueDigest]:
    """The messages to send now. `sent`: when each addressee was notified within the last hour.

    A clock that was set back delays nothing: what seems to be of the future counts as due, and is not counted as sent.
    """
    waiting: dict[str, list[Pending]] = defaultdict(list)
    for each in pending:
        waiting[each.key.target].append(each)
    batches = []
    for target, items in sorted(waiting.items()):
        recent = [at for at in sent.get(target, ()) if now_us - HOUR_US < at <= now_us]
        if len(recent) >= limits.per_hour_max:
            continue
        if recent and now_us < max(recent) + limits.digest_us:
            continue
        oldest = min(each.first_us for each in items)
        if oldest <= now_us < oldest + limits.gather_us:
            continue
        first = sorted(items, key=lambda each: (each.first_us, each.key))[: limits.items_max]
        batches.append(DueDigest(target, tuple(each.key for each in first)))
    return batches


def retry_after_us(failures: int, first_us: int, longest_us: int) -> int:
    """The pause after this number of failures in a row: it doubles up to the longest pause."""
    return min(longest_us, first_us << min(max(0, failures - 1), 40))
