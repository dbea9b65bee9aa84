"""From what a site wants to leases in the store: bounded windows of ready jobs into `matching.match`, ranges out.

A tick reads at most a few windows of jobs, however many jobs and campaigns there are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Container
from operator import itemgetter
from typing import NamedTuple

import msgspec

from tidemill.model.job import JOB_INPUT, Input, JobSpec, job_input, running_max
from tidemill.server.core import breakers, ending, matching, site_views
from tidemill.server.core.matching import Candidate, Claim, Contender, LeaseRange, OwnerAccount
from tidemill.server.database import refusals
from tidemill.server.database.rows import (
    ACTIVE,
    RUNNING,
    JobKind,
    Site,
    StoredJob,
    StoredLease,
)
from tidemill.server.database.unit_of_work import UnitOfWork, take_numbers
from tidemill.server.database.writer_memory import PassedKinds
from tidemill.server.hospital import cures, nearness
from tidemill.wire.hospital import Cure

WINDOWS = (1_024, 8_192, 8_192)  #: candidates of all campaigns together, in successive rounds
KINDS_FEW = 16  #: up to this many kinds of a campaign are read one after the other
LEG_FIRST = 2  #: jobs of each of many kinds in the first of LEG_ROUNDS reads
LEG_ROUNDS = 4
YOUNG_RANKS_MAX = (
    16  #: priorities of a campaign that one claim passes over, as their jobs wait for a nearer site
)
YOUNG_WINDOW = 256  #: jobs that it reads of each priority but the first
LIMITED_AHEAD_S = 120.0
"""A site has as much of a job with `at_once` as it can do in this time: that of several syncs."""

_ENCODER = msgspec.json.Encoder()


class _SiteSpec(msgspec.Struct, frozen=True):
    """What a site is sent about a job. `from_jobs`: inputs that were `job:ID/OUTPUT`."""

    spec: JobSpec
    from_jobs: dict[str, int] = {}
    cure: Cure | None = None


class LeaseRules(NamedTuple):
    """How work is shared out. `data_wait_s`: how long a job waits for a site that is nearer to its data; `data`: what
    sites reported about data."""

    half_life_s: float
    data_wait_s: float
    data: nearness.DataMap


class _Terms(NamedTuple):
    """How a site is served in one sync."""

    rules: LeaseRules
    gate: breakers.BreakerGate
    data: nearness.DataGate


class _Queue(Contender, kw_only=True):
    """What one campaign has for the site."""

    kinds: list[JobKind]
    terms: _Terms
    after: nearness.Place | None = (-(2**62), 0, 0)  #: up to which its jobs were read; None = all were


def lease(work: UnitOfWork, site: Site, ranges_max: int, rules: LeaseRules) -> bool:
    """Lease what the site wants, at most `ranges_max` ranges; whether there was more for it. Payloads that span nodes
    wait long for nodes, so that they have a budget of their own."""
    capacity = site.capacity
    if capacity is None:
        return False
    ranges_max = min(ranges_max, capacity.want_ranges_max)
    passed = work.memory.passed.setdefault(site.id, PassedKinds())
    too_young = work.memory.data_passed.setdefault(site.id, {})
    data = nearness.DataGate(too_young, now_us=work.now_us, wait_s=rules.data_wait_s)
    terms = _Terms(rules, breakers.BreakerGate(site, passed, work.now_us), data)
    rules.data.update(site)
    left, more = _lease(work, site, ranges_max, terms, wide=False)
    _, more_wide = _lease(work, site, left, terms, wide=True)
    terms.gate.close()
    data.close(work.memory.open.of_kind)
    return more or more_wide


def _lease(work: UnitOfWork, site: Site, wanted: int, terms: _Terms, *, wide: bool) -> tuple[int, bool]:
    """Ranges that may still be leased, and whether there was more."""
    want_core_s, more = matching.wanted_core_s(site, wide=wide), False
    if want_core_s <= 0:
        return wanted, False
    queues = _queues(work, site, terms, wide=wide)
    for window in WINDOWS:
        if not queues or wanted <= 0 or want_core_s <= 0:
            break
        claims = _claims(work, site, queues, min(wanted, window))
        match = matching.match(claims, want_core_s=want_core_s, ranges_max=wanted)
        _write(work, site, match.ranges)
        wanted -= len(match.ranges)
        want_core_s -= match.core_s
        used = {claim.campaign: 0.0 for claim in claims}
        for each in match.ranges:
            used[each.campaign] += each.core_s
        for queue in queues:
            core_s = used.get(queue.campaign, 0.0)
            queue.used_core_s += core_s
            queue.owner.used_core_s += core_s
        queues = [queue for queue in queues if queue.after is not None]
        more = bool(queues) or len(match.dry) < len(claims)
    return wanted, more and want_core_s > 0


def _claims(work: UnitOfWork, site: Site, queues: list[_Queue], window: int) -> list[Claim]:
    """What the campaigns that are next have for the site. Thousands may have nothing ready: those are passed over."""
    claims: list[Claim] = []
    left = queues
    while left:
        chosen = matching.shortlist(left, window)
        claims += [
            _claim(work, site, queue, chosen[queue.campaign]) for queue in left if queue.campaign in chosen
        ]
        if any(claim.candidates for claim in claims):
            break
        left = [queue for queue in left if queue.campaign not in chosen]
    return claims


def _queues(work: UnitOfWork, site: Site, terms: _Terms, *, wide: bool) -> list[_Queue]:
    kinds = work.memory.kinds
    by_campaign: dict[int, dict[int, JobKind]] = defaultdict(dict)
    for number in work.memory.open.of_kind:
        if bool(kinds[number].nodes) is not wide:
            continue
        kind = kinds[number]
        owner = work.memory.owners.get(kind.campaign, "")
        if not terms.gate.admits_kind(number, kind.app, owner) or not terms.data.admits_kind(number):
            continue
        if matching.obstacle(site, kinds[number]) is None and _places(work, site, kinds[number]):
            by_campaign[kinds[number].campaign][number] = kinds[number]
            terms.data.tiers[number] = _tier(work, site, kinds[number], terms.rules.data)
    rows = work.session.rows("campaign_shares", ids=sorted(by_campaign)) if by_campaign else []
    accounts = owner_accounts(work, {row.owner for row in rows}, terms.rules.half_life_s)
    return [
        _Queue(
            campaign, shares,
            matching.decayed(used, since_us=at_us, now_us=work.now_us, half_life_s=terms.rules.half_life_s),
            accounts[owner], kinds=list(by_campaign[campaign].values()), terms=terms,
        )
        for campaign, _, shares, used, at_us, owner in rows
    ]  # fmt: skip


def _places(work: UnitOfWork, site: Site, kind: JobKind) -> list[int]:
    """Where jobs of a kind stand that the site may have: those of a home are at it, or in wards."""
    if not kind.home_site:
        return [0, site.id]
    wards = work.memory.wards
    return [site.id] + [
        -number
        for number in sorted(work.memory.occupied.get(kind.id, ()))
        if number in wards
        and cures.may_have(wards[number], site, kind)
        and matching.fits(site, cures.kind_in(wards[number], site, kind))
    ]


def _tier(work: UnitOfWork, site: Site, kind: JobKind, data: nearness.DataMap) -> nearness.Tier:
    """How the site stands to the data of a kind."""
    sites = work.memory.sites

    def is_fit(number: int) -> bool:
        other = sites.get(number)  # one that joined in a transaction that was undone is not there
        return (
            other is not None and matching.fits(other, kind) and breakers.met(other, kind.app, None) is None
        )

    return data.tier(site, kind, is_fit)


def _asked(work: UnitOfWork, site: Site, job: StoredJob) -> JobKind:
    """What a job asks of the site, with the cure of its ward."""
    kind = work.memory.kinds[job.kind]
    ward = work.memory.wards.get(job.ward) if job.ward else None
    return kind if ward is None else cures.kind_in(ward, site, kind)


def owner_accounts(work: UnitOfWork, names: set[str], half_life_s: float) -> dict[str, OwnerAccount]:
    """What these owners have had until now."""
    result = {name: OwnerAccount(name) for name in names}
    for name, shares, used, at_us in work.session.rows("owner_shares", names=sorted(names)) if names else ():
        now = matching.decayed(used, since_us=at_us, now_us=work.now_us, half_life_s=half_life_s)
        result[name] = OwnerAccount(name, shares, now)
    return result


def _claim(work: UnitOfWork, site: Site, queue: _Queue, window: int) -> Claim:
    """The campaign's next jobs for the site, after those that were read before, which are all leased by now.

    Thousands may wait for a nearer site: those of a priority are passed over as soon as one is too young, as the jobs
    behind it are younger, so that older ones of lower priority are found."""
    candidates: list[Candidate] = []
    for _ in range(YOUNG_RANKS_MAX):
        jobs = _next_jobs(work, site, queue, window)
        candidates = _candidates(work, site, queue, jobs)
        passed = queue.terms.data.after_young(queue.after, jobs)
        if passed is None:
            break
        queue.after, window = passed, min(window, YOUNG_WINDOW)
        if candidates:
            break
    return Claim(queue.campaign, queue.shares, queue.used_core_s, candidates, queue.owner)


def _candidates(work: UnitOfWork, site: Site, queue: _Queue, jobs: list[StoredJob]) -> list[Candidate]:
    """Those of the jobs that the site may have now."""
    specs = work.specs(job.spec for job in jobs)
    candidates = []
    cost: dict[tuple[int, int, int], float] = {}
    gate, data = queue.terms.gate, queue.terms.data
    for job in jobs:
        if job.refused and _is_refused(work, site, job):
            continue
        if not data.admits(job.kind, since_us=job.waits_since_us, is_bound=job.place == site.id):
            continue
        spec = specs[job.spec]
        key = (job.kind, job.spec, job.ward)
        event_core_s = cost.get(key)
        if event_core_s is None:
            kind = _asked(work, site, job)
            estimate = spec.resources.event_s
            seconds = matching.event_s(site, kind, estimate)
            event_core_s = cost[key] = seconds * matching.slot_cores(site, kind)
        free = work.free(job)
        if (
            free
            and not gate.is_open
            and not gate.admits(job.kind, work.memory.kinds[job.kind].app, spec, queue.owner.name)
        ):
            continue
        if spec.at_once is not msgspec.UNSET:
            free = _limited(work, site, job, free, event_core_s)
        if free:
            candidates.append(Candidate(job.id, job.rank, free, event_core_s))
    return candidates


def _limited(
    work: UnitOfWork, site: Site, job: StoredJob, free: list[tuple[int, int]], event_core_s: float
) -> list[tuple[int, int]]:
    """What the site may have now of a job with `at_once`: what it can do of it in LIMITED_AHEAD_S. The rest would stand
    before what others get meanwhile, for as long as the job takes."""
    most = running_max(work.spec(job).at_once, job.events)
    if most is None:
        return free
    slot_s = event_core_s / matching.slot_cores(site, _asked(work, site, job))
    left = max(most, int(most * LIMITED_AHEAD_S / slot_s)) - job.n_leased
    pieces = []
    for first, end in free:
        if left <= 0:
            break
        pieces.append((first, min(end, first + left)))
        left -= end - first
    return pieces


def _next_jobs(work: UnitOfWork, site: Site, queue: _Queue, window: int) -> list[StoredJob]:
    """By rank and id, from several scans. Where one of them was cut short, the others may not be followed further."""
    if queue.after is None:
        return []
    if len(queue.kinds) > KINDS_FEW:
        return _next_of_many(work, site, queue, window)
    tiers = queue.terms.data.tiers
    limit = max(16, -(-window // len(queue.kinds)))
    jobs: list[tuple[nearness.Place, StoredJob]] = []
    ends: list[nearness.Place] = []
    for kind in queue.kinds:
        tier = tiers[kind.id]
        rank, number = nearness.leg_after(queue.after, tier)
        for place in _places(work, site, kind):
            found = work.adopt(
                work.session.rows("jobs_ready", kind=kind.id, place=place, rank=rank, id=number, limit=limit)
            )
            jobs += [((job.rank, tier, job.id), job) for job in found]
            if len(found) == limit:
                ends.append((found[-1].rank, tier, found[-1].id))
    jobs.sort(key=itemgetter(0))
    queue.after = min(ends, default=None)
    if queue.after is not None:
        jobs = jobs[: bisect_right(jobs, queue.after, key=itemgetter(0))]
    return [job for _, job in jobs if job.ready]


def _next_of_many(work: UnitOfWork, site: Site, queue: _Queue, window: int) -> list[StoredJob]:
    """The next jobs of many kinds: few statements, and rows are read of those jobs only that are next.

    Kinds whose scans were cut short hold up the others, so that these are followed further, the foremost first.
    """
    assert queue.after is not None
    limit = max(LEG_FIRST, -(-window // len(queue.kinds)))
    tiers, start = queue.terms.data.tiers, queue.after
    legs = {(kind.id, place): start for kind in queue.kinds for place in _places(work, site, kind)}
    found: list[nearness.Place] = []
    cut: dict[tuple[int, int], nearness.Place] = {}
    for _ in range(LEG_ROUNDS):
        from_ = [(*leg, *nearness.leg_after(after, tiers[leg[0]])) for leg, after in legs.items()]
        text = _ENCODER.encode(from_).decode()
        counts: Counter[tuple[int, int]] = Counter()
        for kind, place, rank, number in work.session.rows("ready_of_legs", legs=text, limit=limit):
            at = (rank, tiers[kind], number)
            found.append(at)
            counts[(kind, place)] += 1
            cut[(kind, place)] = max(at, cut.get((kind, place), start))
        for leg in legs:
            if counts[leg] < limit:
                cut.pop(leg, None)
        end = min(cut.values(), default=None)
        if end is None or sum(each <= end for each in found) >= window:
            break
        legs = {leg: cut[leg] for leg in heapq.nsmallest(KINDS_FEW, cut, key=cut.__getitem__)}
        limit = window
    found.sort()
    queue.after = end
    if end is not None:
        found = found[: bisect_right(found, end)]
    if len(found) > window:
        found = found[:window]
        queue.after = found[-1]
    work.load(number for _, _, number in found)
    return [job for _, _, number in found if (job := work.jobs[number]).ready]


def _is_refused(work: UnitOfWork, site: Site, job: StoredJob) -> bool:
    """Whether this site gave the job back, and gets it not now: another one may take it, or its time has not come. A
    program that its staff have approved again since then is tried at once."""
    found = refusals.parse(job.refused)
    mine = found.get(site.id)
    if mine is None:
        return False
    if job.id in work.given_back:
        return True
    if mine.until_s * 1_000_000 > work.now_us:
        approved_us = site.approved_us.get(work.memory.kinds[job.kind].app, 0)
        return approved_us <= mine.since_s * 1_000_000
    return not mine.until_s and _elsewhere(work, job, found)


def _elsewhere(work: UnitOfWork, job: StoredJob, refused: Container[int]) -> bool:
    """Whether a site that has not refused the job could take it."""
    if job.place > 0:
        return False
    kind, ward = work.memory.kinds[job.kind], work.memory.wards.get(job.ward)
    owner = work.memory.owners.get(kind.campaign, "")
    return any(
        site.id not in refused
        and (ward is None or cures.may_have(ward, site, kind))
        and matching.fits(site, _asked(work, site, job))
        and breakers.met(site, kind.app, work.spec(job), owner=owner) is None
        for site in work.memory.sites.values()
    )


def _write(work: UnitOfWork, site: Site, ranges: list[LeaseRange]) -> None:
    if not ranges:
        return
    specs = _resolved(work, site, [work.jobs[each.job] for each in ranges])
    ranges = [each for each in ranges if each.job in specs]
    if not ranges:
        return
    names: dict[int, tuple[str, str]] = dict(
        (row.id, (row.name, row.owner))
        for row in work.session.rows("campaign_owners", ids=sorted({each.campaign for each in ranges}))
    )
    site_views.add_unstarted(site, _newcomers(work, site, {each.job for each in ranges}))
    outputs: dict[tuple[int, int], bool] = {}
    slots: dict[tuple[int, int], int] = {}
    number = take_numbers(work.session, "next_lease", len(ranges))
    ends: dict[int, None] = {}
    for each in ranges:
        job = work.jobs[each.job]
        cores = slots.get((job.kind, job.ward)) or matching.slot_cores(site, _asked(work, site, job))
        slots[(job.kind, job.ward)] = cores
        lease = StoredLease(
            job.id, number, site.id, each.first, each.count, ACTIVE, work.now_us, None, "", cores,
            each.core_s / each.count / cores, "",
        )  # fmt: skip
        work.lease(lease)
        is_told = job.told == site.id
        said = specs[job.id]
        spec = (None, {}, None) if is_told else (said.spec, said.from_jobs, said.cure)
        work.lease_order(site, lease, names[each.campaign], job, spec)
        number += 1
        job.told = site.id
        job.attempts += 1
        work.sums[each.campaign].core_s += each.core_s
        if not work.singles.lease(job, lease):
            work.sets(job).leased.add(each.first, each.first + each.count)
            work.touch(job)
        ends[job.id] = None
    for job_id in ends:
        job = work.jobs[job_id]
        key, asked = (job.kind, job.spec), specs[job_id].spec
        if key not in outputs:
            outputs[key] = _has_outputs(site, asked)
        _leased(work, site, job, is_bound=outputs[key] or asked.running_max is not None)


def _newcomers(work: UnitOfWork, site: Site, jobs: Collection[int]) -> list[int]:
    """Those of the jobs of which the site has nothing yet."""
    shared = [job for job in jobs if work.jobs[job].n_leased]
    there = {tuple(row) for row in work.session.rows("sites_of_jobs", ids=shared)} if shared else set()
    return [job for job in jobs if (job, site.id) not in there]


def _cure(work: UnitOfWork, site: Site, job: StoredJob) -> Cure | None:
    """The cure with which the site gets a job of a ward; None for one that it does not treat."""
    ward = work.memory.wards.get(job.ward) if job.ward else None
    kind = work.memory.kinds[job.kind]
    return cures.cure_of(ward) if ward is not None and cures.treats(ward, site, kind) else None


def _leased(work: UnitOfWork, site: Site, job: StoredJob, *, is_bound: bool) -> None:
    """`is_bound`: the rest of the job goes to the same site: its outputs lie there, or what runs is counted there."""
    if job.state != RUNNING:
        work.enter(job, RUNNING)
        job.started_us = job.started_us or work.now_us
    job.site = site.id
    if work.parsed(job):
        work.keep_sets(job)
    job.ready = 1 if job.n_left - job.n_leased else 0
    if is_bound and not job.home:
        job.home, job.place = 1, site.id


def _has_outputs(site: Site, spec: JobSpec) -> bool:
    if spec.keep_stdout or spec.outputs:
        return True
    offer = site.offers.get(spec.app or "")
    return spec.outputs is None and offer is not None and bool(offer.outputs)


# ---- inputs that are other jobs' outputs ------------------------------------------------------------------------


def _resolved(work: UnitOfWork, site: Site, jobs: list[StoredJob]) -> dict[int, _SiteSpec]:
    """Specs as sites get them. A job whose input is not there fails, and is left out."""
    found: dict[int, _SiteSpec] = {}
    asking: dict[int, list[StoredJob]] = defaultdict(list)
    for job in jobs:
        if job.id in found:
            continue
        found[job.id] = _site_spec(work, site, job)
        for each in found[job.id].spec.inputs:
            named = job_input(each.url)
            if named is not None:
                asking[named[0]].append(job)
    if not asking:
        return found
    outputs: dict[int, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for job_id, name, url, _, sha256, _ in work.session.rows("outputs_of_jobs", ids=sorted(asking)):
        if sha256:  # else files of a job that goes on
            outputs[job_id][name].append((url, sha256))
    for job in {each.id: each for group in asking.values() for each in group}.values():
        resolved = msgspec.structs.replace(
            _with_delivered(found[job.id].spec, outputs), cure=found[job.id].cure
        )
        bad = _unreadable(resolved)
        if bad:
            del found[job.id]
            text = f"input `{bad[0][0]}`: {bad[0][1]}"
            job.site = job.site or job.pin
            ending.fail(work, job, text, evidence=ending.stage_in_evidence(text, work.now_us))
        else:
            found[job.id] = resolved
    return found


def _unreadable(resolved: _SiteSpec) -> list[tuple[str, str]]:
    """Inputs that are other jobs' outputs and cannot be had, each with the reason."""
    missing = [each.url for each in resolved.spec.inputs if each.url.startswith(JOB_INPUT)]
    directories = [
        each.url
        for each in resolved.spec.inputs
        if each.name in resolved.from_jobs and each.url.endswith("/")
    ]
    return [(url, "that job has delivered no such output") for url in missing] + [
        (
            url,
            'its files lie in a directory, and an input is one file: give that output `pack = "tar"`; with '
            "`unpack = true` the input is a directory again",
        )
        for url in directories
    ]


