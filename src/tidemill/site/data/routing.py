"""By which way a job's payloads read the inputs that their program opens, and where copies of those are.

    SITE/stage/JOB/.NAME.url      what payloads open for a shared input: the URL, and in the next line the way in words
    SITE/stage/JOB/NAME.d/.E.url  the same for event E of an `each` input

The files are read before each payload, so a way that failed is replaced for its retry. `cache.routing` chooses; here
the site's knowledge is gathered: endpoints, copies, measurements. Every URL must be permitted by an endpoint,
whether a submitter, a list or a catalogue wrote it. Works in the agent's helper threads.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.files import write_whole
from tidemill.log import Log
from tidemill.model.failure import FailureClass
from tidemill.model.far import CatalogueName, catalogue_name, is_opened, url_fault
from tidemill.model.job import CATALOGUE, Input, InputKind
from tidemill.routing.copies import CatalogueEntry, CatalogueError, copies_of
from tidemill.routing.learned import LearnedReads
from tidemill.routing.links import RouteLinks, place_of_url
from tidemill.routing.routes import (
    FarCopy,
    FarFile,
    FarReader,
    FarRoute,
    NearCache,
    RouteLink,
    RouteRules,
    RouteWay,
    routes,
)
from tidemill.site import constants
from tidemill.site.data.far_reads import CacheShares, FarReads
from tidemill.site.data.masks import shown_credentials
from tidemill.site.data.node_caches import NodeCaches
from tidemill.site.data.way_learning import WayLearning
from tidemill.transfer.allowed import permit
from tidemill.transfer.contract import Direction, TransferError
from tidemill.wire.node import Noted

READS_MAX = 1000
AGAIN = 1
"""Reads that are expected after those which are known: a dataset that one campaign reads another one reads, too."""

GIVEN_MAX = 100_000
GIVEN_S = 60.0
"""This long after payloads were first sent to a cache for a file, the cache is assumed to hold the share HELD of it,
unless a newer list of the cache's contents states the share."""

_log = Log("routing")
HELD = 0.9
DISTRUST_S = 3600.0
"""A copy that is not the file that the catalogue means is read again after this time at the earliest."""

JOBS_SHOWN_MAX = 1000
ROWS_MAX = 20
"""Ways of one job that are shown."""


class Opening(NamedTuple):
    """The program that reads a job's inputs. `opens`: schemes; `why_closed`: why its payloads reach no network, empty =
    they do; `failures`: failed tries by event; `ready`: first events and counts of what runs next; `app`: under which
    name the program's payloads teach; `why_cached`: why the site's cache comes first, empty = no such cause; `owner`:
    whose job it is."""

    opens: Sequence[str] = ()
    why_closed: str = ""
    failures: Mapping[int, int] = {}
    ready: Sequence[tuple[int, int]] = ()
    app: str = ""
    why_cached: str = ""
    owner: str = ""


class JobRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The way of one input, for people. `url`: what the payload opens, without a query."""

    name: str
    event: int | None
    way: str
    url: str
    why: str
    via: str = ""  #: the cache's name
    at_us: int = 0  #: when the way was chosen
    until_us: int | None = None  #: when the job was over


class SoughtFile(NamedTuple):
    """A file to find a way for. `label`: how messages name the input; `named`: its URL as the job has it, which other
    jobs may name, too; `is_shared`: all events read it."""

    url: str
    label: str
    named: str = ""
    sha256: str | None = None
    is_shared: bool = False


class FoundFile(NamedTuple):
    """The chosen way, what the catalogue says of the file, and under which name its readers teach. `beside`: what
    payloads open where the way is a node's cache, and that does not run."""

    route: FarRoute
    size_bytes: int | None = None
    adler32: str = ""
    app: str = ""
    beside: FarRoute | None = None
    owner: str = ""  #: of the job


class _Place(NamedTuple):
    """What is known of where a file is. `refused`: why a URL of it was passed over."""

    copies: list[FarCopy]
    size_bytes: int | None
    adler32: str
    refused: list[TransferError]


