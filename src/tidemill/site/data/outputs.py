"""Kept parts become the files a job owes: joined, verified, durable, and only then visible under their names.

    each     one part: the file itself; more: a plain tar, members in event order; with `pack = "files"` a file for
             each part, named as the output's path says (see `part_names`)
    concat   the parts' bytes in event order
    merge    the file that the merge step made

Outputs that name no place go to their owner's directory (see `owners`). An output whose URL is remote is built below
SITE/stage/out and moved there whole (see `moves`), bundles as one file. Beside local ones stands `manifest-JOB.json`
(see `manifests`), written before the files appear: what belongs to the job, with checksums, seeds and failed events.
Works in the agent's helper threads, which wait for no remote place: `deliver` raises MovesPendingError then, and is
called again. `arrive` puts files of parts in their place while the job goes on; `deliver` keeps those that still stand,
and `take_back` removes them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from operator import and_
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from tidemill.errors import JobError, ProtocolError, SiteError
from tidemill.files import (
    current_umask,
    make_directories,
    open_new,
    read_bounded,
    set_mode,
    short_name,
    sync,
    sync_directory,
    write_durable,
)
from tidemill.model.arrival import arrives, is_spread
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import InputKind, JobSpec, Output, OutputKind
from tidemill.model.seed import seed
from tidemill.node.bundle import SparseFile, TarWriter, Written, read_chunks
from tidemill.site.applications.part_names import Parts, part_names
from tidemill.site.data.leftovers import is_partial_name
from tidemill.site.data.moves import MovesPendingError
from tidemill.site.data.owners import OwnedPlaces, is_manifest_name, manifest_path
from tidemill.site.data.placed.later_names import LITERAL_ROOTS, later_places
from tidemill.site.data.placed.manifests import (
    ARRIVED,
    ArrivedFrom,
    ClaimedFile,
    File,
    JobManifest,
    Listing,
    OutputMember,
    SharedManifest,
    is_changed,
    publish,
    read_manifest,
    stands,
    withdraw,
)
from tidemill.site.data.remote_outputs import Departures, Destination
from tidemill.site.state.site_state import KeptPart
from tidemill.transfer.allowed import is_remote
from tidemill.transfer.file import local_path
from tidemill.wire.api import ARRIVED_TEXT_MAX, OutputRow
from tidemill.wire.node import OutputRef

LINES_BYTES_MAX = 256 << 20
"""As crates/slot reads them."""

_UNMASKED = 0o666
"""Permissions, before the umask, of files that are not copies of one payload's file; as in open(2)."""


class OutputDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What a thread needs to deliver what is done of a job. `parts`: by event, of the events `done`; `fresh`: those of
    them of which nothing has been delivered yet, None = all; `merged`: output -> the part its merge step made;
    `held`: the merge steps were not run; `number`: 1 = the first delivery of the job, `ARRIVED` = the job goes on."""

    job: int
    campaign: str
    seed_base: int
    spec: JobSpec
    app_digest: str
    outputs: list[Output]
    parts: list[KeptPart]
    merged: dict[str, tuple[str, OutputRef]]
    done: str
    owner: str = ""
    fresh: str | None = None
    held: bool = False
    number: int = 1


class FileMask(NamedTuple):
    """The umask of delivered files: that of the job's shell, else the site's. `bounds`: the site serves several
    submitters, so its own umask applies as well."""

    site: int
    bounds: bool

    def umask(self, spec: JobSpec) -> int:
        """The umask of a job's files and directories."""
        asked = None if spec.shell is msgspec.UNSET else spec.shell.umask
        if asked is None:
            return self.site
        return asked | self.site if self.bounds else asked


class BrokenMerge(NamedTuple):
    """A merge step that failed, by its output."""

    output: str
    message: str


class DamagedError(SiteError):
    """Kept outputs of some events are gone or damaged: those events have to run again."""

    def __init__(self, message: str, first: int, count: int) -> None:
        super().__init__(message, transient=False)
        self.first = first
        self.count = count


class CanceledError(SiteError):
    """A delivery was broken off: its job was canceled, or the agent ends."""


