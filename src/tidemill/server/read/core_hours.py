"""What allocations held and what payloads used of it, a page at a time.

An allocation holds cores x elapsed time, whatever runs in it: that is what the batch system charges. Payloads use
payload time x cores of it. What it held is split over campaigns and applications by the core time of their payloads, so
each of them bears a part of the time in which the allocation started up, waited for work or ran down, in proportion to
what it used. What an allocation held in which no payload has ended yet stays apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidemill.server.database.store import Session
from tidemill.server.errors import RequestError
from tidemill.wire.core_hours import AllocationUse, CoreHoursPage, CoreUse

HELD_US_MAX = 1 << 61
"""Of one allocation: 73,000 years of a core. A site that says more must not drive sums beyond what readers can hold."""

DIGITS_MAX = 19  #: of a site's number in a place of a page


class CoreHoursQuestion(NamedTuple):
    """Allocations that held nodes between two times (microseconds since 1970), whole; `owner`: only the parts of this
    one; `after`: the place of a page; `silent`: sites that have not been heard for a while, of which an allocation
    counts until they were."""

    since_us: int
    until_us: int
    owner: str | None
    after: str
    limit: int
    now_us: int
    silent: frozenset[str] = frozenset()


def page(session: Session, question: CoreHoursQuestion) -> CoreHoursPage:
    """A page of allocations, by site and name. Raises RequestError for an invalid place."""
    site, _, name = question.after.partition("/")
    if question.after and not (site.isdecimal() and len(site) <= DIGITS_MAX):
        raise RequestError(
            f"`after` is `{question.after[:100]}`, not a place of a page", hint="`next` of the last page"
        )
    within = {"since": question.since_us, "until": question.until_us, "limit": question.limit}
    place = {"site": min(int(site or 0), 1 << 62), "after": name}
    if question.owner is None:
        rows = session.rows("held_by_allocations", **within, **place)
    else:
        rows = session.rows("held_by_allocations_of", owner=question.owner, **within, **place)
    names = {row.id: (row.name, row.seen_us) for row in session.rows("sites")} if rows else {}
    uses = _uses(session, rows)
    found = [_allocation(row, names, uses[row.site, row.name], question) for row in rows]
    last = f"{rows[-1].site}/{rows[-1].name}" if len(rows) == question.limit else None
    return CoreHoursPage(allocations=found, next=last)


def every(session: Session, question: CoreHoursQuestion) -> Iterator[AllocationUse]:
    """All pages, one after the other."""
    after: str | None = question.after
    while after is not None:
        found = page(session, question._replace(after=after))
        yield from found.allocations
        after = found.next


def _uses(session: Session, rows: Sequence[Any]) -> dict[tuple[int, str], list[CoreUse]]:
    found: dict[tuple[int, str], list[CoreUse]] = defaultdict(list)
    spans: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        spans[row.site].append(row.name)
    for site, held in spans.items():
        for name, owner, campaign, app, core_us in session.rows("core_use_of", site=site, names=held):
            found[site, name].append(
                CoreUse(
                    owner=owner,
                    campaign=campaign,
                    app=app,
                    core_us=int(core_us),
                    held_core_us=0,
                    held_gpu_us=0,
                )
            )
    return found


def _allocation(
    row: Any, names: dict[int, tuple[str, int]], uses: list[CoreUse], question: CoreHoursQuestion
) -> AllocationUse:
    site, name, batch_id, started_us, ended_us, held_cores, gpus, nodes, cores = row
    site_name, seen_us = names.get(site, ("", 0))
    now_us = seen_us if site_name in question.silent else question.now_us
    elapsed_us = max(0, (ended_us or now_us) - started_us)
    cores = held_cores or nodes * cores  # not every batch system says what it counts
    held, held_gpu = (min(each * elapsed_us, HELD_US_MAX) for each in (cores, gpus))
    parts = [each.core_us for each in uses]
    for each, core_us, gpu_us in zip(uses, split(held, parts), split(held_gpu, parts), strict=True):
        each.held_core_us, each.held_gpu_us = core_us, gpu_us
    whole = question.owner is None
    if not whole:
        uses = [each for each in uses if each.owner == question.owner]
        held, held_gpu = sum(each.held_core_us for each in uses), sum(each.held_gpu_us for each in uses)
    return AllocationUse(
        site=site_name,
        name=name,
        batch_id=batch_id,
        nodes=nodes if whole else 0,
        cores=cores if whole else 0,
        gpus=gpus if whole else 0,
        started_us=started_us,
        ended_us=ended_us or None,
        elapsed_us=elapsed_us,
        held_core_us=held,
        held_gpu_us=held_gpu,
        uses=uses,
        whole=whole,
    )


def split(total: int, parts: Sequence[int]) -> list[int]:
    """A total in proportion to the parts: the pieces add up to it. Nothing where all parts are 0."""
    whole = sum(parts)
    if whole <= 0:
        return [0 for _ in parts]
    pieces, taken, given = [], 0, 0
    for part in parts:
        taken += part
        pieces.append(total * taken // whole - given)
        given += pieces[-1]
    return pieces
