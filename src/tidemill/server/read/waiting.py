"""Why a job waits: one binding cause from a closed list, and what would change it."""

from __future__ import annotations

from enum import StrEnum

from tidemill.errors import did_you_mean
from tidemill.model.devices import devices_text
from tidemill.model.job import JobSpec
from tidemill.server.core import matching
from tidemill.server.database.rows import RUNNING, WAITING, JobKind, Site, StoredJob

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
    SITE_WANTS_NOTHING = "site_wants_nothing"
    FAIR_SHARE = "fair_share"
    RUNNING = "running"
    DELIVERING = "delivering"


HINTS = {
    Cause.AFTER: "it starts when those that it comes after have ended",
    Cause.NO_SITE: "no site has joined: start an agent, `tidemill site run`",
    Cause.APP_NOT_OFFERED: "no site offers the application: `tidemill app list` shows what is offered",
    Cause.ADHOC_NOT_ALLOWED: "no site runs ad-hoc commands: submit an approved application, or allow them at your site",
    Cause.RESOURCES_TOO_LARGE: "it asks for more cores, memory or devices than any slot has: ask for less",
    Cause.NO_LAUNCHER: "no site that offers it can start payloads over nodes: its operator sets `cluster.launcher`",
    Cause.TOO_FEW_NODES: "no site gives it so many nodes, or so many cores on a node: ask for fewer nodes or ranks",
    Cause.WIDTH_NOT_ALLOWED: "the application is not approved for that many nodes and ranks: `tidemill app show`",
    Cause.SITE_PINNED_UNKNOWN: "the only site that it may run at has never joined: check its name",
    Cause.SITE_PINNED_SILENT: "the only site that it may run at is silent: see its agent",
    Cause.SITE_PINNED_UNFIT: "the only site that it may run at cannot run it",
    Cause.SITE_SILENT: "every site that could run it is silent: see their agents",
    Cause.SITE_DRAINED: "its operator has drained every site that could run it: it goes on when one is resumed",
    Cause.SITE_WANTS_NOTHING: "the sites that could run it take no more work now: their nodes are busy, or they drain",
    Cause.FAIR_SHARE: "others go first: campaigns with fewer core-seconds per share, or jobs of higher priority or age",
    Cause.RUNNING: "everything of it is at work",
    Cause.DELIVERING: "all events are done; its outputs are being delivered",
}


def waits_for(
    job: StoredJob, kind: JobKind, sites: list[Site], *, after: list[str], silent: set[str]
) -> tuple[Cause | None, str | None]:
    """The cause and its hint; None for a job that has ended. `after`: what it still comes after, as text."""
    cause, detail = _cause(job, kind, sites, after=after, silent=silent)
    if cause is None:
        return None, None
    return cause, HINTS[cause] + (f" ({detail})" if detail else "")


def _cause(
    job: StoredJob, kind: JobKind, sites: list[Site], *, after: list[str], silent: set[str]
) -> tuple[Cause | None, str]:
    if job.state not in (WAITING, RUNNING):
        return None, ""
    if job.delivering:
        return Cause.DELIVERING, ""
    if job.blocked:
        return Cause.AFTER, ", ".join(after[:5])
    if not job.ready:
        return Cause.RUNNING, ""
    joined = [site for site in sites if site.capacity is not None]
    if job.place:
        return _pinned(next((site for site in joined if site.id == job.place), None), kind, silent)
    return _anywhere(joined, kind, silent)


def _anywhere(joined: list[Site], kind: JobKind, silent: set[str]) -> tuple[Cause, str]:
    if not joined:
        return Cause.NO_SITE, ""
    obstacles = {site.name: matching.obstacle(site, kind) for site in joined}
    fits = [site for site in joined if obstacles[site.name] in (None, Cause.SITE_SILENT, Cause.SITE_DRAINED)]
    if not fits:
        causes = (
            *(Cause.TOO_FEW_NODES, Cause.NO_LAUNCHER, Cause.WIDTH_NOT_ALLOWED),
            *(Cause.RESOURCES_TOO_LARGE, Cause.ADHOC_NOT_ALLOWED, Cause.APP_NOT_OFFERED),
        )
        cause = next(cause for cause in causes if cause in obstacles.values())
        return cause, _asked(cause, joined, kind)
    heard = [site for site in fits if not site.lost and site.name not in silent]
    if not heard:
        return Cause.SITE_SILENT, ", ".join(site.name for site in fits[:5])
    awake = [site for site in heard if not site.drained]
    if not awake:
        return Cause.SITE_DRAINED, ", ".join(_drained(site) for site in heard[:5])
    if not any(matching.wanted_core_s(site, wide=bool(kind.nodes)) > 0 for site in awake):
        return Cause.SITE_WANTS_NOTHING, ", ".join(site.name for site in awake[:5])
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
    """What no slot has: the largest slot of each of these sites next to it."""
    asked = f"{kind.cores or 1} cores, {kind.memory_mb or 'any'} MB"
    asked += f", {devices_text(kind.devices)}" if kind.devices else ""
    slots = []
    for site in sites[:SITES_NAMED_MAX]:
        capacity = site.capacity
        if capacity is not None:
            has = f"{capacity.slot_cores_max} cores, {capacity.slot_memory_mb_max} MB"
            has += f", {devices_text(capacity.devices)}" if kind.devices or capacity.devices else ""
            slots.append(has if len(sites) == 1 else f"{site.name} {has}")
    more = len(sites) - SITES_NAMED_MAX
    return f"asked: {asked}; largest slot: {'; '.join(slots)}" + (f"; {more} more sites" if more > 0 else "")


def _pinned(site: Site | None, kind: JobKind, silent: set[str]) -> tuple[Cause, str]:
    if site is None:
        return Cause.SITE_PINNED_UNKNOWN, ""
    obstacle = matching.obstacle(site, kind)
    if site.lost or site.name in silent:
        return Cause.SITE_PINNED_SILENT, site.name
    if obstacle == Cause.SITE_DRAINED:
        return Cause.SITE_DRAINED, _drained(site)
    if obstacle is not None:
        why = matching.width_obstacle(site, kind)
        if obstacle == Cause.RESOURCES_TOO_LARGE:
            return Cause.SITE_PINNED_UNFIT, _too_large([site], kind)
        return Cause.SITE_PINNED_UNFIT, f"{site.name}: {why[1] if why is not None and why[1] else obstacle}"
    if matching.wanted_core_s(site, wide=bool(kind.nodes)) <= 0:
        return Cause.SITE_WANTS_NOTHING, site.name
    return Cause.FAIR_SHARE, ""


def _drained(site: Site) -> str:
    return f"{site.name}: {site.drain_reason}"


def after_texts(rows: list[tuple[int, int, int, int]], names: dict[int, str], spec: JobSpec) -> list[str]:
    """What a job still comes after, for people."""
    texts = [
        f"job {on_job}" if on_job else f"campaign {names.get(campaign, campaign)}"
        for _, on_job, campaign, _ in rows
    ]
    return texts or [str(each) for each in spec.after]