class Deliverer:
    """Delivers to the owners' directories (jobs that name no place) and elsewhere where owners may write, at most
    `bytes_max` of one job."""

    def __init__(
        self,
        fleets: Path,
        places: OwnedPlaces,
        *,
        bytes_max: int,
        departures: Departures | None = None,
        umask: FileMask | None = None,
    ) -> None:
        self._departures = departures
        self._umask = umask or FileMask(site=current_umask(), bounds=False)
        self._fleets = fleets
        self._places = places
        self._bytes_max = bytes_max

    def deliver(self, delivery: OutputDelivery, canceled: threading.Event | None = None) -> list[OutputRow]:
        """Put all outputs of a job in place; repeating it changes nothing. Ends early once `canceled` is set.

        Raises DamagedError where parts are lost, JobError or SiteError where a place cannot be written, CanceledError.
        """
        check_complete(delivery)
        self._check_size(delivery)
        copying = _Copying(self._fleets, delivery, canceled or threading.Event())
        rows = self._send(delivery, copying)
        files = self._put(delivery, [each for each in delivery.outputs if each.name not in rows], copying)
        for output in delivery.outputs:
            if found := [(target, file) for target, file in files if file.output == output.name]:
                rows[output.name] = _row(delivery, output, found)
        if self._departures is not None:
            self._departures.clean(delivery.job)
        return [rows[output.name] for output in delivery.outputs if output.name in rows]

    def arrive(self, delivery: OutputDelivery, canceled: threading.Event) -> list[OutputRow]:
        """Put the files of parts in their place while the job goes on; all that stands of it now, of each output.

        Raises as `deliver` does.
        """
        outputs = [each for each in delivery.outputs if arrives(delivery.spec, each)]
        self._put(delivery, outputs, _Copying(self._fleets, delivery, canceled))
        rows: list[OutputRow] = []
        listings = _Listings(delivery)
        for output in outputs:
            folder = Path(os.path.realpath(self._folder(delivery, output)))
            files = listings.listing(folder).arrived(output.name, delivery.spec.events)
            members = [each.members[0] for each in files]
            events = str(IntervalSet((each.first, each.first + each.count) for each in members))
            if files:
                rows.append(
                    OutputRow(
                        name=output.name,
                        url=folder.as_uri() + "/",
                        size_bytes=min(sum(each.size_bytes for each in files), self._bytes_max),
                        sha256="",
                        events=events if len(events) <= ARRIVED_TEXT_MAX else "",
                    )
                )
        return rows

    def take_back(self, delivery: OutputDelivery, canceled: threading.Event) -> int:
        """Remove files that arrived of the events `done`, whose results do not count, unless they were changed since;
        how many. What came there from another site stays, also where both had the same. What was changed stays listed:
        the job may put its next file of these events beside it.

        Another site may deliver the job there meanwhile, and keep a file that came from here: the manifest is checked
        again before each removal. Two gaps remain, since nothing is locked: the other site may have found a file and
        not written its manifest yet, or may write it just before this one does.

        Raises JobError or SiteError where a place cannot be written, CanceledError.
        """
        events, site, removed = IntervalSet.parse(delivery.done), self._places.site, 0
        for output in delivery.outputs:
            folder = Path(os.path.realpath(self._folder(delivery, output)))
            asked = ArrivedFrom(delivery.campaign, delivery.spec.events, output.name, events, site)
            shared = SharedManifest(manifest_path(folder, delivery.job), asked)
            gone = set[str]()
            try:
                for name in [*shared.files()]:
                    if canceled.is_set():
                        raise CanceledError(f"the files of job {delivery.job} are removed later")
                    self._confine(folder / name, delivery.owner)
                    now = shared.files()
                    withdrawn = withdraw(folder, shared.listing, [now[name]] if name in now else [])
                    removed += withdrawn.removed
                    gone |= withdrawn.gone
                if gone:
                    sync_directory(folder)
                    self._unlist(delivery, output, shared, gone)
            except OSError as error:
                raise SiteError(f"failed to remove files in `{folder}`: {error.strerror}") from error
        return removed

    def _unlist(
        self, delivery: OutputDelivery, output: Output, shared: SharedManifest, gone: set[str]
    ) -> None:
        """Take files out of a manifest; one that says nothing then goes, and the output's own directory with it."""
        manifest = shared.without(gone)
        if manifest is None:
            return
        if not manifest.says_nothing:
            self._write_manifest(shared.path, manifest, self._umask.umask(delivery.spec))
            return
        shared.path.unlink(missing_ok=True)
        if output.url is None:
            with suppress(OSError):  # others have put files there
                shared.path.parent.rmdir()

    def _put(
        self, delivery: OutputDelivery, outputs: list[Output], copying: _Copying
    ) -> list[tuple[Path, File]]:
        """Write outputs and their manifests, and give them their names; where each file is then."""
        made: list[_Built] = []
        listings = _Listings(delivery)
        try:
            for output in outputs:
                self._build(delivery, output, copying, made, listings)
            known = self._claim(delivery, made, listings)
            for each in made:
                if each.temporary is not None:
                    publish(each.temporary, each.target, known[each.target])
            for directory in {each.target.parent for each in made if each.temporary is not None}:
                sync_directory(directory)
        except OSError as error:
            raise SiteError(f"failed to deliver outputs of job {delivery.job}: {error.strerror}") from error
        finally:
            for each in made:
                if each.temporary is not None:
                    each.temporary.unlink(missing_ok=True)
        return [(each.target, each.file) for each in made]

    def is_done(self, awaits: tuple[str, ...]) -> bool:
        """Whether all of these moves have an outcome."""
        return self._departures is None or self._departures.is_done(awaits)

    def look_over(
        self, delivery: OutputDelivery, broken: BrokenMerge, canceled: threading.Event
    ) -> list[OutputRow]:
        """A merge step failed: raises DamagedError if one of its parts is lost or damaged, else a JobError that says
        why the step failed, or CanceledError."""
        check_complete(delivery)
        _Copying(self._fleets, delivery, canceled).verify(broken.output)
        raise JobError(broken.message)

    def _check_size(self, delivery: OutputDelivery) -> None:
        size = sum(ref.length for part in delivery.parts for ref in part.outputs)
        size += sum(ref.length for _, ref in delivery.merged.values())
        if size > self._bytes_max:
            raise JobError(
                f"the outputs of job {delivery.job} have {size} bytes, holes included; this site delivers at most "
                f"{self._bytes_max} of one job",
                hint="split the job",
            )

    def _send(self, delivery: OutputDelivery, copying: _Copying) -> dict[str, OutputRow]:
        """Have all outputs that go to remote places there. Raises MovesPendingError while they are on their way."""
        rows: dict[str, OutputRow] = {}
        awaits: list[str] = []
        for output in delivery.outputs:
            place = output.url or delivery.spec.output_dir or ""
            refs = list(_refs(delivery, output.name))
            merged = delivery.merged.get(output.name)
            if not is_remote(place) or (not refs and merged is None):
                continue
            if self._departures is None:
                raise JobError(f"output `{output.name}`: this site moves nothing to `{place}`")
            is_tar = _is_tar(delivery, output)
            url = self._remote(delivery, output, place)
            path = self._departures.prepare(
                delivery.job,
                output.name,
                _made_of(delivery, output.name),
                lambda path, output=output, is_tar=is_tar: copying.write(  # type: ignore[misc]
                    path, output, is_tar=is_tar
                ),
                url=url,
            )
            moved = self._departures.send(
                delivery.job, output.name, path, Destination(url, delivery.owner), awaits
            )
            if moved is not None:
                rows[output.name] = OutputRow(
                    name=output.name,
                    url=url,
                    size_bytes=moved.size_bytes,
                    sha256=moved.sha256,
                    events=_events_of([part for part, _ in refs]),
                )
        if awaits:
            raise MovesPendingError(awaits)
        return rows

    def _remote(self, delivery: OutputDelivery, output: Output, place: str) -> str:
        """The URL that an output gets. A place that ends with `/`, or is the job's `output_dir`, is a directory."""
        folder, name = self._numbered(delivery, output)
        if output.url is not None and not output.url.endswith("/"):
            return folder + name
        return folder + (name if place.startswith(LITERAL_ROOTS) else quote(name))

    def _build(
        self,
        delivery: OutputDelivery,
        output: Output,
        copying: _Copying,
        made: list[_Built],
        listings: _Listings,
    ) -> None:
        """Write an output under temporary names, which are added to `made`; nothing where no event left one."""
        refs = list(_refs(delivery, output.name))
        if _is_spread(delivery, output):
            self._spread(delivery, output, copying, made, listings)
            return
        if not refs and output.name not in delivery.merged:
            return
        is_tar = _is_tar(delivery, output)
        members = [
            _member(delivery, part, ref, _member_name(output, part) if is_tar else "") for part, ref in refs
        ]
        made.append(
            self._written(
                delivery,
                output,
                self._target(delivery, output),
                members,
                lambda path: copying.write(path, output, is_tar=is_tar),
            )
        )

    def _spread(
        self,
        delivery: OutputDelivery,
        output: Output,
        copying: _Copying,
        made: list[_Built],
        listings: _Listings,
    ) -> None:
        """Write a file for each part of an output. What has arrived keeps its name, and is not written again."""
        folder = self._folder(delivery, output)
        listing = listings.listing(Path(os.path.realpath(folder)))
        known, reserved = listing.parts(output.name), listing.reserved(delivery.number)
        refs = list(_refs(delivery, output.name))
        path = output.path
        if self._is_shared(delivery, output):  # `a/out.txt` and `b/out.txt`: `a-out.txt`, `b-out.txt`
            path = "-".join(Path(path).parts)
        names = part_names(path, self._parts(delivery, output, refs))
        taken = {each.target for each in made}
        for (part, ref), name in zip(refs, names, strict=True):
            before = known.get((part.first, part.count))
            if before is not None and delivery.number == ARRIVED != before.delivery:
                continue  # an earlier delivery of the job has it
            marked = folder / f"{output.name}-{name}"
            if before is not None and before.file in reserved:
                target = self._confine(folder / before.file, delivery.owner)
                content = (ref.length, ref.sha256)
                if before.sha256 == ref.sha256 and stands(target, content):
                    site = before.site if before.site == self._site(delivery) else ""
                    made.append(_Built(None, target, replace(before, delivery=delivery.number, site=site)))
                    continue
                if is_changed(target, content, *listing.contents(before)):
                    target = self._confine(marked, delivery.owner)  # what arrived is its owner's to change
            else:
                is_taken = is_manifest_name(name) or is_partial_name(name)
                target = self._confine(marked if is_taken else folder / name, delivery.owner)
                if target in taken or target.name in reserved:
                    # `out.txt` and `out-{event}.txt` of a job have names in common
                    target = self._confine(marked, delivery.owner)
            member = _member(delivery, part, ref, "")
            made.append(self._written(delivery, output, target, [member], lambda path, part=part, ref=ref: (  # type: ignore[misc]
                copying.write_joined(path, [(part, ref)], None)
            )))  # fmt: skip

    def _written(
        self,
        delivery: OutputDelivery,
        output: Output,
        target: Path,
        members: list[OutputMember],
        write: Callable[[Path], _Made],
    ) -> _Built:
        """Write a file of an output under a temporary name beside its own. `write` returns its permissions before the
        umask."""
        umask = self._umask.umask(delivery.spec)
        self._make_directory(target.parent, umask)
        self._confine(target, delivery.owner)  # no directory of it has become a link meanwhile
        temporary = target.with_name(f".{short_name(target.name)}.{delivery.job}.part")
        try:
            written = write(temporary)
            set_mode(temporary, written.mode & ~umask | stat.S_IRUSR)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            raise SiteError(
                f"failed to deliver outputs of job {delivery.job} to `{target.parent}`: {error.strerror}"
            ) from error
        file = File(
            output=output.name,
            kind=output.kind.value,
            file=target.name,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
            members=members,
            delivery=delivery.number,
            site=self._site(delivery),
        )
        return _Built(temporary, target, file)

    def _site(self, delivery: OutputDelivery) -> str:
        """Whose result a file of this delivery is, in its manifest."""
        return self._places.site if delivery.number == ARRIVED else ""

    def _folder(self, delivery: OutputDelivery, output: Output) -> Path:
        """Where the files of an output's parts go: the directory that its URL names, else one of its own."""
        if output.url is not None:
            place = local_path(output.url)
            return place if output.url.endswith("/") else place.parent
        folder, name = self._plain(delivery, output)
        return Path(folder) / name

    def _is_shared(self, delivery: OutputDelivery, output: Output) -> bool:
        """Whether another output of the job has parts that go to the same directory under the same names."""
        place = self._folder(delivery, output), Path(output.path).name
        return any(
            each.name != output.name
            and _is_spread(delivery, each)
            and (self._folder(delivery, each), Path(each.path).name) == place
            for each in delivery.outputs
        )

    def _parts(
        self, delivery: OutputDelivery, output: Output, refs: list[tuple[KeptPart, OutputRef]]
    ) -> Parts:
        """What the names of an output's parts are made of."""
        lines: list[str] | None = None
        each = next((one for one in delivery.spec.inputs if one.kind is InputKind.EACH), None)
        if (each is not None and "{line}" in output.path) or "{column." in output.path:
            lines = None if each is None else self._lines(each.url, delivery.owner, delivery.spec.events)
        return Parts(
            events=delivery.spec.events,
            parts=[(part.first, part.count) for part, _ in refs],
            seeds=[seed(delivery.seed_base, part.first) for part, _ in refs],
            lines=lines,
        )

    def _lines(self, url: str, owner: str, events: int) -> list[str] | None:
        """The first lines of an `each` input of this machine; None where they cannot be read: names then hold the
        event."""
        if not url.startswith(("/", "file:")):
            return None
        path = Path(os.path.realpath(local_path(url)))
        if self._places.roots(owner).fault(path, path) is not None:
            return None
        content = read_bounded(path, LINES_BYTES_MAX)
        if content is None:
            return None
        lines = content.removeprefix(BOM_UTF8).split(b"\n", events)[:events]
        return [line.decode(errors="replace") for line in lines]

    def _target(self, delivery: OutputDelivery, output: Output) -> Path:
        folder, name = self._numbered(delivery, output)
        return self._confine(Path(folder) / name if name else Path(folder), delivery.owner)

    def _numbered(self, delivery: OutputDelivery, output: Output) -> tuple[str, str]:
        """Where an output goes in this delivery of the job: folder and name."""
        if delivery.number == 1:
            return self._plain(delivery, output)
        plain = {each.name: self._plain(delivery, each) for each in delivery.outputs}
        return later_places(plain, delivery.number)[output.name]

    def _plain(self, delivery: OutputDelivery, output: Output) -> tuple[str, str]:
        """Where an output goes in the first delivery of a job: folder and name."""
        place = output.url or delivery.spec.output_dir or ""
        is_file = output.url is not None and not output.url.endswith("/")
        if is_remote(place):
            if is_file:
                above, slash, name = place.rpartition("/")
                return above + slash, name
            return place.rstrip("/") + "/", self._named(delivery, output)
        if is_file:
            path = local_path(place)
            return str(path.parent), path.name
        folder = local_path(place) if place else self._places.directory(delivery.owner)
        path = folder / self._named(delivery, output)
        return str(path.parent), path.name

    def _named(self, delivery: OutputDelivery, output: Output) -> str:
        """The name that an output has in a directory."""
        plain = re.sub(r"[-_.]?\{[^{}]*\}", "", output.path)
        ending = ".tar" if _is_tar(delivery, output) else "".join(Path(plain).suffixes[-2:])
        ending = "" if _is_spread(delivery, output) else ending  # the name of a directory
        if output.url is not None:
            name = f"{delivery.job}-{output.name}"
        else:
            name = f"{delivery.campaign}/{delivery.job}-{output.name}"
        return name if name.endswith(ending) else name + ending

    def _confine(self, path: Path, owner: str) -> Path:
        """Where a file of an owner gets its name, its directory without links. Raises JobError."""
        real = Path(os.path.realpath(path.parent)) / path.name
        if path.name in ("", ".", ".."):
            fault: SiteError | None = _no_name(path)
        elif is_manifest_name(path.name):  # a manifest says which files a job may replace
            fault = SiteError(f"`{path}` has the name of a manifest", hint="give the output another name")
        elif is_partial_name(path.name):  # such files are removed when they are old
            fault = SiteError(
                f"`{path}` is named like Tidemill's own half-written files, such as `.NAME.7.part`",
                hint="give the output another name",
            )
        else:
            fault = self._places.roots(owner).fault(real, path)
        if fault is not None:
            raise JobError(f"output {fault.message}", hint=fault.hint)
        return real

    def _make_directory(self, path: Path, umask: int) -> None:
        try:
            make_directories(path, umask)
        except OSError as error:
            raise SiteError(f"failed to make `{path}`: {error.strerror}", transient=False) from error

    def _claim(
        self, delivery: OutputDelivery, made: list[_Built], listings: _Listings
    ) -> dict[Path, ClaimedFile]:
        """Write the manifests, after a check that nothing foreign stands where the files go."""
        known: dict[Path, ClaimedFile] = {}
        folders: dict[Path, list[_Built]] = {}
        umask = self._umask.umask(delivery.spec)
        for each in made:
            folders.setdefault(each.target.parent, []).append(each)
        for folder, fresh in folders.items():
            listing = listings.listing(folder)
            for each in fresh:
                if each.temporary is not None:
                    known[each.target] = listing.claim(each.file, each.target)
            path = manifest_path(folder, delivery.job)
            self._make_directory(path.parent, umask)
            files = [each.file for each in fresh]
            if delivery.number != ARRIVED:
                withdraw(folder, listing, listing.withdrawn(files))
            self._write_manifest(path, _manifest(delivery, listing, files), umask)
        return known

    def _write_manifest(self, path: Path, manifest: JobManifest, umask: int) -> None:
        mode = 0o666 & ~umask | stat.S_IRUSR  # later deliveries read the manifest
        write_durable(path, msgspec.json.encode(manifest), mode=mode, exact=True)


