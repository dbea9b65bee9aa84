"""Why a job waits: one binding cause from a closed list, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import NamedTuple

from tidemill import clock
from tidemill.errors import did_you_mean
from tidemill.harvest.plan.sentences import awaited_text, more_text
from tidemill.model.devices import devices_text
from tidemill.model.fit import SlotNeed, amount_text, keys_text, nearest, options_text
from tidemill.model.job import JobSpec
from tidemill.model.quantities import counted_text, times_text
from tidemill.model.trouble import Trouble, next_try_text, whose_text
from tidemill.server.core import breakers, matching
from tidemill.server.database import refusals
from tidemill.server.database.rows import ACTIVE, RUNNING, WAITING, JobKind, Site, StoredJob, StoredLease
from tidemill.server.read.assigned import is_unstarted
from tidemill.wire.api import AT_WORK
from tidemill.wire.monitoring import AwaitedNodes, TransferView

SITES_NAMED = 10

SITES_NAMED_MAX = 5
"""Sites whose largest slot is shown next to what a job asks for."""


class Cause(StrEnum):
    """The closed list."""

    AFTER = "after"
    NO_SITE = "no_site"
    APP_NOT_OFFERED = "app_not_offered"
    ADHOC_NOT_ALLOWED = "adhoc_not_allowed"
    RESOURCES_TOO_LARGE = "resources_too_large"
    NO_LAUNCHER = "no_launcher"
    TOO_FEW_NODES = "too_few_nodes"
    WIDTH_NOT_ALLOWED = "width_not_allowed"
    SITE_PINNED_UNKNOWN = "site_pinned_unknown"
    SITE_PINNED_SILENT = "site_pinned_silent"
    SITE_PINNED_UNFIT = "site_pinned_unfit"
    SITE_SILENT = "site_silent"
    SITE_DRAINED = "site_drained"
    SITE_DOWNTIME = "site_downtime"
    IN_WARD = "in_ward"
    SITE_TROUBLE = "site_trouble"
    SITE_REFUSED = "site_refused"
    SITE_WANTS_NOTHING = "site_wants_nothing"
    FAIR_SHARE = "fair_share"
    STAGE_FULL = "stage_full"
    NO_ALLOCATION = "no_allocation"
    ASSIGNED = "assigned"
    FETCHING = "fetching"
    RUNNING = AT_WORK
    DELIVERING = "delivering"
    ENDING = "ending"


HINTS = {
    Cause.AFTER: "it starts when those that it comes after have ended",
    Cause.NO_SITE: "no site has joined: start an agent, `tidemill site run`",
    Cause.APP_NOT_OFFERED: "no site offers the application: `tidemill app list` shows what is offered",
    Cause.ADHOC_NOT_ALLOWED: "no site runs ad-hoc commands: submit an approved application, or allow them at your site",
    Cause.RESOURCES_TOO_LARGE: "it asks for more cores, memory or devices than any slot has: ask for less",
    Cause.NO_LAUNCHER: "no site that offers it can start payloads over nodes: its operator sets `cluster.launcher`",
    Cause.TOO_FEW_NODES: "no site has enough nodes, or enough cores on a node: ask for fewer nodes or ranks",
    Cause.WIDTH_NOT_ALLOWED: "the application is not approved for that many nodes and ranks: `tidemill app show`",
    Cause.SITE_PINNED_UNKNOWN: "the only site that it may run at has never joined: check its name",
    Cause.SITE_PINNED_SILENT: "the only site that it may run at is silent: `tidemill site status` there shows why",
    Cause.SITE_PINNED_UNFIT: "the only site that it may run at cannot run it",
    Cause.SITE_SILENT: "every site that could run it is silent: `tidemill site status` there shows why",
    Cause.SITE_DRAINED: "every site that could run it is stopped, or drained: it goes on when one is resumed",
    Cause.SITE_DOWNTIME: "the sites that could run it are in a downtime: `tidemill downtimes` lists them",
    Cause.IN_WARD: "it is treated away from its home site: it starts when a site of the ward has room",
    Cause.SITE_TROUBLE: "the sites that could run it have a trouble of their own; it goes on by itself when that ends",
    Cause.SITE_REFUSED: "the sites that could run it returned it for causes of their own, and get it again later",
    Cause.SITE_WANTS_NOTHING: "the sites that could run it ask for no more work now",
    Cause.FAIR_SHARE: "a site that asks for work gets it in its turn; campaigns with fewer core-seconds per share, and "
    "jobs of higher priority or age, go first",
    Cause.STAGE_FULL: "its inputs wait for room at the site: it goes on when other jobs end there; the site's operator "
    "may free disk space or raise `stage_bytes_max`",
    Cause.NO_ALLOCATION: "a site has it and waits for a node; it goes on by itself",
    Cause.ASSIGNED: "a site has it, and no payload of it runs yet; it goes on by itself",
    Cause.FETCHING: "a site has it and fetches its inputs; it goes on by itself",
    Cause.RUNNING: "payloads of it run",
    Cause.DELIVERING: "the outputs of what is done are being delivered",
    Cause.ENDING: "its payloads are being stopped, then what is done is delivered; a second cancel ends it at once",
}


class Known(NamedTuple):
    """What else is known of a job. `after`: what it still comes after, as text; `silent`: sites that say nothing now;
    `leases`: its latest, the newest first; `now_us`: microseconds since 1970."""

    spec: JobSpec
    after: Sequence[str] = ()
    silent: AbstractSet[str] = frozenset()
    leases: Sequence[StoredLease] = ()
    ward: str = ""  #: in which it waits
    now_us: int = 0
    owner: str = ""


def waits_for(
    job: StoredJob, kind: JobKind, sites: list[Site], known: Known
) -> tuple[Cause | None, str | None]:
    """The cause and its hint, a sentence; None for a job that has ended."""
    cause, detail = _cause(job, kind, sites, known)
    if cause is None:
        return None, None
    return cause, hint_of(cause, detail)


def hint_of(cause: Cause, detail: str = "") -> str:
    """The sentence for people. `detail`: what is known of this job; of a job that a site has it says all."""
    if not detail:
        return HINTS[cause]
    return detail if cause in SAID_BY_DETAIL else f"{HINTS[cause]}; {detail}"


SAID_BY_DETAIL = frozenset({Cause.NO_ALLOCATION, Cause.ASSIGNED, Cause.FETCHING})
"""Causes of which the sites that have the job say more than a hint could."""


def fetching_text(site: str, view: TransferView) -> str:
    """That a site fetches inputs of a job."""
    names = ", ".join(f"`{name}`" for name in view.names)
    what = f"its inputs {names}" if len(view.names) > 1 else f"its input {names}" if names else "its inputs"
    places = f" from {', '.join(view.places)}" if view.places else ""
    tries = f"; it failed {times_text(view.tries)} before" if view.tries else ""
    return f"site {site} fetches {what}{places}{tries}"


def _cause(job: StoredJob, kind: JobKind, sites: list[Site], known: Known) -> tuple[Cause | None, str]:
    if job.state not in (WAITING, RUNNING):
        return None, ""
    if job.delivering:
        return Cause.DELIVERING, _undelivered(job, sites, kind, known)
    if job.ends:
        return Cause.ENDING, ""
    if job.blocked:
        return Cause.AFTER, ", ".join(known.after[:5])
    joined = [site for site in sites if site.capacity is not None]
    if not job.ready:
        return _at_work(job, joined, kind, known)
    result = _placed(job, joined, kind, known)
    if result[0] not in (Cause.SITE_WANTS_NOTHING, Cause.FAIR_SHARE):
        return result
    awake = [site for site in joined if job.place in (0, site.id) and matching.obstacle(site, kind) is None]
    heard = [site for site in awake if site.name not in known.silent]
    held = {site.id: why for site in heard if (why := _held(site, job, kind, known)) is not None}
    free = [site for site in heard if site.id not in held]
    if held and not free:
        causes = {cause for cause, _ in held.values()}
        cause = Cause.SITE_TROUBLE if Cause.SITE_TROUBLE in causes else Cause.SITE_REFUSED
        return cause, "; ".join(text for _, text in list(held.values())[:SITES_NAMED])
    at_work = _runs_at(job, heard, known)
    if at_work:  # what sites have of it runs, and the rest goes there as that is done
        return Cause.RUNNING, "; ".join(map(_more, at_work[:SITES_NAMED], [known.now_us] * len(at_work)))
    if held and not any(matching.wanted_core_s(site, wide=bool(kind.nodes)) > 0 for site in free):
        return Cause.SITE_WANTS_NOTHING, _named(free, known.now_us)
    return result


def _placed(job: StoredJob, joined: list[Site], kind: JobKind, known: Known) -> tuple[Cause, str]:
    """Why a ready job waits, by where it may run."""
    if job.place < 0:
        return Cause.IN_WARD, known.ward
    if job.place:
        return _pinned(next((site for site in joined if site.id == job.place), None), kind, known)
    return _anywhere(joined, kind, known)


def _at_work(job: StoredJob, joined: list[Site], kind: JobKind, known: Known) -> tuple[Cause, str]:
    """A job that sites have: it may wait there."""
    having = {lease.site for lease in known.leases if lease.state == ACTIVE}
    told = [
        _trouble(site, each, known.now_us)
        for site in joined
        if site.id in having
        and (each := breakers.waiting_for(site, job.id, kind.app, known.spec, owner=known.owner)) is not None
    ]
    if told:
        return Cause.SITE_TROUBLE, "; ".join(told[:SITES_NAMED])
    sites = [site for site in joined if site.id in having and site.name not in known.silent]
    if having and not sites:
        names = [site.name for site in joined if site.id in having]
        return Cause.SITE_SILENT, f"it is with {', '.join(names[:SITES_NAMED])}"
    if not having or not all(is_unstarted(site, job.id) for site in sites):
        return Cause.RUNNING, ""
    if all(_awaited(site) is not None for site in sites):
        return Cause.NO_ALLOCATION, "; ".join(_awaits(site, known.now_us) for site in sites[:SITES_NAMED])
    return Cause.ASSIGNED, "; ".join(_assigned(site, kind, known.now_us) for site in sites[:SITES_NAMED])


def _runs_at(job: StoredJob, sites: Sequence[Site], known: Known) -> list[Site]:
    """Those of these sites where payloads of the job run."""
    having = {lease.site for lease in known.leases if lease.state == ACTIVE}
    return [site for site in sites if site.id in having and not is_unstarted(site, job.id)]


def _assigned(site: Site, kind: JobKind, now_us: int) -> str:
    """What a job waits for that no pilot of its site has, although pilots are at work there."""
    if _awaited(site) is not None:
        return _awaits(site, now_us)
    text = f"site {site.name} has it, and none of the nodes that Tidemill has there runs it yet: it needs a free slot"
    text += f" of {_slot_text(kind)}"
    more = None if site.capacity is None else site.capacity.more
    return text if more is None else f"{text}; {more_text(more, now_us)}"


def _slot_text(kind: JobKind) -> str:
    devices = {name: number for name, number in kind.devices.items() if number}
    text = counted_text(kind.cores or 1, "core")
    text += f" and {kind.memory_mb} MB" if kind.memory_mb else ""
    return text + (f" with {devices_text(devices)}" if devices else "")


def _undelivered(job: StoredJob, sites: list[Site], kind: JobKind, known: Known) -> str:
    """Why a delivery has to be tried again; empty = it is under way."""
    found = (
        (site, breakers.waiting_for(site, job.id, kind.app, known.spec, owner=known.owner))
        for site in sites
        if site.id == job.place
    )
    return next((_trouble(site, trouble, known.now_us) for site, trouble in found if trouble is not None), "")


def _awaited(site: Site) -> AwaitedNodes | None:
    return None if site.capacity is None else site.capacity.awaits


def _awaits(site: Site, now_us: int) -> str:
    """What the work of a site waits for while no pilot is at work there; empty = one is."""
    awaits = _awaited(site)
    return "" if awaits is None else f"site {site.name}: {awaited_text(awaits, now_us)}"


def _more(site: Site, now_us: int) -> str:
    """What more nodes wait for at a site with a pilot at work; where that is not known, whether it takes more work."""
    more = None if site.capacity is None else site.capacity.more
    return _busy(site, now_us) if more is None else f"site {site.name}, {more_text(more, now_us)}"


def _named(sites: Sequence[Site], now_us: int) -> str:
    """Sites that take no more, each with what its work waits for."""
    return "; ".join(_busy(site, now_us) for site in sites[:5])


def _busy(site: Site, now_us: int) -> str:
    more = None if site.capacity is None else site.capacity.more
    if _awaited(site) is not None:
        return _awaits(site, now_us)
    text = f"site {site.name} has as much work as it asks for, and asks again when some of it is done"
    return text if more is None else f"{text}; {more_text(more, now_us)}"


def _held(site: Site, job: StoredJob, kind: JobKind, known: Known) -> tuple[Cause, str] | None:
    """Why this site does not get the job now; None = it may have it."""
    trouble = breakers.met(site, kind.app, known.spec, owner=known.owner)
    if trouble is not None:
        return Cause.SITE_TROUBLE, _trouble(site, trouble, known.now_us)
    refusal = refusals.parse(job.refused).get(site.id)
    if refusal is None or not refusal.until_s:
        return None
    reasons = (lease.reason for lease in known.leases if lease.site == site.id and lease.reason)
    until_us = refusal.until_s * 1_000_000
    again = (
        f"offered again at {clock.utc_text(until_us)}"
        if until_us > known.now_us
        else "to be offered again now"
    )
    return Cause.SITE_REFUSED, f"{site.name}: {next(reasons, 'it gave the job back')}, {again}"


def _trouble(site: Site, trouble: Trouble, now_us: int) -> str:
    """A site's trouble, what would end it, and when it is tried again."""
    text = f"{site.name}: {trouble.message}"
    if trouble.hint:
        text += f"; to end it: {trouble.hint}"
    if trouble.is_open:
        text += f"; blocked {whose_text(trouble.owner, trouble.scope, trouble.name)}"
    return text + (f"; {next_try_text(trouble.next_us, now_us)}" if trouble.next_us else "")