def _site_spec(work: UnitOfWork, site: Site, job: StoredJob) -> _SiteSpec:
    """A job as the site gets it, but for inputs that are other jobs' outputs: with the cure of its ward, and without
    what only the server reads."""
    spec, cure = work.spec(job), _cure(work, site, job)
    if any(
        each is not msgspec.UNSET for each in (spec.deliver, spec.home, spec.stress)
    ):  # the server's alone
        spec = msgspec.structs.replace(spec, deliver=msgspec.UNSET, home=msgspec.UNSET, stress=msgspec.UNSET)
    if cure is not None:
        spec = cures.cured_spec(spec, work.memory.wards[job.ward], site, work.memory.kinds[job.kind])
    return _SiteSpec(spec, cure=cure)


def _with_delivered(spec: JobSpec, outputs: dict[int, dict[str, list[tuple[str, str]]]]) -> _SiteSpec:
    """A job with the delivered files in the place of other jobs' outputs, as far as there are any."""
    inputs: list[Input] = []
    from_jobs: dict[str, int] = {}
    for each in spec.inputs:
        files = _files_of(each, outputs) or [each]
        inputs += files
        named = job_input(each.url)
        if named is not None:
            from_jobs |= {file.name: named[0] for file in files}
    return _SiteSpec(msgspec.structs.replace(spec, inputs=inputs), from_jobs)


