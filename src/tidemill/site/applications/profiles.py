"""SITE/profiles: what starts of applications cost file systems, from traces of payloads that came back in bundles.

One file per version of an application, `APP@VERSION.json`: the merged profile of all its traced payloads, with the
busiest paths. A pilot's note (topic `trace`) says whose index to read; besides that, those of a few pilots that did
something are read in turn, so that what it costs does not grow with nodes. Files are read in a helper's thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from urllib.parse import quote

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import UNDECODABLE, ConfigError, ProtocolError, SiteError, TidemillError, is_transient
from tidemill.files import read_bounded, write_durable
from tidemill.image.areas import is_below
from tidemill.image.profile import (
    CALLS,
    AreaFinder,
    Profile,
    RemoteReads,
    bounded,
    encode_profile,
    merge,
    parse_profile,
    per_run,
    read_profile,
)
from tidemill.log import Log
from tidemill.model.application import Application
from tidemill.node.bundle import IndexTail, bundles, member_of, read_member
from tidemill.node.fleet import work_files
from tidemill.site.applications.job_reads import JobReads
from tidemill.wire.api import AppOffer, StartCost
from tidemill.wire.node import IndexEntry, Noted, Program, Record, job_of

PATHS_MAX = 100_000
"""Paths that are kept of an application's version, the busiest: 10 MB. A scientific Python import has 3,000."""

VERSIONS_MAX = 500
"""Versions whose profiles are kept, those that changed last."""

SEARCH_S = 5.0
PILOTS_PER_LOOK = 8
"""Pilots whose indices are read in turn every SEARCH_S, without a note: less than two operations a second."""

ACTIVE_MAX = 10_000
NOTED_LOOKS_MAX = 24
"""A profile that was noted should be in the index two minutes later: bundles are flushed every 30 s."""

MEMBER_BYTES_MAX = 64 << 20
TAKEN = "taken"
TAKEN_BYTES_MAX = 16 << 20
TAKEN_S = 600.0
"""Without new profiles, the positions read in indices are saved at this interval; the next agent rereads the rest."""

CHANGE_MIN = 0.1
"""Fleets get a new cost when it has changed by this part."""

ADHOC = "command"
NOT_TRACED = "none"
"""The mode in a pilot's note where a payload was to be traced, and left no profile."""
_log = Log("profiles")


class Version(msgspec.Struct, frozen=True, order=True):
    """An application at one version."""

    app: str
    version: str

    @property
    def file_name(self) -> str:
        """The name of the version's profile."""
        return f"{quote(self.app, safe='')}@{quote(self.version, safe='')}.json"


class _Program(msgspec.Struct):
    program: int
    app: str
    version: str


class _Job(msgspec.Struct):
    job: int
    program: int


class _WorkFile(msgspec.Struct):
    """The part of a work file that says which program a job runs."""

    programs: list[_Program]
    jobs: list[_Job]


Pilot = tuple[str, str]
"""Name of a fleet, name of a pilot."""


class _Search(msgspec.Struct):
    """What a search is to do, and what came of it."""

    pilots: list[Pilot]
    areas: dict[str, list[str]]
    costs: dict[Version, StartCost] = {}
    found: set[Pilot] = set()  #: whose profiles were read
    reads: list[tuple[IndexEntry, str, list[RemoteReads], int]] = []
    #: payload, application, what it read, connections that were not counted


