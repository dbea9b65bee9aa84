"""A site's own record: its number, and what is written of it when it syncs or is given orders."""

from __future__ import annotations

import msgspec

from tidemill.server.database.rows import Site
from tidemill.server.database.store import value
from tidemill.server.database.unit_of_work import UnitOfWork

ALLOCATIONS_KEPT = 10_000
_ENCODER = msgspec.json.Encoder()


def site_id(work: UnitOfWork, name: str, *, named_by: str = "") -> int:
    """The number of a site, which is made known if it is not. `named_by`: owner of the job that names it."""
    result = work.memory.site_ids.get(name)
    if result is None:
        result = int(value(work.session, "insert_site", name=name, named_by=named_by))
        work.memory.site_ids[name] = result
        work.memory.sites[result] = Site(result, name, named_by=named_by)
    return result


def write(work: UnitOfWork, site: Site) -> None:
    """Write what is known of a site, and of others that were given orders."""
    _write(work, site)
    keep_sites(work, besides=site.id)
    if "upsert_allocations" in work.upserts:
        work.session.run("prune_allocations", site=site.id, kept=ALLOCATIONS_KEPT)


def keep_sites(work: UnitOfWork, *, besides: int = 0) -> None:
    """Write how many orders the other sites have been given in this transaction."""
    for other in work.memory.sites.values():
        if other.id != besides and work.new_orders(other.id):
            _write(work, other)


def _write(work: UnitOfWork, site: Site) -> None:
    work.session.run(
        "update_site", id=site.id, epoch=site.epoch, host=site.host, version=site.version, acked=site.acked,
        ordered=site.ordered, seen_us=site.seen_us, lost=site.lost,
        capacity=_capacity(site), allocations=text_of(site.allocations),
    )  # fmt: skip


def _capacity(site: Site) -> str:
    """What is stored of a site's capacity: without what its caches hold, which is long; the next sync repeats it."""
    if site.capacity is None:
        return ""
    holds, site.capacity.holds = site.capacity.holds, []
    text = text_of(site.capacity)
    site.capacity.holds = holds
    return text


def text_of(value: object) -> str:
    """JSON as a text that both databases take: they refuse U+0000."""
    return _ENCODER.encode(value).decode().replace("\\u0000", "\\ufffd")
