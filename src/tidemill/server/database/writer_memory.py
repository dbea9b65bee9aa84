"""What the writer remembers between transactions, and how one request's part of it is undone.

Bounded by what is open: kinds are here while jobs of theirs have not ended, and numbers of jobs are counted for these
states only. A request that is refused is undone alone, at the cost of what it changed.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidemill.config.hospital import Ward
from tidemill.model.job import JobSpec
from tidemill.server.database.parsed_sets import ParsedSets
from tidemill.server.database.rows import (
    RUNNING,
    JobKind,
    KindKey,
    Site,
    StoredJob,
    StoredLease,
    key_of,
)
from tidemill.server.database.store import Session

CountKey = tuple[int, int, int]
"""Kind, state and site."""


class OpenWork(NamedTuple):
    """What owners have that has not ended."""

    jobs: int
    kinds: int


class OpenJobs:
    """Numbers of jobs that have not ended, by kind, state and site, and their sums by campaign."""

    def __init__(self) -> None:
        self.of_kind: dict[int, dict[tuple[int, int], int]] = {}
        self._alike: Counter[KindKey] = (
            Counter()
        )  #: kinds that differ in the data that they read only, as one
        self._sums: dict[int, tuple[int, int]] = {}  #: jobs and kinds by campaign

    @property
    def campaigns(self) -> Iterable[int]:
        """Numbers of the campaigns with jobs that have not ended."""
        return self._sums.keys()

    def is_open(self, key: KindKey) -> bool:
        """Whether jobs of a kind have not ended, whatever data they read (see `alike`)."""
        return key in self._alike

    def work_of(self, campaigns: Iterable[int]) -> OpenWork:
        """Sums over campaigns."""
        found = [self._sums[each] for each in campaigns if each in self._sums]
        return OpenWork(sum(jobs for jobs, _ in found), sum(kinds for _, kinds in found))

    def change(self, kind: JobKind, state: int, site: int, jobs: int) -> None:
        """Count jobs in, or out (less than 0). States of jobs that have ended are not counted."""
        if state > RUNNING or not jobs:
            return
        of_kind = self.of_kind.get(kind.id)
        total, kinds = self._sums.get(kind.campaign, (0, 0))
        if of_kind is None:
            of_kind = self.of_kind[kind.id] = {}
            kinds += self._differs(kind, 1)
        number = of_kind.get((state, site), 0) + jobs
        if number:
            of_kind[(state, site)] = number
        else:
            del of_kind[(state, site)]
        if not of_kind:
            del self.of_kind[kind.id]
            kinds -= self._differs(kind, -1)
        if kinds:
            self._sums[kind.campaign] = (total + jobs, kinds)
        else:
            self._sums.pop(kind.campaign, None)

    def _differs(self, kind: JobKind, change: int) -> int:
        """1 if no other open kind is like this one but for the data that its jobs read: for quotas they are one."""
        key = alike(key_of(kind))
        self._alike[key] += change
        left = self._alike[key]
        if not left:
            del self._alike[key]
        return int(left == (1 if change > 0 else 0))


def alike(key: KindKey) -> KindKey:
    """The key of a kind without the data that its jobs read."""
    return (*key[:-1], "")


class _Changes(msgspec.Struct):
    """What one request changed, so that it can be undone. `sites`: as they were before."""

    sites: dict[int, Site]
    waited_for: bool | None
    counts: list[tuple[JobKind, int, int, int]] = []
    kinds: list[int] = []
    specs: list[tuple[bytes, int]] = []
    held: list[int] = []
    owners: list[int] = []


class PassedKinds(msgspec.Struct):
    """Kinds of jobs that a site's breakers hold back as a whole: until when they are not read. `mark`: the breakers."""

    mark: tuple[tuple[str | int, ...], ...] = ()
    until_us: dict[int, int] = {}