def _anywhere(joined: list[Site], kind: JobKind, known: Known) -> tuple[Cause, str]:
    if not joined:
        return Cause.NO_SITE, ""
    obstacles = {site.name: matching.obstacle(site, kind) for site in joined}
    fits = [
        site
        for site in joined
        if obstacles[site.name] in (None, Cause.SITE_SILENT, Cause.SITE_DRAINED, Cause.SITE_DOWNTIME)
    ]
    if not fits:
        causes = (
            *(Cause.TOO_FEW_NODES, Cause.NO_LAUNCHER, Cause.WIDTH_NOT_ALLOWED),
            *(Cause.RESOURCES_TOO_LARGE, Cause.ADHOC_NOT_ALLOWED, Cause.APP_NOT_OFFERED),
        )
        cause = next(cause for cause in causes if cause in obstacles.values())
        return cause, _asked(cause, joined, kind)
    heard = [site for site in fits if not site.lost and site.name not in known.silent]
    if not heard:
        return Cause.SITE_SILENT, ", ".join(site.name for site in fits[:5])
    awake = [site for site in heard if not site.drained and not site.down_us]
    down = [site for site in heard if site.down_us]
    if not awake and down:
        return Cause.SITE_DOWNTIME, ", ".join(_down(site) for site in down[:5])
    if all(site.drained or _is_stopped(site) for site in awake or heard):
        return Cause.SITE_DRAINED, ", ".join(_drained(site) for site in (awake or heard)[:5])
    if not any(matching.wanted_core_s(site, wide=bool(kind.nodes)) > 0 for site in awake):
        return Cause.SITE_WANTS_NOTHING, _named(awake, known.now_us)
    return Cause.FAIR_SHARE, ""


