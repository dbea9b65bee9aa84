"""Who treats the jobs of a ward, and what a cure changes in a job. Pure."""

from __future__ import annotations

import math

import msgspec

from tidemill.config.hospital import Ward
from tidemill.model.application import DEFAULT_MEMORY_MB
from tidemill.model.job import JobSpec
from tidemill.server.database.rows import JobKind, Site
from tidemill.wire.hospital import Cure


def treats(ward: Ward, site: Site, kind: JobKind) -> bool:
    """Whether a site treats the jobs of a kind in a ward."""
    return site.name in ward.sites if ward.sites else site.id != kind.home_site


def may_have(ward: Ward, site: Site, kind: JobKind) -> bool:
    """Whether a site may have jobs of a ward: it treats them, or is their home and did not fail them."""
    return treats(ward, site, kind) or (site.id == kind.home_site and not ward.failures)


def kind_in(ward: Ward, site: Site, kind: JobKind) -> JobKind:
    """What a kind asks of a site that treats it; of its home, what it always asks."""
    if not treats(ward, site, kind):
        return kind
    cure, changed = ward.cure, kind
    if cure.memory_factor > 1:
        changed = msgspec.structs.replace(changed, memory_mb=memory_mb(ward, site, kind))
    if cure.whole_node and not kind.nodes and site.capacity is not None:
        changed = msgspec.structs.replace(changed, cores=max(kind.cores, site.capacity.slot_cores_max))
    return changed


def memory_mb(ward: Ward, site: Site, kind: JobKind) -> int:
    """Memory of a slot with the ward's cure."""
    offer = site.offers.get(kind.app)
    asked = kind.memory_mb or (offer.memory_mb if offer is not None else DEFAULT_MEMORY_MB)
    return math.ceil(asked * ward.cure.memory_factor)


def cured_spec(spec: JobSpec, ward: Ward, site: Site, kind: JobKind) -> JobSpec:
    """A job as a site that treats it gets it."""
    asked = kind_in(ward, site, kind)
    resources = spec.resources
    if asked.memory_mb != kind.memory_mb:
        # the kind of a job that grows has the maximum
        resources = msgspec.structs.replace(resources, memory_mb=asked.memory_mb, memory_mb_max=msgspec.UNSET)
    if asked.cores != kind.cores:
        resources = msgspec.structs.replace(resources, cores=asked.cores)
    inputs = spec.inputs
    if ward.cure.read == "file":
        inputs = [msgspec.structs.replace(each, read=msgspec.UNSET) for each in inputs]
    return msgspec.structs.replace(spec, resources=resources, inputs=inputs)


def cure_of(ward: Ward) -> Cure:
    """The cure as the site learns of it."""
    cure = ward.cure
    return Cure(ward=ward.name, memory_factor=cure.memory_factor, read=cure.read, whole_node=cure.whole_node)
