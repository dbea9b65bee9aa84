"""The profile of a traced program: its metadata operations. Read, checked, merged, bounded; knows no tracer.

A profile is one JSON object, written by `tidemill-node trace`. Unknown fields are ignored, so that a newer tracer can
add some. Merging is associative and commutative, runs add up; `tests/fixtures/profiles` holds examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.errors import UNDECODABLE, ConfigError
from tidemill.files import read_bounded

FORMAT = 1

PROFILE_BYTES_MAX = 512 << 20
"""A larger file is refused: 5 million paths of 100 characters."""

PEERS_MAX = 1000
"""Addresses in a merged profile: those that gave the most bytes."""

BYTES_LIKE_AN_OPERATION = 1 << 20
"""When paths are left out, this number of bytes read weighs as much as one operation."""

#: Operations by what they ask of a metadata server: the seed's two columns, and the rest.
CALLS: dict[str, frozenset[str]] = {
    "open": frozenset({"open", "openat", "openat2", "creat"}),
    "stat": frozenset(
        {
            *("stat", "lstat", "fstat", "newfstatat", "fstatat64", "statx", "stat64", "lstat64"),
            *("access", "faccessat", "faccessat2", "statfs"),
        }
    ),
    "readlink": frozenset({"readlink", "readlinkat"}),
    "list": frozenset({"getdents", "getdents64"}),
    "exec": frozenset({"execve", "execveat"}),
    "chdir": frozenset({"chdir", "fchdir", "getcwd"}),
}

Count = Annotated[int, msgspec.Meta(ge=0)]


class Kind:
    """What a path was found to be."""

    FILE = "f"
    DIRECTORY = "d"
    LISTED = "D"  #: a directory that was listed
    LINK = "l"
    ABSENT = "x"
    OTHER = "o"


KINDS = "Ddlfox"
"""All kinds. Where two runs disagree about a path, the first of them wins: who found something is right."""


class Mount(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A file system that was touched, or a prefix that was asked for (then `prefix` names it)."""

    point: str
    type: str
    prefix: str | None = None
    stripe: str | None = None  #: what `lfs getstripe -d` said


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """How often a system call was made, by its end."""

    ok: Count
    errors: dict[str, Count]  #: per name of an errno

    @property
    def failed(self) -> int:
        """All that did not succeed."""
        return sum(self.errors.values())


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Successes and failures of one group of CALLS."""

    ok: Count
    failed: Count


class Area(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one mount point or prefix."""

    area: str
    ops: Count
    failed: Count
    files: Count  #: unique paths that exist
    so: Count  #: of them shared libraries
    py: Count  #: of them Python modules, compiled or not
    bytes_read: Count | None = None  #: sizes of the files that were opened for reading: it reads that at most
    calls: dict[str, Calls] = {}  #: per group of CALLS; empty if the tracer does not report it


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """One second; `s` counts from the start of the first process."""

    s: Count
    ok: Count
    failed: Count