def _files_of(one: Input, outputs: dict[int, dict[str, list[tuple[str, str]]]]) -> list[Input]:
    """The delivered files behind an input, named as the input; several: `name-1.ext`, `name-2.ext`, ..."""
    named = job_input(one.url)
    if named is None:
        return [one]
    files = outputs[named[0]][named[1]]
    stem, dot, ending_ = one.name.partition(".")
    return [
        msgspec.structs.replace(
            one, url=url, sha256=one.sha256 or sha256 or None,
            name=one.name if len(files) == 1 else f"{stem}-{number}{dot}{ending_}",
        )
        for number, (url, sha256) in enumerate(files, 1)
    ]  # fmt: skip


def charge(work: UnitOfWork, half_life_s: float) -> None:
    """Book the core-seconds that this transaction leased and settled on the accounts of campaigns and of their owners,
    which decay."""
    changed = {number: sums.core_s for number, sums in work.sums.items() if sums.core_s}
    if not changed:
        return
    rows: list[tuple[object, ...]] = []
    of_owner: dict[str, float] = defaultdict(float)
    for campaign, _, _, used, at_us, owner in work.session.rows("campaign_shares", ids=sorted(changed)):
        now = matching.decayed(used, since_us=at_us, now_us=work.now_us, half_life_s=half_life_s)
        rows.append((campaign, max(0.0, now + changed[campaign]), max(at_us, work.now_us)))
        of_owner[owner] += changed[campaign]
    work.session.many("set_used", rows)
    accounts = owner_accounts(work, set(of_owner), half_life_s)
    work.session.many(
        "set_owner_used",
        [
            (name, max(0.0, accounts[name].used_core_s + core_s), work.now_us)
            for name, core_s in sorted(of_owner.items())
        ],
    )
