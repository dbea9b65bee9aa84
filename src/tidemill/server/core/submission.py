"""Bulk submit: decode, check, and insert jobs, all or none, once per key."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from typing import NamedTuple, TypeVar

import msgspec

from tidemill import clock
from tidemill.config.quotas import Quotas
from tidemill.errors import UNDECODABLE, did_you_mean
from tidemill.model import legal
from tidemill.model.campaign import parse_reference
from tidemill.model.handed import inputs_fault
from tidemill.model.identity import Identity
from tidemill.model.job import NAME_PATTERN, Input, JobSpec, Output, Resources, job_input
from tidemill.model.notification import Subscription
from tidemill.model.parameter import parameters_fault
from tidemill.model.seed import CAMPAIGN_EVENTS_MAX, campaign_offset
from tidemill.server.archive import lookup
from tidemill.server.core import campaign_names, ending, leasing, rights, site_records
from tidemill.server.core.body_count import BodyCount
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.core.limits import quota
from tidemill.server.core.limits.storage import Storage
from tidemill.server.core.matching import decayed
from tidemill.server.core.specifications.numbers import SpecNumbers, kind_number
from tidemill.server.database.rows import (
    CANCELED,
    FAILED,
    KIND_COLUMNS,
    RUNNING,
    WAITING,
    KindKey,
    clean,
)
from tidemill.server.database.store import Row, row, value, values
from tidemill.server.database.unit_of_work import UnitOfWork, take_numbers
from tidemill.server.errors import ConflictError, QuotaError, RequestError, RoomError
from tidemill.server.hospital.datasets import datasets_of, origin_of
from tidemill.server.notices import tables
from tidemill.wire.api import REQUEST_BYTES_MAX, SPEC_BYTES_MAX, SUBMIT_JOBS_MAX, SubmitReply, SubmitRequest

APPS_TOLD = 20
CHECKING_S_MAX = 0.5
"""For the parameters of one request: what is left then is checked by the sites alone. 10,000 different jobs with a text
of 1,000 characters for the pattern `.{0,1000}` take 0.1 s, the largest values of the slowest patterns 0.1 s each."""

DATA_KINDS_MAX = 128  #: of a campaign: beyond it, jobs are sorted by the host of their data alone
ORIGIN_KINDS_MAX = 160  #: of a campaign: beyond it, the data of further jobs are ignored
OWNER_DATA_KINDS_MAX = 1_000  #: open at once: every sync has to examine all of them
KEY_MAX = 200
SHARES_MAX = 1e6
S = TypeVar("S", bound=msgspec.Struct)
_ENCODER = msgspec.json.Encoder()
_NAME = re.compile(NAME_PATTERN)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`(?: - at `\$([^`]*)`)?")
_FIELDS = {
    "notify": Subscription,
    "jobs": JobSpec,
    "inputs": Input,
    "outputs": Output,
    "resources": Resources,
}


class _Envelope(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A submission whose jobs are still text, so that decoding them does not hold up other threads for long."""

    key: str
    campaign: str
    jobs: list[msgspec.Raw]
    repeat: list[int] | None = None
    owner: str = ""
    shares: float | None = None
    notify: list[Subscription] = []
    new: bool | msgspec.UnsetType = msgspec.UNSET


_DECODER = msgspec.json.Decoder(_Envelope)
_JOB_DECODER = msgspec.json.Decoder(JobSpec)