class InputRoutes:
    """The ways of one site's jobs. Thread-safe."""

    def __init__(self, config: SiteConfig, links: RouteLinks) -> None:
        self._config = config
        self.links = links
        self.reads = FarReads(config.caches, links)
        self._shares = CacheShares(config.caches)
        self.learning = WayLearning(links)
        self._known = copies_of(config)
        self._rules = RouteRules(near_s=constants.NEAR_S, stage_bytes_max=constants.WAY_STAGE_BYTES_MAX)
        self._lock = threading.Lock()
        self._named: dict[int, set[str]] = {}  #: jobs at work here -> what their inputs name
        self._reads: Counter[str] = Counter()
        self._given: dict[tuple[str, str], float] = {}  #: (cache, URL) -> when payloads were first sent there
        self._distrusted: dict[str, tuple[float, str]] = {}  #: URLs that are not read: until when, and why
        self._rows: dict[int, dict[tuple[str, int | None], JobRoute]] = {}
        self._node = NodeCaches(config.caches)

    # ---- jobs ----

    def begin(self, job: int, inputs: Sequence[Input]) -> None:
        """Count what a job names: the more jobs read a file, the more a cache is worth."""
        named = {each.url for each in inputs if each.is_routed}
        with self._lock:
            if named and job not in self._named:
                self._named[job] = named
                self._reads.update(named)

    def forget(self, job: int) -> None:
        """The job is over here. Its ways are shown for a while."""
        with self._lock:
            rows = self._rows.get(job, {})
            for key, row in rows.items():
                if row.until_us is None:
                    rows[key] = msgspec.structs.replace(row, until_us=clock.now_us())
            for url in self._named.pop(job, ()):
                self._reads[url] -= 1
                if self._reads[url] <= 0:
                    del self._reads[url]

    def rows(self, job: int) -> list[JobRoute]:
        """The ways that were chosen for a job, for people."""
        with self._lock:
            return [self._node.with_node_faults(row) for row in self._rows.get(job, {}).values()]

    def is_by_node(self, job: int, name: str) -> bool:
        """Whether payloads read some files of this input by the cache of their node."""
        return any(row.name == name and row.way == RouteWay.NODE for row in self.rows(job))

    def heard_node(self, record: Noted) -> None:
        """What a pilot says of its node's cache."""
        self._node.on_note(record)

    def all_rows(self, jobs_max: int) -> dict[int, list[JobRoute]]:
        """The ways of the jobs whose inputs were routed last."""
        with self._lock:
            newest = list(self._rows)[-jobs_max:]
            return {
                job: [self._node.with_node_faults(row) for row in self._rows[job].values()] for job in newest
            }

    def note(self, job: int, one: Input, event: int | None, file: FoundFile) -> None:
        """Keep what was chosen, to learn from it and for people; for them, of an `each` input, the first events."""
        route = file.route
        self.learning.note(job, one, event, app=(file.app, file.owner), of=(route, file.size_bytes))
        row = JobRoute(
            name=one.name, event=event, way=route.way.value, url=route.url.partition("?")[0],
            why=f"{route.text}: {route.why}", via=route.via, at_us=clock.now_us(),
        )  # fmt: skip
        with self._lock:
            rows = self._rows.pop(job, {})
            while len(self._rows) >= JOBS_SHOWN_MAX:
                del self._rows[next(iter(self._rows))]
            self._rows[job] = rows
            if (one.name, event) in rows or len(rows) < ROWS_MAX:
                rows[one.name, event] = row

    def doubt(self, job: int) -> None:
        """A payload of the job failed: what was on its way is measured again before the next one."""
        for row in self.rows(job):
            for place in {place_of_url(row.url), place_of_url(origin_of(row.url))}:
                self.links.doubt(place)

    def distrust(self, url: str, why: str) -> None:
        """Do not read this copy for an hour: it is not the file that the catalogue means."""
        _log.warning("copy.distrusted", url=_shown(url), reason=why)
        with self._lock:
            self._distrusted.pop(url, None)
            while len(self._distrusted) >= GIVEN_MAX:
                del self._distrusted[next(iter(self._distrusted))]
            self._distrusted[url] = clock.monotonic_s() + DISTRUST_S, why

    # ---- files ----

    def prepare(self, urls: Sequence[str]) -> None:
        """Ask the catalogue for many files at once. Raises SiteError."""
        names = [name for url in urls if (name := _name_of(url)) is not None]
        if names:
            self._entries(names)

    def choose(
        self, sought: SoughtFile, opening: Opening, *, attempt: int = 0, size_bytes: int | None = None
    ) -> FoundFile:
        """The way for a file's next try. Raises TransferError: transient while everything on the way is down."""
        place = self._place(sought)
        if not place.copies:
            raise place.refused[0]
        why_copied = "its `sha256` is given, and only a copy can be compared whole" if sought.sha256 else ""
        reads = self._reads.get(sought.named, 0) + AGAIN
        size_bytes = place.size_bytes if size_bytes is None else size_bytes
        file = FarFile(
            copies=place.copies,
            size_bytes=size_bytes,
            learned=self.links.learned(opening.app, size_bytes, opening.owner)
            if opening.app
            else LearnedReads(),
            reads=min(READS_MAX, max(1, reads) * (max(1, _count(opening.ready)) if sought.is_shared else 1)),
        )
        reader = FarReader(
            opens=opening.opens, why_closed=opening.why_closed, why_copied=why_copied,
            why_cached=opening.why_cached,
        )  # fmt: skip
        ways = routes(file, reader, caches=self._caches(place.copies), rules=self._rules)
        alive = [each for each in ways if not each.is_down]
        if not alive:
            raise TransferError(
                f"nothing on any way to `{_shown(ways[0].place or sought.url)}` answers",
                hint=f"for {sought.label}; is the server up?",
            )
        route = alive[attempt % len(alive)]
        if attempt:
            route = msgspec.structs.replace(route, why=f"{route.why} (try {attempt + 1})")
        self._give(route)
        opened = (each for each in alive if each.way in (RouteWay.DIRECT, RouteWay.CACHE))
        beside = next(opened, None) if route.way is RouteWay.NODE else None
        if any(each.way is RouteWay.NODE and each.is_down for each in ways):
            why = f"{route.why}; not by a cache of the node: {self._node.why_down()}"
            route = msgspec.structs.replace(route, why=why)
        return FoundFile(route, place.size_bytes, place.adler32, opening.app, beside, opening.owner)

    def resolve(self, sought: SoughtFile) -> FoundFile:
        """Where to copy a file of the catalogue from. Raises SiteError."""
        return self.choose(sought, Opening(why_closed="it is read as a file"))

    # ---- what is known ----

    def _place(self, sought: SoughtFile) -> _Place:
        url, name = sought.url, _name_of(sought.url)
        size_bytes, adler32, urls, why = None, "", [] if name else [url], ""
        if name is None:
            fault = url_fault(url)
            if fault is not None:
                raise _wrong(f"{sought.label}: `{_shown(url)}` cannot be opened: {fault}")
        try:
            urls += self._known.copies(url)
        except ConfigError as error:
            raise TransferError(error.message, hint=error.hint) from error
        if name is not None and not urls:
            entry = self._entries([name]).get(name)
            if entry is None:
                raise _wrong(f"{sought.label}: Rucio knows no file `{url}`; a dataset is not a file")
            urls, size_bytes, adler32, why = list(entry.urls), entry.size_bytes, entry.adler32, entry.why
        if not urls:
            raise TransferError(f"{sought.label}: `{url}`: {why}", hint="it is asked for again")
        copies: list[FarCopy] = []
        refused: list[TransferError] = []
        for rank, each in enumerate(dict.fromkeys(urls)):
            try:
                copies.append(self._copy(each, rank, sought))
            except TransferError as error:
                refused.append(error)
        return _Place(copies, size_bytes, adler32, refused)

    def _copy(self, url: str, rank: int, sought: SoughtFile) -> FarCopy:
        if url.startswith(("/", "file:")):
            if url == sought.url:  # a submitter's path is not opened by a URL
                raise _wrong(f"{sought.label}: `{_shown(url)}` is not a URL")
            return FarCopy(url=url, place="this site's file systems", rank=rank, is_local=True)
        fault = url_fault(url)
        if fault is not None:
            raise _wrong(f"{sought.label}: `{_shown(url)}` cannot be opened: {fault}")
        until_s, why = self._distrusted.get(url, (0.0, ""))
        if until_s > clock.monotonic_s():
            raise _wrong(f"`{_shown(url)}` is not read: {why}")
        endpoint = permit(url, self._config.endpoints, Direction.IN).endpoint
        shows = endpoint.certificate is not None or endpoint.token_file is not None
        place = place_of_url(url)
        return FarCopy(
            url=url, place=place, link=self.links.link(place), rank=rank,
            must_log_in=shows and not shown_credentials(self._config),
        )  # fmt: skip

    def _caches(self, copies: Sequence[FarCopy]) -> list[NearCache]:
        result = []
        for cache in self._config.caches:
            is_node, address = cache.is_node, cache.address
            if cache.memory is not None:
                result += self._node.near(cache, copies)
                continue
            place = place_of_url(address)
            held, is_known = self._held(cache.name, copies)
            result.append(
                NearCache(
                    name=cache.name, url=address, origins=cache.origins, is_node=is_node, place=place,
                    link=RouteLink() if is_node else self.links.link(place), held=held, is_held_known=is_known,
                )
            )  # fmt: skip
        return result

    def _held(self, cache: str, copies: Sequence[FarCopy]) -> tuple[float, bool]:
        """How much of a file a cache holds, 0 to 1, and whether its own list says so."""
        now_s = clock.monotonic_s()
        with self._lock:
            given_s = max((now_s - self._given.get((cache, each.url), now_s) for each in copies), default=0.0)
        guess = HELD if given_s >= GIVEN_S else 0.0
        listed = [share for each in copies if (share := self._shares.share(cache, each.url)) is not None]
        if not listed:
            return guess, False
        best = max(listed)
        # what came since the list was made is not in it
        if guess > best.share and best.age_s > given_s - GIVEN_S:
            return guess, False
        return best.share, True

    def _give(self, route: FarRoute) -> None:
        if route.way is not RouteWay.CACHE:
            return
        key = (route.via, origin_of(route.url))
        with self._lock:
            if key not in self._given:
                while len(self._given) >= GIVEN_MAX:
                    del self._given[next(iter(self._given))]
                self._given[key] = clock.monotonic_s()

    def _entries(self, names: Sequence[CatalogueName]) -> dict[CatalogueName, CatalogueEntry]:
        if self._known.look_up is None:
            raise TransferError(
                f"`rucio:{names[0].scope}/{names[0].name}`: this site asks no catalogue",
                hint="its operator may let it ask one: `[replicas.rucio]` in site.toml, of the extension `replicas`",
                transient=False,
            )
        try:
            return self._known.look_up(names)
        except CatalogueError as error:
            failure = FailureClass.CREDENTIAL if error.is_credential else FailureClass.STAGE_IN
            raise TransferError(
                error.message, hint=error.hint, transient=error.transient, failure=failure
            ) from error


