"""What a retry changes in jobs, for all events that are leased from then on.

What a site has been leased already runs as it was: with the next lease it gets the job as it is now.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tidemill.config.quotas import Quotas
from tidemill.model import legal
from tidemill.model.application import DEFAULT_CORES, DEFAULT_MEMORY_MB
from tidemill.model.fit import SlotDefault, misfit_of
from tidemill.model.job import JobSpec, Resources
from tidemill.model.retry.changes import JobChanges, changed
from tidemill.server.archive import lookup
from tidemill.server.core.limits import quota
from tidemill.server.core.matching import slots_of
from tidemill.server.core.specifications.numbers import SpecNumbers, kind_number
from tidemill.server.core.specifications.shortening import shortened
from tidemill.server.database.rows import COMPLETED, KindKey, StoredJob, key_of
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import RequestError
from tidemill.wire.api import SPEC_BYTES_MAX

_ENCODER = msgspec.json.Encoder()


class ChangeTerms(NamedTuple):
    """What is changed, and the quotas of the submitter who asks for it; None = none apply."""

    changes: JobChanges
    quotas: Quotas | None = None


class _Plan(NamedTuple):
    """A specification as it will be: its owner, what it asks for, its text, and its kinds by their former numbers."""

    owner: str
    need: Resources
    body: bytes
    kinds: dict[int, KindKey]


def change(work: UnitOfWork, jobs: Sequence[int], terms: ChangeTerms) -> int:
    """Change the jobs that are not complete; their number. Does not write their rows.

    Raises RequestError where a job would not be legal, QuotaError.
    """
    lookup.refuse_closed(work.session, jobs)
    work.load(jobs)
    gone = shortened(work.session, list(jobs))
    named = (each for each in dict.fromkeys(jobs) if each not in gone)
    found = [job for each in named if (job := work.jobs.get(each)) and job.state != COMPLETED]
    if not found:
        return 0
    plans = _plans(work, found, terms.changes)
    owner = work.memory.owners[work.campaign_of(found[0])]
    if terms.quotas is not None:
        wanted = quota.QuotaDemand(
            owner, work.campaign_of(found[0]), 0, spec_bytes=sum(len(each.body) for each in plans.values()),
            kinds=list({key: None for each in plans.values() for key in each.kinds.values()}), sites=(),
        )  # fmt: skip
        quota.check(work, wanted, terms.quotas)
    _respecify(work, found, plans)
    return len(found)


def _plans(work: UnitOfWork, jobs: Sequence[StoredJob], changes: JobChanges) -> dict[int, _Plan]:
    """Each specification as it will be, by its former number. Raises RequestError."""
    specs = work.specs(job.spec for job in jobs)
    plans: dict[int, _Plan] = {}
    for job in jobs:
        plan = plans.get(job.spec)
        if plan is None:
            spec = changed(specs[job.spec], changes)
            fault = legal.spec_fault(spec)
            if fault is not None:
                raise RequestError(f"job {job.id} with these changes: {fault.text}", hint=fault.hint)
            if changes.resizes:
                _check_fit(work, spec, f"job {job.id} with these changes")
            body = _ENCODER.encode(spec)
            if len(body) > SPEC_BYTES_MAX:
                raise RequestError(f"job {job.id} would have {len(body)} bytes, at most {SPEC_BYTES_MAX}")
            owner = work.memory.owners[work.campaign_of(job)]
            plan = plans[job.spec] = _Plan(owner, spec.resources, body, {})
        if job.kind not in plan.kinds:
            cores, memory_mb = plan.need.cores or 0, plan.need.largest.memory_mb or 0
            campaign, app, _, _, *rest = key_of(work.memory.kinds[job.kind])
            plan.kinds[job.kind] = (campaign, app, cores, memory_mb, *rest)  # type: ignore[assignment]
    return plans


def _check_fit(work: UnitOfWork, spec: JobSpec, where: str) -> None:
    """Raise RequestError where no slot of any site has what the job asks for: it would wait for ever."""
    sites = [site for site in work.memory.sites.values() if site.capacity is not None and not site.lost]
    offers = [site.offers[spec.app] for site in sites if spec.app in site.offers]
    default = SlotDefault(
        min((each.cores for each in offers), default=DEFAULT_CORES),
        min((each.memory_mb for each in offers), default=DEFAULT_MEMORY_MB),
    )
    found = misfit_of(spec, slots_of(sites), default=default)
    if found is not None:
        raise RequestError(f"{where}: {found[0]}", hint=found[1])


def _respecify(work: UnitOfWork, jobs: Sequence[StoredJob], plans: dict[int, _Plan]) -> None:
    session, memory = work.session, work.memory
    numbers = SpecNumbers(work, len(plans))
    stored: Counter[str] = Counter()
    specs: dict[int, int] = {}  #: by their former numbers
    for former, plan in plans.items():
        before = len(numbers.fresh)
        digest = hashlib.sha256(plan.body).digest()[:16]
        specs[former] = numbers.number(plan.owner, body=plan.body, digest=digest)
        stored[plan.owner] += len(plan.body) if len(numbers.fresh) > before else 0
    rows: list[tuple[int, int, int]] = []
    for job in jobs:
        spec, kind = specs[job.spec], kind_number(work, plans[job.spec].kinds[job.kind])
        rows.append((job.id, kind, spec))
        work.respecify(job, kind=kind, spec=spec)
        job.told, job.refusals, job.refused = 0, 0, ""
        if job.place < 0:
            memory.occupy(kind, -job.place)
    session.many("insert_specs", numbers.fresh)
    session.many("respecify_jobs", rows)
    gone: Counter[str] = Counter()
    for number, digest, length in session.rows("delete_specs", ids=sorted(plans)):
        memory.forget_spec(number, bytes(digest))
        gone[plans[number].owner] += int(length)
    for owner in sorted(stored.keys() | gone.keys()):
        session.run("add_stored", owner=owner, bytes=stored[owner])
        session.run("credit_stored", owner=owner, bytes=gone[owner])