def decode(body: bytes, *, counted: bool = False) -> SubmitRequest:
    """The request. `counted`: its values were counted while they came. Raises RequestError with the nearest legal key
    for an unknown one."""
    if len(body) > REQUEST_BYTES_MAX:
        raise RequestError(f"request of {len(body)} bytes, at most {REQUEST_BYTES_MAX}")
    if not counted:
        BodyCount().feed(body)
    jobs: list[JobSpec] = []
    known: dict[bytes, JobSpec] = {}  # most submissions repeat few texts
    at = ""
    try:
        envelope = _DECODER.decode(body)
        if len(envelope.jobs) > SUBMIT_JOBS_MAX:
            raise RequestError(
                f"{len(envelope.jobs)} jobs in one request, at most {SUBMIT_JOBS_MAX}",
                hint="send several requests",
            )
        for index, raw in enumerate(envelope.jobs):
            text = bytes(raw)
            spec = known.get(text)
            if spec is None:
                at = f".jobs[{index}]"
                spec = known[text] = _JOB_DECODER.decode(text)
            jobs.append(spec)
    except UNDECODABLE as error:
        message = (
            str(error).replace("`$", f"`${at}") if "`$" in str(error) else f"{error}{at and f' - at `${at}`'}"
        )
        top = JobSpec if at else SubmitRequest
        raise RequestError(f"submit cannot be read: {message}", hint=hint(message, top)) from error
    return SubmitRequest(
        key=envelope.key, campaign=envelope.campaign, jobs=jobs, repeat=envelope.repeat, owner=envelope.owner,
        shares=envelope.shares, notify=envelope.notify, new=envelope.new,
    )  # fmt: skip


def decode_as(body: bytes, kind: type[S]) -> S:
    """A request of another kind. Raises RequestError as `decode`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except UNDECODABLE as error:
        raise RequestError(f"{kind.__name__} cannot be read: {error}", hint=hint(str(error), kind)) from error


def hint(message: str, top: type[msgspec.Struct]) -> str | None:
    """For msgspec's error about an unknown field: the nearest field of the record that holds it."""
    match = re.search(r"unknown field `([^`]*)`", message)
    if match is None:
        return None
    at = re.search(r"at `\$([^`]*)`", message)
    names = re.findall(r"\.(\w+)", at[1]) if at else []
    record = next((_FIELDS[name] for name in reversed(names) if name in _FIELDS), top)
    return did_you_mean(match[1], record.__struct_fields__)


class SharedSpec(NamedTuple):
    """What jobs of a submission share. `first`: the first of them, None = the only job of the request; `body`: without
    name, priority and events."""

    spec: JobSpec
    first: int | None
    body: bytes
    hash: bytes


class PreparedSubmit(NamedTuple):
    """A request that is legal as far as can be checked without the database. `which`: each job's entry in `shared`."""

    request: SubmitRequest
    digest: bytes
    repeat: list[int]
    shared: list[SharedSpec]
    which: list[int]

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return sum(self.repeat)


def prepare(request: SubmitRequest) -> PreparedSubmit:
    """Check a request and work out what is stored of it, ahead of the writer. Raises RequestError."""
    if not request.key or len(request.key) > KEY_MAX or "\0" in request.key:
        raise RequestError(f"key `{request.key[:50]}` is empty or longer than {KEY_MAX}")
    repeat = _check(request)
    head, _, rest = _content(msgspec.structs.replace(request, jobs=[])).partition(b'"jobs":[]')
    texts: list[bytes] = []
    known: dict[bytes, int] = {}
    same: dict[int, tuple[bytes, int]] = {}  # by identity: `decode` makes one record of equal texts
    shared: list[SharedSpec] = []
    which: list[int] = []
    for index, spec in enumerate(request.jobs):
        found = same.get(id(spec))
        if found is None:
            text = _ENCODER.encode(spec)
            found = same[id(spec)] = (text, _shared(shared, known, spec, (_place(request, index), text)))
        texts.append(found[0])
        which.append(found[1])
    digest = hashlib.sha256(head + b'"jobs":[')
    digest.update(b",".join(texts))
    digest.update(b"]" + rest)
    return PreparedSubmit(request, digest.digest(), repeat, shared, which)