class _Built(NamedTuple):
    """A file of an output: under a temporary name, or (None) in its place already."""

    temporary: Path | None
    target: Path
    file: File


class _Listings:
    """What the job's manifests say, each read once."""

    def __init__(self, delivery: OutputDelivery) -> None:
        self._delivery = delivery
        self._of: dict[Path, Listing] = {}

    def listing(self, folder: Path) -> Listing:
        """What the one in a directory says."""
        result = self._of.get(folder)
        if result is None:
            it = self._delivery
            manifest = read_manifest(manifest_path(folder, it.job))
            result = self._of[folder] = Listing(manifest, it.campaign, it.spec.events)
        return result


class _Made(NamedTuple):
    """A file that was written: size, checksum, and permissions before the umask."""

    size_bytes: int
    sha256: str
    mode: int


class _Copying:
    """Brings the kept parts of a delivery together, until it is canceled."""

    def __init__(self, fleets: Path, delivery: OutputDelivery, canceled: threading.Event) -> None:
        self._fleets = fleets
        self._delivery = delivery
        self._canceled = canceled

    def write(self, path: Path, output: Output, *, is_tar: bool) -> _Made:
        """Write an output with mode 0600. Raises DamagedError, SiteError, CanceledError."""
        refs = list(_refs(self._delivery, output.name))
        merged = self._delivery.merged.get(output.name)
        if is_tar:
            return _Made(*self._write_tar(path, output, refs), _UNMASKED)
        if merged is not None:
            made = self.write_joined(path, [(self._delivery.parts[0], merged[1])], merged[0])
            return made._replace(mode=_UNMASKED | made.mode & 0o111)  # what the site's own step left
        return self.write_joined(path, refs, None)

    def verify(self, output: str) -> None:
        """Read all parts of an output. Raises DamagedError, CanceledError."""
        for part, ref in _refs(self._delivery, output):
            for _ in _verified(self._fleets / part.fleet / "bundle", part, ref):
                self._check()

    def write_joined(self, path: Path, refs: list[tuple[KeptPart, OutputRef]], fleet: str | None) -> _Made:
        """Write parts one after another. The result has the permissions that all parts share. Raises DamagedError,
        SiteError, CanceledError."""
        path.unlink(missing_ok=True)  # of an agent that died, or a link that another process left
        with open_new(path, 0o600) as file:
            sparse = SparseFile(file)
            for part, ref in refs:
                for piece in _verified(self._fleets / (fleet or part.fleet) / "bundle", part, ref):
                    self._check()
                    sparse.write(piece)
            sparse.end()
            sync(file)
        modes = [_UNMASKED if ref.mode is None else ref.mode & 0o777 for _, ref in refs]
        mode = reduce(and_, modes, 0o777) if modes else _UNMASKED
        return _Made(sparse.tell(), sparse.digest.hexdigest(), mode)

    def _write_tar(self, path: Path, output: Output, refs: list[tuple[KeptPart, OutputRef]]) -> Written:
        archive = TarWriter(path, self._check, mode=0o600)
        try:
            for part, ref in refs:
                try:
                    archive.add_member(_member_name(output, part), self._fleets / part.fleet / "bundle", ref)
                except CanceledError:
                    raise
                except (ProtocolError, SiteError) as error:
                    raise DamagedError(error.message, part.first, part.count) from error
        except BaseException:
            archive.abandon()
            raise
        archive.close()
        return archive.written

    def _check(self) -> None:
        if self._canceled.is_set():
            raise CanceledError(f"the delivery of job {self._delivery.job} was broken off")