class Profiles:
    """The profiles of a site. `areas`: name of each area with a budget -> its prefixes."""

    def __init__(
        self, directory: Path, fleets: Path, areas: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.directory = directory
        self.areas: dict[str, list[str]] = {name: list(each) for name, each in (areas or {}).items()}
        self.reads = JobReads()
        self.has_read: Callable[[IndexEntry, int], None] | None = None  #: called for each payload: bytes
        self._fleets = fleets
        self._costs: dict[Version, StartCost | None] = {}
        self._marks: dict[Version, int] = {}
        self._has_news = False
        self._noted: dict[Pilot, int] = {}  #: -> searches in vain
        self._active: dict[Pilot, None] = {}
        self._refused: set[int | None] = set()
        self._under_way: Future[_Search] | None = None
        self._next_s = 0.0
        self._taken: dict[str, int] | None = None
        self._next_taken_s = clock.monotonic_s() + TAKEN_S

    # ---- what is known ----

    def cost(self, app: str, version: str) -> StartCost | None:
        """The mean cost of one start, None before anything was traced. Reads the profile's file once."""
        key = Version(app, version)
        if key not in self._costs:
            self._costs[key] = self._load(key)
        return self._costs[key]

    def start_ops(self, app: str, version: str) -> dict[str, int]:
        """Metadata operations of one start in each area with a budget; empty before anything was traced."""
        cost = self.cost(app, version)
        return {} if cost is None else dict(cost.areas)

    def start_bytes(self, app: str, version: str) -> dict[str, int]:
        """Bytes that one start reads at most in each such area; empty before anything was traced."""
        cost = self.cost(app, version)
        return {} if cost is None else dict(cost.bytes)

    def wants_first(self, app: str, version: str) -> bool:
        """Whether this version has no trace yet."""
        return app != ADHOC and self.cost(app, version) is None

    def outfit(self, program: Program, trace_every: int) -> Program:
        """The program with what its starts cost, and with orders to trace some of them. What of that images spare file
        systems is decided by `with_costs`."""
        return msgspec.structs.replace(
            program,
            trace_first=trace_every > 0 and self.wants_first(program.app, program.version),
            trace_every=max(0, trace_every),
            start_ops=self.start_ops(program.app, program.version),
            start_bytes=self.start_bytes(program.app, program.version),
        )

    def mark(self, app: str, version: str) -> int:
        """A number that changes whenever fleets should get a new cost."""
        return self._marks.get(Version(app, version), 0)

    def offers(self, offers: list[AppOffer]) -> list[AppOffer]:
        """The offers with what a start costs."""
        return [
            msgspec.structs.replace(offer, start=self.cost(offer.name, offer.version)) for offer in offers
        ]

    def take_news(self) -> bool:
        """Whether payloads were traced since this was asked last, even where their cost is the known one."""
        has_news, self._has_news = self._has_news, False
        return has_news

    # ---- the search in bundles ----

    def on_records(self, fleet: str, records: Iterable[Record]) -> None:
        """A pilot that notes a trace has a profile in its bundle; one that did something may have."""
        for record in records:
            if type(record) is Noted and record.topic == "trace":
                if record.mode == NOT_TRACED:
                    self._tell_refusal(record)
                else:
                    self._noted[fleet, record.p] = 0
            elif len(self._active) < ACTIVE_MAX:
                self._active[fleet, record.p] = None

    def step(self, executor: Executor) -> bool:
        """Search for profiles when it is due; whether a cost became known or has changed."""
        changed = self._apply_search()
        is_due = self._under_way is None and clock.monotonic_s() >= self._next_s
        if is_due and (self._noted or self._active):
            self._next_s = clock.monotonic_s() + SEARCH_S
            turn = [pilot for pilot, _ in zip(self._active, range(PILOTS_PER_LOOK), strict=False)]
            for pilot in turn:
                del self._active[pilot]
            pilots = list(dict.fromkeys([*self._noted, *turn]))
            self._under_way = executor.submit(self._search, _Search(pilots, dict(self.areas)))
        return changed

    def _tell_refusal(self, record: Noted) -> None:
        if record.program not in self._refused:
            self._refused.add(record.program)
            _log.warning("payload.not_traced", pilot=record.p, program=record.program, reason=record.message)

    def _apply_search(self) -> bool:
        if self._under_way is None or not self._under_way.done():
            return False
        done, self._under_way = self._under_way, None
        try:
            search = done.result()
        except TidemillError as error:
            _log.warning("profiles.unread", reason=error.message, hint=error.hint)
            return False
        for pilot, tries in list(self._noted.items()):
            self._noted[pilot] = tries + 1
            if pilot in search.found or tries >= NOTED_LOOKS_MAX:
                del self._noted[pilot]
        changed = False
        for key, cost in search.costs.items():
            known = self._costs.get(key)
            self._costs[key] = cost
            self._has_news = True
            if known is None or is_other(known, cost):
                self._marks[key] = self._marks.get(key, 0) + 1
                changed = True
                _log.info("profile.known", app=key.app, version=key.version, runs=cost.runs, ops=cost.ops)
        for entry, app, reads, missed in search.reads:
            self.reads.add(entry.job, app, reads)
            if self.has_read is not None and not missed:
                self.has_read(entry, sum(each.bytes for each in reads))
        return changed

    def _search(self, look: _Search) -> _Search:
        """In a helper's thread: read indices, merge the profiles that they name, write them."""
        taken = self._read_taken()
        found: dict[Version, list[Profile]] = {}
        for pilot, bundle in self._bundles_of(look.pilots):
            key = f"{pilot[0]}/{bundle.name}"
            tail = IndexTail(bundle, offset=taken.get(key, 0))
            try:
                profiles = self._read(self._fleets / pilot[0], bundle, tail)
            except SiteError as error:  # network file systems show it later
                _log.warning("profile.unreadable", bundle=str(bundle), reason=error.message)
                continue
            for version, profile, entry in profiles:
                look.found.add(pilot)
                if version is not None and profile is not None:
                    found.setdefault(version, []).append(profile)
                    if profile.reads:
                        look.reads.append((entry, version.app, profile.reads, profile.reads_missed))
            taken[key] = tail.offset
        for version, several in found.items():
            try:
                look.costs[version] = self._keep(version, several, look.areas)
            except SiteError as error:
                # What these runs cost is lost; a version of which none is kept is traced again
                _log.warning("profile.unkept", app=version.app, reason=error.message, hint=error.hint)
        if found or clock.monotonic_s() >= self._next_taken_s:
            try:
                self._write_taken()
            except SiteError as error:  # this agent knows it; for the next one these runs count twice
                _log.warning("profiles.taken_unwritten", reason=error.message, hint=error.hint)
        return look

    def _read(
        self, fleet: Path, bundle: Path, tail: IndexTail
    ) -> list[tuple[Version | None, Profile | None, IndexEntry]]:
        """The new profiles of a bundle; those without an application, or damaged, as None; and whose they are.
        Raises SiteError."""
        try:
            entries = [entry for entry in tail.read() if entry.kind == "profile" and entry.length]
        except ProtocolError as error:
            _log.warning("profile.damaged", bundle=str(bundle), reason=error.message)
            return []
        return [(*self._collect(fleet, bundle, entry), entry) for entry in entries]

    def _bundles_of(self, pilots: Iterable[Pilot]) -> list[tuple[Pilot, Path]]:
        wanted = set(pilots)
        return [
            (pilot, bundle)
            for fleet in sorted({fleet for fleet, _ in wanted})
            for bundle in bundles(self._fleets / fleet / "bundle")
            if (pilot := (fleet, _pilot_of(bundle))) in wanted
        ]

    def _collect(self, fleet: Path, bundle: Path, entry: IndexEntry) -> tuple[Version | None, Profile | None]:
        """The profile of an entry, and whose it is. Raises SiteError where it cannot be read yet."""
        version = None
        try:
            version = version_of(fleet, entry.job)
            if version is None or version.app == ADHOC:
                return None, None
            return version, self._content(version, bundle, entry)
        except (ConfigError, ProtocolError) as error:
            app = None if version is None else version.app
            _log.warning("profile.damaged", bundle=str(bundle), app=app, reason=error.message)
            return version, None

    def _content(self, version: Version, bundle: Path, entry: IndexEntry) -> Profile | None:
        """None where it was cut. Raises SiteError, ConfigError, ProtocolError."""
        source = f"{bundle} at {entry.offset}"
        if entry.truncated or entry.length > MEMBER_BYTES_MAX:
            _log.warning("profile.cut", source=source, app=version.app, bytes=entry.length)
            return None
        content = read_member(bundle.parent, member_of(bundle.name, entry))
        return parse_profile(content, source=source)

    def _keep(self, version: Version, profiles: list[Profile], areas: dict[str, list[str]]) -> StartCost:
        """Merge into the version's file. Raises SiteError."""
        path = self.directory / version.file_name
        if path.is_file():
            try:
                profiles = [read_profile(path), *profiles]
            except (ConfigError, SiteError) as error:
                if is_transient(error):
                    raise  # what is there is worth more than these runs
                _log.warning("profile.damaged", app=version.app, reason=error.message)
        merged = bounded(merge(profiles), PATHS_MAX)
        self._make_directory()
        is_new = not path.exists()
        write_durable(path, encode_profile(merged), mode=0o644)
        if is_new:
            self._forget_oldest()
        return cost_of(merged, areas)

    def _forget_oldest(self) -> None:
        """Keep the number of files bounded. Raises SiteError."""
        try:
            ages = sorted((file.stat().st_mtime_ns, file) for file in self.directory.glob("*@*.json"))
            for _, file in ages[:-VERSIONS_MAX]:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise SiteError(f"failed to clean `{self.directory}`: {error.strerror}") from error

    def _load(self, version: Version) -> StartCost | None:
        path = self.directory / version.file_name
        try:
            return cost_of(read_profile(path), self.areas) if path.is_file() else None
        except (ConfigError, SiteError, OSError) as error:
            _log.warning("profile.damaged", app=version.app, reason=str(error))
            return None

    def _read_taken(self) -> dict[str, int]:
        """How far each index was read, also by agents before."""
        if self._taken is None:
            self._make_directory()
            content = read_bounded(self.directory / TAKEN, TAKEN_BYTES_MAX)
            try:
                self._taken = msgspec.json.decode(content or b"{}", type=dict[str, int])
            except UNDECODABLE:
                self._taken = {}  # profiles of fleets that are still there count twice then: means stay what they are
        return self._taken

    def _write_taken(self) -> None:
        """Keep how far indices were read, of fleets that are still there. Raises SiteError."""
        self._next_taken_s = clock.monotonic_s() + TAKEN_S
        taken = self._read_taken()
        gone = {
            fleet for fleet in {key.partition("/")[0] for key in taken} if not (self._fleets / fleet).is_dir()
        }
        for key in [key for key in taken if key.partition("/")[0] in gone]:
            del taken[key]
        write_durable(self.directory / TAKEN, msgspec.json.encode(taken))

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise SiteError(f"failed to make `{self.directory}`: {error.strerror}") from error


class _CostSources(msgspec.Struct, frozen=True):
    """Where one kind of a start's costs may come from."""

    rates: dict[str, float | None]  #: the budget of each area
    traced: dict[str, int]
    stated: dict[str, int]  #: in the application's file

    def costs(self, covered: Collection[str]) -> dict[str, int]:
        """Per area, without those where it costs nothing; `covered`: payloads see these out of images."""
        costs: dict[str, int] = {}
        for area, rate in self.rates.items():
            traced = self.traced.get(area)
            known = self.stated.get(area) if traced is None else traced
            if rate is not None and known and area not in covered:
                costs[area] = known
        return costs


def with_costs(program: Program, config: SiteConfig, app: Application) -> Program:
    """The program with what its start costs each area with a budget, in operations and in bytes: as traced, else as its
    application file says, else nothing. What payloads see out of an image costs nothing. Programs that
    cost nothing are not paced."""
    shown = [area for use in program.images for area in use.areas]
    covered = [
        area.name
        for area in config.io
        if all(any(is_below(prefix, each) for each in shown) for prefix in area.prefixes)
    ]
    ops = _CostSources(
        {area.name: area.ops_per_s for area in config.io},
        program.start_ops,
        app.start_ops,
    )
    read = _CostSources(
        {area.name: area.bytes_per_s for area in config.io},
        program.start_bytes,
        app.start_bytes,
    )
    return msgspec.structs.replace(program, start_ops=ops.costs(covered), start_bytes=read.costs(covered))


def cost_of(profile: Profile, areas: Mapping[str, Sequence[str]]) -> StartCost:
    """What one run costs on average, in all and in each area; what a payload saw out of an image costs no area."""
    shown = [
        mount.point
        for mount in profile.mounts
        if mount.point != "/" and (mount.type == "overlay" or mount.type.startswith("fuse.squashfuse"))
    ]
    within = AreaFinder(shown)
    outside = [use for use in profile.paths if within.area_of(use.path) is None] if shown else profile.paths
    counts = per_run(
        msgspec.structs.replace(profile, paths=outside),
        [prefix for prefixes in areas.values() for prefix in prefixes],
    )
    runs, opens = profile.runs, CALLS["open"] & profile.ops.keys()
    is_sized = any(area.bytes_read is not None for area in profile.areas)
    sums = {
        name: [sum(column) for column in zip(*(counts[prefix] for prefix in prefixes), strict=True)]
        for name, prefixes in areas.items()
    }
    return StartCost(
        runs=runs,
        ops=-(-profile.ops_total // runs),
        failed=-(-profile.failed_total // runs),
        files=sum(area.files for area in profile.areas),
        areas={name: ops for name, (ops, _) in sums.items()},
        bytes={name: read for name, (_, read) in sums.items()} if is_sized else {},
        opens=-(-sum(profile.ops[name].ok for name in opens) // runs),
        opens_failed=-(-sum(profile.ops[name].failed for name in opens) // runs),
        closes=-(-profile.ops["close"].ok // runs) if "close" in profile.ops else None,
    )


def is_other(known: StartCost, cost: StartCost) -> bool:
    """Whether a cost differs by so much that fleets should hear of it."""
    pairs = [
        (known.ops, cost.ops),
        *((known.areas.get(name, 0), ops) for name, ops in cost.areas.items()),
        *((known.bytes.get(name, 0), read) for name, read in cost.bytes.items()),
    ]
    return any(abs(new - old) > CHANGE_MIN * max(old, 1) for old, new in pairs)


def version_of(fleet: Path, job: int) -> Version | None:
    """The application that a job of a fleet runs, from the fleet's work files. Raises SiteError,
    ProtocolError."""
    programs: dict[int, Version] = {}
    for file in work_files(fleet, _WorkFile):
        programs.update({each.program: Version(each.app, each.version) for each in file.programs})
        for each in file.jobs:
            if job_of(each.job) == job:
                return programs.get(each.program)
    return None


def _pilot_of(bundle: Path) -> str:
    """`A.r0.i1` of `A.r0.i1.tar` and `A.r0.i1.2.tar`."""
    match = re.fullmatch(r"(.+\.r\d+\.i\d+)(?:\.\d+)?", bundle.stem)
    return match[1] if match else bundle.stem