def _shared(
    shared: list[SharedSpec], known: dict[bytes, int], spec: JobSpec, job: tuple[int | None, bytes]
) -> int:
    """The place in `shared` of what a job shares with others. `job`: its index (None = the only one) and its text.
    Raises RequestError."""
    index, body = job
    if spec.name is not None or spec.priority != 0 or spec.events != 1:
        check_row(spec, index)
        body = _ENCODER.encode(msgspec.structs.replace(spec, name=None, priority=0, events=1))
    number = known.get(body)
    if number is None:
        check_spec(spec, index)
        if len(body) > SPEC_BYTES_MAX:
            raise RequestError(f"{called(index)} has {len(body)} bytes, at most {SPEC_BYTES_MAX}")
        number = known[body] = len(shared)
        shared.append(SharedSpec(spec, index, body, hashlib.sha256(body).digest()[:16]))
    return number


class SubmitLimits(NamedTuple):
    """What a submitter may have (None = all that there is room for), and what there is room for."""

    quotas: Quotas | None
    storage: Storage


def submit(
    work: UnitOfWork,
    submission: PreparedSubmit,
    *,
    half_life_s: float,
    limits: SubmitLimits | None = None,
    own: str | None = None,
) -> SubmitReply:
    """Insert the jobs, which may come after `own`'s jobs only; None = after any owner's.

    Raises RequestError, QuotaError, RoomError, or ConflictError when the owner has used the key for other content.
    """
    request = submission.request
    owner = request.owner
    known = work.session.rows("submit_by_key", owner=owner, key=request.key)
    if known:
        old, campaign, first, count = known[0]
        if bytes(old) != submission.digest:
            raise ConflictError(
                f"key `{request.key}` was used for other content, in campaign `{campaign}`",
                hint="a new submission needs a new key",
            )
        return SubmitReply(campaign=campaign, owner=owner, first_job=first, count=count, repeated=True)
    _check_offered(work, submission.shared)
    if limits is not None:
        _check_limits(work, submission, limits)
    count = submission.jobs
    plan = _Plan(work, submission, _campaign(work, request, half_life_s), own=own)
    first = take_numbers(work.session, "next_job", count)
    plan.insert(first)
    work.session.run(
        "insert_submit",
        owner=owner,
        key=request.key,
        digest=submission.digest,
        campaign=request.campaign,
        first_job=first,
        count=count,
        now_us=work.now_us,
    )
    tables.subscribe(work, plan.campaign, request)
    ending.pass_on(work)
    work.flush()
    site_records.keep_sites(work)
    return SubmitReply(campaign=request.campaign, owner=owner, first_job=first, count=count, repeated=False)


def _check_limits(work: UnitOfWork, submission: PreparedSubmit, limits: SubmitLimits) -> None:
    """Raises QuotaError, RoomError. A submission may be of several requests, so an error speaks of this one."""
    try:
        limits.storage.check_free()
        if limits.quotas is not None:
            _check_quotas(work, submission, limits.quotas, limits.storage)
    except (QuotaError, RoomError) as error:
        raise type(error)(
            f"nothing of this request was submitted: {error.message}", hint=error.hint
        ) from error


def _check_quotas(work: UnitOfWork, submission: PreparedSubmit, quotas: Quotas, storage: Storage) -> None:
    request = submission.request
    known = row(work.session, "campaign_by_name", name=request.campaign, owner=request.owner)
    campaign = int(known.id) if known is not None else 0
    wanted = quota.QuotaDemand(
        request.owner, campaign, submission.jobs,
        spec_bytes=sum(len(each.body) for each in submission.shared),
        kinds=list({kind_key(campaign, each.spec, home=_home_id(work, each.spec)): None for each in submission.shared}),
        sites={name for each in submission.shared if (name := place_of(each.spec))},
    )  # fmt: skip
    quota.check(work, wanted, quotas, storage)


def place_of(spec: JobSpec) -> str:
    """The site that a job names: the only one, or its home; empty = none."""
    return spec.site or spec.home or ""


def _home_id(work: UnitOfWork, spec: JobSpec) -> int:
    """The number of the home; 0 = none, -1 = a site not seen before."""
    return work.memory.site_ids.get(spec.home, -1) if spec.home else 0