class PathUse(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Operations on one path. `path` is absolute. `bytes`: its size, in each run that opened it for reading."""

    path: str
    kind: str
    ok: Count
    failed: Count
    bytes: Count = 0

    @property
    def exists(self) -> bool:
        """Whether anything was found there."""
        return self.kind != Kind.ABSENT


class RemoteReads(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What was read from connections to one address; an empty address: those beyond the tracer's limit of addresses.

    A wait is the time from the last thing sent to the first bytes that come back. Where several requests are under way
    at once it is a lower bound of what a request takes.
    """

    address: str
    port: Count
    connections: Count
    reads: Count  #: calls that gave something
    bytes: Count
    waits: Count = 0
    wait_us: Count = 0
    wait_log2_us: list[Count] = []  #: waits of less than 2, 4, 8, ... microseconds


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What one run, or several runs together, did to file systems.

    Of several runs `command`, `host`, `started_us`, `cwd` and `env` are those of the earliest; `exit` and `signal`
    those of the worst; everything else is a sum, or a union. `truncated`: paths were left out, and what is counted
    from paths (`files`, `so`, `py`) is a lower bound. `left_out`: why, in the words of crates/trace/src/counts.rs;
    empty if that is not known.
    """

    format: int
    command: list[str]
    runs: Annotated[int, msgspec.Meta(ge=1)]
    wall_us: Count
    exit: int | None
    signal: int | None
    host: str
    started_us: int
    cwd: str
    env: dict[str, str]
    mounts: list[Mount]
    ops: dict[str, Operation]
    areas: list[Area]
    bins: list[Bin]
    paths: list[PathUse]
    truncated: bool
    reads: list[RemoteReads] = []  #: by address; empty if the tracer does not report it
    reads_missed: Count = 0  #: connections that could not be watched
    left_out: list[str] = []

    @property
    def ops_total(self) -> int:
        """All operations."""
        return sum(each.ok + each.failed for each in self.ops.values())

    @property
    def failed_total(self) -> int:
        """Those that did not succeed."""
        return sum(each.failed for each in self.ops.values())


class _Head(msgspec.Struct):
    format: int


_decode_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(Profile).decode


def read_profile(path: Path) -> Profile:
    """A profile, checked. Raises ConfigError that says what is wrong with the file, SiteError."""
    content = read_bounded(path, PROFILE_BYTES_MAX)
    if content is None:
        raise ConfigError(f"failed to read profile `{path}`: No such file")
    return parse_profile(content, source=str(path))


def parse_profile(content: bytes, *, source: str) -> Profile:
    """A profile from its text, checked; `source` is what errors call it. Raises ConfigError."""
    try:
        head = _decode_head(content)
    except UNDECODABLE as error:
        raise _wrong(source, content, error) from error
    if head.format != FORMAT:
        raise ConfigError(
            f"`{source}` is a profile of format {head.format}, this program reads format {FORMAT}",
            hint="trace again, or take the version of Tidemill that wrote it",
        )
    try:
        profile = _decode(content)
    except UNDECODABLE as error:
        raise _wrong(source, content, error) from error
    for use in profile.paths:
        if not use.path.startswith("/") or use.kind not in KINDS or len(use.kind) != 1:
            raise ConfigError(
                f"`{source}` is not a valid profile: path `{use.path}` of kind `{use.kind}`",
                hint=f"paths are absolute, kinds are one of `{KINDS}`",
            )
    return profile


def _wrong(source: str, content: bytes, error: Exception) -> ConfigError:
    if not content.strip():
        return ConfigError(f"`{source}` is empty, not a profile", hint="did the traced command end?")
    if "truncated" in str(error):
        return ConfigError(
            f"profile `{source}` is cut after {len(content)} bytes: {error}",
            hint="the disk was full or the copy incomplete: trace or copy again",
        )
    return ConfigError(
        f"`{source}` is not a profile: {error}", hint="profiles are written by `tidemill trace -o FILE`"
    )


def encode_profile(profile: Profile) -> bytes:
    """The profile's JSON text, ending in a newline; equal profiles give equal bytes."""
    return msgspec.json.encode(profile, order="deterministic") + b"\n"


def merge(profiles: Sequence[Profile]) -> Profile:
    """All runs of at least one profile as one; the order, and what was merged before, make no difference."""
    if not profiles:
        raise ConfigError("there is no profile to merge")
    if len(profiles) == 1:
        return profiles[0]
    first = min(profiles, key=_head)
    paths = _merged_paths(profiles)
    _, signal, end = max((each.signal is not None, each.signal or 0, each.exit or 0) for each in profiles)
    return Profile(
        format=FORMAT,
        command=first.command,
        runs=sum(each.runs for each in profiles),
        wall_us=sum(each.wall_us for each in profiles),
        exit=end if not signal else None,
        signal=signal or None,
        host=first.host,
        started_us=first.started_us,
        cwd=first.cwd,
        env=first.env,
        mounts=_merged_mounts(profiles),
        ops=_merged_ops(profiles),
        areas=_merged_areas(profiles, paths),
        bins=_merged_bins(profiles),
        paths=paths,
        truncated=any(each.truncated for each in profiles),
        reads=merged_reads(reads for each in profiles for reads in each.reads),
        reads_missed=sum(each.reads_missed for each in profiles),
        left_out=sorted({cause for each in profiles for cause in each.left_out}),
    )


def merged_reads(reads: Iterable[RemoteReads]) -> list[RemoteReads]:
    """Sums by address, those that gave the most bytes first."""
    found: dict[tuple[str, int], RemoteReads] = {}
    for each in reads:
        known = found.get((each.address, each.port))
        found[each.address, each.port] = each if known is None else _added(known, each)
    return sorted(found.values(), key=lambda each: (-each.bytes, each))


def _added(one: RemoteReads, other: RemoteReads) -> RemoteReads:
    return RemoteReads(
        address=one.address,
        port=one.port,
        connections=one.connections + other.connections,
        reads=one.reads + other.reads,
        bytes=one.bytes + other.bytes,
        waits=one.waits + other.waits,
        wait_us=one.wait_us + other.wait_us,
        wait_log2_us=added_bins(one.wait_log2_us, other.wait_log2_us),
    )


def added_bins(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The sum of two histograms, of which one may be shorter."""
    return [sum(pair) for pair in zip_longest(one, other, fillvalue=0)]


def _head(profile: Profile) -> tuple[int, str, list[str], str, list[tuple[str, str]]]:
    """Orders profiles by their start; equal heads are the same head."""
    return profile.started_us, profile.host, profile.command, profile.cwd, sorted(profile.env.items())


def _merged_mounts(profiles: Iterable[Profile]) -> list[Mount]:
    found: dict[tuple[str, str | None], Mount] = {}
    for mount in (mount for profile in profiles for mount in profile.mounts):
        key = (mount.point, mount.prefix)
        known = found.get(key, mount)
        stripes = [each for each in (known.stripe, mount.stripe) if each is not None]
        found[key] = Mount(
            point=mount.point,
            prefix=mount.prefix,
            type=min(known.type, mount.type),
            stripe=min(stripes, default=None),
        )
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] or ""))]


def _merged_ops(profiles: Iterable[Profile]) -> dict[str, Operation]:
    ok: Counter[str] = Counter()
    errors: dict[str, Counter[str]] = {}
    for profile in profiles:
        for name, each in profile.ops.items():
            ok[name] += each.ok
            errors.setdefault(name, Counter()).update(each.errors)
    return {name: Operation(ok=ok[name], errors=dict(sorted(errors[name].items()))) for name in sorted(ok)}


def _merged_bins(profiles: Iterable[Profile]) -> list[Bin]:
    ok: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for each in (each for profile in profiles for each in profile.bins):
        ok[each.s] += each.ok
        failed[each.s] += each.failed
    return [Bin(s=s, ok=ok[s], failed=failed[s]) for s in sorted(ok)]


def _merged_paths(profiles: Iterable[Profile]) -> list[PathUse]:
    found: dict[str, PathUse] = {}
    for use in (use for profile in profiles for use in profile.paths):
        known = found.get(use.path)
        if known is None:
            found[use.path] = use
        else:
            kind = min(known.kind, use.kind, key=KINDS.index)
            found[use.path] = PathUse(
                use.path, kind, known.ok + use.ok, known.failed + use.failed, known.bytes + use.bytes
            )
    return [found[path] for path in sorted(found)]


def _merged_areas(profiles: Sequence[Profile], paths: Iterable[PathUse]) -> list[Area]:
    """Operations are added per name of an area, unique files are counted again."""
    told = [area for profile in profiles for area in profile.areas]
    unique = count_unique(paths, {area.area for area in told})
    merged = []
    for name in sorted(unique):
        parts = [area for area in told if area.area == name]
        read = [area.bytes_read for area in parts if area.bytes_read is not None]
        files, so, py = unique[name]
        merged.append(
            Area(
                area=name,
                ops=sum(area.ops for area in parts),
                failed=sum(area.failed for area in parts),
                files=files,
                so=so,
                py=py,
                bytes_read=sum(read) if read else None,
                calls=_merged_calls(parts),
            )
        )
    return merged


def _merged_calls(parts: Iterable[Area]) -> dict[str, Calls]:
    found: dict[str, Calls] = {}
    for name, each in (item for area in parts for item in area.calls.items()):
        calls = found.get(name)
        found[name] = (
            each if calls is None else Calls(ok=calls.ok + each.ok, failed=calls.failed + each.failed)
        )
    return {name: found[name] for name in sorted(found)}


def count_unique(paths: Iterable[PathUse], areas: Iterable[str]) -> dict[str, tuple[int, int, int]]:
    """Paths that exist, shared libraries and Python modules among them, for each area (an empty one included)."""
    counts = {area: [0, 0, 0] for area in areas}
    find = AreaFinder(counts)
    for use in paths:
        area = find.area_of(use.path)
        if area is None or not use.exists:
            continue
        count = counts[area]
        count[0] += 1
        count[1] += is_library(use.path)
        count[2] += is_python(use.path)
    return {area: (files, so, py) for area, (files, so, py) in counts.items()}


class AreaFinder:
    """Which of some areas a path is in: the longest prefix wins. Remembers directories: a million paths are cheap."""

    def __init__(self, areas: Iterable[str]) -> None:
        self._areas = {area.rstrip("/") or "/" for area in areas}
        self._names = {area.rstrip("/") or "/": area for area in areas}
        self._known: dict[str, str | None] = {}

    def area_of(self, path: str) -> str | None:
        """The area's name, None where the path is in none."""
        seen = []
        at = path
        while at not in self._areas and at not in self._known:
            seen.append(at)
            parent = at.rpartition("/")[0] or "/"
            if parent == at:
                break
            at = parent
        area = self._names.get(at) or self._known.get(at)
        for each in seen[1:]:  # directories: files are asked for once
            self._known[each] = area
        return area


def is_library(path: str) -> bool:
    """`libm.so`, `libm.so.6`, `_ssl.cpython-311-x86_64-linux-gnu.so`; not `ld.so.cache`."""
    name, dot, version = path.rpartition("/")[2].rpartition(".so")
    return bool(dot) and bool(name) and (not version or version[:2].lstrip(".").isdigit())


def is_python(path: str) -> bool:
    """`x.py`, `x.pyc`."""
    return path.endswith((".py", ".pyc"))


def per_run(profile: Profile, areas: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Operations and bytes of one run, on average and rounded up, for each of some prefixes; from paths, so what was
    left out of a truncated profile is missing."""
    names = list(areas)
    counts = {name: [0, 0] for name in names}
    find = AreaFinder(names)
    for use in profile.paths:
        area = find.area_of(use.path)
        if area is not None:
            counts[area][0] += use.ok + use.failed
            counts[area][1] += use.bytes
    return {area: (-(-ops // profile.runs), -(-read // profile.runs)) for area, (ops, read) in counts.items()}


def bounded(profile: Profile, paths_max: int) -> Profile:
    """The profile with at most `paths_max` paths, those with the most operations and bytes, and at most PEERS_MAX
    addresses, those that sent the most bytes."""
    if len(profile.reads) > PEERS_MAX:
        profile = msgspec.structs.replace(profile, reads=profile.reads[:PEERS_MAX], truncated=True)
    if len(profile.paths) <= paths_max:
        return profile

    def dearest_first(use: PathUse) -> tuple[int, str]:
        return -use.ok - use.failed - use.bytes // BYTES_LIKE_AN_OPERATION, use.path

    kept = sorted(profile.paths, key=dearest_first)[:paths_max]
    left_out = sorted({*profile.left_out, "paths"})
    return msgspec.structs.replace(profile, paths=sorted(kept), truncated=True, left_out=left_out)