def is_far(line: str) -> bool:
    """Whether a line of an `each` input names a far file."""
    return is_opened(line) or line.startswith(CATALOGUE)


def attempt_of(opening: Opening, one: Input, event: int | None) -> int:
    """How many tries of the event failed; of a shared input, how many of each event that is to run now."""
    if event is not None:
        return opening.failures.get(event, 0)
    if one.kind is not InputKind.SHARED or not opening.failures or not opening.ready:
        return 0
    if _count(opening.ready) > len(opening.failures):
        return 0  # some have not been tried
    events = (event for first, count in opening.ready for event in range(first, first + count))
    return min(opening.failures.get(event, 0) for event in events)


def write_url(path: Path, route: FarRoute, beside: FarRoute | None = None) -> None:
    """Have payloads open this, or what is `beside` it where their node has no cache; whole at any time, and the same
    again costs nothing. Raises SiteError, OSError."""
    ways = [route] if beside is None else [route, beside]
    content = "".join(f"{each.url}\n{each.text}\n" for each in ways).encode()
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    write_whole(path, content)


def url_file(path: Path) -> Path:
    """Beside a staged file, what is opened instead of it."""
    return path.with_name(f".{path.name}.url")  # no input has such a name


def _name_of(url: str) -> CatalogueName | None:
    try:
        return catalogue_name(url)
    except ValueError as error:
        raise _wrong(str(error)) from error


def _count(ready: Sequence[tuple[int, int]]) -> int:
    return sum(count for _, count in ready)


def origin_of(url: str) -> str:
    """The origin's URL within a cache's."""
    match = re.match(r"[a-z]+://[^/]+//([a-z]+://.*)", url)
    return url if match is None else match[1]


def _shown(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    text = scheme + colon + authority.rpartition("@")[2] + slash + path.partition("?")[0]
    return text[:300].encode("unicode_escape").decode()


def _wrong(message: str) -> TransferError:
    return TransferError(message, transient=False, failure=FailureClass.STAGE_IN)