def kind_key(campaign: int, spec: JobSpec, *, home: int = 0, data: str = "") -> KindKey:
    """What makes the kind of a job. `home`: the number of its home; `data`: its datasets as text."""
    need = spec.resources
    devices = {name: number for name, number in sorted((need.devices or {}).items()) if number}
    text = _ENCODER.encode(devices).decode()
    nodes, ranks = need.width or (0, 0)
    # what does not fit a site's slots once it has grown is not begun there
    memory_mb = need.largest.memory_mb or 0
    return campaign, spec.app or "", need.cores or 0, memory_mb, text, nodes, ranks, home, data


def _check_offered(work: UnitOfWork, specs: list[SharedSpec]) -> None:
    """Raise RequestError for parameters and inputs that no site takes, as far as they can be checked in
    CHECKING_S_MAX: each site checks its own again."""
    end_s = clock.monotonic_s() + CHECKING_S_MAX
    for each in specs:
        if clock.monotonic_s() > end_s:
            return
        _refuse(_offered_fault(work, each.spec), each.first)


def _offered_fault(work: UnitOfWork, spec: JobSpec) -> legal.Fault | None:
    """Why no site takes the parameters and inputs, of those that offer the application; None = one does, or none
    offers it."""
    if spec.app is None:
        return None
    sites = work.memory.sites.values()
    offers = [site.offers.get(spec.app) for site in sites if spec.site is None or site.name == spec.site]
    names = [each.name for each in spec.inputs]
    faults = [
        parameters_fault(offer.parameters, spec.params) or inputs_fault(spec.app, offer.inputs, names)
        for offer in offers
        if offer is not None
    ]
    return faults[0] if faults and None not in faults else None


def _content(request: SubmitRequest) -> bytes:
    """What a key stands for. Without addressees it is the same as before there were any: old keys stay good."""
    body = _ENCODER.encode(request)
    return body if request.notify else body.replace(b',"notify":[]', b"", 1)


def keep_submitter(work: UnitOfWork, reply: SubmitReply, identity: Identity) -> None:
    """Remember whose credential a submission came with: its name and serial number."""
    work.session.run(
        "set_submitter",
        first_job=reply.first_job,
        subject=clean(identity.subject),
        credential=clean(identity.credential),
        remark=reply.remark,
    )


def events_of(request: SubmitRequest) -> int:
    """How many events a submission has."""
    repeat = request.repeat or [1] * len(request.jobs)
    return sum(spec.events * times for spec, times in zip(request.jobs, repeat, strict=True))


def apps_of(request: SubmitRequest) -> list[str]:
    """The applications of a submission, by name; a command of the submitter's own is `command`."""
    return sorted({spec.app or "command" for spec in request.jobs})[:APPS_TOLD]


def _check(request: SubmitRequest) -> list[int]:
    if not _NAME.fullmatch(request.campaign):
        raise RequestError(
            f"`{request.campaign[:100]}` is not a valid name of a campaign",
            hint="letters, digits and `._+-`, at most 100",
        )
    repeat = [1] * len(request.jobs) if request.repeat is None else request.repeat
    if len(repeat) != len(request.jobs):
        raise RequestError(f"`repeat` has {len(repeat)} numbers for {len(request.jobs)} jobs")
    if not request.jobs or min(repeat) < 1:
        raise RequestError(
            "there is nothing to submit", hint="give at least one job, and a repeat of at least 1 for each"
        )
    if sum(repeat) > SUBMIT_JOBS_MAX:
        raise RequestError(
            f"{sum(repeat)} jobs in one request, at most {SUBMIT_JOBS_MAX}", hint="send several requests"
        )
    if request.shares is not None and not 0 < request.shares <= SHARES_MAX:
        raise RequestError(f"`shares` is {request.shares}, legal is more than 0 and at most {SHARES_MAX:.0f}")
    if len(request.owner) > KEY_MAX or "\0" in request.owner:
        raise RequestError(f"`owner` is longer than {KEY_MAX}")
    return repeat