def _no_name(path: Path) -> SiteError:
    return SiteError(f"`{path}` names no file", hint="name a file, or a directory with a `/` behind it")


def check_complete(delivery: OutputDelivery) -> None:
    """Raise DamagedError for the first events of `done` that no kept part covers."""
    kept = IntervalSet((part.first, part.first + part.count) for part in delivery.parts)
    for first, end in IntervalSet.parse(delivery.done):
        for at, until in kept.missing(first, end):
            raise DamagedError(f"no output of events {at}-{until - 1} is kept", at, until - at)


def _is_tar(delivery: OutputDelivery, output: Output) -> bool:
    return output.kind is OutputKind.EACH and delivery.spec.events > 1


def _is_spread(delivery: OutputDelivery, output: Output) -> bool:
    return is_spread(delivery.spec, output)


def _manifest(delivery: OutputDelivery, listing: Listing, files: list[File]) -> JobManifest:
    """What the manifest of a directory says from now on: its files are the job's."""
    spec = delivery.spec
    if delivery.number == ARRIVED:
        names = {each.file for each in files}
        listed = [*(each for each in listing.files if each.file not in names), *files]
        done, failed = listing.done, listing.failed
    else:
        found = IntervalSet.parse(delivery.done)
        listed = [*(listing.beside(found, files) if delivery.number > 1 else ()), *files]
        lacking = IntervalSet([(0, spec.events)])
        lacking.remove_all(found)
        done, failed = str(found), str(lacking)
    return JobManifest(
        job=delivery.job,
        campaign=delivery.campaign,
        name=spec.name or "",
        app=spec.app or "command",
        app_digest=delivery.app_digest,
        events=spec.events,
        done=done,
        failed=failed,
        files=listed,
        owner=delivery.owner,
        replaced=listing.replaced(listed),
    )