def _asked(cause: Cause, joined: list[Site], kind: JobKind) -> str:
    """What is asked for, next to what there is."""
    if cause is Cause.APP_NOT_OFFERED:
        return f"`{kind.app}`: {did_you_mean(kind.app, {name for site in joined for name in site.offers})}"
    if cause in (Cause.TOO_FEW_NODES, Cause.WIDTH_NOT_ALLOWED):
        whys = [(site, matching.width_obstacle(site, kind)) for site in joined]
        return next(f"{site.name}: {why[1]}" for site, why in whys if why is not None and why[0] == cause)
    if cause is Cause.RESOURCES_TOO_LARGE:
        return _too_large(joined, kind)
    return ""


def _too_large(sites: list[Site], kind: JobKind) -> str:
    """What no slot has: the largest slot of each of these sites next to it, and the most that would fit."""
    devices = {name: number for name, number in kind.devices.items() if number}
    need = SlotNeed(kind.cores or 1, kind.memory_mb, devices)
    text = f"asked: {counted_text(kind.cores or 1, 'core')}, {kind.memory_mb or 'any'} MB"
    text += f", {devices_text(devices)}" if devices else ""
    shown = []
    for site in sites:
        capacity = site.capacity
        if capacity is not None:
            has = f"{counted_text(capacity.slot_cores_max, 'core')}, {capacity.slot_memory_mb_max} MB"
            has += f", {devices_text(capacity.devices)}" if devices or capacity.devices else ""
            shown.append(has if len(sites) == 1 else f"{site.name} {has}")
    more = len(shown) - SITES_NAMED_MAX
    text += f"; largest slot: {'; '.join(shown[:SITES_NAMED_MAX])}" + (
        f"; {more} more sites" if more > 0 else ""
    )
    near = nearest(need, matching.slots_of(sites))
    if near is None:
        return text
    slot, amount = near
    options, keys = options_text(amount, need), keys_text(amount, need)
    most = f"the most that fits: {amount_text(amount)} at {slot.site}"
    return f"{text}; {most}, by `{options}`, in a job file `{keys}`"