def _campaign(work: UnitOfWork, request: SubmitRequest, half_life_s: float) -> tuple[int, int, float]:
    """Number, events so far and shares. A campaign with nothing open starts where the others of its owner stand, and
    an owner with nothing open where the other owners do."""
    owner = request.owner
    known = row(work.session, "campaign_by_name", name=request.campaign, owner=owner)
    opened = set(work.memory.open.campaigns)
    _check_name(work, request, known)
    if known is not None and request.new:
        raise ConflictError(
            f"campaign `{request.campaign}` exists, and this submission is to begin a new one",
            hint=f"`tidemill run --resume {request.campaign}` goes on with it; another name starts a new one",
        )
    if known is not None:
        work.memory.add_owner(known.id, owner)
    kept_shares = 1.0 if known is None else known.shares
    shares = float(kept_shares if request.shares is None else request.shares)
    accounts = work.session.rows("campaign_shares", ids=sorted(opened)) if opened else []
    _enter_owner(work, owner, {each.owner for each in accounts}, half_life_s)
    had = [_used(work, each, half_life_s) / each.shares for each in accounts if each.owner == owner]
    used = shares * min(had) if had and (known is None or known.id not in opened) else 0.0
    if known is None:
        number = int(value(
            work.session, "insert_campaign", name=request.campaign, owner=owner, shares=shares, now_us=work.now_us,
            used=used,
        ))  # fmt: skip
        work.memory.add_owner(number, owner)
        return number, 0, shares
    if used:
        (own,) = work.session.rows("campaign_shares", ids=[known.id])
        most = max(_used(work, own, half_life_s), used)
        work.session.many("set_used", [(known.id, most, max(own.used_at_us, work.now_us))])
    return int(known.id), int(known.events), shares


def _used(work: UnitOfWork, account: Row, half_life_s: float) -> float:
    """What a campaign has had until now. `account`: a row of `campaign_shares`."""
    return decayed(
        account.used_core_s, since_us=account.used_at_us, now_us=work.now_us, half_life_s=half_life_s
    )


def _check_name(work: UnitOfWork, request: SubmitRequest, known: Row | None) -> None:
    """Raise ConflictError for a campaign that is in the archive, or on its way there. `known`: what is stored of it."""
    if known is not None and known.batch:
        raise lookup.name_taken(request.campaign, known.last_ended_us)
    kept = (
        None if known is not None else campaign_names.look_up(work.session, request.campaign, request.owner)
    )
    place = None if kept is None else lookup.place_of_campaign(work.session, kept.number)
    if place is not None:
        raise lookup.name_taken(request.campaign, place.ended_us)


def _enter_owner(work: UnitOfWork, owner: str, opened: set[str], half_life_s: float) -> None:
    """The owner has an account, which starts where those of the owners with open jobs stand."""
    if owner in opened:
        return
    work.session.run("insert_owner", name=owner)
    accounts = leasing.owner_accounts(work, {owner, *opened}, half_life_s)
    mine = accounts.pop(owner)
    used = mine.shares * min((each.had for each in accounts.values()), default=0.0)
    if used > mine.used_core_s:
        work.session.many("set_owner_used", [(owner, used, work.now_us)])