def _member(delivery: OutputDelivery, part: KeptPart, ref: OutputRef, name: str) -> OutputMember:
    first = seed(delivery.seed_base, part.first)
    return OutputMember(first=part.first, count=part.count, seed=first, name=name, sha256=ref.sha256)


def _row(delivery: OutputDelivery, output: Output, files: list[tuple[Path, File]]) -> OutputRow:
    """What is reported of an output: its file, or the directory of its files."""
    events = _events_of([part for part, _ in _refs(delivery, output.name)])
    target, file = files[0]
    if not _is_spread(delivery, output):
        return OutputRow(
            name=output.name,
            url=target.as_uri(),
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            events=events,
        )
    listed = "".join(f"{each.sha256}  {each.file}\n" for _, each in files)
    return OutputRow(
        name=output.name,
        url=target.parent.as_uri() + "/",
        size_bytes=sum(each.size_bytes for _, each in files),
        sha256=hashlib.sha256(listed.encode()).hexdigest(),
        events=events,
    )


def _events_of(parts: list[KeptPart]) -> str:
    return str(IntervalSet((part.first, part.first + part.count) for part in parts))


def _made_of(delivery: OutputDelivery, name: str) -> str:
    """Which delivery of which events an output is, and of which parts: events that ran again made others."""
    parts = sorted((part.first, part.count, ref.sha256) for part, ref in _refs(delivery, name))
    merged = delivery.merged.get(name)
    digest = hashlib.sha256(repr((parts, merged and merged[1].sha256)).encode()).hexdigest()
    return f"{delivery.number}/{delivery.done}/{digest}"


