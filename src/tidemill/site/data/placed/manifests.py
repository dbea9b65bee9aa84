"""`manifest-JOB.json` beside a job's files: what belongs to the job. What it does not list is never overwritten.

It is written before the files appear, and lists in `replaced` what stands under their names until they do: a crash in
between leaves no file that the job does not know. While the job goes on it lists, with delivery `ARRIVED`, the files
that have come so far and those that come now; the job's delivery replaces it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tidemill.errors import UNDECODABLE, JobError
from tidemill.files import PIECE_BYTES, open_at_once, read_bounded
from tidemill.model.intervals import IntervalSet
from tidemill.site.data.owners import MANIFEST_BYTES_MAX
from tidemill.site.data.placed.later_names import FILE_NAME_BYTES_MAX

Events = tuple[int, int]  #: first event of a part, and their number
Content = tuple[int, str]  #: size and SHA-256 of a file
ARRIVED = 0  #: `delivery` of a file that came while its job went on


class OutputMember(msgspec.Struct, frozen=True, kw_only=True):
    """Events `first..first+count-1` in a delivered file; `seed` is the first one's."""

    first: int
    count: int
    seed: int
    name: str
    sha256: str


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A delivered file; `members` in its order. `site`: whose result it is, while its job goes on: several sites may
    write to one directory. Empty = of several, which have the same, or delivered."""

    output: str
    kind: str
    file: str
    size_bytes: int
    sha256: str
    members: list[OutputMember]
    delivery: int = 1
    site: str = ""

    @property
    def content(self) -> Content:
        """Size and SHA-256 of the file."""
        return (self.size_bytes, self.sha256)


class ReplacedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A content that the job has put under a name before, and that may still be there: the job may replace it."""

    output: str
    file: str
    size_bytes: int
    sha256: str


class JobManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest-JOB.json`. `done`, `failed`: events, as of the last delivery; empty = the job goes on, and had none."""

    job: int
    campaign: str
    name: str
    app: str
    app_digest: str
    events: int
    done: str
    failed: str
    files: list[File]
    owner: str = ""
    replaced: list[ReplacedFile] = []

    def is_of(self, campaign: str, events: int) -> bool:
        """Whether it is of this campaign's job, and not of one that had the same number at another server."""
        return (self.campaign, self.events) == (campaign, events)

    @property
    def says_nothing(self) -> bool:
        """Whether it lists no file and no event."""
        return not (self.files or self.replaced or self.done or self.failed)


def read_manifest(path: Path) -> JobManifest | None:
    """The manifest at a path; None where there is none that Tidemill has written: what it claims is foreign then."""
    content = read_bounded(path, MANIFEST_BYTES_MAX)
    if content is None:
        return None
    try:
        result = msgspec.json.decode(content, type=JobManifest)
        IntervalSet.parse(result.done)
    except UNDECODABLE:
        return None
    return result


class Listing:
    """What a job's manifest in one directory says so far, for the files that come there now."""

    def __init__(self, manifest: JobManifest | None, campaign: str, events: int) -> None:
        listed = [] if manifest is None else [each for each in manifest.files if _is_plain(each.file)]
        self._ours = manifest if manifest is not None and manifest.is_of(campaign, events) else None
        self._contents: defaultdict[tuple[str, str], set[Content]] = defaultdict(set)
        for each in listed:
            self._contents[each.output, each.file].add(each.content)
        former = [] if manifest is None else manifest.replaced
        for one in former:
            self._contents[one.output, one.file].add((one.size_bytes, one.sha256))
        self.files = listed if self._ours is not None else []  #: of the job, in this directory
        self._replaced = {(one.output, one.file): one for one in former if self._ours is not None}

    @property
    def done(self) -> str:
        """The events that earlier deliveries named as done."""
        return "" if self._ours is None else self._ours.done

    @property
    def failed(self) -> str:
        """The events that the manifest lists as failed."""
        return "" if self._ours is None else self._ours.failed

    def claim(self, file: File, target: Path) -> ClaimedFile:
        """What may stand where a file goes. Raises JobError if anything else does."""
        result = ClaimedFile({file.content, *self.contents(file)})
        found = result.check(target)
        if found is None or found == file.content:
            self._replaced.pop((file.output, file.file), None)
        else:
            self._replace(file, found)
        return result

    def contents(self, file: File) -> set[Content]:
        """What the job may have put under the name of this file of it."""
        return self._contents.get((file.output, file.file), set())

    def replaced(self, listed: list[File]) -> list[ReplacedFile]:
        """What may stand under names of the job besides these files: what they replace, and what is not listed now."""
        names = {each.file for each in listed}
        for each in self.files:
            if each.file not in names and each.delivery != ARRIVED:
                self._replace(each, each.content)
        return list(self._replaced.values())

    def _replace(self, file: File, content: Content) -> None:
        self._replaced[file.output, file.file] = ReplacedFile(
            output=file.output, file=file.file, size_bytes=content[0], sha256=content[1]
        )

    def arrived(self, output: str, events: int) -> list[File]:
        """The files of an output that came while the job went on, without parts that a job of this number of events
        cannot have: they are reported, and others may be able to change the manifest."""
        return [
            each
            for (first, count), each in self.parts(output).items()
            if each.delivery == ARRIVED and 0 <= first < first + count <= events and each.size_bytes >= 0
        ]

    def arrived_of(self, output: str, events: IntervalSet, site: str) -> list[File]:
        """The files of an output that came from a site while the job went on, of parts with any of these events."""
        return [
            each
            for (first, count), each in self.parts(output).items()
            if (each.delivery, each.site) == (ARRIVED, site) and events.touches(first, first + count)
        ]

    def parts(self, output: str) -> dict[Events, File]:
        """The files of one part each of an output, by the part's events."""
        return {
            (each.members[0].first, each.members[0].count): each
            for each in self.files
            if each.output == output and len(each.members) == 1
        }

    def reserved(self, delivery: int) -> set[str]:
        """Names of files that arrived, or that this delivery of the job has listed before."""
        return {each.file for each in self.files if each.delivery in (ARRIVED, delivery)}

    def beside(self, done: IntervalSet, files: list[File]) -> list[File]:
        """The files of earlier deliveries that stay beside these; adds their events to `done`."""
        if self._ours is None:
            return []
        done.add_all(IntervalSet.parse(self._ours.done))
        names = {each.file for each in files}
        return [each for each in self.files if each.file not in names and each.delivery != ARRIVED]

    def withdrawn(self, files: list[File]) -> list[File]:
        """The files that arrived and are not among these any more: their results do not count."""
        names = {each.file for each in files}
        return [each for each in self.files if each.delivery == ARRIVED and each.file not in names]


class ClaimedFile:
    """The sizes and checksums that an existing file may have: those of the new content, and of Tidemill's earlier
    delivery. Reads the file only if its size is one of these, and again only after it has changed."""

    def __init__(self, known: set[Content]) -> None:
        self._known = known
        self._read: tuple[int, ...] = ()  #: what stat(2) said when the file was read
        self._found: Content | None = None  #: ... and what it held

    def check(self, path: Path) -> Content | None:
        """Which of the known contents is there; None = no file. Raises JobError if the file is not this job's."""
        try:
            found = self.find(path)
        except FileNotFoundError:
            return None
        if found is not None:
            return found
        raise JobError(
            f"`{path}` exists already and is not this job's",
            hint="move it away, or give the job another output directory or name, then `tidemill job retry`",
        )

    def find(self, path: Path) -> Content | None:
        """Which of the known contents the file holds; None = another one. Raises OSError."""
        fd = open_at_once(str(path), os.O_RDONLY)  # others may have put anything there
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return None
            state = _state(found)
            if state == self._read:
                return self._found
            if any(found.st_size == size for size, _ in self._known):
                digest = hashlib.sha256()
                while piece := os.read(fd, PIECE_BYTES):
                    digest.update(piece)
                content = (found.st_size, digest.hexdigest())
                if content in self._known:
                    self._read, self._found = state, content
                    return content
        finally:
            os.close(fd)
        return None


def _state(found: os.stat_result) -> tuple[int, ...]:
    """What differs once a file is changed, or another one has its name."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class ArrivedFrom(NamedTuple):
    """Which files of a job's manifest are asked for: those of an output that arrived from a site, of parts with any of
    these events."""

    campaign: str
    job_events: int
    output: str
    events: IntervalSet
    site: str


class SharedManifest:
    """A manifest that other sites of the job may write at any time: what it lists is as it is there now."""

    def __init__(self, path: Path, asked: ArrivedFrom) -> None:
        self.path = path
        self._asked = asked
        self._read: tuple[int, ...] = ()  #: what stat(2) said of it when it was read; empty = there was none
        self._files: dict[str, File] = {}
        self._manifest: JobManifest | None = None
        self.listing = Listing(
            None, asked.campaign, asked.job_events
        )  #: as it was when `files` was called last

    def files(self) -> dict[str, File]:
        """The files that are asked for, by name. Only another manifest than the last time is read. Raises OSError,
        SiteError."""
        state = self._now()
        if state != self._read:
            asked = self._asked
            self._manifest = read_manifest(self.path)
            self.listing = Listing(self._manifest, asked.campaign, asked.job_events)
            found = self.listing.arrived_of(asked.output, asked.events, asked.site)
            self._files, self._read = {each.file: each for each in found}, state
        return self._files

    def without(self, names: set[str]) -> JobManifest | None:
        """The manifest without those of these files that it still lists as asked for; None where it lists none.
        Raises as `files` does."""
        gone = names & self.files().keys()
        if self._manifest is None or not gone:
            return None
        return replace(
            self._manifest,
            files=[each for each in self._manifest.files if each.file not in gone],
            replaced=[each for each in self._manifest.replaced if each.file not in gone],
        )

    def _now(self) -> tuple[int, ...]:
        """What is there. It is opened: network file systems ask their server then."""
        try:
            fd = open_at_once(str(self.path), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        try:
            return _state(os.fstat(fd))
        finally:
            os.close(fd)


def _is_plain(name: str) -> bool:
    """Whether a name can be that of a file in the directory: others may be able to change the manifest."""
    is_one = name not in ("", ".", "..") and "/" not in name and "\0" not in name
    return is_one and len(os.fsencode(name)) <= FILE_NAME_BYTES_MAX


def stands(path: Path, *known: Content) -> bool:
    """Whether a regular file with one of these contents is at a path, and no link to one."""
    try:
        return _is_as_left(path, known)
    except OSError:
        return False


def _is_as_left(path: Path, known: Iterable[Content]) -> bool:
    """As `stands`. Raises OSError where nothing is there, or it cannot be read."""
    contents, found = set(known), path.lstat()
    is_like = stat.S_ISREG(found.st_mode) and any(found.st_size == size for size, _ in contents)
    return is_like and ClaimedFile(contents).find(path) is not None


def is_changed(path: Path, *known: Content) -> bool:
    """Whether something else stands at a path than files with these contents."""
    try:
        return ClaimedFile(set(known)).find(path) is None
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def publish(temporary: Path, target: Path, claim: ClaimedFile) -> None:
    """Give a file its name, never over a foreign one that has appeared meanwhile. Raises JobError, OSError."""
    try:
        os.link(temporary, target)
    except OSError:  # the target exists, or the file system has no hard links
        claim.check(target)
        temporary.rename(target)


class WithdrawnFiles(NamedTuple):
    """What was withdrawn: how many files were removed, and the names under which nothing stands now."""

    removed: int
    gone: set[str]


def withdraw(folder: Path, listing: Listing, files: Iterable[File]) -> WithdrawnFiles:
    """Remove files that arrived from results that do not count, unless they were changed since. Raises OSError, also
    where one cannot be read to find out."""
    removed, gone = 0, set[str]()
    for each in files:
        path = folder / each.file
        with suppress(FileNotFoundError):
            if not _is_as_left(path, listing.contents(each)):
                continue
            path.unlink()
            removed += 1
        gone.add(each.file)
    return WithdrawnFiles(removed, gone)