class _Plan:
    """Rows for one request; what jobs share is worked out once per distinct spec."""

    def __init__(
        self,
        work: UnitOfWork,
        submission: PreparedSubmit,
        campaign: tuple[int, int, float],
        *,
        own: str | None,
    ) -> None:
        self._work, self._submission, self._request, self._own = work, submission, submission.request, own
        self.campaign, self._events, self._shares = campaign
        self._after: dict[tuple[object, ...], tuple[list[tuple[int, int, int]], str]] = {}
        self._needs: dict[tuple[str, ...], list[int]] = {}
        self._is_new = campaign[1] == 0
        self._specs = SpecNumbers(work, len(submission.shared))
        self._data_kinds: int | None = None  #: of the campaign
        self._open_data_kinds = 0  #: of its owner

    def insert(self, first: int) -> None:
        """Insert the jobs from number `first` on."""
        work, request = self._work, self._request
        offset = campaign_offset(request.campaign)
        rows: list[tuple[object, ...]] = []
        deps: list[tuple[int, int, int, int]] = []
        dead: list[tuple[int, str]] = []
        needs: list[tuple[int, int]] = []
        counts: dict[tuple[int, int, int], int] = defaultdict(int)
        number, events, now_us = first, self._events, work.now_us
        placed = [self._place(each) for each in self._submission.shared]
        places = (placed[each] for each in self._submission.which)
        for index, (spec, times, place) in enumerate(
            zip(request.jobs, self._submission.repeat, places, strict=True)
        ):
            kind, spec_id, pin = place
            waits, why = self._waits(spec, index, first) if spec.after or spec.inputs else ([], "")
            needed = self._needed(spec) if spec.inputs else []
            name = spec.name or ""
            if not name and spec.command:
                name = legal.name_of(spec.command[0].rpartition("/")[2])
            for _ in range(times):
                rows.append(
                    (
                        number, kind, spec_id, WAITING, pin, pin, pin, int(not waits), -spec.priority, spec.events,
                        offset + events, now_us, None, "", name, len(waits),
                    )
                )  # fmt: skip
                if waits:
                    deps += [(number, *each) for each in waits]
                if why:
                    dead.append((number, why))
                needs += [(campaign, number) for campaign in needed]
                number += 1
                events += spec.events
            counts[(kind, WAITING, pin)] += times
        if events > CAMPAIGN_EVENTS_MAX:
            raise RequestError(
                f"campaign `{request.campaign}` would have {events} events, at most {CAMPAIGN_EVENTS_MAX}",
                hint="seeds are unique within a campaign only up to that number: start another campaign",
            )
        self._write(rows, deps, counts, events)
        work.session.many("insert_needs", needs)
        work.load(each for each, _ in dead)
        for each, why in dead:
            ending.fail(work, work.jobs[each], why)

    def _write(
        self,
        rows: list[tuple[object, ...]],
        deps: list[tuple[int, int, int, int]],
        counts: dict[tuple[int, int, int], int],
        events: int,
    ) -> None:
        session = self._work.session
        session.many("insert_specs", self._specs.fresh)
        session.many("insert_jobs", rows)
        if deps:
            session.many("insert_deps", deps)
            self._work.memory.waited_for = True
        for key, number in counts.items():
            self._work.count(*key, number)
        size_bytes = quota.stored_bytes(len(rows), sum(len(body) for _, _, body in self._specs.fresh))
        session.run("add_stored", owner=self._work.memory.owners[self.campaign], bytes=size_bytes)
        session.run(
            "grow_campaign",
            id=self.campaign,
            jobs=len(rows),
            events=events - self._events,
            shares=self._shares,
        )
        self._work.grow(self.campaign, jobs=len(rows), events=events - self._events, is_new=self._is_new)

    def _place(self, shared: SharedSpec) -> tuple[int, int, int]:
        """Kind, stored spec and pin of the jobs that share a spec."""
        work, spec = self._work, shared.spec
        pin, name = 0, place_of(spec)
        if name:
            pin = site_records.site_id(work, name, named_by=self._request.owner)
        return self._kind(spec, home=pin if spec.home else 0), self._spec(shared), pin

    def _kind(self, spec: JobSpec, *, home: int) -> int:
        work = self._work
        key = kind_key(self.campaign, spec, home=home)
        datasets = datasets_of(spec.inputs) if spec.inputs else []
        if datasets:
            key = self._by_data(key, datasets)
        return kind_number(work, key)

    def _by_data(self, key: KindKey, datasets: list[str]) -> KindKey:
        """The key of a kind with its data: as far as the campaign and its owner have not too many such kinds."""
        memory, session = self._work.memory, self._work.session
        origins = sorted({origin_of(each) for each in datasets})
        for places, most in ((datasets, DATA_KINDS_MAX), (origins, ORIGIN_KINDS_MAX)):
            found: KindKey = (*key[:-1], _ENCODER.encode(places).decode())
            if found in memory.kind_ids:
                return found
            if self._data_kinds is None:
                self._data_kinds = int(value(session, "data_kinds_in", campaign=self.campaign))
                owner = memory.owners[self.campaign]
                self._open_data_kinds = sum(
                    bool(each.data) and memory.owners.get(each.campaign) == owner
                    for each in memory.kinds.values()
                )
            if session.rows("kind_by_key", **dict(zip(KIND_COLUMNS, found, strict=True))):
                return found
            if self._data_kinds < most and self._open_data_kinds < OWNER_DATA_KINDS_MAX:
                self._data_kinds += 1
                self._open_data_kinds += 1
                return found
        return key

    def _spec(self, shared: SharedSpec) -> int:
        owner = self._work.memory.owners[self.campaign]
        return self._specs.number(owner, body=shared.body, digest=shared.hash)

    def _needed(self, spec: JobSpec) -> list[int]:
        """Campaigns whose delivered files the job needs: they stay in the database until it has ended."""
        urls = tuple(each.url for each in spec.inputs)
        result = self._needs.get(urls)
        if result is None:
            jobs = sorted(input_jobs(spec))
            result = values(self._work.session, "campaign_of_jobs", ids=jobs) if jobs else []
            self._needs[urls] = result
        return result

    def _waits(self, spec: JobSpec, index: int, first: int) -> tuple[list[tuple[int, int, int]], str]:
        """What the job waits for as (job, campaign, upto), and why it fails at once, if it does. Its own campaign
        stands for the jobs of earlier requests."""
        at = _place(self._request, index)
        if self._is_new and self._request.campaign in spec.after:
            raise RequestError(
                f"{called(at)} comes after its own campaign `{self._request.campaign}`, which has no earlier job",
                hint='in a job file, `after` takes the `name` of another job: `after = ["NAME"]`; else submit the '
                "earlier job first, and write its number",
            )
        key = (tuple(spec.after), spec.after_any, tuple(each.url for each in spec.inputs))
        result = self._after.get(key)
        if result is None:
            result = self._after[key] = resolve_after(
                self._work, spec, called(at), upto=first - 1, whose=Whose(self._request.owner, self._own)
            )
        return result


