"""The sentences that say why work waits for nodes: the same in every command, answer of the API and page. Pure.

They are made from figures that the site took in a poll, and say how old these are where they are not of the last poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.harvest.plan.waves import SENTENCES, Binding
from tidemill.model.figures.awaited import (
    Hindrance,
    NodeCounts,
    QueuedReason,
    queued_text,
    total,
    wait_for_idle_text,
)
from tidemill.model.quantities import counted_text, duration_text
from tidemill.wire.monitoring import AwaitedNodes

AGE_TOLD_S = 90.0
"""A poll that is older is said to be so: sites poll every 30 s, and syncs follow."""

FOR_MORE = "for more nodes: "
"""Begins what further nodes wait for while a pilot is at work, so that it does not read as if all work waited."""

_SILENT = frozenset({"", Binding.NOTHING.value, Binding.BACKLOG.value})
"""Causes that say nothing beside another one."""


def sentence(cause: str, nodes: NodeCounts | None = None) -> str:
    """One reason why no more nodes are asked for: of a `Binding` with figures where they are known; any other text is a
    sentence already."""
    if cause == Binding.IDLE.value and nodes is not None:
        return wait_for_idle_text(nodes)
    if cause == Binding.OURS.value and nodes is not None and nodes.idle:
        idle = "the idle node" if nodes.idle == 1 else f"the {nodes.idle} idle nodes"
        return f"allocations of Tidemill that wait in the queue are meant for {idle}"
    return _WORDS.get(cause, cause)


_WORDS = {binding.value: text for binding, text in SENTENCES.items() if binding}


def in_words(waits_for: str) -> str:
    """Sentences for reasons given in words, joined by `; `, as sites of an older version send them."""
    return "; ".join(sentence(each) for each in waits_for.split("; "))


def hindrances_text(hindrances: Sequence[Hindrance]) -> str:
    """All reasons in one sentence; those that say nothing beside others are left out."""
    told = [each for each in hindrances if each.cause not in _SILENT] or [
        each for each in hindrances if each.cause
    ]
    return "; ".join(dict.fromkeys(sentence(each.cause, each.nodes) for each in told))


def merged_hindrances(hindrances: Iterable[Hindrance]) -> list[Hindrance]:
    """One entry for each cause, with the nodes of all pools where it holds back more, in the order of their coming."""
    counts: dict[str, list[NodeCounts]] = {}
    for each in hindrances:
        if each.cause:
            counts.setdefault(each.cause, []).extend([] if each.nodes is None else [each.nodes])
    return [Hindrance(cause=cause, nodes=total(nodes) if nodes else None) for cause, nodes in counts.items()]


def in_queue_text(asked_s: float, reasons: Sequence[QueuedReason], *, starting: int, asked: int = 0) -> str:
    """What is known of allocations that were asked for, the oldest `asked_s` ago, and have no pilot at work. `asked`:
    their number; 0 = not known, of a site of an older version."""
    ago = f"asked for {duration_text(asked_s)} ago"
    parts = []
    if asked > 1 and not (reasons or starting):
        return f"{asked} allocations of Tidemill, {ago}, have not reported yet"
    if reasons:
        number = sum(each.allocations for each in reasons)
        waits = "waits" if number == 1 else "wait"
        parts.append(
            f"{counted_text(number, 'allocation')} of Tidemill, {ago}, {waits} in the queue; the batch system says "
            f"{queued_text(reasons)}"
        )
    if starting:
        have = "has" if starting == 1 else "have"
        whose = "its pilot has" if starting == 1 else "their pilots have"
        since = "" if reasons else f", {ago},"
        parts.append(
            f"{counted_text(starting, 'allocation')} of Tidemill{since} {have} started, and {whose} not reported yet"
        )
    return "; ".join(parts) or f"an allocation of Tidemill, {ago}, has not reported yet"


def more_text(awaits: AwaitedNodes, now_us: int) -> str:
    """What more nodes wait for at a site where a pilot is at work."""
    text = awaited_text(awaits, now_us, unknown="nothing is known to hold them back")
    return text if awaits.is_stopped else f"{FOR_MORE}{text}"


def awaited_text(
    awaits: AwaitedNodes, now_us: int, *, unknown: str = "no allocation was asked for yet"
) -> str:
    """What the work of a site waits for, in one sentence, with the time of the next poll. `now_us`: microseconds since
    1970, by the clock of the reader; `unknown`: what is said where no cause is known."""
    if awaits.is_stopped:
        return f"the site is stopped: {awaits.why}"
    texts = []
    if awaits.asked_us:
        asked_s = max(0, now_us - awaits.asked_us) / 1e6
        texts.append(in_queue_text(asked_s, awaits.queued, starting=awaits.starting, asked=awaits.asked))
    else:
        why = hindrances_text(awaits.hindrances) or (in_words(awaits.why) if awaits.why else "")
        texts.append(why or unknown)
    age_s = max(0, now_us - awaits.polled_us) / 1e6
    if awaits.polled_us and age_s > AGE_TOLD_S:
        texts.append(f"that was so at the last poll, {duration_text(age_s)} ago")
    elif awaits.next_us and not awaits.asked_us:
        texts.append(next_poll_text(awaits.next_us, now_us))
    return "; ".join(texts)


def next_poll_text(next_us: int, now_us: int) -> str:
    """When the site polls its batch system next."""
    left_s = (next_us - now_us) / 1e6
    return "the next poll is due now" if left_s < 1 else f"the next poll is in {left_s:.0f} s at the latest"


def capacity_text(capacity: Mapping[str, Any], now_us: int) -> str:
    """What work, or more work, waits for at a site as the API shows it (`SiteRow.capacity`); empty where no work waits
    for nodes there, or of a server of another version."""
    text_of = awaited_text if capacity.get("awaits") else more_text
    found = capacity.get("awaits") or capacity.get("more")
    try:
        return text_of(msgspec.convert(found, AwaitedNodes), now_us) if found else ""
    except msgspec.ValidationError:
        return ""
