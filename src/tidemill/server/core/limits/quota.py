"""What one submitter may have in the server, checked in the transaction that would add to it, ahead of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.config.quotas import Quotas
from tidemill.server import constants
from tidemill.server.core.limits.storage import Storage, sizes_text
from tidemill.server.database.rows import JOB_BYTES, KIND_COLUMNS, KindKey, key_of
from tidemill.server.database.store import value, values
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.database.writer_memory import alike
from tidemill.server.errors import FIXED, QuotaError

HINTS = {
    "open_jobs_max": "wait until some have ended, submit fewer, or ask the server's operator to raise the quota",
    "open_kinds_max": "wait until some have ended, or round cores and memory so that more jobs ask for the same",
    "stored_bytes_max": "submit less, or ask the server's operator to archive ended campaigns earlier "
    "(`archive.keep_days` in server.toml)",
    "campaign_kinds_max": "submit the rest in another campaign",
    "sites_named_max": "name sites that have joined: `tidemill app list` shows which sites offer an application",
}
"""What may help, by quota: a key of `[quotas]`, which the operator sets, or a bound that is fixed."""


class QuotaDemand(NamedTuple):
    """What a submission would add. `spec_bytes`: of its different specifications."""

    owner: str
    campaign: int  #: 0 = a new one
    jobs: int
    spec_bytes: int
    kinds: Sequence[KindKey]
    sites: Iterable[str]


def check(work: UnitOfWork, wanted: QuotaDemand, quotas: Quotas, storage: Storage | None = None) -> None:
    """Raises QuotaError, RoomError."""
    has, owner = work.memory.work_of(wanted.owner), wanted.owner
    _within(
        quotas.open_jobs_max,
        "open_jobs_max",
        has.jobs + wanted.jobs,
        f"jobs of `{owner}` that have not ended",
    )
    ids = {key: _kind_id(work, key) for key in {alike(each) for each in wanted.kinds}}
    opened = sum(not work.memory.open.is_open(key) for key in ids)
    what = f"kinds of jobs of `{owner}` that have not ended: campaigns, times the resources asked for in each"
    _within(constants.OPEN_KINDS_MAX, "open_kinds_max", has.kinds + opened if opened else 0, what)
    fresh = sum(number == 0 for number in ids.values())
    known = int(value(work.session, "kinds_in", campaign=wanted.campaign)) if fresh else 0
    what = "kinds of jobs in one campaign: combinations of application and resources"
    _within(constants.CAMPAIGN_KINDS_MAX, "campaign_kinds_max", known + fresh if fresh else 0, what)
    stored = [int(each) for each in values(work.session, "stored_of", owner=owner)]
    more_bytes = stored_bytes(wanted.jobs, wanted.spec_bytes)
    size_bytes = sum(stored) + more_bytes
    if size_bytes > constants.STORED_BYTES_MAX:
        size, most = sizes_text(size_bytes, constants.STORED_BYTES_MAX)
        text = f"{size} of jobs of `{owner}` would be stored, and each submitter may store {most}"
        raise _refusal("stored_bytes_max", text)
    if storage is not None:
        storage.check_stored(work.session, more_bytes)
    _check_sites(work, wanted)


def check_again(work: UnitOfWork, owner: str, kinds: Sequence[int], quotas: Quotas) -> None:
    """Raises QuotaError unless ended jobs of these kinds may be opened again: to a submitter they are new ones."""
    has = work.memory.work_of(owner)
    what = f"jobs of `{owner}` that have not ended"
    _within(quotas.open_jobs_max, "open_jobs_max", has.jobs + len(kinds), what)
    work.memory.find_kinds(work.session, kinds)
    keys = {alike(key_of(work.memory.kinds[each])) for each in kinds if each in work.memory.kinds}
    opened = sum(not work.memory.open.is_open(key) for key in keys)
    what = f"kinds of jobs of `{owner}` that have not ended: campaigns, times the resources asked for in each"
    _within(constants.OPEN_KINDS_MAX, "open_kinds_max", has.kinds + opened if opened else 0, what)


def stored_bytes(jobs: int, spec_bytes: int) -> int:
    """The bytes that jobs count for."""
    return JOB_BYTES * jobs + spec_bytes


def _kind_id(work: UnitOfWork, key: KindKey) -> int:
    """The number of a kind, or of one that differs in its data only; 0 = it is new."""
    found = work.memory.kind_ids.get(key)
    campaign, *_ = key
    if found is None and campaign:
        words = dict(zip(KIND_COLUMNS, key, strict=True))
        del words["data"]
        found = value(work.session, "kind_alike", **words)
    return found or 0


def _check_sites(work: UnitOfWork, wanted: QuotaDemand) -> None:
    fresh = {name for name in wanted.sites if name not in work.memory.site_ids}
    if fresh:
        sites = work.memory.sites.values()
        named = sum(site.named_by == wanted.owner and not site.epoch for site in sites)
        what = f"sites named by jobs of `{wanted.owner}` that have never joined"
        _within(constants.SITES_NAMED_MAX, "sites_named_max", named + len(fresh), what)


def _within(most: int, key: str, number: int, what: str) -> None:
    if number > most:
        raise _refusal(key, f"there would be {number:,} {what}, and there may be {most:,}")


def _refusal(key: str, text: str) -> QuotaError:
    who = f"`quotas.{key}`" if key in Quotas.__struct_fields__ else FIXED
    return QuotaError(f"{text} ({who})", hint=HINTS[key])