class Whose(NamedTuple):
    """Whose job comes after others. `owner`: of the job, whose campaigns come before others of the same name; `own`:
    only jobs of this owner exist, None = those of all."""

    owner: str
    own: str | None = None


def resolve_after(
    work: UnitOfWork,
    spec: JobSpec,
    where: str,
    *,
    upto: int,
    whose: Whose,
) -> tuple[list[tuple[int, int, int]], str]:
    """What a job still waits for; why it cannot run, if what it comes after has failed. Raises RequestError where that
    does not exist. An input `job:ID/NAME` is what another job delivered. `where`: what messages call the job."""
    inputs = input_jobs(spec)
    jobs = {each for each in spec.after if isinstance(each, int)} | inputs
    waits, whys = _after_jobs(work, sorted(jobs), _Asked(where, inputs, any_end=spec.after_any), whose.own)
    for name in dict.fromkeys(each for each in spec.after if isinstance(each, str)):
        more, why = _after_campaign(work, _campaign_after(work, name, where, whose), upto)
        waits += more
        whys += why
    return ([], whys[0]) if whys and not spec.after_any else (waits, "")


def _campaign_after(work: UnitOfWork, name: str, where: str, whose: Whose) -> CampaignKey:
    """The campaign that a job comes after. Raises RequestError."""
    key = campaign_names.look_up(work.session, name, whose.owner)
    if key is None and whose.own is None:
        key = campaign_names.look_up(work.session, name, None)
    if key is None:
        raise RequestError(
            f"{where} comes after campaign `{name}`, which does not exist",
            hint="submit that first",
            of_another=whose.own is not None and parse_reference(name).owner not in (None, whose.own),
        )
    return key


