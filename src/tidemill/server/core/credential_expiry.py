"""Whether a credential lasts until its jobs' outputs are delivered. An estimate, for a remark: nothing is refused."""

from __future__ import annotations

from tidemill import clock
from tidemill.model.identity import Identity
from tidemill.model.job import JobSpec
from tidemill.server.database.rows import Site
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.api import SubmitRequest

EVENT_S = 1.0  #: of an application without a measurement


def remark(work: UnitOfWork, identity: Identity, request: SubmitRequest, *, margin_s: float) -> str:
    """A warning about the submitter's credential; empty if it lasts, or does not expire."""
    if identity.expires_us is None:
        return ""
    sites = [site for site in work.memory.sites.values() if site.capacity is not None and not site.lost]
    end_us = work.now_us + int((expected_s(request, sites) + margin_s) * 1e6)
    if identity.expires_us >= end_us:
        return ""
    return (
        f"your {identity.via} ends at {clock.utc_text(identity.expires_us)}, these jobs are expected to be delivered "
        f"by {clock.utc_text(end_us)} at the earliest: renew it, or you can neither follow nor cancel them"
    )


def expected_s(request: SubmitRequest, sites: list[Site]) -> float:
    """Seconds that the request takes at least: its work on all cores of the sites that could take it, without any wait,
    and never less than the longest job on its own site's cores."""
    repeat = request.repeat or [1] * len(request.jobs)
    core_s = longest_s = 0.0
    cores = max(1, sum(_cores(site) for site in sites))
    widest = max([1, *(_cores(site) for site in sites)])
    for spec, times in zip(request.jobs, repeat, strict=True):
        event_s = _event_s(spec, sites)
        slot = spec.resources.cores or 1
        core_s += event_s * spec.events * times * slot
        longest_s = max(longest_s, event_s * spec.events * slot / min(widest, max(spec.events * slot, 1)))
    return max(core_s / cores, longest_s)


def _cores(site: Site) -> int:
    capacity = site.capacity
    return 0 if capacity is None else max(capacity.busy_cores, capacity.nodes * capacity.slot_cores_max)


def _event_s(spec: JobSpec, sites: list[Site]) -> float:
    """As measured anywhere, else as the job or the application says."""
    app = spec.app or ""
    measured = [
        site.capacity.event_s[app]
        for site in sites
        if site.capacity is not None and app in site.capacity.event_s
    ]
    if measured:
        return min(measured)
    if spec.resources.event_s is not None:
        return spec.resources.event_s
    return min([site.offers[app].event_s for site in sites if app in site.offers], default=EVENT_S)
