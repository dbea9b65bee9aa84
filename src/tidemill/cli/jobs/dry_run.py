"""What a submission would be: whether any site can run it, and its jobs, events, files, cost and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.terminal import say, show, show_json
from tidemill.errors import ConfigError, did_you_mean
from tidemill.model.quantities import count_text, counted_text, duration_text, figure_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.model.job import JobSpec
    from tidemill.wire.api import AppOffer, SiteApplication, SiteRow

FITS_SHOWN = 3
STDOUT = "stdout"


class SitePower(NamedTuple):
    """A site as an estimate needs it: cores that it works with, and the measured seconds per event by application."""

    name: str
    cores: int
    event_s: dict[str, float]


class SubmissionPlan(NamedTuple):
    """What a submission comes to; None = not known before its first events have run."""

    jobs: int
    events: int
    files: int
    archives: int
    app_outputs: list[str]  #: names that applications give, besides: their number of files is not known here
    core_h: float | None
    core_h_max: float | None  #: if every event took as long as `--wall` allows
    wall_s: float | None
    wall_s_max: float | None  #: likewise
    sites: list[str]


class AtOnce(NamedTuple):
    """Payloads of a job that run at once on the widest node of a site, if it has the node for itself. `why`: what
    leaves cores idle there, and `hint` what would not; empty = nothing."""

    site: str
    payloads: int
    cores: int
    why: str = ""
    hint: str = ""


def check_places(
    client: Client, specs: Sequence[JobSpec], *, refuse: bool = False, of_file: bool = False
) -> None:
    """What no site of now can ever run is named, with the nearest that fits: refused, or remarked on. `of_file`: in
    keys of a job file, not in options."""
    import msgspec

    sites = _sites(client)
    offers = client.applications() if sites and any(spec.app is not None for spec in specs) else []
    seen: list[str] = []
    kinds = {msgspec.json.encode((spec.app, spec.site, spec.resources)): spec for spec in specs}
    for spec in kinds.values():  # jobs of a file ask for few different things
        misfit = misfit_of(spec, sites, offers, of_file=of_file)
        if misfit is None or misfit[0] in seen:
            continue
        if refuse:
            raise ConfigError(misfit[0], hint=misfit[1])
        seen.append(misfit[0])
        if len(seen) <= FITS_SHOWN:
            say(f"remark: {misfit[0]}: it waits for a site that can; {misfit[1]}")


def misfit_of(
    spec: JobSpec,
    sites: Sequence[SiteRow],
    offers: Sequence[SiteApplication],
    *,
    of_file: bool = False,
) -> tuple[str, str] | None:
    """Why no site can run a job, and what comes nearest; None if one can, or nothing is known of any. `sites`: all that
    have joined. Pure."""
    from tidemill.model import fit
    from tidemill.model.application import DEFAULT_CORES, DEFAULT_MEMORY_MB
    from tidemill.model.devices import with_shares
    from tidemill.model.fit import LargestSlot, SlotDefault

    if spec.site is not None and sites and spec.site not in {each.name for each in sites}:
        return f"no site is called `{spec.site}`", did_you_mean(spec.site, [each.name for each in sites])
    own = [each.app for each in offers if each.app.name == spec.app]
    default = SlotDefault(
        min((each.cores for each in own), default=DEFAULT_CORES),
        min((each.memory_mb for each in own), default=DEFAULT_MEMORY_MB),
    )
    slots = [
        LargestSlot(
            each.name,
            int(each.capacity.get("slot_cores_max", 0)),
            int(each.capacity.get("slot_memory_mb_max", 0)),
            with_shares(each.capacity.get("devices") or {}),
            int(each.capacity.get("wide_nodes_max", 0)),
            str(each.capacity.get("launcher", "")),
        )
        for each in _living(sites)
        if each.capacity
    ]
    return fit.misfit_of(spec, slots, default=default, as_keys=of_file)


def at_once_of(spec: JobSpec, site: SiteRow, offer: AppOffer | None = None) -> AtOnce | None:
    """How many payloads of a job run at once on the widest node of a site; None = none, they span nodes, or it is not
    known. Slots are sized as the site does it. Pure."""
    from tidemill.model.application import DEFAULT_CORES, DEFAULT_MEMORY_MB
    from tidemill.site.applications.memory import SCRATCH_MB_MIN, slot_memory

    there, need = site.capacity, spec.resources
    cores_all, slot_mb = int(there.get("slot_cores_max", 0)), int(there.get("slot_memory_mb_max", 0))
    cores = need.cores or (offer.cores if offer is not None else DEFAULT_CORES)
    if not (cores_all and slot_mb) or need.width is not None or cores > cores_all:
        return None
    node_mb = slot_mb + SCRATCH_MB_MIN
    share_mb = node_mb * cores // cores_all
    usual_mb = offer.memory_mb if offer is not None and offer.memory_mb != DEFAULT_MEMORY_MB else None
    memory_mb, scratch_mb = slot_memory(need.memory_mb or usual_mb, need.scratch_mb, share_mb=share_mb)
    bounds = {"cores": cores_all // cores, "memory": node_mb // max(1, memory_mb + scratch_mb)}
    devices = {kind: number for kind, number in (need.devices or {}).items() if number}
    has = there.get("devices") or {}
    for kind, number in devices.items():
        bounds["GPUs" if kind == "gpu" else kind] = int(has.get(kind, 0)) // number
    limit, payloads = min(bounds.items(), key=lambda each: each[1])
    if payloads < 1:
        return None
    found = AtOnce(site.name, payloads, cores_all)
    if limit == "cores":
        return found
    if limit != "memory":
        return found._replace(why=f"{limit} limit it")
    fits_mb = share_mb - (SCRATCH_MB_MIN if need.scratch_mb is None else need.scratch_mb)
    slot, node = f"{count_text(memory_mb)} + {count_text(scratch_mb)} MB", f"{count_text(node_mb)} MB"
    return found._replace(
        why=f"memory limits it: {slot} for each and its work directory, of {node}",
        hint=f"--memory {fits_mb}MB gives {cores_all // cores}" if 0 < fits_mb < memory_mb else "",
    )


def at_once_text(each: AtOnce) -> str:
    """`7 on a node of 8 cores (site s); memory limits it: ...; --memory 1850MB gives 8`."""
    where = f"{count_text(each.payloads)} on a node of {counted_text(each.cores, 'core')} (site {each.site})"
    return "; ".join(filter(None, (where, each.why, each.hint)))


def show_plan(client: Client | None, jobs: Sequence[tuple[JobSpec, int]], *, as_json: bool) -> None:
    """Print what a submission comes to; `jobs`: each with how often it is submitted."""
    powers = []
    sites = _living(_sites(client)) if client is not None else []
    for each in sites:
        cores = int(each.capacity.get("nodes", 0)) * int(each.capacity.get("slot_cores_max", 0))
        powers.append(SitePower(each.name, cores, each.capacity.get("event_s") or {}))
    offers = client.applications() if client is not None and any(spec.app for spec, _ in jobs) else []
    plan = plan_of(jobs, powers, {each.app.name: each.app for each in offers})
    at_once = _at_once([spec for spec, _ in jobs], sites, offers)
    if as_json:
        show_json(plan._asdict() | {"at_once": [each._asdict() for each in at_once]})
        return
    show(f"jobs        {count_text(plan.jobs)}")
    show(f"events      {count_text(plan.events)}")
    archives = counted_text(plan.archives, "tar archive") if plan.archives else ""
    files = counted_text(plan.files, "file") if plan.files else ""
    own = f"{', '.join(plan.app_outputs)} of each job, as its application says" if plan.app_outputs else ""
    show(f"outputs     {' and '.join(filter(None, (files, archives, own))) or 'none'}")
    if plan.core_h is not None:
        show(f"cost        about {figure_text(plan.core_h)} core-hours")
    elif plan.core_h_max is not None:
        show(f"cost        at most {figure_text(plan.core_h_max)} core-hours (--wall for each event)")
    else:
        show("cost        not known before the first events have run; `--wall T` bounds it")
    if plan.wall_s is not None:
        show(f"end         about {duration_text(plan.wall_s)} after the start, on {', '.join(plan.sites)}")
    elif plan.wall_s_max is not None:
        end = duration_text(plan.wall_s_max)
        show(f"end         at most {end} after the start, on all cores of {', '.join(plan.sites)}")
    else:
        show("end         not known before the first events have run")
    for text in dict.fromkeys(map(at_once_text, at_once)):
        show(f"at once     {text}")
    say("nothing was submitted")


def _at_once(
    specs: Sequence[JobSpec], sites: Sequence[SiteRow], offers: Sequence[SiteApplication]
) -> list[AtOnce]:
    """What runs at once of the first jobs, at the sites that may run them."""
    apps = {(each.site, each.app.name): each.app for each in offers}
    found = [
        at_once_of(spec, site, apps.get((site.name, spec.app or "")))
        for spec in specs[:FITS_SHOWN]
        for site in sites
        if site.capacity and spec.site in (None, site.name)
    ]
    return [each for each in found if each is not None][:FITS_SHOWN]


def plan_of(
    jobs: Sequence[tuple[JobSpec, int]], sites: Sequence[SitePower], offers: Mapping[str, AppOffer]
) -> SubmissionPlan:
    """What a submission comes to. `offers`: applications by name. Pure."""
    from tidemill.model.application import DEFAULT_CORES
    from tidemill.model.job import OutputKind, Pack

    files = archives = number = events = 0
    app_outputs: dict[str, None] = {}
    core_s: float | None = 0.0
    core_s_max: float | None = 0.0
    for spec, repeat in jobs:
        number += repeat
        events += repeat * spec.events
        cores = spec.resources.cores or DEFAULT_CORES
        offer = offers.get(spec.app or "")
        measured = [site.event_s[spec.app] for site in sites if spec.app and site.event_s.get(spec.app)]
        event_s = min(measured, default=offer.event_s if offer is not None else None)
        core_s = None if core_s is None or not event_s else core_s + repeat * spec.events * cores * event_s
        wall_s = spec.resources.largest.timeout_s
        core_s_max = (
            None if core_s_max is None or not wall_s else core_s_max + repeat * spec.events * cores * wall_s
        )
        if spec.outputs is None and offer is not None:
            app_outputs.update(dict.fromkeys(offer.outputs))
        for output in spec.outputs or ():
            if output.kind is OutputKind.EACH and spec.events > 1 and output.pack is not Pack.FILES:
                archives += repeat
            else:
                files += repeat * (spec.events if output.kind is OutputKind.EACH else 1)
        keeps_more = spec.keep_stdout and all(each.name != STDOUT for each in spec.outputs or ())
        if keeps_more and spec.events > 1:
            archives += repeat
        else:
            files += repeat * keeps_more
    cores_all = sum(site.cores for site in sites)
    return SubmissionPlan(
        jobs=number, events=events, files=files, archives=archives, app_outputs=list(app_outputs),
        core_h=None if core_s is None else core_s / 3600,
        core_h_max=None if core_s_max is None else core_s_max / 3600,
        wall_s=core_s / cores_all if core_s and cores_all else None,
        wall_s_max=max(core_s_max / cores_all, *(spec.resources.largest.timeout_s or 0 for spec, _ in jobs), 0)
        if core_s_max and cores_all
        else None,
        sites=[site.name for site in sites if site.cores],
    )  # fmt: skip


def _sites(client: Client) -> list[SiteRow]:
    """The sites, as far as the server shows them to this submitter."""
    from tidemill.wire.server_connection import NotAllowedError

    try:
        return client.sites()
    except NotAllowedError:
        return []


def _living(sites: Sequence[SiteRow]) -> list[SiteRow]:
    return [each for each in sites if each.state != "LOST"]