def input_jobs(spec: JobSpec) -> set[int]:
    """The jobs whose outputs are inputs of this one."""
    named = (job_input(each.url) for each in spec.inputs)
    return {each[0] for each in named if each is not None}


class _Asked(NamedTuple):
    """What a job comes after. `inputs`: jobs of which it needs files; `any_end`: others may have ended in any way."""

    where: str
    inputs: set[int]
    any_end: bool


def _after_jobs(
    work: UnitOfWork, jobs: list[int], asked: _Asked, own: str | None
) -> tuple[list[tuple[int, int, int]], list[str]]:
    where, inputs = asked.where, asked.inputs
    rows = work.session.rows("states_by_id", ids=jobs) if jobs else []
    stored = {row.id for row in rows}
    owners = rights.owners_of(work.session, jobs) if own is not None or stored != set(jobs) else {}
    mine = stored | owners.keys() if own is None else {job for job, owner in owners.items() if owner == own}
    missing = set(jobs) - mine
    if missing:
        raise RequestError(
            f"{where} comes after job {min(missing)}, which does not exist", of_another=min(missing) in owners
        )
    lookup.check_inputs(work.session, sorted(inputs & stored), where)
    for archived in sorted(set(jobs) - stored):
        lookup.check_after(
            work.session, archived, where, needs_files=archived in inputs, any_end=asked.any_end
        )
    ends = [_end_of(work, *row) for row in sorted(rows)]
    waits = [(number, 0, 0) for number, state, _ in ends if state <= RUNNING]
    whys = [
        f"job {number}, which it comes after, has failed" + (f": {reason}" if reason else "")
        for number, state, reason in ends
        if state in (FAILED, CANCELED)
    ]
    return waits, whys


def _end_of(work: UnitOfWork, number: int, state: int, reason: str) -> tuple[int, int, str]:
    """Number, state and reason of a stored job, as they will be after this transaction."""
    job = work.jobs.get(number)
    return (number, state, reason) if job is None else (number, job.state, job.reason)


def _after_campaign(
    work: UnitOfWork, key: CampaignKey, upto: int
) -> tuple[list[tuple[int, int, int]], list[str]]:
    name = key.name
    if key.is_archived:
        bad_jobs = lookup.bad_of_campaign(work.session, key.number)
        why = f"{bad_jobs} jobs of campaign `{name}`, which it comes after, have failed or were canceled"
        return [], [why] if bad_jobs else []
    campaign = key.number
    still = ending.oldest(work, campaign, (WAITING, RUNNING))
    if still is not None and still <= upto:
        return [(0, campaign, upto)], []
    bad = ending.oldest(work, campaign, (FAILED, CANCELED))
    if bad is not None and bad <= upto:
        return [], [f"job {bad} of campaign `{name}`, which it comes after, has failed or was canceled"]
    return [], []


def _place(request: SubmitRequest, index: int) -> int | None:
    """The index of a job for messages; None = the only one of its request."""
    return index if len(request.jobs) > 1 else None


def called(index: int | None) -> str:
    """A job of a request in messages; None = its only one."""
    return "the job" if index is None else f"job {index} of the request"


def check_row(spec: JobSpec, index: int | None) -> None:
    """What differs between jobs that share a spec. Raises RequestError."""
    _refuse(legal.row_fault(spec), index)


def check_spec(spec: JobSpec, index: int | None) -> None:
    """What the server can check without knowing the application. Raises RequestError."""
    _refuse(legal.spec_fault(spec), index)
    for each in spec.inputs:
        try:
            job_input(each.url)
        except ValueError as error:
            raise RequestError(f"{called(index)}: input `{each.name}`: {error}") from error


def _refuse(fault: legal.Fault | None, index: int | None) -> None:
    if fault is not None:
        raise RequestError(f"{called(index)}: {fault.text}", hint=fault.hint)
