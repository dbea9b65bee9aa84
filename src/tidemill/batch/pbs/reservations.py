"""Reservations of `pbs_rstat -f`, as far as PBS's nodes confirm them. Pure.

A user's line breaks are printed as they are (`replies.read_reservations`), so any user can write a whole record there.
What no user can write is what `pbsnodes` shows: on each node the reservations that are confirmed for it (`resv`). Only
these are believed, on these nodes; where two records have one ID, one of them is forged, and neither closes a node. A
reservation that is missed costs little: PBS itself starts no job that would last into it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from tidemill.batch.pbs.command import short_id
from tidemill.batch.pbs.places import read_vnodes
from tidemill.batch.pbs.replies import Record, read_number, read_time, text_of
from tidemill.model.machine import Reservation

OCCURRENCES_MAX = 100
_ID = re.compile(r"[RSM]\d+")
_PERIODS = {"HOURLY": 3600.0, "DAILY": 86400.0, "WEEKLY": 604800.0}


def read(
    records: Iterable[Record],
    *,
    user: str,
    now_s: float,
    vnodes: Mapping[str, Record],
    hosts: Mapping[str, str],
) -> list[Reservation]:
    """The reservations of these records. Of a standing one only one occurrence is shown: the others follow by its rule.
    `hosts`: of vnodes, which reservations name."""
    found: list[Reservation] = []
    for each in _single(records):
        start_s = read_time(text_of(each, "reserve_start"), now_s)
        end_s = read_time(text_of(each, "reserve_end"), now_s)
        if start_s is None or end_s is None:
            continue
        number = short_id(text_of(each, "id"))
        shown = [name for name, _ in read_vnodes(text_of(each, "resv_nodes"))]
        confirmed = [name for name in shown if number in _confirmed(vnodes.get(name, {}))]
        if not confirmed:
            continue
        nodes = tuple(dict.fromkeys(hosts.get(name, name) for name in confirmed))
        users = [name.partition("@")[0] for name in text_of(each, "Authorized_Users").split(",")]
        name = _name(each)
        for shift_s in _occurrences(each):
            if end_s + shift_s > now_s:
                reservation = Reservation(
                    name=name,
                    start_s=start_s + shift_s,
                    end_s=end_s + shift_s,
                    nodes=nodes,
                    maintenance=name.startswith("M"),
                    usable=user in users,
                )
                found.append(reservation)
    return found


def queues(records: Iterable[Record], *, vnodes: Mapping[str, Record]) -> dict[str, str]:
    """The name of each reservation by its queue, in which its jobs wait and run: PBS names the queue after the ID.

    Jobs of other queues are ordinary ones, for which nodes are released. Where two records have one ID, the queue has
    the names of both: jobs of the reservation in which Tidemill runs count, whichever record is forged.
    """
    confirmed = {number for each in vnodes.values() for number in _confirmed(each)}
    names: dict[str, dict[str, None]] = {}
    for each in records:
        number = short_id(text_of(each, "id"))
        if number in confirmed and _ID.fullmatch(number) and text_of(each, "queue") == number:
            names.setdefault(number, {}).update(dict.fromkeys(_name(each).split()))
    return {number: " ".join(words) for number, words in names.items()}


def _single(records: Iterable[Record]) -> list[Record]:
    """Those whose ID comes once."""
    records = list(records)
    counts = Counter(short_id(text_of(each, "id")) for each in records)
    return [each for each in records if counts[short_id(text_of(each, "id"))] == 1]


def _confirmed(vnode: Record) -> set[str]:
    """IDs in `resv` of a vnode, `R17.pbs, S12.pbs`, without the server."""
    return {short_id(each.strip()) for each in text_of(vnode, "resv").split(",") if each.strip()}


def _name(each: Record) -> str:
    """`R17 NAME`."""
    return f"{short_id(text_of(each, 'id'))} {text_of(each, 'Reserve_Name')}".strip()


def _occurrences(each: Record) -> list[float]:
    """How much later than the one shown a standing reservation (`S12`) recurs, itself included (RFC 5545, FREQ and
    INTERVAL). Whether the first or the next one is shown differs between versions: all that may be are kept."""
    rule = dict(part.partition("=")[::2] for part in text_of(each, "reserve_rrule").split(";"))
    period_s = _PERIODS.get(rule.get("FREQ", ""))
    count = read_number(text_of(each, "reserve_count") or rule.get("COUNT", "1"))
    if period_s is None or count < 2 or not text_of(each, "id").startswith("S"):
        return [0.0]
    step_s = period_s * max(1, read_number(rule.get("INTERVAL", "1")))
    return [index * step_s for index in range(min(count, OCCURRENCES_MAX))]