def _refs(delivery: OutputDelivery, name: str) -> Iterator[tuple[KeptPart, OutputRef]]:
    is_merged = any(each.name == name and each.kind is OutputKind.MERGE for each in delivery.outputs)
    if is_merged and delivery.held:
        return
    fresh = None if is_merged or delivery.fresh is None else IntervalSet.parse(delivery.fresh)
    for part in delivery.parts:
        if fresh is not None and not fresh.touches(part.first, part.first + part.count):
            continue
        for ref in part.outputs:
            if ref.name == name:
                yield part, ref


def _verified(bundle: Path, part: KeptPart, ref: OutputRef) -> Iterator[bytes]:
    try:
        yield from read_chunks(bundle, ref)
    except (ProtocolError, SiteError) as error:
        raise DamagedError(error.message, part.first, part.count) from error


def _member_name(output: Output, part: KeptPart) -> str:
    plain = (
        re.sub(r"[-_.]?\{[^{}]*\}", "", Path(output.path).name) or output.name
    )  # `hits-{event}.root` -> hits.root
    stem, dot, suffix = plain.partition(".")
    last = part.first + part.count - 1
    events = f"{part.first:09}" if part.count == 1 else f"{part.first:09}-{last:09}"
    return f"{stem}-{events}{dot}{suffix}"