def _pinned(site: Site | None, kind: JobKind, known: Known) -> tuple[Cause, str]:
    if site is None:
        return Cause.SITE_PINNED_UNKNOWN, ""
    obstacle = matching.obstacle(site, kind)
    if site.lost or site.name in known.silent:
        return Cause.SITE_PINNED_SILENT, site.name
    if obstacle == Cause.SITE_DRAINED:
        return Cause.SITE_DRAINED, _drained(site)
    if obstacle == Cause.SITE_DOWNTIME:
        return Cause.SITE_DOWNTIME, _down(site)
    if obstacle is not None:
        why = matching.width_obstacle(site, kind)
        if obstacle == Cause.RESOURCES_TOO_LARGE:
            return Cause.SITE_PINNED_UNFIT, _too_large([site], kind)
        return Cause.SITE_PINNED_UNFIT, f"{site.name}: {why[1] if why is not None and why[1] else obstacle}"
    if _is_stopped(site):
        return Cause.SITE_DRAINED, _drained(site)
    if matching.wanted_core_s(site, wide=bool(kind.nodes)) <= 0:
        return Cause.SITE_WANTS_NOTHING, _named([site], known.now_us)
    return Cause.FAIR_SHARE, ""


def _is_stopped(site: Site) -> bool:
    """Whether its operator or the centre's staff have stopped it, by a file or by canceling its allocations."""
    awaits = None if site.capacity is None else site.capacity.awaits
    return awaits is not None and awaits.is_stopped


def _drained(site: Site) -> str:
    """Why, and what ends it."""
    if site.drained or site.capacity is None or site.capacity.awaits is None:
        return f"{site.name}: {site.drain_reason}; an operator of the server resumes it on the site's page"
    return f"{site.name}: {site.capacity.awaits.why}"


def _down(site: Site) -> str:
    return f"{site.name}: {site.down_reason or 'downtime'}, until {clock.utc_text(site.down_us)}"


def after_texts(rows: list[tuple[int, int, int, int]], names: dict[int, str], spec: JobSpec) -> list[str]:
    """What a job still comes after, for people."""
    texts = [
        f"job {on_job}" if on_job else f"campaign {names.get(campaign, campaign)}"
        for _, on_job, campaign, _ in rows
    ]
    return texts or [str(each) for each in spec.after]