class WriterMemory:
    """What the writer remembers between transactions. `begin` a request; `undo` it or go on; `settle` at the commit."""

    def __init__(self, ward_rules: Sequence[Ward] = ()) -> None:
        self.ward_rules = ward_rules  #: of server.toml
        self.wards: dict[int, Ward] = {}  #: by their numbers, in the order of server.toml
        self.occupied: dict[int, set[int]] = {}  #: wards in which jobs of a kind may wait
        self.data_passed: dict[int, dict[int, int]] = {}  #: by site: until when kinds are not read
        self.sites: dict[int, Site] = {}
        self.site_ids: dict[str, int] = {}
        self.kinds: dict[
            int, JobKind
        ] = {}  #: those with open jobs, and those that this transaction looked up
        self.kind_ids: dict[KindKey, int] = {}
        self.owners: dict[int, str] = {}  #: of the campaigns with open jobs
        self.open = OpenJobs()
        self.specs: dict[int, JobSpec] = {}
        self.spec_ids: dict[bytes, int] = {}
        self.waited_for: bool | None = None  #: whether any job waits for another; None = look
        #: jobs of one event and their only lease, exactly as they are stored; to use one, take it out
        self.held: dict[int, tuple[StoredJob, StoredLease]] = {}
        self.passed: dict[int, PassedKinds] = {}  #: by site
        self.parsed = ParsedSets()
        self.is_loaded = False
        self._idle: set[int] = set()  #: kinds that may have no open jobs
        self._changes = _Changes({}, None)

    def load(self, session: Session) -> None:
        """Read sites and what is open, unless they are here already."""
        if self.is_loaded:
            return
        for stored in session.rows("open_kinds"):
            self._keep_kind(stored.kind)
        for kind, state, site, jobs in session.rows("open_counts"):
            self.open.change(self.kinds[kind], state, site, jobs)
        campaigns = sorted({kind.campaign for kind in self.kinds.values()})
        for row in session.rows("campaign_owners", ids=campaigns) if campaigns else ():
            self.owners[row.id] = row.owner
        for row in session.rows("sites"):
            site = row.site
            self.sites[site.id] = site
            self.site_ids[site.name] = site.id
        for number, until_us, reason in session.rows("down_sites"):
            if number in self.sites:
                self.sites[number].down_us, self.sites[number].down_reason = until_us, reason
        self._load_wards(session)
        self.is_loaded = True

    def _load_wards(self, session: Session) -> None:
        homed = [kind.id for kind in self.kinds.values() if kind.home_site]
        if not homed and not self.ward_rules:
            return
        numbers: dict[str, int] = {name: number for number, name in session.rows("wards")}
        self.wards = {numbers[each.name]: each for each in self.ward_rules if each.name in numbers}
        for kind in homed if numbers else ():
            for (place,) in session.rows("wards_of_kind", kind=kind):
                self.occupy(kind, -place)

    # ---- one request -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note what is to be restored if the request that starts now is refused."""
        sites = {number: copy.copy(site) for number, site in self.sites.items()}
        self._changes = _Changes(sites, self.waited_for)

    def undo(self) -> None:
        """Forget what the request changed. Jobs that it took out of `held` are read again when they are needed."""
        changes = self._changes
        for kind, state, site, jobs in reversed(changes.counts):
            self.open.change(kind, state, site, -jobs)
        for number in changes.kinds:
            self._drop_kind(number)
        for digest, number in changes.specs:
            self.spec_ids.pop(digest, None)
            self.specs.pop(number, None)
        for number in changes.held:
            self.held.pop(number, None)
        for number in changes.owners:
            self.owners.pop(number, None)
        if len(changes.sites) != len(self.sites):
            self.site_ids = {site.name: site.id for site in changes.sites.values()}
        self.sites, self.waited_for = changes.sites, changes.waited_for
        self._changes = _Changes({}, self.waited_for)

    def settle(self) -> None:
        """The transaction is committed: drop the kinds without open jobs, and what was noted for an undo."""
        self._changes = _Changes({}, self.waited_for)
        idle, self._idle = self._idle, set()
        for number in idle:
            if number not in self.open.of_kind:
                self._drop_kind(number)
        if len(self.owners) > 2 * len(self.kinds) + 100:
            still = set(self.open.campaigns)
            self.owners = {number: owner for number, owner in self.owners.items() if number in still}

    # ---- what changes ----------------------------------------------------------------------------------------

    def count(self, changes: Mapping[CountKey, int]) -> None:
        """The counters of jobs have changed."""
        for (number, state, site), jobs in changes.items():
            if state <= RUNNING and jobs:
                kind = self.kinds[number]
                self.open.change(kind, state, site, jobs)
                self._changes.counts.append((kind, state, site, jobs))
                if number not in self.open.of_kind:
                    self._idle.add(number)

    def occupy(self, kind: int, ward: int) -> None:
        """Jobs of the kind may wait in the ward. After an undo this may not be so: a scan finds none."""
        self.occupied.setdefault(kind, set()).add(ward)

    def add_kind(self, kind: JobKind) -> None:
        """A new kind."""
        self._keep_kind(kind)
        self._changes.kinds.append(kind.id)
        self._idle.add(kind.id)

    def find_kinds(self, session: Session, numbers: Iterable[int]) -> None:
        """Have these kinds here until the transaction ends."""
        missing = sorted({each for each in numbers if each not in self.kinds})
        if missing:
            for stored in session.rows("kinds_by_id", ids=missing):
                self._keep_kind(stored.kind)
            self._idle.update(missing)
            campaigns = {self.kinds[each].campaign for each in missing if each in self.kinds}
            if unknown := sorted(
                campaigns - self.owners.keys()
            ):  # of a retry: they had no new submission since
                self.owners.update(
                    (row.id, row.owner) for row in session.rows("campaign_owners", ids=unknown)
                )

    def add_spec(self, digest: bytes, number: int) -> None:
        """A new specification."""
        self.spec_ids[digest] = number
        self._changes.specs.append((digest, number))

    def forget_spec(self, number: int, digest: bytes) -> None:
        """A specification was deleted: after an undo it is looked up again."""
        self.spec_ids.pop(digest, None)
        self.specs.pop(number, None)

    def add_owner(self, campaign: int, owner: str) -> None:
        """Whose campaign it is."""
        if campaign not in self.owners:
            self.owners[campaign] = owner
            self._changes.owners.append(campaign)

    def hold(self, pairs: Iterable[tuple[StoredJob, StoredLease]]) -> None:
        """Remember jobs with their only lease, as they are stored now."""
        for job, lease in pairs:
            self.held[job.id] = (job, lease)
            self._changes.held.append(job.id)

    def work_of(self, owner: str) -> OpenWork:
        """What an owner has that has not ended."""
        return self.open.work_of(each for each in self.open.campaigns if self.owners.get(each) == owner)

    def _keep_kind(self, kind: JobKind) -> None:
        self.kinds[kind.id] = kind
        self.kind_ids[key_of(kind)] = kind.id

    def _drop_kind(self, number: int) -> None:
        kind = self.kinds.pop(number, None)
        self.occupied.pop(number, None)
        if kind is not None:
            self.kind_ids.pop(key_of(kind), None)
